"""Names and reasons from anybody, in every command: no markup, nothing that steers a terminal, no formulas."""

from __future__ import annotations

import io
import logging
import re
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from tests.attacks.conftest import Refused
from tests.conftest import Command, Said

from polyfed import Client, Declaration, Fields, Fleet, Method, Server, client_step
from polyfed.cli.progress import follow_grid
from polyfed.cli.screen import Screen, log_to_screen
from polyfed.errors import visible
from polyfed.experiments.jobs import Job
from polyfed.federation import method as methods
from polyfed.report.drawing import plain
from polyfed.report.figures import bubble_chart
from polyfed.runs.config import read_config

STEERS = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\b\u202e\u2066"
HOSTILE = f"[/red][bold]{STEERS}$\\frac{{:smile:"
SHOWN = r"[/red][bold]\x1b]0;owned\x07\x1b[2J\x9b31m\r\x08\u202e\u2066$\frac{:smile:"
FOLDER = "[bold]\x1b[2J\u202e$x_{"


class Malicious(Method):
    """One client fails, with a reason of its own. [/red]\x1b[2J"""

    name = "malicious"

    def declare(self) -> Declaration:
        return Declaration()

    @client_step
    def train(self, me: Client) -> Fields:
        if me.facts.index == 1:
            raise ValueError(HOSTILE)
        return {}

    def round(self, t: int, fleet: Fleet, server: Server) -> None:
        fleet.ask(self.train, fleet.sample())


@pytest.fixture
def run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run over data whose classes, columns and clients have hostile names, in a folder with another."""
    monkeypatch.setitem(methods._registered, Malicious.name, Malicious)
    folder = tmp_path / FOLDER
    folder.mkdir()
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=120)
    pq.write_table(
        pa.table(
            {
                f"a{HOSTILE}": numbers,
                "b": rng.normal(size=120),
                "label": np.where(numbers > 0, HOSTILE, f"other {HOSTILE}").tolist(),
                "site": [f"{HOSTILE} {row % 3}" for row in range(120)],
            }
        ),
        folder / "table.parquet",
    )
    content = {
        "rounds": 2,
        "method": "local",
        "data": {
            "source": f"{FOLDER}/table.parquet",
            "partition": {"kind": "natural", "column": "site"},
        },
        "models": {"names": ["mlp-small"]},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(content))
    return f"{FOLDER}/run.yaml"


def check_harmless(said: Said) -> None:
    for text in (said.out, said.err):
        assert [letter for letter in text if steers(letter)] == []
    assert "Traceback" not in said.err


def steers(letter: str) -> bool:
    return letter not in "\n\t" and (unicodedata.category(letter) in ("Cc", "Cs") or letter in "\u202e\u2066")


@pytest.mark.slow
def test_every_command_shows_hostile_names_as_they_are(run_file: str, command: Command) -> None:
    folder = Path(FOLDER)
    done = folder / "done"
    commands: list[tuple[int, tuple[object, ...]]] = [
        (0, ("partition", run_file, "-o", folder / "p.png")),
        (0, ("-v", "run", run_file, "--out", done)),
        (0, ("run", run_file, "--set", "method=malicious", "--out", folder / "bad")),
        (0, ("resume", done)),
        (0, ("compare", done, folder / "bad", "-o", folder / "c.png")),
        (
            0,
            ("sweep", run_file, "--set", "method=local,malicious", "--out", folder / "sweep", "--workers", 1),
        ),
        (
            0,
            (
                "predict",
                done,
                folder / "table.parquet",
                "--client",
                "CLIENT",
                "--out",
                folder / "predicted.csv",
            ),
        ),
        (0, ("methods",)),
        (0, ("methods", "malicious")),
        (0, ("models",)),
        (0, ("data",)),
        (0, ("data", "--check")),
        (0, ("new", folder / "new.yaml")),
        (2, ("run", run_file, "--set", f"name={HOSTILE}")),
        (2, ("run", run_file, "--set", f"data.label={HOSTILE}")),
        (2, ("run", run_file, "--set", "data.label=none", "--out", folder / "none")),
        (2, ("run", run_file, "--set", f"{HOSTILE}=1")),
        (2, ("run", run_file, "--set", "data.image=b")),
        (2, ("resume", folder)),
        (2, ("compare", folder, done)),
        (2, ("predict", done, folder / "table.parquet", "--client", HOSTILE)),
        (2, ("methods", HOSTILE)),
        (2, ("models", HOSTILE)),
        (2, ("data", HOSTILE)),
        (2, ("reproduce", f"{HOSTILE}.yaml")),
        (2, ("partition", f"{HOSTILE}.yaml")),
    ]
    for code, words in commands:
        client = next((file.stem for file in sorted((done / "models").glob("*.safetensors"))), "")
        said = command(*(client if word == "CLIENT" else word for word in words))
        assert said.code == code, (words, said)
        check_harmless(said)
        if code == 2:
            assert said.err.count("\n") == 1


def test_a_class_that_looks_like_markup_is_printed_in_full(run_file: str, command: Command) -> None:
    said = command("partition", run_file)
    assert said.code == 0
    assert "[/red][bold]" in said.out
    assert "\N{SMILING FACE WITH OPEN MOUTH AND SMILING EYES}" not in said.out
    failed = command("run", run_file, "--set", "method=malicious", "--out", "bad")
    assert r"ValueError: [/red][bold]\x1b]0;owned\x07\x1b[2J" in failed.out


def on_a_terminal(width: int = 200) -> tuple[Screen, io.StringIO]:
    file = io.StringIO()
    return Screen(file=file, force_terminal=True, width=width, color_system="truecolor"), file


def test_a_terminal_is_steered_by_nobody_but_rich() -> None:
    screen, file = on_a_terminal()
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(HOSTILE)
    table.add_row(Text(HOSTILE))
    screen.print(table)
    screen.print(HOSTILE, HOSTILE)
    own = re.compile(r"\x1b\[[\d;]*m|\x1b\[\?25[hl]|\x1b\[\d?[AK]")
    assert [letter for letter in own.sub("", file.getvalue()) if steers(letter)] == []
    assert own.sub("", file.getvalue()).count("[/red][bold]") >= 5


def test_what_was_escaped_for_other_consoles_has_no_strokes_here() -> None:
    screen, file = on_a_terminal()
    for text in ("[red]", r"\[red]", r"a\\[/b]", "[1]", "[", r"\n"):
        screen.print(escape(text), highlight=False)
        screen.print(Text(text))
    lines = file.getvalue().splitlines()
    assert lines[::2] == lines[1::2]


def test_logs_and_progress_are_shown_as_they_are(
    tmp_path: Path,
    run_file: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    log_to_screen(verbose=False)
    logging.getLogger("polyfed").warning("a class is called %s", HOSTILE)
    assert f"a class is called {SHOWN}" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    config = read_config(Path(run_file), ["method=malicious", "rounds=1"])
    screen, file = on_a_terminal(100)
    follow_grid([Job(tmp_path / FOLDER / f"{number}", config) for number in range(2)], 1, screen)
    assert "\x1b[2J" not in file.getvalue()
    assert "\u202e" not in file.getvalue()


def test_no_name_is_a_formula_in_a_figure(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    for name in (r"$\frac", "$$", r"\$x$", "$x", "_hidden", HOSTILE):
        path = bubble_chart(np.array([[1, 2], [3, 4]]), [name, "other"], tmp_path / "a.svg", title=name)
        assert "<svg" in path.read_text()
    assert plain(HOSTILE) == SHOWN.replace("$", r"\$").replace(r"\r\x08", r" \x08")
    assert not recwarn.list


def test_errors_of_the_system_are_one_line(refused: Refused) -> None:
    assert refused("run", f"{HOSTILE}\nx.yaml")
    assert refused("resume", f"{HOSTILE}\nx")


def test_visible_keeps_what_people_write() -> None:
    for text in ("Müller", "北京", "مرحبا", "👩‍🔬", "a\tb\nc", "\\x1b", "[red]"):
        assert visible(text) == text
    assert visible("\x1b\x00\x7f\x85\u2028\ud800") == r"\x1b\x00\x7f\x85\u2028\ud800"


def test_no_module_prints_past_the_screen() -> None:
    root = Path(methods.__file__).parents[1]
    allowed = {"screen.py"}
    for file in root.rglob("*.py"):
        if file.name not in allowed:
            text = file.read_text()
            assert not re.search(r"\bConsole\(|from_markup|(?<!console\.)\bprint\((?!row\.|done\.)", text), (
                file
            )
    assert issubclass(Screen, Console)
