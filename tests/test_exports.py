"""What `polyfed` exports: names are added on purpose, and none disappears unnoticed."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

import polyfed

EXPORTED = [
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


def test_the_exported_names_are_these_and_no_others() -> None:
    assert polyfed.__all__ == EXPORTED


def test_every_exported_name_is_there() -> None:
    assert all(hasattr(polyfed, name) for name in polyfed.__all__)


def test_a_function_is_not_also_a_modules_name() -> None:
    """`import polyfed.run` must not give something else than `polyfed.run`."""
    modules = {name for name in vars(polyfed) if isinstance(getattr(polyfed, name), types.ModuleType)}
    assert not modules & {"run", "resume", "prepare", "sweep", "register"}


def test_what_is_exported_says_what_it_is() -> None:
    classes = [getattr(polyfed, name) for name in polyfed.__all__ if isinstance(getattr(polyfed, name), type)]
    assert all(kind.__doc__ for kind in classes)


def test_importing_polyfed_imports_no_pytorch() -> None:
    code = "import sys, polyfed; dir(polyfed); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_name_that_is_not_exported_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'fedavg'"):
        polyfed.fedavg  # noqa: B018
