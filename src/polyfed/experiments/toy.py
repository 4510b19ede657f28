"""The toy of FedORION's Figure 1: points in the plane, three classes, three clients with different small networks.

The plane's disc is divided into three bent sectors, one for each class. Every client has seen two of the classes and
nothing of the third; what it says there is anybody's guess. A server that has learnt from all of them, through noise in
place of public data where the method needs some, should know all three. The paper says little of its toy (two features,
three classes, few neurons, ReLU then BatchNorm after every layer but the last): points and sizes are chosen here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import nn

from polyfed import learn, models
from polyfed.data import InputForm
from polyfed.federation.declaration import Need
from polyfed.federation.method import find
from polyfed.runs import api
from polyfed.runs.config import read_config
from polyfed.runs.rounds import Run
from polyfed.runs.trained import form_of, predict
from polyfed.tasks import CLASSIFICATION

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

METHOD = "fedorion"
"""What is shown unless another method is asked for."""

CLASSES = 3
SEEN = {"first": (0, 1), "second": (1, 2), "third": (2, 0)}
"""The clients, and which classes each has seen."""

HIDDEN = {"mlp-8": (8,), "mlp-16-8": (16, 8), "mlp-12-12-8": (12, 12, 8)}
"""The clients' networks: neurons of each hidden layer. The last is equal, for methods whose clients share features."""

SHARED = "mlp-16-16-8"
SHARED_HIDDEN = (16, 16, 8)
"""The server's network; every client's, where a method needs one architecture for all."""

POINTS = 80  # of each class that a client has seen
BEND = 1.6  # radians by which a sector turns from the centre to the rim
GRID = 41  # points a side of the square in which accuracy is measured
NOISE_ROWS = 1000
SETTINGS: dict[str, dict[str, Any]] = {"fedmd": {"public_training": None, "distil": {"loss": "kl"}}}
"""What is set for single methods: noise has no labels; and with kl, FedMD's server measured 93 % here, 84 % with l1."""


def true_class(points: Floats) -> Ints:
    """The class of each point (rows × 2): which of three sectors it lies in, bent more the further out it is."""
    angle = np.arctan2(points[:, 1], points[:, 0]) - BEND * np.hypot(points[:, 0], points[:, 1])
    return np.floor(angle / (2 * np.pi / CLASSES)).astype(np.int64) % CLASSES


def square(side: int) -> Floats:
    """The points of a regular grid from −1 to 1, row by row from below."""
    line = np.linspace(-1, 1, side)
    return np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)


def grid() -> Floats:
    """The points at which accuracy is measured: those of a grid that lie in the disc of radius 1."""
    return _in_disc(square(GRID))


def _in_disc(points: Floats) -> Floats:
    inside: Floats = points[np.hypot(points[:, 0], points[:, 1]) <= 1]
    return inside


def seen_points(seed: int) -> dict[str, tuple[Floats, Ints]]:
    """What each client has seen: points drawn evenly from the disc, and their classes."""
    rng = np.random.default_rng(seed)
    seen = {}
    for client, classes in SEEN.items():
        points = _in_disc(rng.uniform(-1, 1, (40 * POINTS, 2)))
        label = true_class(points)
        rows = np.concatenate([np.flatnonzero(label == number)[:POINTS] for number in classes])
        seen[client] = points[rows], label[rows]
    return seen


def write_points(folder: Path, seed: int) -> Path:
    """Tables of what clients have seen (train.csv) and of the true classes on the grid (test.csv)."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {
        "train.csv": [(client, *rows) for client, rows in seen_points(seed).items()],
        "test.csv": [("first", grid(), true_class(grid()))],
    }
    for name, parts in tables.items():
        lines = [
            f"{x:.6f},{y:.6f},{label},{client}"
            for client, points, labels in parts
            for (x, y), label in zip(points, labels, strict=True)
        ]
        (folder / name).write_text("\n".join(["x,y,class,client", *lines]) + "\n")
    return folder


def network(hidden: tuple[int, ...]) -> models.Network:
    """A small MLP: ReLU, then BatchNorm, after every layer but the last."""
    layers: list[nn.Module] = []
    inputs = 2
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU(), nn.BatchNorm1d(width)]
        inputs = width
    return models.Network(nn.Sequential(*layers), nn.Linear(inputs, CLASSES))


def makers(*, alike: bool) -> dict[str, Callable[[], nn.Module]]:
    """Functions that make the models, by name; alike: the one that every client has."""
    sizes = {SHARED: SHARED_HIDDEN} if alike else {**HIDDEN, SHARED: SHARED_HIDDEN}
    return {name: lambda hidden=hidden: network(hidden) for name, hidden in sizes.items()}  # type: ignore[misc]


def prepare(method: str, points: Path, out: Path, rounds: int, seed: int = 0) -> Run:
    """A run of a method on the toy, ready to go, with what the method needs."""
    settings = {"name": method, **SETTINGS.get(method, {})}
    if "global_" in find(method).Settings.model_fields:  # a server that may have a model has one
        settings["global"] = True
    needs = read_config({"method": settings}).make_method().declared.needs
    public: dict[str, Any] = {"source": "none"}
    if Need.PUBLIC_LABELS in needs:
        public = {"source": "share", "share": 0.2}
    elif Need.PUBLIC in needs:
        public = {"source": "noise", "kind": "gaussian", "rows": NOISE_ROWS}
    alike = Need.COMMON_ARCHITECTURE in needs
    config = {
        "name": "toy",
        "method": settings,
        "rounds": rounds,
        "seed": seed,
        "data": {
            "source": str(points),
            "label": "class",
            "partition": {"kind": "natural", "column": "client"},
            "public": public,
            "validation": 0,
            "test": 0,
        },
        "models": {
            "names": [SHARED] if alike else list(HIDDEN),
            "server": SHARED if Need.SERVER_MODEL in needs else None,
        },
        "training": {"epochs": 2, "batch": 16, "lr": 0.05, "momentum": 0.9},
        "evaluate": {"every": max(1, rounds // 5)},
    }
    server = Need.SERVER_MODEL in needs
    made = {name: maker for name, maker in makers(alike=alike).items() if alike or server or name != SHARED}
    # A federation of three tiny networks is done before worker processes would have started.
    return api.prepare(config, models=made, out=out, workers=1)


@dataclass(frozen=True, eq=False)
class Region:
    """What a model says of points of the plane.

    title: whose model it is. classes: of the points that were asked for. accuracy: on the grid of true points.
    """

    title: str
    classes: Ints
    accuracy: float


def regions(run: Run, points: Floats) -> dict[str, Region]:
    """What each client's model, and the server's under "server", says of these points at the end of a run.

    Where the server has no model of its own, and clients are served shared ones, the server's answer is the mean of
    the logits of all that are served (FedORION's score of FedDF). Where there are none either, it has no region.
    """
    roster = run.federation.roster
    own = {facts.name: _loaded(run, facts.name, facts.architecture) for facts in roster}
    asked = [(facts.name, facts.architecture, own[facts.name]) for facts in roster]
    if run.server.model is not None:
        asked.append(("server", SHARED, _loaded(run, "server", SHARED)))
    elif all(run.method.serves(run.server, facts) is not None for facts in roster):
        served = {facts.architecture: own[facts.name] for facts in roster}
        words = f"{len(served)} served models, mean of logits" if len(served) > 1 else f"served, {SHARED}"
        asked.append(("server", words, learn.Ensemble(list(served.values()))))
    true, form = grid(), form_of(run.path, "server")
    found = {}
    for name, words, model in asked:
        right = _classes(model, form, true) == true_class(true)
        found[name] = Region(f"{name}: {words}", _classes(model, form, points), float(right.mean()))
    return found


def _loaded(run: Run, name: str, architecture: str) -> nn.Module:
    return api.load_model(run.path, name, make=makers(alike=False)[architecture])


def _classes(model: nn.Module, form: InputForm, points: Floats) -> Ints:
    said = predict(model, form, CLASSIFICATION, {"x": points[:, 0], "y": points[:, 1]})
    return np.asarray(said.probabilities.argmax(axis=1), dtype=np.int64)
