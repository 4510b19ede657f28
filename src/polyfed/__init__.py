"""polyfed: federated learning between different models. What travels is knowledge.

import polyfed
done = polyfed.run(method="fedavg", rounds=10, models=[make_model], data=(x, y))
print(done.summary["last"]["own"])
"""

from polyfed import methods
from polyfed.errors import PolyfedError, UserError
from polyfed.experiments.sweep import SweepResult, sweep
from polyfed.federation.message import Fields, Kind, Weights
from polyfed.federation.method import Method, MethodSettings, Need, client_step, reads_only, register
from polyfed.federation.nodes import Client, Facts, Server
from polyfed.learn import Training
from polyfed.runs.api import load_model, prepare, reopen, resume, run
from polyfed.runs.rounds import Run

__version__ = "0.1.0"

__all__ = [
    "Client",
    "Facts",
    "Fields",
    "Kind",
    "Method",
    "MethodSettings",
    "Need",
    "PolyfedError",
    "Run",
    "Server",
    "SweepResult",
    "Training",
    "UserError",
    "Weights",
    "client_step",
    "load_model",
    "methods",
    "prepare",
    "reads_only",
    "register",
    "reopen",
    "resume",
    "run",
    "sweep",
]
