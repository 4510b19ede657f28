"""The federation of diabetes.yaml from Python: arrays instead of files. The results are the same."""

from make_clinics import CLINICS, patients

import polyfed

holdings = {clinic: patients(clinic) for clinic in CLINICS}
settings = {
    "seed": 10,
    "task": {"name": "regression", "scale": {"mean": 150, "std": 80}, "unit_name": "points"},
    "data": {"test": 0.5, "validation": 0.2, "public": {"source": "share", "share": 0.3}},
    "models": {"names": ["mlp-small"], "server": "mlp-small"},
    "training": {"epochs": 2, "lr": 0.02},
    "evaluate": {"patience": 8},
}

fedmd = {
    "name": "fedmd",
    "public_training": {"lr": 0.02},
    "private_training": {"lr": 0.02},
    "distil": {"lr": 0.1, "loss": "l2"},
}

if __name__ == "__main__":
    for method in ("local", fedmd):
        done = polyfed.run(settings, method=method, rounds=40, data=holdings)
        last = done.summary["last"]
        rounds = done.summary["rounds"]
        print(
            f"{done.config.method.name}: {last['own']['mean']:.1f} points on own test data after {rounds} rounds"
        )
    model = polyfed.load_model(done.path, "plain")
    print(model.predict(holdings["plain"][0][:3]).answers)  # in plain's own units
