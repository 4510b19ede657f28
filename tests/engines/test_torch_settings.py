"""What a step does to PyTorch's settings ends with the step, on every engine alike."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.conftest import MakeRun
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from polyfed import (
    Client,
    Declaration,
    Fields,
    Fleet,
    Kind,
    Method,
    MethodSettings,
    Server,
    client_step,
    learn,
)
from polyfed.engines import Inline, Pool
from polyfed.engines.torch_settings import SETTINGS, settings_put_back
from polyfed.testing import result_of


class Nothing(TorchFunctionMode):
    """Every operation gives nothing."""

    def __torch_function__(self, *_all: Any, **_named: Any) -> None:
        return None


class Zero(TorchDispatchMode):
    def __torch_dispatch__(self, *_all: Any, **_named: Any) -> int:
        return 0


def enter_modes() -> None:
    Zero().__enter__()  # type: ignore[no-untyped-call]
    Nothing().__enter__()  # type: ignore[no-untyped-call]


CHANGES: dict[str, Callable[[], object]] = {
    "gradients": lambda: torch.set_grad_enabled(False),
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "device": lambda: torch.set_default_device("meta"),
    "threads": lambda: torch.set_num_threads(3),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "precision": lambda: torch.set_float32_matmul_precision("medium"),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "anomalies": lambda: torch.autograd.set_detect_anomaly(True),
    "mkldnn": lambda: torch._C._set_mkldnn_enabled(False),
    "denormals": lambda: torch.set_flush_denormal(True),
    "folder": lambda: os.chdir("/"),
    "signals": lambda: [signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGINT)],
    "recursion": lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 100),
    "digits": lambda: sys.set_int_max_str_digits(0),
    "modes": enter_modes,
}


def settings() -> dict[str, object]:
    return {name: read() for name, (read, _) in SETTINGS.items()}


def test_every_setting_has_a_change_here() -> None:
    assert CHANGES.keys() == SETTINGS.keys()


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_is_put_back(name: str) -> None:
    before = settings()
    with settings_put_back():
        CHANGES[name]()
        assert SETTINGS[name][0]() != before[name]
    assert settings() == before


def test_settings_are_put_back_after_an_exception() -> None:
    before = settings()
    with pytest.raises(ValueError, match="on purpose"), settings_put_back():
        torch.set_default_dtype(torch.float64)
        raise ValueError("on purpose")
    assert settings() == before


class UpsettingSettings(MethodSettings):
    upset: bool = False
    fail: bool = False


class Upsetting(Method):
    """The first client changes every setting once it has trained."""

    name = "upsetting"
    Settings = UpsettingSettings
    settings: UpsettingSettings

    def declare(self) -> Declaration:
        return Declaration(sends={"norm": Kind.METRICS})

    @client_step
    def train(self, me: Client) -> Fields:
        learn.supervised(me.model, *me.tensors(me.train), self.training, me.rng("batches"))
        norm = sum(float(weight.detach().norm()) for weight in me.model.parameters())
        if me.facts.index == 0 and self.settings.upset:
            for change in CHANGES.values():
                change()
        if me.facts.index == 0 and self.settings.fail:
            raise ValueError("after that, it fails")
        return {"norm": norm}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        fleet.ask(self.train, fleet.sample())


@pytest.mark.parametrize("fail", [False, True])
def test_a_client_that_changes_pytorchs_settings_changes_nothing_for_others(
    make_run: MakeRun, fail: bool
) -> None:
    results = []
    before = settings()
    for upset, engine in ((False, Inline()), (True, Inline()), (True, Pool(1)), (True, Pool(2))):
        run = make_run(Upsetting, engine, settings={"upset": upset, "fail": fail}, evaluate={"every": 1})
        run.go()
        results.append(result_of(run.path))
    assert all(result == results[0] for result in results)
    assert settings() == before
