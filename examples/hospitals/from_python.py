"""The federation of hospitals.yaml from Python: arrays and functions instead of files. The results are the same."""

import numpy as np
from hospital_models import logistic_regression, with_shortcut
from sklearn.datasets import load_breast_cancer

import polyfed

data = load_breast_cancer()
order = np.random.default_rng(0).permutation(len(data.target))


def patients(rows: slice, units: float) -> tuple[np.ndarray, np.ndarray]:
    return data.data[order[rows], :10] * units, np.array(["malignant", "benign"])[data.target[order[rows]]]


holdings = {
    "north": patients(slice(190), units=1),
    "south": patients(slice(190, 380), units=100),
    "west": {"train": patients(slice(380, 450), units=0.01), "test": patients(slice(450, None), units=0.01)},
}
models = {"logistic": lambda: logistic_regression((10,), 2), "shortcut": lambda: with_shortcut((10,), 2)}
settings = {
    "data": {"test": 0.6, "public": {"source": "share", "share": 0.2}},
    "models": {"clients": {"north": "logistic", "south": "mlp", "west": "shortcut"}, "server": "mlp-small"},
}

if __name__ == "__main__":
    for method in ("local", "fedmd"):
        done = polyfed.run(settings, method=method, rounds=10, data=holdings, models=models)
        print(f"{method}: {done.summary['last']['own']['mean']:.1%} on own test data")
    model = polyfed.load_model(done.path, "south")
    print(model.predict(holdings["south"][0][:3]).classes)  # in south's own units
