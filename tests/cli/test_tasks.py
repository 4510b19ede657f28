"""What is learnt beyond classes, from end to end: texts and figures speak of the task's own measure."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from sklearn.datasets import load_diabetes, make_multilabel_classification
from tests.conftest import Command, Said

import polyfed
from polyfed.errors import ConfigError
from polyfed.report.communication import courses
from polyfed.report.communication_figure import communication_figure
from polyfed.report.cost_points import score_against_bytes
from polyfed.report.curves import score_curves
from polyfed.report.run_figure import run_figure
from polyfed.runs.history import RunRecord

WEATHER = ["wind", "rain", "snow", "hail"]
LEARNT: dict[str, dict[str, Any]] = {
    "regression": {
        "task": {"name": "regression", "unit_name": "mg", "scale": {"mean": 150, "std": 77}},
        "data": {"label": "progression"},
        "training": {"epochs": 1, "batch": 16, "lr": 0.01},
    },
    "multilabel": {
        "task": "multilabel",
        "data": {"label": WEATHER},
        "training": {"epochs": 1, "batch": 16, "lr": 0.1},
    },
}
METHODS = {"local": "local", "fedmd": {"name": "fedmd", "public_rows": 20}}


def table_of(task: str, path: Path) -> Path:
    """A CSV file of patients, or of days with more than one kind of weather."""
    if task == "regression":
        found = load_diabetes(scaled=False)
        names, rows = (
            [*found.feature_names, "progression"],
            zip(found.data, found.target[:, None], strict=True),
        )
    else:
        inputs, labels = make_multilabel_classification(300, 12, n_classes=4, random_state=0)
        names, rows = [*(f"x{number}" for number in range(12)), *WEATHER], zip(inputs, labels, strict=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names, *([*one, *other] for one, other in rows)])
    return path


def content_of(task: str, source: Path, method: Any) -> dict[str, Any]:
    content = LEARNT[task]
    data = {"clients": 4, "partition": {"alpha": 1.0}, "public": {"source": "share", "share": 0.15}}
    return {
        "name": "small",
        "rounds": 2,
        "models": {"names": ["mlp-small", "mlp"], "server": "mlp-small"},
        "method": method,
        **content,
        "data": {"source": str(source), **data, **content["data"]},
    }


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, RunRecord]]:
    """Finished runs by task and method, beside each other."""
    folder = tmp_path_factory.mktemp("tasks")
    runs: dict[str, dict[str, RunRecord]] = {}
    for task in LEARNT:
        source = table_of(task, folder / f"{task}.csv")
        for name, method in METHODS.items():
            out = folder / task / name
            polyfed.run(content_of(task, source, method), out=out, workers=1)
            runs.setdefault(task, {})[name] = RunRecord(out)
    return runs


def speaks(said: Said, task: str) -> str:
    """What was printed, if it went well and is of the task's own measure alone."""
    assert (said.code, said.err) == (0, ""), said.err
    return of_the_measure(said.out, task)


def of_the_measure(text: str, task: str) -> str:
    assert ("RMSE" if task == "regression" else "F1") in text
    assert "accurac" not in text.lower()
    assert task != "regression" or "%" not in text
    return text


def words_in(figure: Path) -> str:
    """The texts of an .svg figure: matplotlib writes them as comments."""
    return "\n".join(re.findall(r"<!-- (.*?) -->", figure.read_text()))


@pytest.mark.parametrize("task", LEARNT)
def test_a_run_is_told_in_the_tasks_own_words(task: str, command: Command, tmp_path: Path) -> None:
    source = table_of(task, tmp_path / "rows.csv")
    Path("run.yaml").write_text(yaml.safe_dump(content_of(task, source, METHODS["fedmd"])))
    said = speaks(command("run", "run.yaml", "--out", "out", "--workers", 1), task)
    record = RunRecord(tmp_path / "out")
    last = record.summary["last"]["own"]
    assert "wrote out/curves.png" in said
    progress, heading = (
        ("own RMSE {} mg", "RMSE in mg") if task == "regression" else ("own {} %", "F1 of a row in %")
    )
    assert f"small: round 2/2 {progress.format(record.task.shown(last['mean']))}" in said
    assert heading in said
    assert re.search(rf"own test data, worst +{re.escape(record.task.shown(last['worst']))} ", said)
    assert ("×10⁻³" in said) == (task == "multilabel")
    assert (last["worst"] > last["best"]) == (task == "regression")


@pytest.mark.parametrize("task", LEARNT)
def test_show_and_compare_tell_scores_and_gains(
    task: str, command: Command, done: Mapping[str, Mapping[str, RunRecord]]
) -> None:
    local, fedmd = (done[task][name] for name in METHODS)
    mine, theirs = (run.summary["last"]["whole"]["mean"] for run in (fedmd, local))
    gain = theirs - mine if task == "regression" else 100 * (mine - theirs)
    shown = f"{gain:+.4g}" if task == "regression" else f"{gain:+.1f}"
    less = ": by how much less" if task == "regression" else ""
    said = speaks(command("show", fedmd.path), task)
    assert re.search(rf"gain over local, whole{less} +{re.escape(shown)}", said)
    said = speaks(command("compare", local.path, fedmd.path), task)
    assert f"{fedmd.task.title} at the last round" in said
    assert re.search(rf"^fedmd .* {re.escape(shown)} ", said, re.MULTILINE)
    assert ("smaller is better; a gain is by how much less" in said) == (task == "regression")


def test_a_target_is_at_or_below_where_smaller_is_better(
    command: Command, done: Mapping[str, Mapping[str, RunRecord]], tmp_path: Path
) -> None:
    runs = done["regression"]
    ends = {name: run.evaluations[-1]["summary"]["whole"]["mean"] for name, run in runs.items()}
    said = speaks(command("compare", "--target", "1000", *(run.path for run in runs.values())), "regression")
    assert "what 1000 mg RMSE costs" in said
    assert "there: at or below 1000 mg" in said
    assert re.search(r"^fedmd +all +1 ", said, re.MULTILINE)  # there after the first round
    said = speaks(command("compare", "--target", "1", *(run.path for run in runs.values())), "regression")
    assert re.search(
        rf"^local +all +not in 2 +nothing .*{runs['local'].task.shown(ends['local'])}", said, re.MULTILINE
    )
    wrong = command("compare", "--target", "-3", *(run.path for run in runs.values()))
    assert (wrong.code, wrong.err) == (
        2,
        "polyfed: --target -3: write the RMSE as a number in mg above 0, such as 50\n",
    )
    share = command("compare", "--target", "50", *(run.path for run in done["multilabel"].values()))
    assert (share.code, share.err.count("\n")) == (2, 1)
    assert "write the F1 of a row as a share above 0 and up to 1" in share.err


@pytest.mark.parametrize("task", LEARNT)
def test_figures_are_labelled_with_the_measure(
    task: str, done: Mapping[str, Mapping[str, RunRecord]], tmp_path: Path
) -> None:
    variants = {name: [record] for name, record in done[task].items()}
    record = done[task]["fedmd"]
    target = 60.0 if task == "regression" else 0.5
    drawn = [
        run_figure(record, tmp_path / "run.svg"),
        score_curves(variants, tmp_path / "curves.svg"),
        score_against_bytes(variants, tmp_path / "cost.svg"),
        communication_figure(courses(variants, "all"), target, tmp_path / "target.svg"),
    ]
    for path in drawn:
        assert path is not None
        assert ("RMSE in mg" if task == "regression" else "F1 of a row") in of_the_measure(
            words_in(path), task
        )
    assert ("target 60 mg" if task == "regression" else "target 50.0 %") in words_in(tmp_path / "target.svg")


@pytest.mark.parametrize("task", LEARNT)
def test_a_sweep_has_tables_and_files_of_scores(
    task: str, command: Command, done: Mapping[str, Mapping[str, RunRecord]]
) -> None:
    content = {**done[task]["fedmd"].config, "rounds": 1}
    Path("run.yaml").write_text(yaml.safe_dump(content))
    said = speaks(
        command(
            "sweep", "run.yaml", "--set", "training.lr=0.01,0.02", "--seeds", 2, "--workers", 1, "--out", "s"
        ),
        task,
    )
    assert f"{done[task]['fedmd'].task.title}, mean over clients" in said
    rows = list(csv.DictReader(Path("s/results.csv").read_text().splitlines()))
    assert len(rows) == 4
    found = RunRecord(Path("s") / rows[0]["folder"]).summary["last"]["own"]
    assert float(rows[0]["own_last"]) == found["mean"]
    assert float(rows[0]["own_worst"]) == found["worst"]
    markdown = of_the_measure(Path("s/results.md").read_text(), task)
    assert f"all (`{done[task]['fedmd'].task.title}`)" in markdown
    assert Path("s/curves.png").exists()
    assert Path("s/cost.png").exists()


@pytest.mark.parametrize("task", LEARNT)
def test_predict_says_how_good_the_answers_are(
    task: str, command: Command, done: Mapping[str, Mapping[str, RunRecord]], tmp_path: Path
) -> None:
    source = table_of(task, tmp_path / "new.csv")
    said = speaks(
        command("predict", done[task]["fedmd"].path, source, "--client", "client-0", "--out", "p.csv"), task
    )
    rows = Path("p.csv").read_text().splitlines()
    assert rows[0].startswith("row,progression" if task == "regression" else "row,classes,p(wind)")
    assert re.search(
        rf"{'RMSE [0-9.]+ mg' if task == 'regression' else 'F1 of a row [0-9.]+ %'} \({len(rows) - 1} rows\)",
        said,
    )


def test_runs_of_two_tasks_are_not_put_side_by_side(
    command: Command, done: Mapping[str, Mapping[str, RunRecord]], tmp_path: Path
) -> None:
    one, other = (done[task]["local"] for task in LEARNT)
    said = command("compare", one.path, other.path)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "task=regression (RMSE in mg)" in said.err
    assert "take runs of one task" in said.err
    assert not list(tmp_path.glob("*.png"))
    with pytest.raises(ConfigError, match="take runs of one task"):
        score_curves({"one": [one], "other": [other]}, tmp_path / "x.png")
    with pytest.raises(ConfigError, match="take runs of one task"):
        score_against_bytes({"one": [done["regression"]["fedmd"]], "other": [other]}, tmp_path / "x.png")


def test_another_unit_is_another_task(command: Command, done: Mapping[str, Mapping[str, RunRecord]]) -> None:
    Path("run.yaml").write_text(yaml.safe_dump(dict(done["regression"]["local"].config)))
    said = command("sweep", "run.yaml", "--set", "task.unit_name=mg,kg", "--out", "s")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "task=regression (RMSE in kg)" in said.err
    assert not Path("s").exists()


def test_a_sweep_over_tasks_is_refused_before_anything_runs(command: Command) -> None:
    rows = [[number % 7, number % 5, "ab"[number % 2]] for number in range(80)]
    Path("two.csv").write_text("x,y,label\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows))
    Path("run.yaml").write_text(yaml.safe_dump({"data": {"source": "two.csv", "clients": 2}}))
    said = command("sweep", "run.yaml", "--set", "task=classification,binary", "--out", "s")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "task=classification has task=classification" in said.err
    assert "take runs of one task" in said.err
    assert not Path("s").exists()


def test_a_gain_over_a_run_of_another_task_is_none(done: Mapping[str, Mapping[str, RunRecord]]) -> None:
    one, other = (done[task]["local"] for task in LEARNT)
    assert "another task" in one.differences(other)


# -- who holds what, and what there is -----------------------------------------------------------------------


def test_a_partition_shows_groups_of_numbers_and_the_rarest_class_of_a_row(
    command: Command, done: Mapping[str, Mapping[str, RunRecord]]
) -> None:
    for task, headings in (("regression", ["≤ 60", "≤ 346"]), ("multilabel", [*WEATHER, "none"])):
        Path(f"{task}.yaml").write_text(yaml.safe_dump(dict(done[task]["local"].config)))
        said = command("partition", f"{task}.yaml", "-o", f"{task}.png")
        assert (said.code, said.err) == (0, "")
        assert all(heading in said.out for heading in headings)
        counts = done[task]["local"].assignment.count
        assert said.out.startswith(f"{counts} clients, ")
        assert Path(f"{task}.png").exists()
    assert "a row counts for the rarest class that it has" in said.out


def test_of_numbers_that_clients_bring_only_rows_are_counted(command: Command, tmp_path: Path) -> None:
    lines = table_of("regression", tmp_path / "all.csv").read_text().splitlines()
    for name, rows in (("north", lines[1:101]), ("south", lines[101:251])):
        (tmp_path / f"{name}.csv").write_text("\n".join([lines[0], *rows]))
    brought = {"clients": {"north": "north.csv", "south": "south.csv"}, "label": "progression"}
    Path("run.yaml").write_text(yaml.safe_dump({"task": LEARNT["regression"]["task"], "data": brought}))
    said = command("partition", "run.yaml")
    assert (said.code, said.err) == (0, "")
    table = [line.split() for line in said.out.splitlines()]
    assert ["client", "model", "samples"] in table
    assert ["north", "mlp", "100"] in table
    assert ["south", "mlp", "150"] in table


def test_methods_are_listed_by_task(command: Command) -> None:
    said = command("methods", "--task", "regression")
    assert (said.code, said.err) == (0, "")
    fitting, others = said.out.split("methods that do not, and why")
    assert "\n  fedavg " in fitting
    assert re.search(r"fedkem +method\.ensemble=mean", fitting)
    assert re.search(r"dsfl +needs answers that are probabilities", others)
    wrong = command("methods", "--task", "regresion")
    assert (wrong.code, wrong.err) == (2, "polyfed: unknown task 'regresion'; did you mean 'regression'?\n")


def test_tasks_are_listed_and_told(command: Command) -> None:
    said = command("tasks")
    assert (said.code, said.err) == (0, "")
    for part in ("classification", "multilabel", "F1 of a row in %", "RMSE, smaller is", "unit_name"):
        assert part in said.out
    page = command("tasks", "regression")
    assert (page.code, page.err) == (0, "")
    for part in (
        "regression: a number for each row",
        "RMSE, smaller is better",
        "fedavg",
        "task: regression",
        "scale: auto",
    ):
        assert part in page.out
    wrong = command("tasks", "multilable")
    assert (wrong.code, wrong.err) == (2, "polyfed: unknown task 'multilable'; did you mean 'multilabel'?\n")


def test_an_unknown_task_is_told_with_the_nearest_name(command: Command) -> None:
    Path("run.yaml").write_text("rounds: 1\n")
    said = command("run", "run.yaml", "--set", "task=regresion")
    assert (said.code, said.err) == (2, "polyfed: unknown task 'regresion'; did you mean 'regression'?\n")
    assert not Path("polyfed-runs").exists()
