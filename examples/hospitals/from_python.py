"""The federation of hospitals.yaml from Python: arrays of one's own, functions that make models, no files."""

import numpy as np
from sklearn.datasets import load_breast_cancer
from torch import nn

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
models = {
    "logistic": lambda: nn.Linear(10, 2),
    "small": lambda: nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2)),
    "large": lambda: nn.Sequential(
        nn.Linear(10, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2)
    ),
}
settings = {
    "data": {"test": 0.6, "public": {"source": "share", "share": 0.2}},
    "models": {"clients": {"north": "logistic", "south": "large", "west": "small"}, "server": "small"},
}

if __name__ == "__main__":
    for method in ("local", "fedmd"):
        done = polyfed.run(settings, method=method, rounds=10, data=holdings, models=models)
        print(f"{method}: {done.summary['last']['own']['mean']:.1%} on own test data")
    model = polyfed.load_model(done.path, "south", make=models["large"])
    print(model.predict(holdings["south"][0][:3]).classes)  # in south's own units
