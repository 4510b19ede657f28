"""A task with a class for each place of a row needs no change outside its own module."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tests.conftest import Command
from tests.tasks.tagging import TAGS, Tagging
from torch import Tensor, nn

import polyfed
from polyfed.errors import ConfigError, MethodError, ModelError, TaskError
from polyfed.tasks import Regression, Tally, Task
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


# -- metrics, predictions and files ------------------------------------------------------------------------------


def share_of_low(answers: Any, labels: Any) -> float:
    return float(((answers == 0) == (labels == 0)).mean())


METRIC = "tests.tasks.test_a_task_of_ones_own:share_of_low"


def test_metrics_predictions_and_exported_files_of_it(tmp_path: Path) -> None:
    config = {**CONFIG, "rounds": 3, "evaluate": {"metrics": [METRIC], "choose_by": METRIC}}
    done = polyfed.run(config, method="fedavg", data=rows(), models=[Tagger], out=tmp_path / "run", workers=1)
    own = done.summary["last"]["metrics"]["own"][METRIC]["mean"]
    assert 0.5 < own <= 1
    trust = ["tests.tasks.tagging"]
    model = polyfed.load_model(done.path, "client-0", make=Tagger, trust=trust)
    x, tags = rows()
    said = model.predict((x, tags))
    by_hand = ((np.array(said.answers) == "low") == (tags == 0)).mean()
    assert said.metrics([METRIC]) == {METRIC: pytest.approx(by_hand)}
    file = polyfed.export(done.path, "client-0", tmp_path / "tags.pt", Tagger, trust=trust)
    given = torch.jit.load(file)(torch.from_numpy(x[:7]))
    assert given.shape == (7, PLACES, 3)
    assert [tuple(TAGS[tag] for tag in row) for row in given.argmax(dim=2).tolist()] == said.answers[:7]


class Unreadable(Tagging):
    """Does not say what its answers are in the form of labels."""

    name = "unreadable"
    as_labels: ClassVar[Any] = Task.as_labels


class OtherAnswers(Tagging):
    """Says the least probable tag where metrics ask."""

    name = "others"

    def decided(self, outputs: Tensor) -> Tensor:
        return outputs.argmin(dim=2)


def test_metrics_are_refused_before_a_run_where_answers_are_in_no_form_of_labels(tmp_path: Path) -> None:
    config = {**CONFIG, "task": f"{__name__}:Unreadable"}
    with pytest.raises(
        ConfigError, match=r"task=unreadable has labels of a form of its own: metrics need .*as_labels"
    ):
        polyfed.prepare({**config, "evaluate": {"metrics": [METRIC]}}, data=rows(), models=[Tagger])
    done = polyfed.run({**config, "rounds": 1}, data=rows(), models=[Tagger], out=tmp_path / "run", workers=1)
    model = polyfed.load_model(done.path, "client-0", make=Tagger, trust=[__name__])
    with pytest.raises(TaskError, match="as_labels"):
        model.predict(rows()).metrics([METRIC])


def test_a_task_whose_decisions_are_not_its_answers_breaks_the_contract() -> None:
    with pytest.raises(
        ContractError, match=r"task=others has tags right .* by `decided`: they must be the same"
    ):
        check_method(
            polyfed.methods.FedAvg,
            task=f"{__name__}:OtherAnswers",
            data=rows(),
            models={"tagger": Tagger},
            config={"training": CONFIG["training"], "data": CONFIG["data"]},
        )


def test_a_run_starts_from_one_that_has_learnt_the_same_task_of_a_module(tmp_path: Path) -> None:
    first = polyfed.run(
        {**CONFIG, "rounds": 1}, data=rows(), models=[Tagger], out=tmp_path / "first", workers=1
    )
    warm = {**CONFIG, "rounds": 1, "models": {"init": str(first.path)}}
    polyfed.run(warm, data=rows(), models=[Tagger], out=tmp_path / "warm", workers=1)
    other = {**warm, "task": f"{__name__}:OtherAnswers"}
    with pytest.raises(ConfigError, match=r"has learnt task=tests.tasks.tagging:Tagging, and here it is"):
        polyfed.prepare(other, data=rows(), models=[Tagger])
