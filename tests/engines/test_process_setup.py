from __future__ import annotations

import subprocess
import sys

import pytest

from polyfed.engines import process_setup
from polyfed.learn import Training
from polyfed.methods.fedavg import FedAvg, FedAvgSettings


def test_only_a_method_of_the_users_waits_for_the_import_of_torch_optim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    imported: list[str] = []
    monkeypatch.setattr("importlib.import_module", imported.append)
    settings = FedAvgSettings()
    process_setup.warm_up(FedAvg(settings, Training()))
    assert imported == []
    own = type("Own", (FedAvg,), {"__module__": "own_method"})
    process_setup.warm_up(own(settings, Training()))
    assert imported == ["torch._dynamo"]


@pytest.mark.parametrize("statement", ["import polyfed", "import polyfed.cli.commands"])
def test_what_a_run_does_not_need_is_not_imported(statement: str) -> None:
    """Each of these would take a tenth of a second of every launch, or much more."""
    slow = ("matplotlib", "torch._dynamo", "sklearn", "scipy", "pandas", "pyarrow", "huggingface_hub")
    code = f"import sys; {statement}; print([name for name in {slow!r} if name in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert said.strip() == "[]"
