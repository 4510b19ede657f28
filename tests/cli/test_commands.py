"""The command line: what a user types, what comes back, and a user's mistake is one line and exit code 2."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
import yaml
from PIL import Image
from tests.conftest import Command
from tests.engines.test_tracebacks import Buggy, place

import polyfed
from polyfed.cli import commands, demonstrating
from polyfed.cli.examples import yaml_text
from polyfed.engines import AUTO, ENGINES
from polyfed.experiments.reproduce import DEFAULT_OUT, DEFAULT_SCALE
from polyfed.learn import METRICS
from polyfed.report.tables import percent, sent_words, signed
from polyfed.runs.config import read_config
from polyfed.runs.history import RunRecord
from polyfed.tasks import CLASSIFICATION, Binary, MultiLabel, Regression
from polyfed.testing import result_of

TASKS = {
    "classification": CLASSIFICATION,
    "binary": Binary(),
    "multilabel": MultiLabel(),
    "regression": Regression(),
}
REASON = f"KeyError: 'missing' ({place()})"


@pytest.fixture
def run_file(tmp_path: Path, small: dict[str, Any]) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(small))
    return path


def test_the_module_is_the_command_too() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "polyfed", "--version"], capture_output=True, text=True, check=True
    )
    assert said.stdout == f"polyfed {polyfed.__version__}\n"


HEAVY = ("torch", "matplotlib", "numpy", "pyarrow", "sklearn")


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["run", "--help"], ["nothing"]])
def test_help_and_version_import_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys\nfrom polyfed.cli import main\nsys.argv = ['polyfed', *sys.argv[1:]]\n"
        "try:\n    main()\nfinally:\n    print('imported:', *sys.modules, file=sys.stderr)"
    )
    said = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    imported = said.stderr.rsplit("imported:", 1)[1].split()
    assert "polyfed.cli.commands" in imported
    assert not [name for name in HEAVY if name in imported]


@pytest.mark.parametrize("columns", ["80", "150"])
def test_the_help_cuts_nothing_off(command: Command, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    said = command("--help").out
    assert "..." not in said.replace("[ARGS]...", "")
    assert max(map(len, said.splitlines())) <= 80


def test_what_the_help_says_is_what_the_library_has(command: Command) -> None:
    said = command("run", "--help").out
    assert all(name in said for name in (AUTO, *ENGINES))
    parameters = {each.name: each.default for each in typer_command("reproduce").params}
    assert parameters["scale"] == DEFAULT_SCALE
    assert Path(str(parameters["out"])) == DEFAULT_OUT


def typer_command(name: str) -> Any:
    group: Any = typer.main.get_command(commands.app)
    return group.commands[name]


def test_a_new_file_runs_as_it_is(command: Command) -> None:
    assert "polyfed run polyfed.yaml" in command("new").out
    done = command("run", "polyfed.yaml", "--set", "rounds=2", "--workers", 1)
    assert done.code == 0
    assert "round 2/2" in done.out
    assert "everything is in polyfed-runs/run" in done.out
    assert Path("polyfed-runs/run/summary.json").exists()


def test_new_overwrites_nothing(command: Command) -> None:
    Path("polyfed.yaml").write_text("mine")
    said = command("new")
    assert said.code == 2
    assert Path("polyfed.yaml").read_text() == "mine"


def test_runs_are_compared_and_the_gain_over_local_is_shown(command: Command, run_file: Path) -> None:
    for method in ("local", "fedavg", "pooled"):
        said = command("run", run_file, "--set", f"method={method}", "--out", method, "--workers", 1)
        assert said.code == 0
    assert "gain over local, whole" in said.out
    table = command("compare", "local", "fedavg", "pooled").out
    rows = {line.split()[0]: line for line in table.splitlines() if line.split()[:1]}
    assert {"local", "fedavg", "pooled"} <= rows.keys()
    assert "nothing" in rows["local"]
    gain = re.search(r"[+-]\d+\.\d", rows["pooled"])
    assert gain is not None


def test_lists_print_what_there_is(command: Command) -> None:
    methods = command("methods").out
    assert all(name in methods for name in ("aggregated", "fedavg", "fedprox", "local", "pooled"))
    models = command("models", "resnet8*").out
    assert "75,290" in models
    assert "vgg" not in models
    data = command("data").out
    assert "digits" in data
    assert "comes with polyfed" in data
    assert polyfed.__version__ in command("--version").out


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("methods",), ("polyfed methods NAME",)),
        (("methods", "fedprox"), ("FedAvg whose clients minimise", "mu: 0.01", "above 0")),
        (("models", "resnet8"), ("Deep Residual Learning", "75,290")),
        (("models", "mlp", "--shape", "1x8x8", "--outputs", "3"), ("25,219", "1×8×8 inputs, 3 classes")),
        (("data", "digits"), ("1,437 train, 360 test",)),
        (("partition",), ("dirichlet: ", "alpha: 0.5", "rotated: ", "polyfed partition FILE")),
        (("partition", "shards"), ("shards_per_client: 2",)),
    ],
    ids=" ".join,
)
def test_one_method_model_data_set_or_partition_is_told_in_full(
    command: Command, words: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    said = command(*words)
    assert (said.code, said.err) == (0, "")
    assert [part for part in parts if part not in said.out] == []


def test_a_run_file_that_is_called_like_a_kind_is_a_run_file(command: Command, run_file: Path) -> None:
    run_file.rename("iid")
    assert "4 clients, 300 samples" in command("partition", "iid").out


def test_partition_prints_and_plots_who_holds_what(command: Command, run_file: Path) -> None:
    said = command("partition", run_file, "-o", "who.png")
    assert "4 clients, 300 samples" in said.out
    assert Path("who.png").read_bytes().startswith(b"\x89PNG")


def test_resume_of_a_finished_run_shows_it(command: Command, run_file: Path) -> None:
    command("run", run_file, "--out", "done", "--workers", 1)
    said = command("resume", "done")
    assert said.code == 0
    assert "has finished already" in said.out


MISTAKES: dict[str, tuple[tuple[str, ...], str]] = {
    "no such file": (("run", "nowhere.yaml"), "polyfed new"),
    "no such run": (("resume", "nowhere"), "manifest.json"),
    "unknown key": (("run", "FILE", "--set", "trainin.lr=1"), "did you mean 'training'?"),
    "unknown inner key": (("run", "FILE", "--set", "data.partition.alhpa=1"), "did you mean 'alpha'?"),
    "unknown method": (("run", "FILE", "--set", "method=fedagv"), "did you mean 'fedavg'?"),
    "unknown setting": (("run", "FILE", "--set", "method.wihtin=all"), "did you mean 'within'?"),
    "unknown model": (("run", "FILE", "--set", "models.names=[resnet9]"), "did you mean"),
    "unknown data": (("run", "FILE", "--set", "data.source=digit"), "did you mean 'digits'?"),
    "data not at hand": (("run", "FILE", "--set", "data.source=office_home"), "POLYFED_DATA"),
    "wrong type": (("run", "FILE", "--set", "rounds=many"), "rounds:"),
    "out of range": (("run", "FILE", "--set", "training.lr=-1"), "training.lr:"),
    "impossible shares": (("run", "FILE", "--set", "data.test=0.95"), "leave some rows"),
    "more clients than samples": (("run", "FILE", "--set", "data.clients=1000"), "samples"),
    "an impossible minimum": (("run", "FILE", "--set", "data.partition.minimum=200"), "samples"),
    "too many classes each": (
        ("run", "FILE", "--set", "data.partition={kind: pathological, classes_per_client: 11}"),
        "10",
    ),
    "no such column": (("run", "FILE", "--set", "data.partition={kind: natural, column: writer}"), "writer"),
    "a mixed FedAvg": (("run", "FILE", "--set", "models.names=[mlp, cnn]"), "method.within=architecture"),
    "no public data": (("run", "FILE", "--set", "method=aggregated"), "data.public.source=share"),
    "no such device": (("run", "FILE", "--set", "device=cuda"), "there is no cuda here"),
    "a client out of range": (
        ("run", "FILE", "--set", "models.clients={7: mlp}"),
        "not within the 4 clients",
    ),
    "no budget fits": (
        ("run", "FILE", "--set", "models={names: [mlp], assign: budget, budgets: [{parameters: 5}]}"),
        "client",
    ),
    "a bad override": (("run", "FILE", "--set", "rounds"), "key=value"),
    "a bad sweep": (("sweep", "FILE", "--set", "rounds"), "key=value,value"),
    "a value of a sweep": (("sweep", "FILE", "--set", "training.lr=0.1,-1"), "training.lr=-1: training.lr:"),
    "an unmet need in a sweep": (
        ("sweep", "FILE", "--set", "method=local,aggregated"),
        "method=aggregated: aggregated needs public data",
    ),
    "a key swept twice": (("sweep", "FILE", "--set", "rounds=1", "--set", "rounds=2"), "rounds=1,2"),
    "seeds as values": (("sweep", "FILE", "--set", "seed=1,2"), "--seeds"),
    "a sweep of no file": (("sweep", "nowhere.yaml"), "polyfed new"),
    "a sweep in a folder of others": (("sweep", "FILE", "--out", "."), "choose another --out"),
    "a bad shape": (("models", "--shape", "3,32"), "3x32x32"),
    "no model of that name": (("models", "nothing*"), "nothing*"),
    "no such method": (("methods", "fedagv"), "no method 'fedagv': did you mean 'fedavg'?"),
    "no such model": (("models", "resnet9"), "did you mean 'resnet8'?"),
    "no such data set": (("data", "femnits"), "did you mean 'femnist'?"),
    "no such partition": (("partition", "shard"), "did you mean 'shards'?"),
    "a shape no model takes": (("models", "resnet8", "--shape", "20"), "resnet8"),
    "a taken folder": (("run", "FILE", "--out", "."), "choose another --out"),
    "a file for a run directory": (("resume", "FILE"), "small.yaml is a file, not a folder"),
    "a file for an --out": (("run", "FILE", "--out", "FILE"), "small.yaml is a file, not a folder"),
    "a figure nobody can draw": (
        ("partition", "FILE", "-o", "x.xyz"),
        "must end in .png, .jpg, .pdf or .svg",
    ),
    "a figure in no folder": (("partition", "FILE", "-o", "no/x.png"), "there is no folder no"),
    "a folder to write to": (("new", "."), "name a file, such as polyfed.yaml"),
    "an empty value": (("run", "FILE", "--set", "rounds="), "the value is missing"),
    "an empty value in a sweep": (("sweep", "FILE", "--set", "rounds="), "the value is missing"),
    "a negative number": (("run", "FILE", "--set", "seed=-1"), "seed: must be at least 0, not -1"),
    "a folder for a file": (("run", "."), "is a folder, not a run file"),
    "a kind with another's key": (
        ("run", "FILE", "--set", "data.partition.kind=iid", "--set", "data.partition.alpha=1"),
        "data.partition.alpha: unknown key",
    ),
    "no server model": (
        ("run", "FILE", "--set", "method=fedmd", "--set", "data.public={source: share, share: 0.2}"),
        "fedmd needs a server model: set models.server or method.global=false",
    ),
    "no public labels": (
        (
            *("run", "FILE", "--set", "method={name: fedmd, global: false}"),
            *("--set", "data.public={source: share, share: 0.2, labels: none}"),
        ),
        "set data.public.labels=own or method.public_training=null",
    ),
    "unknown setting of a group": (
        ("run", "FILE", "--set", "method={name: fedmd, distil: {epoch: 2}}"),
        "method.distil.epoch: unknown key, did you mean 'epochs'?",
    ),
}


@pytest.mark.parametrize("what", list(MISTAKES))
def test_a_mistake_is_one_line_that_says_what_to_do(
    command: Command, run_file: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.delenv("POLYFED_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    words, hint = MISTAKES[what]
    said = command(*(run_file if word == "FILE" else word for word in words))
    assert said.code == 2
    assert said.err.count("\n") == 1
    assert hint in said.err
    assert not Path("polyfed-runs").exists()


def test_a_file_that_is_not_yaml_is_named(command: Command) -> None:
    Path("bad.yaml").write_text("a: [1,\nb")
    said = command("run", "bad.yaml")
    assert said.code == 2
    assert said.err.startswith("polyfed: bad.yaml is not YAML")
    assert said.err.count("\n") == 1


def test_a_new_file_may_be_in_a_new_folder(command: Command) -> None:
    assert command("new", "deep/er/my.yaml").code == 0
    assert Path("deep/er/my.yaml").exists()


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    """As in `polyfed methods | head -1`: the pipe is closed before anything is written."""
    code = "import sys; from polyfed.cli import main; sys.argv = ['polyfed', 'methods']; main()"
    reading, writing = os.pipe()
    os.close(reading)
    said = subprocess.run(
        [sys.executable, "-c", code],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    os.close(writing)
    assert (said.returncode, said.stderr) == (1, "")


def test_a_run_directory_instead_of_a_file_says_how_to_go_on(command: Command, make_run: Any) -> None:
    run = make_run("local")
    run.go(lambda now: now.stop())
    said = command("run", run.path)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert f"`polyfed resume {run.path}` goes on with the run in it" in said.err


def test_a_sweep_ends_with_a_table_and_its_exit_code_tells_of_failures(
    command: Command, run_file: Path
) -> None:
    words = ("sweep", run_file, "--set", "training.lr=0.1,1e30", "--seeds", 2, "--workers", 1)
    said = command(*words)
    assert said.code == 1
    rows = {line.split()[0]: line for line in said.out.splitlines() if line.split()[:1]}
    assert "±" in rows["0.1"]
    assert "0 of 2" in rows["1e30"]
    assert said.out.count("failed: ") == 2
    assert "wrote polyfed-runs/run-sweep/results.csv, polyfed-runs/run-sweep/curves.png" in said.out
    assert Path("polyfed-runs/run-sweep/training.lr=0.1/seed-1/summary.json").exists()


def test_metrics_are_listed_and_unknown_ones_refused_before_the_run(command: Command, run_file: Path) -> None:
    listed = command("metrics")
    assert listed.code == 0
    for name, metric in METRICS.items():
        (line,) = (line for line in listed.out.splitlines() if line.split()[:1] == [name])
        assert ("computed where the rows are" in line) is (
            metric.sums_for(TASKS[next(iter(metric.how))]) is None
        )
    words = " ".join(listed.out.split())
    assert "classification, binary, multilabel" in words and "up to 1 larger adds up" in words
    for given, reason in (
        ("acu", "evaluate.metrics: unknown metric 'acu'; did you mean 'auc'?"),
        (
            "mae",
            "evaluate.metrics: mae is for regression, not for task=classification: use balanced-accuracy",
        ),
        ("fbeta_score", "evaluate.metrics: fbeta_score cannot be used with task=classification"),
        ("no_such:cost", "start polyfed where no_such.py is"),
    ):
        said = command("run", run_file, "--set", f"evaluate.metrics={given}", "--out", "refused")
        assert (said.code, said.err.count("\n")) == (2, 1), said
        assert reason in said.err
        assert not Path("refused").exists()


def test_metrics_and_stages_are_printed_of_a_run_of_runs_and_of_a_sweep(
    command: Command, run_file: Path
) -> None:
    metrics = ("--set", "evaluate.metrics=[auc, confusion]", "--workers", 1)
    said = command("run", run_file, *metrics, "--out", "one")
    for shown in (
        "AUC, own test data (mean / worst)",
        "trained, own test data",
        "confusion matrix, own test data",
    ):
        assert shown in said.out
    for words in (("compare", "one"), ("sweep", run_file, *metrics)):
        said = command(*words)
        assert said.code == 0
        assert "AUC, whole test set" in said.out
        assert "trained, own test data" in said.out


def test_unfinished_runs_are_not_compared(command: Command, make_run: Any) -> None:
    run = make_run("local")
    run.go(lambda now: now.stop())
    said = command("compare", run.path)
    assert said.code == 2
    assert "polyfed resume" in said.err
    assert not Path("compare.png").exists()


# -- figures -------------------------------------------------------------------------------------------------


def test_a_run_leaves_a_figure_unless_it_is_told_not_to(command: Command, run_file: Path) -> None:
    said = command("run", run_file, "--out", "drawn", "--workers", 1)
    assert f"wrote {Path('drawn/curves.png')}" in said.out
    assert Path("drawn/curves.png").read_bytes().startswith(b"\x89PNG")
    assert "curves.png" not in command("run", run_file, "--out", "plain", "--workers", 1, "--no-figure").out
    assert not Path("plain/curves.png").exists()
    again = command("resume", "drawn")  # with a figure in it, it is still a whole run
    assert again.code == 0
    assert result_of(Path("drawn")) == result_of(Path("plain"))


def test_what_draws_nothing_imports_no_matplotlib() -> None:
    code = "import sys\nfrom polyfed.cli import running\nsys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_run_whose_figure_cannot_be_written_is_finished_all_the_same(
    command: Command, run_file: Path
) -> None:
    command("run", run_file, "--out", "done", "--workers", 1, "--no-figure")
    Path("done/curves.png.tmp").mkdir()
    said = command("resume", "done")
    assert said.code == 0
    assert "no figure was drawn: IsADirectoryError" in said.out
    assert "everything is in done" in said.out


def test_a_users_own_curves_are_left_alone(command: Command, run_file: Path) -> None:
    command("run", run_file, "--out", "done", "--workers", 1, "--no-figure")
    Path("done/curves.png").write_text("mine")
    assert command("resume", "done").code == 0
    assert Path("done/curves.png").read_text() == "mine"


def test_a_comparison_is_drawn_where_it_says_and_over_nothing_of_others(
    command: Command, run_file: Path
) -> None:
    for method in ("local", "fedavg"):
        command("run", run_file, "--set", f"method={method}", "--out", method, "--workers", 1, "--no-figure")
    assert "wrote compare.png" in command("compare", "local", "fedavg").out
    assert "wrote compare.png" in command("compare", "fedavg", "local").out  # ours: drawn anew
    Path("compare.png").write_text("mine")
    assert "wrote compare-2.png" in command("compare", "local", "fedavg").out
    assert Path("compare.png").read_text() == "mine"
    refused = command("compare", "local", "--figure", "compare.png")
    assert (refused.code, refused.out) == (2, "")
    assert "choose another name" in refused.err
    assert "wrote both.svg" in command("compare", "local", "fedavg", "-o", "both.svg").out
    assert "wrote" not in command("compare", "local", "fedavg", "--no-figure").out
    assert command("compare", "local", "-o", "nowhere/both.png").code == 2


def test_runs_without_test_data_are_compared_but_not_drawn(command: Command, tmp_path: Path) -> None:
    own = (torch.rand(60, 1, 8, 8), torch.arange(60) % 3)
    settings = {"clients": 2, "test": 0.0, "partition": {"kind": "iid"}}
    polyfed.run({"rounds": 1, "data": settings}, data=own, out=tmp_path / "untested", workers=1)
    said = command("compare", "untested")
    assert said.code == 0
    assert "no figure was drawn: there is no test data in these runs: nothing to draw" in said.out
    assert command("compare", "untested", "-o", "it.png").code == 2


def test_a_local_run_of_another_length_or_a_damaged_one_beside_a_run_gives_no_gain(
    command: Command, run_file: Path
) -> None:
    words = ("run", run_file, "--workers", 1, "--no-figure")
    command(*words, "--set", "method=local", "--set", "rounds=2", "--out", "local")
    command(*words, "--set", "method=local", "--out", "local-2")
    Path("local-2/summary.json").write_text("{")
    said = command(*words, "--out", "fedavg")
    assert said.code == 0
    assert "gain over local," not in said.out
    assert "polyfed run fedavg/config.yaml --set method=local --out local-3" in said.out


# -- failed clients ------------------------------------------------------------------------------------------


def test_failed_clients_are_told_with_the_result(command: Command, make_run: Any) -> None:
    run = make_run(Buggy)
    run.go()
    run.close()
    said = command("resume", run.path)
    assert re.search(r"failed client steps +3", said.out)
    assert f"1 of 4 clients (client-1) failed in step 'train', rounds 1–3, 3 times: {REASON}" in said.out
    assert f"tracebacks are in {run.path}/failures.log" in said.out
    assert "run-0: 1 of 4 clients (client-1) failed in step 'train'" in command("compare", run.path).out


# -- over another run ----------------------------------------------------------------------------------------


def test_a_run_is_written_over_another_only_if_told_to(command: Command, run_file: Path) -> None:
    words = ("run", run_file, "--out", "same", "--workers", 1)
    assert command(*words).code == 0
    refused = command(*words, "--set", "rounds=1")
    assert refused.code == 2
    assert (
        "holds a run: choose another --out, `polyfed resume same`, or delete it by --overwrite" in refused.err
    )
    mistaken = command(*words, "--set", "method=fedagv", "--overwrite")
    assert mistaken.code == 2
    assert result_rounds("same") == 3
    assert command(*words, "--set", "rounds=1", "--overwrite").code == 0
    assert result_rounds("same") == 1
    Path("same/notes.txt").write_text("precious")
    said = command(*words, "--overwrite")
    assert said.code == 2
    assert "same/notes.txt is no part of a run" in said.err
    assert result_rounds("same") == 1


def test_without_a_folder_the_one_of_the_runs_name_is_written_over(command: Command, run_file: Path) -> None:
    for _ in range(2):
        assert command("run", run_file, "--overwrite", "--workers", 1).code == 0
    assert [path.name for path in Path("polyfed-runs").iterdir()] == ["run"]


def result_rounds(folder: str) -> int:
    rounds: int = RunRecord(Path(folder)).summary["rounds"]
    return rounds


def started(*words: object, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", "from polyfed.cli import main; main()", *map(str, words)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "COLUMNS": "200"},
    )


def test_ctrl_c_leaves_a_checkpoint_and_says_how_to_go_on(
    tmp_path: Path, small: dict[str, Any], command: Command
) -> None:
    """A real process, a real SIGINT to its whole group as a terminal sends it, then resume: the same result."""
    small.update(method="local", rounds=150, checkpoint_seconds=1000)
    (tmp_path / "long.yaml").write_text(yaml.safe_dump(small))
    process = started("run", "long.yaml", "--out", "long", "--workers", 2, cwd=tmp_path)
    history = tmp_path / "long" / "history.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (history.exists() and history.stat().st_size):
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "finishing round" in err
    assert "go on with: polyfed resume long" in out
    assert "or give it its result as it is: polyfed finish long" in out
    assert "Traceback" not in out + err
    rounds = int(re.findall(r"saved after round (\d+)", out)[0])
    assert 0 < rounds < 150
    assert command("resume", "long", "--workers", 1).code == 0
    command("run", "long.yaml", "--out", "whole", "--workers", 1)
    assert result_of(tmp_path / "long") == result_of(tmp_path / "whole")


@pytest.fixture
def short_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """A demo of one round on a few digits."""
    text = (
        yaml_text("demo.yaml")
        .replace("rounds: 10", "rounds: 1")
        .replace("  clients", "  limit: 300\n  clients")
    )
    monkeypatch.setattr(
        demonstrating,
        "yaml_text",
        lambda _name: re.sub(r"training: .*", "training: {epochs: 1, batch: 16}", text),
    )


@pytest.mark.usefixtures("short_demo")
def test_the_demo_ends_with_a_table_how_to_read_it_and_a_picture(command: Command, tmp_path: Path) -> None:
    said = command("demo", "--workers", 1)
    assert said.code == 0, said.err
    folder = tmp_path / "polyfed-runs" / "demo"
    table, words = said.out.split("How to read it: ")
    rows = {line.split()[0]: line for line in table.splitlines()[-10:] if line.split()}
    accuracy = {}
    for name in demonstrating.METHODS:
        accuracy[name] = RunRecord(folder / name).summary["last"]["whole"]["mean"]
        assert percent(accuracy[name]) in rows[name]
    assert all(f" {percent(accuracy[name])} %" in words for name in ("local", "pooled"))
    for name in ("fedavg", "fedmd", "dsfl"):
        (line,) = (line for line in words.splitlines() if line.split()[0] == name)
        assert f" {signed(accuracy[name] - accuracy['local'])} " in line
        assert sent_words(RunRecord(folder / name).summary) in line
    with Image.open(folder / "demo.png") as picture:
        assert picture.size[0] > 1000
    assert "The picture is polyfed-runs/demo/demo.png" in words


@pytest.mark.usefixtures("short_demo")
def test_a_second_demo_has_a_folder_of_its_own_and_its_run_file_runs_as_it_is(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "[dim]" / "demo").mkdir(parents=True)
    (tmp_path / "[dim]" / "demo" / "kept.txt").touch()
    assert "The picture is [dim]/demo-2/demo.png" in command("demo", "--out", "[dim]", "--workers", 1).out
    assert command("run", "[dim]/demo-2/demo.yaml", "--out", "mine", "--workers", 1).code == 0


def test_the_demo_has_no_public_labels_so_that_nobody_can_just_train_on_them() -> None:
    config = read_config(yaml.safe_load(yaml_text("demo.yaml")))
    assert config.data.public.labels == "none"
    assert "aggregated" not in demonstrating.METHODS


def test_a_users_csv_runs(command: Command, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 5))
    y = np.where(x[:, 0] > 0, "yes", "no")
    lines = ["a,b,c,d,e,label", *(",".join([*map(str, row), word]) for row, word in zip(x, y, strict=True))]
    (tmp_path / "mine.csv").write_text("\n".join(lines))
    (tmp_path / "mine.yaml").write_text(
        "data: {source: mine.csv, clients: 3}\nrounds: 5\nmodels: {names: [mlp-small]}\n"
    )
    said = command("run", "mine.yaml", "--workers", 1)
    assert said.code == 0
    model = polyfed.load_model("polyfed-runs/run", "client-1")
    assert model(torch.zeros(1, 5)).shape == (1, 2)
