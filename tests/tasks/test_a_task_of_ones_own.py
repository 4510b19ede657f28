"""A task with a class for each place of a row needs no change outside its own module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import Command
from torch import Tensor, nn

import polyfed
from polyfed.errors import MethodError, ModelError
from polyfed.tasks import Regression, Tally
from polyfed.testing import ContractError, check_method, result_of

TASK = "tests.tasks.tagging:Tagging"
PLACES = 6


class Tagger(nn.Module):
    """Rows × places × tags."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(PLACES, width), nn.ReLU())
        self.head = nn.Linear(width, 3 * PLACES)

    def forward(self, x: Tensor) -> Tensor:
        tags: Tensor = self.head(self.body(x)).unflatten(1, (PLACES, 3))
        return tags


def rows(count: int = 400) -> tuple[Any, Any]:
    x = np.random.default_rng(0).normal(size=(count, PLACES)).astype(np.float32)
    tags = (x > 0).astype(np.int64)
    tags[:, 1:][(x[:, 1:] > x[:, :-1]) & (x[:, 1:] > 0)] = 2
    return x, tags


CONFIG = {
    "task": TASK,
    "rounds": 10,
    "data": {"clients": 3},
    "training": {"lr": 0.2, "batch": 16},
    "evaluate": {"test_rows": 50},
}


@pytest.mark.parametrize("method", ["fedavg", "local", "fedgkd"])
def test_it_learns_and_is_equal_on_every_engine(method: str, tmp_path: Path) -> None:
    done = [
        polyfed.run(CONFIG, method=method, data=rows(), models=[Tagger], out=tmp_path / str(n), workers=n)
        for n in (1, 2)
    ]
    assert result_of(done[0].path) == result_of(done[1].path)
    assert done[0].summary["last"]["own"]["mean"] > 0.7  # the most frequent tag has half
    model = polyfed.load_model(done[0].path, "client-0", make=Tagger, trust=["tests.tasks.tagging"])
    x, tags = rows()
    said = model.predict((x[:20], tags[:20]))
    assert said.answers[0][0] in ("low", "high")
    assert said.score is not None and said.score > 0.6


def test_methods_that_need_a_table_of_outputs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MethodError, match="fedmd is not for task=tagging: it needs outputs in a table"):
        polyfed.run(CONFIG, method="fedmd", data=rows(), models=[Tagger], out=tmp_path / "run")


def test_a_run_from_elsewhere_does_not_import_it(tmp_path: Path, command: Command) -> None:
    done = polyfed.prepare(CONFIG, data=rows(), models=[Tagger], out=tmp_path / "run", workers=1)
    done.go(lambda run: run.stop())
    done.close()
    with pytest.raises(ModelError, match="trust"):
        polyfed.resume(done.path, data=rows(), models=[Tagger])
    polyfed.resume(done.path, data=rows(), models=[Tagger], trust=["tests.tasks.tagging"])


@pytest.mark.slow
def test_a_method_keeps_the_contract_for_it() -> None:
    config = {key: CONFIG[key] for key in ("training", "data")}
    check_method(polyfed.methods.FedAvg, task=TASK, data=rows(), models={"tagger": Tagger}, config=config)


class Squares(Regression):
    """Scores what it does not say: `tally` is of absolute errors, and what is inherited of squared ones."""

    name = "squares"
    summary = "a task that contradicts itself"

    def tally(self, outputs: Tensor, labels: Tensor) -> Tally:
        wrong = (self.decided(outputs) - labels.double()).abs()
        return [float(wrong.sum()), len(labels)]


def test_a_task_that_scores_outputs_and_answers_by_different_measures_breaks_the_contract() -> None:
    task = {"name": "tests.tasks.test_a_task_of_ones_own:Squares", "scale": {"mean": 0, "std": 1}}
    x = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    with pytest.raises(
        ContractError, match=r"task=squares has RMSE .* by `tally`, .* by `read` and `tally_of`"
    ):
        check_method(
            polyfed.methods.FedAvg, task=task, data=(x, x[:, 0] * 2), config={"models": {"names": ["mlp"]}}
        )
