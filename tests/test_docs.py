"""What README and docs say is true: their code runs, their run files are sound, their commands and links exist.

Python blocks of a page run in order, in one namespace and an empty folder. What a reader need not see is told by HTML
comments right before a block:

    <!-- file: NAME -->      the block is saved as this file instead of being run; tests in it are run
    <!-- python: CODE -->    this code is run before the block
"""

from __future__ import annotations

import importlib
import re
import shlex
import sys
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
import yaml
from _pytest.mark import ParameterSet
from tests.conftest import Command

from polyfed import tasks
from polyfed.cli import commands as cli
from polyfed.experiments import papers
from polyfed.federation import method as methods
from polyfed.federation.declaration import Declaration, Need
from polyfed.federation.method import Method, registered
from polyfed.learn import METRICS, Training
from polyfed.report.measures import metric_facts
from polyfed.report.tables import mixed_models
from polyfed.runs.config import read_config

ROOT = Path(__file__).parents[1]
DESIGN = "design.md"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
BLOCK = re.compile(
    r"(?:^ *<!-- *(?P<hint>file|python): *(?P<told>(?:(?!-->).)*?) *-->\n)?"
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
COMMENT = re.compile(r"\s+#\s.*")
CHEAP = re.compile(
    r"polyfed (new|partition|methods|metrics|models|data|reproduce( lwof)?( lwof/table2 --plan)?)\b"
)
"""Commands that are also run; `reproduce` only where it prints."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    code: str
    file: str | None
    before: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path, *languages: str) -> list[Block]:
    """The blocks of a page in these languages, in order."""
    text = page.read_text(encoding="utf-8")
    return [block for block in _blocks(page, text) if block.language in languages]


def _blocks(page: Path, text: str) -> Iterator[Block]:
    for found in BLOCK.finditer(text):
        told = {found["hint"]: textwrap.dedent(found["told"] or "")}
        yield Block(
            page,
            text.count("\n", 0, found.start("code")) + 1,
            found["language"],
            textwrap.dedent(found["code"]),
            told.get("file"),
            told.get("python", ""),
        )


def run_block(block: Block, namespace: types.ModuleType) -> None:
    """Run a block of Python, so that an error names the page and the line."""
    for code, line in ((block.before, block.line), (block.code, block.line)):
        compiled = compile("\n" * (line - 1) + code, str(block.page), "exec")
        exec(compiled, vars(namespace))


def _marked(page: Path) -> ParameterSet:
    marks = [pytest.mark.slow] if page.name == "your-own.md" else []
    return pytest.param(page, id=page.name, marks=marks)


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from which modules can be imported; what a page registers and imports is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(methods, "_registered", registered())
    return tmp_path


@pytest.mark.parametrize("page", [_marked(page) for page in PAGES if blocks(page, "python")])
def test_python_of_a_page_runs(page: Path, empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", namespace)
    known = set(sys.modules)
    try:
        for block in blocks(page, "python"):
            if block.file is None:
                run_block(block, namespace)
                continue
            (empty_folder / block.file).write_text(block.code, encoding="utf-8")
            if block.file.startswith("test_"):
                module = importlib.import_module(Path(block.file).stem)
                for name, test in list(vars(module).items()):
                    if name.startswith("test_"):
                        test()
    finally:
        for name in set(sys.modules) - known:
            if str(empty_folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


def test_a_broken_block_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Text.\n\n```python\nx = 1\n```\n\n<!-- python: y = 2 -->\n```python\nassert x == y\n```\n"
    )
    first, second = _blocks(page, page.read_text())
    namespace = types.ModuleType("page")
    run_block(first, namespace)
    with pytest.raises(AssertionError) as caught:
        run_block(second, namespace)
    assert caught.traceback[-1].lineno + 1 == 9


YAML = [block for page in PAGES for block in blocks(page, "yaml")]


@pytest.mark.parametrize("block", YAML, ids=lambda block: block.place)
def test_a_yaml_block_is_a_sound_run_file_or_paper(block: Block, tmp_path: Path) -> None:
    content = yaml.safe_load(block.code)
    if "tables" in content:
        file = tmp_path / "mine.yaml"
        file.write_text(block.code, encoding="utf-8")
        assert papers.load(str(file)).tables
    else:
        read_config(content)


def commands_of(page: Path) -> list[tuple[int, list[str]]]:
    """The lines of shell blocks that begin with `polyfed`, in words, without their comments."""
    return [
        (block.line + number, shlex.split(COMMENT.sub("", line)))
        for block in blocks(page, "sh", "bash")
        for number, line in enumerate(block.code.splitlines())
        if line.startswith("polyfed ")
    ]


COMMANDS = [(page, line, words) for page in PAGES for line, words in commands_of(page)]


@pytest.mark.parametrize(
    "words", [words for _, _, words in COMMANDS], ids=[f"{page.name}:{line}" for page, line, _ in COMMANDS]
)
def test_a_command_and_its_options_exist(words: list[str]) -> None:
    group = typer.main.get_command(cli.app)
    assert isinstance(group, typer.core.TyperGroup)
    command = group.commands[words[1]]
    command.make_context(words[1], words[2:])


def test_commands_that_only_print_or_write_a_file_work(command: Command) -> None:
    done = set()
    for page, line, words in COMMANDS:
        text = shlex.join(words)
        if CHEAP.fullmatch(text.split(" '")[0].removesuffix(" my.yaml")) and text not in done:
            done.add(text)
            said = command(*words[1:])
            assert said.code == 0, f"{page.name}:{line}: {said.err}"
    assert len(done) >= 7


def links(page: Path) -> list[str]:
    """What a page links to, except what is on the web."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != DESIGN], ids=lambda page: page.name)
def test_paths_that_a_page_names_exist(page: Path) -> None:
    named = re.findall(r"`((?:src|tests|docs|benchmarks)/[\w./-]+)`", page.read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


# -- the table of metrics --------------------------------------------------------------------------------------


def test_the_guide_says_of_a_metric_what_the_code_has() -> None:
    text = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    section = text.partition("\n## Further metrics\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    told = {name.strip("`"): tuple(others) for name, _, *others in rows}
    assert told == {name: metric_facts(metric)[2:] for name, metric in METRICS.items()}


# -- the table of methods --------------------------------------------------------------------------------------


def rows_of_methods() -> dict[str, list[str]]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition("\n## Methods\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): row[1:] for row in rows}


OURS = {name: kind for name, kind in registered().items() if kind.__module__.startswith("polyfed.")}


def test_readme_lists_every_method() -> None:
    assert set(rows_of_methods()) == set(OURS)


@pytest.mark.parametrize("name", OURS)
def test_readme_says_of_a_method_what_it_declares(name: str) -> None:
    different, leaves, public, _ = rows_of_methods()[name]
    method = OURS[name](OURS[name].Settings(), Training())
    assert different == mixed_models(OURS[name], method.declared.needs)
    assert set(leaves.split(", ")) == leaving(method)
    assert public.partition(",")[0] == public_data(method)


def leaving(method: Method) -> set[str]:
    if Need.ALL_DATA in method.declared.needs:
        return {"all data"}
    return {str(kind) for kind in method.declared.kinds_up.values()} or {"nothing"}


def public_data(method: Method) -> str:
    if Need.PUBLIC_LABELS in method.declared.needs:
        return "labelled"
    return "unlabelled" if Need.PUBLIC in method.declared.needs else "no"


def test_the_page_of_methods_says_for_which_tasks_each_is() -> None:
    text = (ROOT / "docs" / "methods.md").read_text()
    section = text.partition("### For which tasks")[2].partition("\n## ")[0]
    _, *rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", section, re.MULTILINE)
    found = dict(rows)
    assert list(found) == list(tasks.registered())
    for task, words in found.items():
        named = set(re.findall(r"`([\w-]+)`", words))
        suited = {name for name, kind in registered().items() if task in declared_by(kind).task_names}
        assert suited == (set(registered()) - named if words.startswith("all") else named), task


def declared_by(kind: type[Method]) -> Declaration:
    return kind(kind.Settings(), Training()).declared
