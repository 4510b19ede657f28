"""polyfed: federated learning between different models. What travels is knowledge.

import polyfed
done = polyfed.run(method="fedavg", rounds=10, models=[make_model], data=(x, y))
print(done.summary["last"]["own"])
"""

from polyfed import learn, methods
from polyfed.errors import PolyfedError, UserError
from polyfed.experiments.sweep import SweepResult, sweep
from polyfed.federation import (
    Assistant,
    Client,
    Counts,
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
    Probabilities,
    Reply,
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
from polyfed.runs.rounds import Run

__version__ = "0.1.0"

__all__ = [
    "Assistant",
    "Client",
    "Counts",
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
    "PolyfedError",
    "Probabilities",
    "Reply",
    "Run",
    "Server",
    "SweepResult",
    "Table",
    "Training",
    "UserError",
    "Weights",
    "client_step",
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
]
