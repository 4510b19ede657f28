"""polyfed: federated learning between different models. What travels is knowledge.

import polyfed
done = polyfed.run(method="fedavg", rounds=10, models=[make_model], data=(x, y))
print(done.summary["last"]["own"])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from polyfed.errors import ClientFailure, PolyfedError, UserError

if TYPE_CHECKING:  # imported at their first use: PyTorch takes seconds, and `polyfed --help` does not need it
    from polyfed import learn, methods, tasks
    from polyfed.experiments.sweep import SweepResult, sweep
    from polyfed.federation import (
        ANY_TASK,
        CLASSES,
        LABELS,
        TABLES,
        Assistant,
        Client,
        Counts,
        Declaration,
        Facts,
        FederationFacts,
        Fields,
        Fleet,
        Indices,
        Kind,
        LikeWeights,
        Method,
        MethodSettings,
        Need,
        Number,
        OwnWeights,
        Probabilities,
        Reply,
        RowNumbers,
        Server,
        Table,
        Weights,
        client_step,
        reads_only,
        register,
        server_step,
        stacks,
    )
    from polyfed.learn import Distillation, Training
    from polyfed.runs.api import load_model, prepare, reopen, resume, run
    from polyfed.runs.export import export
    from polyfed.runs.rounds import Run
    from polyfed.runs.trained import Predictions, TrainedModel

__version__ = "0.1.0"

__all__ = [
    "ANY_TASK",
    "CLASSES",
    "LABELS",
    "TABLES",
    "Assistant",
    "Client",
    "ClientFailure",
    "Counts",
    "Declaration",
    "Distillation",
    "Facts",
    "FederationFacts",
    "Fields",
    "Fleet",
    "Indices",
    "Kind",
    "LikeWeights",
    "Method",
    "MethodSettings",
    "Need",
    "Number",
    "OwnWeights",
    "PolyfedError",
    "Predictions",
    "Probabilities",
    "Reply",
    "RowNumbers",
    "Run",
    "Server",
    "SweepResult",
    "Table",
    "TrainedModel",
    "Training",
    "UserError",
    "Weights",
    "client_step",
    "export",
    "learn",
    "load_model",
    "methods",
    "prepare",
    "reads_only",
    "register",
    "reopen",
    "resume",
    "run",
    "server_step",
    "stacks",
    "sweep",
    "tasks",
]

_ROOMS = ("learn", "methods", "tasks")
_HOMES = {
    "polyfed.experiments.sweep": ("SweepResult", "sweep"),
    "polyfed.learn": ("Distillation", "Training"),
    "polyfed.runs.api": ("load_model", "prepare", "reopen", "resume", "run"),
    "polyfed.runs.export": ("export",),
    "polyfed.runs.rounds": ("Run",),
    "polyfed.runs.trained": ("Predictions", "TrainedModel"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """What is exported, imported at its first use."""
    if name in _ROOMS:
        return importlib.import_module(f"polyfed.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'polyfed' has no attribute '{name}'")
    found = getattr(importlib.import_module(_HOME_OF.get(name, "polyfed.federation")), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
