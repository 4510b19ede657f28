"""`evaluate.patience`: a run ends when validation does not improve any more, as its history alone decides."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tests.conftest import Command, job
from tests.runs.test_extend import everything

import polyfed
from polyfed.errors import ConfigError
from polyfed.experiments.grid import run_jobs
from polyfed.experiments.jobs import JobTracker, state_of
from polyfed.report.comparison import compare_runs
from polyfed.runs import metrics
from polyfed.runs.config import Evaluation
from polyfed.runs.history import RunRecord
from polyfed.runs.patience import Patience
from polyfed.tasks import CLASSIFICATION, Regression
from polyfed.testing import result_of

fork = multiprocessing.get_context("fork")


# -- the rule, by hand -----------------------------------------------------------------------------------------


def ends(scores: Sequence[float | None], every: int = 1, **settings: Any) -> int | None:
    """The round after which a run with these scores on validation ends."""
    patience = Patience(Evaluation(every=every, **settings))
    for number, score in enumerate(scores, 1):
        patience.see({"round": number, "summary": {} if score is None else {"validation": score}})
        if patience.spent:
            return number
    return None


@pytest.mark.parametrize(
    ("scores", "settings", "expected"),
    [
        ([0.5, 0.4, 0.6, 0.6, 0.5], {"patience": 2}, 5),  # 0.6 again is no improvement
        ([0.5, 0.4, 0.6, 0.6, 0.5], {"patience": 1}, 2),
        ([0.5, 0.4, 0.6, 0.6, 0.5], {"patience": 3}, None),
        ([0.5, 0.4, 0.6, 0.6, 0.5], {}, None),
        ([0.1, 0.2, 0.3, 0.4, 0.5], {"patience": 1}, None),
        # By more than min_change over the best that counted: 0.55 is not above 0.5 + 0.1, 0.65 is.
        ([0.5, 0.55, 0.65, 0.7, 0.7], {"patience": 2, "min_change": 0.1}, 5),
        ([0.5, 0.55, 0.58, 0.65, 0.7], {"patience": 2, "min_change": 0.1}, 3),
        # An evaluation without a score counts for nothing.
        ([0.5, None, 0.5, None, 0.5], {"patience": 2}, 5),
        # Only rounds on which evaluations fall by the config: here 2, 4, 6.
        ([0.9, 0.5, 0.9, 0.4, 0.1, 0.3], {"patience": 2, "every": 2}, 6),
    ],
)
def test_a_run_ends_after_so_many_evaluations_without_a_gain(
    scores: list[float | None], settings: dict[str, Any], expected: int | None
) -> None:
    assert ends(scores, **settings) == expected


def test_errors_are_better_when_smaller() -> None:
    patience = Patience(Evaluation(patience=2), Regression())
    lines = [
        {"round": n, "summary": {"validation": score}}
        for n, score in enumerate((0.5, 0.4, 0.3, 0.3, 0.4, 0.2), 1)
    ]
    for line in lines[:5]:
        assert not patience.spent
        patience.see(line)
    assert patience.spent
    assert metrics.chosen_round(lines[:5], metrics.Criterion(Regression())) == 3


def test_its_words_say_since_when() -> None:
    patience = Patience(Evaluation(patience=2, min_change=0.01))
    for number, score in enumerate((0.5, 0.6, 0.6, 0.605), 1):
        patience.see({"round": number, "summary": {"validation": score}})
    assert patience.spent
    assert patience.words() == (
        "validation has not improved by more than 0.01 for 2 evaluations in a row (best: round 2)"
    )


# -- whole runs ------------------------------------------------------------------------------------------------

STILL: dict[str, Any] = {"epochs": 1, "batch": 16, "lr": 1e-12}
"""Training that changes no answer: the first evaluation stays the best."""
STOPPED = "after round 3 of 8: validation has not improved for 2 evaluations in a row (best: round 1)"


def still(small: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**small, "training": STILL, "rounds": 8, "evaluate": {"patience": 2}, **changes}


@pytest.mark.parametrize("workers", [1, 2])
def test_the_run_is_one_of_as_many_rounds_and_says_why_it_ended(
    small: dict[str, Any], tmp_path: Path, workers: int
) -> None:
    done = polyfed.run(still(small), out=tmp_path / "run", workers=workers)
    assert done.finished
    assert done.summary["rounds"] == done.round == 3
    assert done.summary["stopped"] == done.stopped == STOPPED
    assert done.summary["chosen"]["round"] == 1
    whole = polyfed.run(still(small, rounds=3, evaluate={}), out=tmp_path / "whole", workers=1)
    assert "stopped" not in whole.summary
    assert result_of(done.path) == result_of(whole.path)


def test_where_it_ends_is_what_the_history_of_the_whole_run_says(
    small: dict[str, Any], tmp_path: Path
) -> None:
    """Real training, in which validation goes up and down: the rule is applied by hand to a run without it."""
    whole = polyfed.run(small, method="fedavg", rounds=12, out=tmp_path / "whole", workers=1)
    scores = [line["summary"]["validation"] for line in RunRecord(whole.path).history]
    for patience in (1, 2, 3):
        best, waited, end = -1.0, 0, 12
        for number, score in enumerate(scores, 1):
            best, waited = (score, 0) if score > best else (best, waited + 1)
            if waited == patience:
                end = number
                break
        out = tmp_path / f"run-{patience}"
        done = polyfed.run(
            small, method="fedavg", rounds=12, evaluate={"patience": patience}, out=out, workers=1
        )
        assert done.round == end
        assert [line["summary"]["validation"] for line in RunRecord(out).history] == scores[:end]


def test_the_last_round_is_no_early_end(small: dict[str, Any], tmp_path: Path) -> None:
    done = polyfed.run(still(small, rounds=3), out=tmp_path / "run", workers=1)
    assert (done.round, done.stopped) == (3, None)
    assert "stopped" not in done.summary


def work(path: Path, content: dict[str, Any], last: int) -> None:
    """Begin the run, or go on with it, and be killed after this round."""

    def die(run: polyfed.Run) -> None:
        if run.round == last:
            os.kill(os.getpid(), signal.SIGKILL)

    torch.set_num_threads(1)
    if (path / "manifest.json").exists():
        polyfed.resume(path, workers=1, listener=die)
    else:
        polyfed.run(content, out=path, workers=1, listener=die)


def test_killed_and_resumed_it_ends_in_the_same_round(small: dict[str, Any], tmp_path: Path) -> None:
    content = still(small, rounds=400, evaluate={"patience": 30})
    whole = polyfed.run(content, out=tmp_path / "whole", workers=1)
    assert whole.round == 31
    path = tmp_path / "run"
    for last in (2, 17, 30, 32):  # after the last one nobody is killed: the run ends before it
        process = fork.Process(target=work, args=(path, content, last))
        process.start()
        process.join()
        assert process.exitcode == (-signal.SIGKILL if last < 31 else 0)
    assert everything(path) == everything(whole.path)


def test_stopped_and_resumed_it_counts_the_evaluations_before(small: dict[str, Any], tmp_path: Path) -> None:
    whole = polyfed.run(still(small), out=tmp_path / "whole", workers=1)
    part = polyfed.run(
        still(small),
        out=tmp_path / "part",
        workers=1,
        listener=lambda run: run.stop() if run.round == 2 else None,
    )
    assert not part.finished
    assert polyfed.resume(part.path, workers=2).stopped == STOPPED
    assert everything(part.path) == everything(whole.path)


def test_finished_in_between_and_extended_it_ends_as_if_it_had_never_been(
    small: dict[str, Any], tmp_path: Path
) -> None:
    """An evaluation that only `finish` asked for counts for nothing."""
    content = still(small, rounds=20, evaluate={"patience": 2, "every": 2})
    whole = polyfed.run(content, out=tmp_path / "whole", workers=1)
    assert whole.round == 6
    for number in (1, 3, 5):
        path = tmp_path / f"run-{number}"

        def stop(run: polyfed.Run, number: int = number) -> None:
            if run.round == number:
                run.stop()

        polyfed.run(content, out=path, workers=1, listener=stop).finish()
        done = polyfed.resume(path, rounds=20, workers=1)
        assert (done.round, done.stopped) == (6, whole.stopped)
        assert result_of(path)["models"] == result_of(whole.path)["models"]


def test_more_rounds_set_patience_aside(command: Command, small: dict[str, Any], tmp_path: Path) -> None:
    polyfed.run(still(small), out=tmp_path / "run", workers=1)
    said = command("resume", "run", "--no-figure")
    assert said.code == 0
    assert "run has finished already; `polyfed resume run --rounds N` goes on to N rounds" in said.out
    assert f"stopped early {STOPPED}" in " ".join(said.out.split())
    said = command("resume", "run", "--rounds", 3, "--no-figure")
    assert "has finished already" in said.out
    for rounds in (5, 9):
        said = command("resume", "run", "--rounds", rounds, "--workers", 1, "--no-figure")
        assert said.code == 0, said.err
        whole = polyfed.run(
            still(small, rounds=rounds, evaluate={}), out=tmp_path / f"whole-{rounds}", workers=1
        )
        assert everything(tmp_path / "run") == everything(whole.path)
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["evaluate"]["patience"] is None


def test_more_rounds_before_patience_is_spent_keep_it(small: dict[str, Any], tmp_path: Path) -> None:
    polyfed.run(still(small, rounds=2), out=tmp_path / "run", workers=1)
    done = polyfed.resume(tmp_path / "run", rounds=8, workers=1)
    assert done.stopped == STOPPED


def test_the_screen_and_the_tables_say_so(command: Command, small: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(still(small)))
    said = command("run", "run.yaml", "--out", "run", "--workers", 1)
    assert said.code == 0
    assert "round 3/8" in said.out
    assert "stopped early: validation has not improved for 2 evaluations in a row" in said.out
    assert f"stopped early {STOPPED}" in " ".join(said.out.split())
    assert "(3)" in said.out
    alike = "--set method=local --set rounds=3 --set evaluate.patience=null --out local"
    assert f"polyfed run run/config.yaml {alike}" in said.out
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["stopped"] == STOPPED
    polyfed.run(still(small, method="local", evaluate={}), out=tmp_path / "local", workers=1)
    comparison = compare_runs([tmp_path / "run", tmp_path / "local"])
    assert comparison.lengths == {3, 8}
    assert any("8 rounds instead of 3" in note for note in comparison.notes())
    assert f"run stopped early {STOPPED}" in comparison.notes()
    shown = command("show", "run")
    assert f"stopped early {STOPPED}" in " ".join(shown.out.split())


@pytest.mark.parametrize("workers", [1, 2])
def test_a_sweep_that_is_given_again_takes_it_for_finished(
    small: dict[str, Any], tmp_path: Path, workers: int
) -> None:
    jobs = [job(tmp_path / f"seed-{seed}", still(small, seed=seed)) for seed in (0, 1)]
    assert run_jobs(jobs, workers) == []
    assert [state_of(each) for each in jobs] == ["finished", "finished"]
    before = [everything(each.path) for each in jobs]
    again = JobTracker(jobs)
    assert not again.left
    now = again.snapshot()
    assert (len(now.finished), now.share, now.seconds_left) == (2, 1.0, 0.0)
    assert run_jobs(jobs, workers) == []
    assert [everything(each.path) for each in jobs] == before


def test_a_sweep_says_where_its_runs_ended(command: Command, small: dict[str, Any], tmp_path: Path) -> None:
    content = still(small, method="fedavg")
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(content))
    sets = ("--set", "evaluate.patience=2,null", "--set", "rounds=4")
    said = command("sweep", "run.yaml", *sets, "--seeds", 2, "--workers", 1, "--out", "sweep")
    assert said.code == 0, said.err
    told = "evaluate.patience=2: 2 of 2 runs stopped early, after round 3 of 4: there is their last round"
    assert told in said.out
    assert "evaluate.patience=null: " not in said.out
    with (tmp_path / "sweep" / "results.csv").open() as file:
        assert [line["rounds"] for line in csv.DictReader(file)] == ["3", "3", "4", "4"]
    again = command("sweep", "run.yaml", *sets, "--seeds", 2, "--workers", 1, "--out", "sweep")
    assert again.code == 0
    assert told in again.out
    assert "4 of 4 runs had finished before" in again.out


def test_a_run_finished_by_hand_is_finished_for_its_sweep_too(small: dict[str, Any], tmp_path: Path) -> None:
    each = job(tmp_path / "run", small)
    polyfed.run(small, out=each.path, workers=1, listener=lambda run: run.stop())
    assert state_of(each) == "begun"
    polyfed.reopen(each.path).finish()
    assert state_of(each) == "finished"


# -- by a metric -----------------------------------------------------------------------------------------------


def rated(number: int, validation: float, **metrics: float | None) -> dict[str, Any]:
    """A line of a history."""
    found = {name: value and {"mean": value} for name, value in metrics.items()}
    return {"round": number, "summary": {"validation": validation, "metrics": {"validation": found}}}


def test_a_round_is_chosen_by_the_metric_that_is_named_in_its_own_direction() -> None:
    lines = [rated(1, 0.9, auc=0.5, brier=0.4), rated(2, 0.1, auc=0.7, brier=0.3), rated(3, 0.5, auc=None)]
    by = {name: Evaluation(metrics=["auc", "brier"], choose_by=name) for name in (None, "auc", "brier")}
    criteria = {name: metrics.Criterion.of(each, CLASSIFICATION) for name, each in by.items()}
    found = [metrics.chosen_round(lines, criterion) for criterion in criteria.values()]
    assert found == [1, 2, 2]
    assert metrics.chosen_round([*lines[::-1], rated(4, 0.1, auc=0.6, brier=0.2)], criteria["brier"]) == 4
    assert metrics.chosen_round(lines[2:], criteria["auc"]) is None  # which has no value there


def test_a_metric_of_others_has_the_direction_that_the_config_says() -> None:
    wish = {"name": "zero_one_loss", "normalize": False, "smaller_is_better": True}
    settings = Evaluation.model_validate({"metrics": [wish], "choose_by": "zero_one_loss(normalize=False)"})
    by = metrics.Criterion.of(settings, CLASSIFICATION)
    lines = [rated(n, 0.5, **{"zero_one_loss(normalize=False)": loss}) for n, loss in ((1, 4.0), (2, 3.0))]
    assert metrics.chosen_round(lines, by) == 2


def test_each_client_is_chosen_by_its_own_metric() -> None:
    by = metrics.Criterion.of(Evaluation(metrics=["auc"], choose_by="auc"), CLASSIFICATION)
    lines = [
        {
            "clients": {
                "north": {"validation": [9, 10], "metrics": {"validation": {"auc": auc}}, "own": [n, 10]}
            }
        }
        for n, auc in enumerate((0.4, None, 0.8, 0.6))
    ]
    assert metrics.chosen_for_each(lines, by)["north"]["own"] == [2, 10]


RARE: dict[str, Any] = {
    "method": "fedavg",
    "task": "binary",
    "rounds": 10,
    "models": {"names": ["mlp-small"]},
    "data": {"clients": 3, "validation": 0.3},
    "training": {"epochs": 1, "lr": 0.1},
    "checkpoint_seconds": 0,
}


def rare() -> tuple[torch.Tensor, torch.Tensor]:
    """600 rows, of which about 5 % are of the class that is looked for."""
    x = torch.randn(600, 6, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] + x[:, 1] > 2.3).long()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_whole_run_is_ended_and_chosen_by_it(tmp_path: Path, workers: int) -> None:
    """Accuracy stands still, since all are called healthy: by it the run would end after round 3."""
    still = {"metrics": ["pr-auc", "brier"], "patience": 2}
    early = polyfed.run({**RARE, "evaluate": still}, data=rare(), out=tmp_path / "early", workers=1)
    evaluate = {**still, "choose_by": "average_precision_score"}
    done = polyfed.run({**RARE, "evaluate": evaluate}, data=rare(), out=tmp_path / "run", workers=workers)
    assert early.round < done.round
    assert done.config.evaluate.choose_by == "pr-auc"
    lines = RunRecord(done.path).evaluations
    by_round = {}
    for line in lines:
        each = [score["metrics"]["validation"]["pr-auc"] for score in line["clients"].values()]
        found = [value for value in each if value is not None]  # none of a client without a rare row
        by_round[line["round"]] = sum(found) / len(found)
        assert line["summary"]["metrics"]["validation"]["pr-auc"]["mean"] == pytest.approx(
            by_round[line["round"]]
        )
    assert done.summary["chosen"]["round"] == max(by_round, key=lambda number: (by_round[number], -number))
    if done.stopped is not None:
        assert "validation PR-AUC has not improved" in done.stopped
    assert metrics.chosen_round(lines, RunRecord(done.path).criterion) == done.summary["chosen"]["round"]


def test_choosing_by_a_metric_changes_nothing_of_what_is_learnt_and_resumes(tmp_path: Path) -> None:
    evaluate = {"metrics": ["pr-auc"], "choose_by": "pr-auc"}
    plain = polyfed.run({**RARE, "rounds": 4}, data=rare(), out=tmp_path / "plain", workers=1)
    whole = polyfed.run(
        {**RARE, "rounds": 4, "evaluate": evaluate}, data=rare(), out=tmp_path / "whole", workers=1
    )
    assert result_of(plain.path)["models"] == result_of(whole.path)["models"]
    part = polyfed.run(
        {**RARE, "rounds": 4, "evaluate": evaluate},
        data=rare(),
        out=tmp_path / "part",
        workers=1,
        listener=lambda run: run.stop() if run.round == 2 else None,
    )
    polyfed.resume(part.path, data=rare(), workers=2)
    assert everything(part.path) == everything(whole.path)


def test_a_metric_of_others_goes_by_its_own_name_where_polyfed_has_another(tmp_path: Path) -> None:
    evaluate = {"metrics": [{"name": "log_loss", "on": "outputs"}], "choose_by": "log_loss"}
    done = polyfed.run(
        {**RARE, "rounds": 3, "evaluate": evaluate}, data=rare(), out=tmp_path / "run", workers=1
    )
    losses = [
        line["summary"]["metrics"]["validation"]["log_loss"]["mean"]
        for line in RunRecord(done.path).evaluations
    ]
    assert done.summary["chosen"]["round"] == losses.index(min(losses)) + 1


def never(answers: Any) -> None:
    """A metric that has no value on any rows."""


def test_that_nothing_could_be_chosen_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    metric = f"{__name__}:never"
    evaluate = {"metrics": [metric], "choose_by": metric, "patience": 1}
    done = polyfed.run(
        {**RARE, "rounds": 3, "evaluate": evaluate}, data=rare(), out=tmp_path / "run", workers=1
    )
    assert done.summary["chosen"] is None and done.round == 3
    assert f"no round could be chosen, and no patience counted: {metric} has no value" in caplog.text


def test_tables_show_the_metric_that_chose(command: Command, tmp_path: Path) -> None:
    evaluate = {"metrics": ["pr-auc", "recall"], "choose_by": "pr-auc"}
    content = {**RARE, "rounds": 2, "evaluate": evaluate}
    content = {**content, "data": {"source": "digits", "limit": 100, "clients": 2}, "task": "classification"}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(content))
    said = command("sweep", "run.yaml", "--workers", 1, "--out", "sweep")
    assert said.code == 0, said.err
    (run,) = (path.parent for path in Path("sweep").glob("*/*/summary.json"))
    for word in ("show", "compare"):
        assert "PR-AUC, validation rows" in command(word, run).out
    assert "PR-AUC, validation rows" in said.out and "recall, validation rows" not in said.out
    with (tmp_path / "sweep" / "results.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["metrics.validation.pr-auc"]) > 0 and float(row["validation_last"]) > 0


def test_a_metric_with_settings_goes_by_its_function_where_that_is_plain() -> None:
    evaluate = {"metrics": ["recall", {"name": "fbeta_score", "beta": 2}], "choose_by": "fbeta_score"}
    ready = polyfed.prepare({**RARE, "evaluate": evaluate}, data=rare())
    assert ready.config.evaluate.choose_by == "fbeta_score(beta=2)"
    ready.close()


@pytest.mark.parametrize(
    ("evaluate", "said"),
    [
        (
            {"choose_by": "pr-auc"},
            r"'pr-auc' is not one of evaluate\.metrics \(none\): name one of these, or add",
        ),
        ({"choose_by": "auc", "metrics": ["pr-auc"]}, r"'auc' is not one of evaluate\.metrics \(pr-auc\)"),
        (
            {
                "choose_by": "fbeta_score",
                "metrics": [{"name": "fbeta_score", "beta": beta} for beta in (1, 2)],
            },
            r"\(fbeta_score\(beta=1\), fbeta_score\(beta=2\)\): name one of these",
        ),
        ({"choose_by": "confusion", "metrics": ["confusion"]}, "a confusion matrix is not a number"),
    ],
)
def test_what_cannot_choose_is_refused(evaluate: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        polyfed.prepare({**RARE, "evaluate": evaluate}, data=rare())


def test_without_validation_rows_nothing_can_be_chosen() -> None:
    content = {**RARE, "data": {**RARE["data"], "validation": 0}}
    with pytest.raises(ConfigError, match=r"evaluate\.choose_by needs validation rows"):
        polyfed.prepare({**content, "evaluate": {"metrics": ["auc"], "choose_by": "auc"}}, data=rare())


# -- refused ---------------------------------------------------------------------------------------------------


def test_without_validation_rows_it_is_refused_before_anything_is_written(
    command: Command, small: dict[str, Any], tmp_path: Path
) -> None:
    content = still(small, data={**small["data"], "validation": 0})
    with pytest.raises(ConfigError, match=r"evaluate\.patience needs validation rows.*data\.validation"):
        polyfed.run(content, out=tmp_path / "run", workers=1)
    assert not (tmp_path / "run").exists()
    polyfed.run({**content, "evaluate": {}, "rounds": 1}, out=tmp_path / "fine", workers=1)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(content))
    assert command("run", "run.yaml").code == 2


@pytest.mark.parametrize("settings", [{"patience": 0}, {"patience": -1}, {"min_change": -0.1}])
def test_what_makes_no_sense_is_refused(small: dict[str, Any], settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        polyfed.prepare({**small, "evaluate": settings})
