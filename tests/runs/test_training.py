"""Training settings in runs: the same bits on every engine and when resumed, and what cannot be is refused before."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tests.conftest import Command, MakeRun

import polyfed
from polyfed import plug_ins
from polyfed.errors import ConfigError, MethodError, ModelError
from polyfed.federation.method import registered
from polyfed.runs.config import read_config
from polyfed.testing import check_method, result_of

OWN = """
from pathlib import Path
import torch

Path("sprung").write_text("imported")

def shift(batch, generator):
    return batch + 0.1 * torch.rand(len(batch), *[1] * (batch.dim() - 1), generator=generator)

def narrower(batch):
    return batch[:, :, 1:]
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own_shift.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    forget()


def forget() -> None:
    plug_ins.named_function.cache_clear()
    sys.modules.pop("own_shift", None)
    Path("sprung").unlink(missing_ok=True)


KEPT = {"keep_optimiser": True}
FALLS = {"schedule": {"kind": "cosine", "warm_up": 1}, "within": {"kind": "linear", "warm_up": 2}}
STEPS = {
    "schedule": {"kind": "step", "every": 1, "factor": 0.5},
    "within": {"kind": "step", "every": 2, "factor": 0.5},
}
PUBLIC = {"data": {"public": {"source": "share", "share": 0.2}}}
SERVER = {"models": {"names": ["mlp-small"], "server": "mlp-small"}}
CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "a class that is kept": ("local", {"optimiser": "Adagrad", "lr": 0.02, **KEPT}, {}),
    "a class with settings": (
        "fedavg",
        {"optimiser": {"name": "RMSprop", "centered": True}, "lr": 0.003, "momentum": 0.5},
        {},
    ),
    "falling rates": ("fedavg", FALLS, {}),
    "rates in steps": ("scaffold", {"schedule": STEPS["schedule"]}, {}),
    "clipped entries": ("local", {"clip_value": 0.01}, {}),
    "balanced rows": ("local", {"sampling": "balanced", "steps": 5}, {}),
    "augmentation by a function": ("fedavg", {"augment": "own_shift:shift"}, {}),
    "mutual learning": (
        "fml",
        {"optimiser": "NAdam", "lr": 0.003, **KEPT, **STEPS, "sampling": "balanced"},
        SERVER,
    ),
    "fedkf": (
        {"name": "fedkf", "width": 16, "noise": 10},
        {**FALLS, "sampling": "balanced", "augment": "own_shift:shift", "clip_value": 0.1},
        {},
    ),
    "fedh2l": (
        {"name": "fedh2l", "batches": 4},
        {
            **{"optimiser": {"name": "Adagrad", "initial_accumulator_value": 0.1}, "schedule": "linear"},
            **{"sampling": "balanced", "augment": "own_shift:shift", "clip_value": 0.1},
        },
        PUBLIC,
    ),
    "both kinds of rows at once": (
        "cronus",
        {**FALLS, "optimiser": {"name": "RMSprop", "alpha": 0.9}, "lr": 0.003},
        PUBLIC,
    ),
    "distillation": (
        {
            **{"name": "dsfl", "global": True},
            "distil": {
                **FALLS,
                "optimiser": "Adamax",
                **KEPT,
                "augment": "own_shift:shift",
                "clip_value": 1.0,
            },
        },
        {},
        {**PUBLIC, **SERVER},
    ),
}


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("case", CASES)
def test_every_engine_and_a_resumed_run_give_the_same_bits(
    case: str, small: dict[str, Any], tmp_path: Path
) -> None:
    method, training, more = CASES[case]
    config = {**small, **{key: {**small[key], **value} for key, value in more.items()}}
    config |= {"method": method, "training": {**small["training"], **training}}
    whole = polyfed.run(config, out=tmp_path / "inline", workers=1)
    pool = polyfed.run(config, out=tmp_path / "pool", workers=2, engine="pool")
    begun = polyfed.prepare(config, out=tmp_path / "begun", workers=2, engine="pool")
    begun.go(lambda run: run.stop())
    begun.close()
    resumed = polyfed.resume(begun.path, workers=1, trust=["own_shift"])
    assert result_of(pool.path) == result_of(whole.path)
    assert result_of(resumed.path) == result_of(whole.path)
    assert whole.summary["failures"] == 0
    plain = polyfed.run(
        {**config, "training": small["training"], "method": method if case != "distillation" else "dsfl"},
        out=tmp_path / "plain",
        workers=1,
    )
    assert result_of(plain.path)["models"] != result_of(whole.path)["models"]


@pytest.mark.slow
def test_a_class_of_torch_keeps_the_contract() -> None:
    check_method(registered()["local"], config={"training": {"optimiser": "RMSprop", "lr": 0.003, **KEPT}})


@pytest.mark.evidence
def test_changing_rates_and_balanced_rows_keep_the_contract() -> None:
    check_method(registered()["fedavg"], config={"training": {**FALLS, "sampling": "balanced"}})


@pytest.mark.parametrize("method", ["local", "fml", "fedkf", "fedh2l"])
@pytest.mark.parametrize("training", [{"sampling": "balanced"}, {"augment": "own_shift:shift"}], ids=str)
@pytest.mark.usefixtures("own")
def test_every_loop_over_a_clients_own_rows_draws_and_changes_them(
    method: str, training: dict[str, Any], make_run: MakeRun
) -> None:
    found = []
    for settings in ({}, training):
        run = make_run(method, rounds=1, training=settings, **PUBLIC, models={"server": "mlp-small"})
        run.go()
        found.append(result_of(run.path)["models"])
    assert found[0] != found[1]


# -- schedules over rounds -----------------------------------------------------------------------------------


def written(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((path / "config.yaml").read_text())
    return content


def test_the_length_of_a_schedule_is_written_down_and_lasts(
    small: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """More rounds later are those of a run that had so many, and the same schedule, from the start."""
    training = {**small["training"], "schedule": "linear"}
    config = {**small, "rounds": 2, "training": training}
    first = polyfed.run(config, out=tmp_path / "first", workers=1)
    assert written(first.path)["training"]["schedule"]["length"] == 2
    assert "stays at" not in caplog.text
    with caplog.at_level(logging.WARNING):
        more = polyfed.resume(first.path, rounds=4, workers=1)
    assert (
        "training.schedule has 2 rounds and the run 4: from round 2 on the learning rate stays at 0.05"
        in caplog.text
    )
    training["schedule"] = {"kind": "linear", "length": 2}
    whole = polyfed.run({**config, "rounds": 4, "training": training}, out=tmp_path / "whole", workers=1)
    assert result_of(more.path) == result_of(whole.path)


def test_a_schedule_of_a_methods_own_training_ends_with_the_run_too(tmp_path: Path) -> None:
    method = {"name": "dsfl", "distil": {"schedule": {"kind": "cosine", "warm_up": 2}}}
    config = read_config({"method": method, "rounds": 7})
    settings: Any = config.method_settings()
    assert settings.distil.schedule.length == 7
    with pytest.raises(
        ConfigError, match=r"method\.distil\.schedule: a warm-up of 2 rounds leaves nothing of 2"
    ):
        read_config({"method": method, "rounds": 2})


@pytest.mark.parametrize(
    ("method", "key"),
    [("dsfl", "private_training"), ("cronus", "private_training"), ("fedmd", "public_training")],
)
def test_what_is_done_once_has_no_schedule(method: str, key: str) -> None:
    fine = {"name": method, key: {"within": "cosine"}}
    assert read_config({"method": fine}).make_method()
    with pytest.raises(ConfigError, match=rf"^method\.{key}: this is done once, .* set `within`"):
        read_config({"method": {"name": method, key: {"schedule": "cosine"}}})


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("training.schedule=cosine", {"kind": "cosine", "length": 20}),
        ("training.schedule.warm_up=3", {"kind": "linear", "warm_up": 3, "length": 20}),
        ("training.schedule={kind: step, every: 5}", {"kind": "step", "every": 5}),
    ],
)
def test_keys_of_a_schedule_may_be_set_one_by_one(override: str, expected: dict[str, Any]) -> None:
    config = read_config({"training": {"schedule": "linear"}}, [override])
    found = config.training.schedule.model_dump()
    assert {key: found[key] for key in expected} == expected


def test_settings_of_an_optimiser_may_be_set_one_by_one() -> None:
    config = read_config({"training": {"optimiser": "rmsprop"}}, ["training.optimiser.alpha=0.8"])
    assert config.as_file()["training"]["optimiser"] == {"name": "RMSprop", "alpha": 0.8}


def test_a_schedule_has_the_effect_that_it_has_by_hand(make_run: MakeRun) -> None:
    """Rates 0.05 and 0.1 in rounds 1 and 2: as a run of one round each, the second from where the first ended."""
    run = make_run("local", rounds=2, training={"lr": 0.1, "schedule": {"warm_up": 1}})
    rates = []
    run.go(lambda now: rates.append(now.federation.config.training.in_round(now.round).lr))
    assert rates == pytest.approx([0.05, 0.1])
    low = make_run("local", rounds=1, training={"lr": 0.05})
    low.go()
    short = make_run("local", rounds=1, training={"lr": 0.1, "schedule": {"warm_up": 1}})
    short.go()
    assert result_of(short.path)["models"] == result_of(low.path)["models"]


# -- what methods and stacks cannot do -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "training", "said"),
    [
        ("qffl", {"within": "cosine"}, r"^qffl divides .* set training\.within=constant"),
        ("scaffold", {"within": "cosine"}, r"^scaffold divides .* set training\.within=constant"),
        ("fednova", {"within": {"warm_up": 1}}, r"^fednova divides .* set training\.within=constant"),
        ("spatl", {"within": "linear"}, r"^spatl .* set training\.within=constant"),
        ("fednova", {"optimiser": "RMSprop"}, r"set training\.optimiser=sgd, not RMSprop"),
        ("fedh2l", {"within": "cosine"}, "^fedh2l makes single steps"),
        (
            "fedh2l",
            {"optimiser": "Adafactor"},
            "^fedh2l steps along .* Adafactor goes by the shape of each tensor",
        ),
        ("cronus", {"sampling": "balanced"}, r"^cronus trains on .* set training\.sampling=all"),
    ],
)
def test_what_a_method_cannot_follow_is_refused(
    make_run: MakeRun, method: str, training: dict[str, Any], said: str
) -> None:
    with pytest.raises(MethodError, match=said):
        make_run(method, training=training, data=PUBLIC["data"])


def test_momentum_without_use_is_told(make_run: MakeRun, caplog: pytest.LogCaptureFixture) -> None:
    make_run("local", training={"optimiser": "adam", "momentum": 0.9})
    assert "training.momentum is 0.9, of which adam makes no use" in caplog.text


STACKLESS: dict[str, dict[str, Any]] = {
    "a class": {"optimiser": "RMSprop", "lr": 0.003},
    "nesterov": {"optimiser": {"name": "sgd", "nesterov": True}, "momentum": 0.9},
    "adam": {"optimiser": "adam", "lr": 0.003},
    "clip": {"clip": 0.01},
    "clip_value": {"clip_value": 0.01},
    "within": {"within": "cosine"},
    "sampling": {"sampling": "balanced"},
    "augment": {"augment": "own_shift:shift"},
}


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("case", STACKLESS)
def test_a_stack_that_cannot_follow_is_not_made(case: str, make_run: MakeRun) -> None:
    """Asked for a stack, clients are trained one by one where that is the only way: the same bits."""
    found = []
    for stack in (1, 4):
        run = make_run("fedavg", rounds=2, stack=stack, training=STACKLESS[case])
        run.go()
        found.append(result_of(run.path))
    assert found[0] == found[1]


def test_a_schedule_over_rounds_is_followed_in_a_stack(make_run: MakeRun) -> None:
    """Two rounds, of which the second moves little: with the whole rate the models would be elsewhere."""
    weights = []
    for stack, training in (
        (1, {"schedule": {"kind": "step", "every": 1, "factor": 0.01}}),
        (4, {"schedule": {"kind": "step", "every": 1, "factor": 0.01}}),
        (4, {}),
    ):
        run = make_run("fedavg", rounds=2, stack=stack, training=training)
        run.go()
        weights.append(run.server.memory["weights"]["mlp-small"])
    for name, tensor in weights[0].items():
        assert tensor.allclose(weights[1][name], atol=1e-5)
    assert any(not tensor.allclose(weights[2][name], atol=1e-3) for name, tensor in weights[0].items())


# -- augmentation by a function ------------------------------------------------------------------------------


@pytest.mark.usefixtures("own")
def test_a_function_that_makes_another_shape_is_a_failure_that_is_told(make_run: MakeRun) -> None:
    run = make_run("local", rounds=1, training={"augment": "own_shift:narrower"})
    with pytest.raises(
        polyfed.PolyfedError, match="augmentation 'own_shift:narrower' made 16 × 1 × 7 × 8 float32"
    ):
        run.go()


def test_a_function_that_is_not_there_is_told_before_anything_runs(make_run: MakeRun) -> None:
    for more in ({"training": {"augment": "no_such_module:shift"}}, {}):
        method = "local" if more else {"name": "dsfl", "distil": {"augment": "no_such_module:shift"}}
        with pytest.raises(ConfigError, match="augmentation 'no_such_module:shift' cannot be loaded"):
            make_run(method, **more, data=PUBLIC["data"])


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("inside", ["training", "method"])
def test_a_run_from_elsewhere_imports_nothing_unless_it_is_trusted(
    inside: str, small: dict[str, Any], tmp_path: Path, command: Command
) -> None:
    config = {
        **small,
        "rounds": 2,
        **({} if inside == "training" else {"data": {**small["data"], **PUBLIC["data"]}}),
    }
    if inside == "training":
        config["training"] = {**small["training"], "augment": "own_shift:shift"}
    else:
        config["method"] = {"name": "dsfl", "distil": {"augment": "own_shift:shift"}}
    begun = polyfed.prepare(config, out=tmp_path / "begun", workers=1)
    begun.go(lambda run: run.stop())
    begun.close()
    assert begun.config.to_trust == " --trust own_shift"
    forget()
    with pytest.raises(ModelError, match="names the module own_shift, whose code would be run"):
        polyfed.resume(begun.path, workers=1)
    for words in (
        ("resume", begun.path, "--workers", 1, "--no-figure"),
        ("partition", begun.path / "config.yaml"),
    ):
        said = command(*words)
        assert said.code == 2 and "add --trust own_shift" in said.err
        assert not Path("sprung").exists() and "own_shift" not in sys.modules
    assert command("resume", begun.path, "--no-figure", "--workers", 1, "--trust", "own_shift").code == 0
    assert Path("sprung").exists()


@pytest.mark.usefixtures("own")
def test_whoever_types_the_name_has_said_so(small: dict[str, Any], tmp_path: Path, command: Command) -> None:
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(small))
    said = command("partition", "run.yaml", "--set", "training.augment=own_shift:shift")
    assert said.code == 0, said.err


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"training": {"augment": True}}, "training.augment: true changes images alone"),
        ({"training": {"keep_optimiser": True}}, "training.keep_optimiser keeps nothing of sgd"),
        (
            {"training": {"schedule": {"kind": "step", "every": 50}}},
            "falls for the first time after 50 rounds",
        ),
        ({"training": {"schedule": {"warm_up": 50}}}, "warms up for 50 rounds, and the run has 3"),
        (
            {"training": {"within": {"kind": "step", "every": 4000}}},
            "in a round, so the learning rate never falls",
        ),
        (
            {"training": {"within": {"kind": "linear", "warm_up": 400}}},
            "so the learning rate never reaches lr",
        ),
        ({"training": {"optimiser": "Rprop", "within": "linear"}}, "is only the size of Rprop's first step"),
        (
            {"training": {"optimiser": "adam", "momentum": 0.9}},
            "training.momentum is 0.9, of which adam makes no",
        ),
        ({"evaluate": {"min_change": 0.1}}, "evaluate.min_change is for evaluate.patience"),
        ({"evaluate": {"patience": 3}}, "evaluate.patience waits for 3 evaluations"),
        ({"evaluate": {"patience": 1, "every": 2}}, "a run of 3 rounds cannot end by it"),
        ({"evaluate": {"patience": 2}, "training": {"schedule": {"warm_up": 1}}}, ""),
    ],
)
def test_a_setting_that_does_nothing_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, config: dict[str, Any], told: str
) -> None:
    x = torch.randn(120, 5, generator=torch.Generator().manual_seed(0))
    data = {"clients": 2, "partition": {"kind": "iid"}}
    whole = {"method": "local", "rounds": 3, "data": data, "models": {"names": ["mlp"]}, **config}
    polyfed.prepare(whole, data=(x, (x[:, 0] > 0).long()), out=tmp_path / "run", workers=1).close()
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [told in each for each in said] == ([True] if told else [])
