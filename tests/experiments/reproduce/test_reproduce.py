"""`polyfed reproduce`: the plan, real runs that are stopped and resumed, and what a user sees."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from scipy import stats
from tests.conftest import Command
from tests.experiments.conftest import FAKE, Write

from polyfed.cli import experimenting
from polyfed.errors import ConfigError
from polyfed.experiments import papers
from polyfed.experiments.grid import run_jobs
from polyfed.experiments.papers.results import Evaluations, RunKey
from polyfed.experiments.reproduce import papers_overview, plan_reproduction
from polyfed.experiments.reproduce.measured import by_step
from polyfed.experiments.reproduce.plan import settings_of, states_of
from polyfed.runs import api

MAIN = f"{FAKE}/main"


def keys(plan: Any) -> set[tuple[str, str]]:
    return {(key.run, key.setting) for key in plan.jobs}


def test_a_plan_has_every_run_in_its_own_folder(tmp_path: Path) -> None:
    plan = plan_reproduction(MAIN, out=tmp_path)
    assert len(plan.jobs) == 2 * 2 * 2
    job = plan.jobs[RunKey("together", "skewed", 1)]
    assert job.path == tmp_path / "fake" / "tiny" / "together" / "skewed" / "seed-1"
    assert (job.config.seed, job.config.rounds, job.config.training.epochs) == (1, 2, 2)
    assert (job.config.data.clients, job.config.method.name) == (3, "fedavg")
    assert plan.jobs[RunKey("alone", "even", 0)].config.training.epochs == 1
    assert len(plan_reproduction(MAIN, seeds=5, out=tmp_path).jobs) == 2 * 2 * 5
    assert len(plan_reproduction(MAIN, scale="paper", out=tmp_path).jobs) == 2 * 2 * 3
    assert not any(tmp_path.iterdir())


def test_a_plan_has_only_the_runs_that_the_rows_asked_for_need() -> None:
    assert keys(plan_reproduction(MAIN, rows=["Alone"])) == {("alone", "even"), ("alone", "skewed")}
    assert keys(plan_reproduction(MAIN, rows=["gain"], columns=["all alike"])) == {
        ("alone", "even"),
        ("together", "even"),
    }


def test_a_claim_brings_the_other_tables_runs_along() -> None:
    assert keys(plan_reproduction(f"{FAKE}/cost")) == {("together", "even"), ("alone", "even")}


def test_parameters_and_holdings_need_no_runs_and_curves_those_of_their_table() -> None:
    assert not plan_reproduction(f"{FAKE}/sizes").jobs
    assert not plan_reproduction(f"{FAKE}/who").jobs
    assert len(keys(plan_reproduction(f"{FAKE}/curves"))) == 4


def test_a_plan_says_who_sets_what() -> None:
    settings = settings_of(plan_reproduction(MAIN))
    assert settings["all"]["rounds"] == 2
    assert settings["run together"] == {"method.name": "fedavg", "training.epochs": 2}
    assert settings["run alone"] == {"method.name": "local", "training.epochs": 1}
    assert settings["setting even"]["data.partition.kind"] == "iid"
    assert settings["setting skewed"]["data.partition.alpha"] == 0.3
    assert "data.limit" in settings["all"]
    assert "data.validation" not in settings["all"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which all runs of the table `main` have finished."""
    out = tmp_path_factory.mktemp("finished")
    run_jobs(list(plan_reproduction(MAIN, out=out).jobs.values()), workers=1)
    return out


def result(out: Path, key: str = "main") -> dict[str, Any]:
    return dict(json.loads((out / "fake" / "tiny" / f"{key}.json").read_text()))


def test_a_stopped_table_goes_on_and_ends_as_an_undisturbed_one(
    tmp_path: Path, command: Command, finished: Path
) -> None:
    broken = plan_reproduction(MAIN, out=tmp_path / "broken")
    first, second, *_ = broken.jobs.values()
    run_jobs([first], workers=1)
    run = api.prepare_checked(second.config, second.path, workers=1)
    run.go(lambda now: now.stop())
    run.close()
    assert states_of(broken)["alone"] == {"even": "1 finished, 1 begun", "skewed": "2 new"}
    planned = command("reproduce", MAIN, "--out", "broken", "--plan")
    assert "8 runs in broken/fake/tiny/RUN/SETTING/seed-N" in planned.out
    assert "1 finished, 1 begun" in planned.out
    again = command("reproduce", MAIN, "--out", "broken", "--workers", 1)
    assert "1 of 8 runs had finished before" in again.out
    whole = command("reproduce", MAIN, "--out", finished)
    assert "8 of 8 runs had finished before" in whole.out
    results = result(tmp_path / "broken"), result(finished)
    assert results[0].pop("command") != results[1].pop("command")
    assert results[0] == results[1]


def test_what_is_printed_is_what_the_runs_measured(command: Command, finished: Path) -> None:
    out = command("reproduce", MAIN, "--out", finished).out
    found = result(finished)
    together = next(row for row in found["rows"] if row["key"] == "together")["cells"]["skewed"]
    folder = finished / "fake" / "tiny"
    summary = json.loads((folder / "together" / "skewed" / "seed-1" / "summary.json").read_text())
    for which in ("last", "chosen"):
        assert together[which]["seeds"]["1"] == pytest.approx(100 * summary[which]["whole"]["mean"])
    assert together["paper"] == 75
    here = f"{together['last']['mean']:.1f} ± {together['last']['spread']:.1f}"
    assert here in out
    assert "scaled: two rounds instead of three" in out
    assert [claim["last"]["mark"] for claim in found["claims"]] == ["not judged"] * 3  # of two seeds
    assert out.count("? not judged") == 3
    assert "0 of 3 claims judged" in out
    assert f"75 → **{here}**" in (folder / "main.md").read_text()
    assert (folder / "main.png").read_bytes().startswith(b"\x89PNG")


def test_three_seeds_are_judged_and_the_verdicts_are_the_same_everywhere(
    command: Command, finished: Path
) -> None:
    words = ("reproduce", MAIN, "--out", finished, "--seeds", 3)
    out = command(*words, "--workers", 1).out
    assert "one-sided paired t-test at level 0.05" in " ".join(out.split())
    found = result(finished, "main.seeds-3")
    marks = [claim["last"]["mark"] for claim in found["claims"]]
    assert len(marks) == 3 and set(marks) <= {"shown", "not shown", "contradicted"}
    assert found["judged"]["last"]["judged"] == 3
    assert "last round: 3 of 3 claims judged" in out
    text = (finished / "fake" / "tiny" / "main.seeds-3.md").read_text()
    assert "- last round: 3 of 3 claims judged" in text
    cells = {row["key"]: row["cells"] for row in found["rows"]}
    for claim in found["claims"][:2]:
        last = [cells[row][claim["column"]]["last"]["seeds"] for row in ("together", "alone")]
        pairs = [[values[str(seed)] for seed in range(3)] for values in last]
        p = stats.ttest_rel(*pairs, alternative="greater").pvalue
        assert claim["last"]["comparison"]["p"] == pytest.approx(p)
        expected = "shown" if p < 0.05 else "contradicted" if p > 0.95 else "not shown"
        assert claim["last"]["mark"] == expected


def test_tables_and_figures_share_runs(command: Command, finished: Path) -> None:
    cost = command("reproduce", f"{FAKE}/cost", "--out", finished)
    assert "4 of 4 runs had finished before" in cost.out
    assert "main.together@even / main.alone@even" in cost.out
    curves = command("reproduce", f"{FAKE}/curves", "--out", finished)
    assert "8 of 8 runs had finished before" in curves.out
    assert list(result(finished, "curves")["curves"]["even"]["alone"]["0"]) == ["1", "2"]


def test_lines_are_along_local_steps(command: Command, finished: Path) -> None:
    said = command("reproduce", f"{FAKE}/steps", "--out", finished)
    assert "4 of 4 runs had finished before" in said.out
    found = result(finished, "steps")["by local step"]
    history = finished / "fake" / "tiny" / "alone" / "even" / "seed-1" / "history.jsonl"
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    expected = {str(line["round"]): 100 * line["summary"]["validation"] for line in lines}
    assert found["Accuracy"]["Alone"]["1"] == pytest.approx(expected)
    assert list(found["Traffic"]["Together"]) == ["0", "1"]
    assert (finished / "fake" / "tiny" / "steps.png").read_bytes().startswith(b"\x89PNG")


def test_a_round_of_several_steps_counts_as_that_many_along_the_line(
    content: dict[str, Any], written: Write
) -> None:
    content["scales"]["tiny"]["runs"]["alone"] = {"training.steps": 7}
    plan = plan_reproduction(f"{written(content)}/steps", seeds=1)
    runs = {key: Evaluations([{"round": 2, "summary": {"validation": 0.5}}]) for key in plan.jobs}
    alone, together = plan.item.panels[0].lines  # type: ignore[union-attr]
    assert by_step(plan, runs, alone, "percent") == {0: {14: 50.0}}
    assert by_step(plan, runs, together, "percent") == {0: {2: 50.0}}


def test_features_are_shown_of_one_seed(command: Command, finished: Path) -> None:
    assert set(plan_reproduction(f"{FAKE}/seen", seeds=5).jobs) == {
        RunKey("alone", "even", 0),
        RunKey("together", "even", 0),
    }
    said = command("reproduce", f"{FAKE}/seen", "--out", finished)
    assert "2 of 2 runs had finished before" in said.out
    shares = result(finished, "seen")["share of the variance along x and y"]
    for run in ("alone", "together"):
        first, second = shares[run]
        assert 1 > first >= second > 0
    assert (finished / "fake" / "tiny" / "seen.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_of_groups_and_one_of_bytes(command: Command, finished: Path) -> None:
    domains = command("reproduce", f"{FAKE}/domains", "--out", finished).out
    assert "The first" in domains
    traffic = command("reproduce", f"{FAKE}/traffic", "--out", finished).out
    # 4,810 parameters of 4 bytes, their names and shapes
    row = next(line for line in traffic.splitlines() if line.strip().startswith("In a round"))
    assert "19.7 kB" in row
    claimed = traffic.partition("all / round > 1.5")[2].splitlines()[1]
    assert claimed.split() == ["?", "not", "judged", "2", "±", "0", "±", "0", "2/2"]


def test_claims_on_rows_that_are_left_out_are_counted_and_not_listed(
    command: Command, finished: Path
) -> None:
    said = command("reproduce", MAIN, "--out", finished, "--rows", "alone", "--seeds", 1)
    assert "2 of 2 runs had finished before" in said.out
    assert "0 of 3 claims judged: 3 not measured" in said.out
    assert "Together is better" not in said.out
    part = result(finished, "main.rows-alone.seeds-1")
    assert [claim["last"]["mark"] for claim in part["claims"]] == ["not measured"] * 3
    assert part["command"].endswith(f"--seeds 1 --rows alone --out {finished}")


def test_of_a_column_only_the_claims_on_it_are_listed(command: Command, finished: Path) -> None:
    said = command("reproduce", MAIN, "--out", finished, "--columns", "even")
    assert "Together is better" in said.out
    assert "It pays the more where clients differ" not in said.out
    text = (finished / "fake" / "tiny" / "main.columns-even.md").read_text()
    assert "Together is better" in text and "It pays the more" not in text


@pytest.mark.parametrize(
    ("words", "stem"),
    [
        (("--rows", "alone"), "rows-alone"),
        (("--rows", "alone,gain", "--columns", "skewed"), "rows-alone+gain.columns-skewed"),
        (("--seeds", 1), "seeds-1"),
    ],
)
@pytest.mark.parametrize("key", ["main", "curves"])
def test_a_part_has_files_of_its_own_and_leaves_the_whole_as_it_is(
    command: Command, finished: Path, key: str, words: tuple[object, ...], stem: str
) -> None:
    if key == "curves" and "alone,gain" in words:
        words, stem = ("--rows", "alone", "--columns", "skewed"), "rows-alone.columns-skewed"
    command("reproduce", f"{FAKE}/{key}", "--out", finished)
    folder = finished / "fake" / "tiny"
    files = ["json", "png", *(["md"] if key == "main" else [])]
    before = {name: (folder / f"{key}.{name}").read_bytes() for name in files}
    said = command("reproduce", f"{FAKE}/{key}", "--out", finished, *words)
    for name in files:
        assert f"{key}.{stem}.{name}" in said.out
        assert (folder / f"{key}.{stem}.{name}").exists()
        assert (folder / f"{key}.{name}").read_bytes() == before[name]
    if key == "main":
        assert f"]({key}.{stem}.png)" in (folder / f"{key}.{stem}.md").read_text()


def test_naming_all_rows_and_the_scales_seeds_is_the_whole(tmp_path: Path) -> None:
    plan = plan_reproduction(MAIN, rows=["alone", "together", "gain"], seeds=2, out=tmp_path)
    assert plan.stem == "main"
    assert plan_reproduction(f"{FAKE}/sizes", seeds=7).stem == "sizes"  # counted, whatever the seeds
    assert plan_reproduction(f"{FAKE}/seen").stem == "seen"  # a picture of one model


def test_the_name_of_many_rows_is_short_and_its_own() -> None:
    rows = [row.key for row in plan_reproduction("fedh2l/table2").rows]
    columns = [column.key for column in plan_reproduction("fedh2l/table2").columns]
    most = plan_reproduction("fedh2l/table2", rows=rows[1:], columns=columns[1:]).stem
    others = plan_reproduction("fedh2l/table2", rows=rows[:-1], columns=columns[1:]).stem
    assert most.startswith("table2.12-rows.14-columns.")
    assert len(most) < 60
    assert most != others


def test_a_table_of_ratios_alone_has_no_picture(command: Command, finished: Path) -> None:
    said = command("reproduce", f"{FAKE}/traffic", "--out", finished, "--rows", "rounds")
    assert said.code == 0
    assert "traffic.rows-rounds.md" in said.out
    assert ".png" not in said.out
    assert "![" not in (finished / "fake" / "tiny" / "traffic.rows-rounds.md").read_text()


def test_a_stopped_command_says_how_to_go_on(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(experimenting, "follow_grid", stop)
    said = command("reproduce", MAIN, "--seeds", 4, "--columns", "even")
    assert said.code == 130
    assert f"go on with: polyfed reproduce {MAIN} --scale tiny --seeds 4 --columns even\n" in said.out


def test_a_folder_with_other_settings_is_not_mixed_in(
    tmp_path: Path, command: Command, content: dict[str, Any], written: Write
) -> None:
    mine = written(content)
    command("reproduce", f"{mine}/main", "--rows", "alone", "--columns", "even", "--seeds", 1, "--workers", 1)
    content["base"]["training"]["lr"] = 0.2
    written(content)
    said = command("reproduce", f"{mine}/main", "--workers", 1)
    assert said.code == 2
    assert "training.lr" in said.err
    assert said.err.count("\n") == 1


def test_a_run_that_fails_is_named_and_the_rest_is_shown(
    command: Command, content: dict[str, Any], written: Write
) -> None:
    content["settings"]["skewed"]["set"] = {"data.partition": {"kind": "natural", "column": "writer"}}
    content["scales"]["tiny"]["settings"] = {}
    said = command("reproduce", f"{written(content)}/main", "--seeds", 1, "--workers", 1)
    assert said.code == 1
    assert "failed: polyfed-runs/reproduce/mine/tiny/alone/skewed/seed-0" in said.out
    assert "not measured: Alone (skewed), Together (skewed), Gain (skewed)" in said.out


def test_sizes_and_holdings_are_there_at_once(command: Command) -> None:
    sizes = command("reproduce", f"{FAKE}/sizes")
    assert "4,810" in sizes.out
    assert "19,240" in sizes.out
    assert "Four: all of them" in sizes.out
    assert "1 of 1 claim judged: 1 shown\n" in sizes.out
    assert "four / one < 4.5" in sizes.out
    assert "it is compared exactly" in sizes.out
    assert "level" not in sizes.out
    who = command("reproduce", f"{FAKE}/who")
    assert who.code == 0
    assert Path("polyfed-runs/reproduce/fake/tiny/who-skewed.png").exists()


def test_without_a_table_it_lists_what_can_be_reproduced(command: Command) -> None:
    listed = command("reproduce").out
    assert all(
        f"lwof/{key}" in listed for key in ("table1", "table2", "table3", "figure1", "figure2", "figure3")
    )
    assert "paper, small, tiny" in listed
    assert "https://arxiv.org/abs/2211.03457" in listed
    paper_details = command("reproduce", FAKE).out
    assert "Nobody. 2000\nhttps://example.org/together\n" in paper_details
    assert "rows: alone, together, gain" in paper_details
    assert "nothing was open" in paper_details
    assert "a slip of the pen" in paper_details
    assert not Path("polyfed-runs").exists()


def test_what_can_be_reproduced_is_named_in_full_at_80_columns() -> None:
    out = io.StringIO()
    Console(width=80, file=out).print(papers_overview([papers.load("fedh2l")]))
    listed = [line.split()[0] for line in out.getvalue().splitlines() if "fedh2l/" in line]
    assert "fedh2l/bandwidth-pacs" in listed
    assert all("…" not in name for name in listed)
    assert "\nhttps://doi.org/10.1109/JCC59055.2023.00009\n" in out.getvalue()


MISTAKES: dict[str, tuple[tuple[object, ...], str]] = {
    "no such paper": (("fedkff/table3",), "there are fedh2l, fedkem, fedkf, fedorion, lwof"),
    "no such file": (("nowhere.yaml/table2",), "no file nowhere.yaml"),
    "no such table": (("lwof/tabel2",), "did you mean 'table2'?"),
    "no such scale": ((MAIN, "--scale", "tinny"), "did you mean 'tiny'?"),
    "not at this scale": (
        (f"{FAKE}/traffic", "--scale", "paper"),
        "--scale paper: fake/traffic is only there at scale tiny",
    ),
    "no such row": (
        (MAIN, "--rows", "alone,togehter"),
        "--rows togehter: not found, did you mean 'together'?",
    ),
    "no such column": ((MAIN, "--columns", "odd"), "--columns odd"),
    "no data": (("lwof/table2", "--scale", "paper"), "POLYFED_DATA"),
    "no data to show": (("lwof/figure1", "--scale", "paper"), "POLYFED_DATA"),
}


@pytest.mark.parametrize("what", list(MISTAKES))
def test_a_mistake_is_one_line_and_nothing_is_created(
    command: Command, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POLYFED_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    words, hint = MISTAKES[what]
    said = command("reproduce", *words)
    assert said.code == 2
    assert hint in said.err
    assert said.err.count("\n") == 1
    assert not Path("polyfed-runs").exists()


def test_a_mistake_in_a_runs_settings_says_which_run(content: dict[str, Any], written: Write) -> None:
    content["runs"]["together"] = {"method": {"name": "fedavg", "wihtin": "all"}}
    with pytest.raises(ConfigError, match=r"paper mine, together in even at scale tiny: method\.wihtin"):
        plan_reproduction(f"{written(content)}/main")
    content["runs"]["together"] = {"method": "fedagv"}
    with pytest.raises(ConfigError, match=r"together in even at scale tiny: .*did you mean 'fedavg'"):
        plan_reproduction(f"{written(content)}/main")
