"""Which runs a paper's table needs, and where they lie.

A run has its folder OUT/PAPER/SCALE/RUN/SETTING/seed-N, whichever table asked for it, so tables share runs, and the
same plan made again goes on where it was stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyfed.errors import ConfigError, UserError, nearest
from polyfed.experiments import papers
from polyfed.experiments.jobs import Job, state_of
from polyfed.experiments.papers.paper import (
    Claim,
    Column,
    Curves,
    Features,
    Figure,
    Holdings,
    Lines,
    Paper,
    Row,
    Table,
)
from polyfed.experiments.papers.results import RunKey
from polyfed.experiments.papers.terms import places_of, terms_of
from polyfed.runs.config import RunConfig, read_config
from polyfed.runs.folders import flat
from polyfed.runs.setup import Federation

OUT = Path("polyfed-runs/reproduce")
SCALE = "tiny"


@dataclass(frozen=True)
class Plan:
    """What is to be shown, and the runs that it needs."""

    source: str
    """The paper's number, or the file it was read from."""
    paper: Paper
    key: str
    scale: str
    seeds: int
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    out: Path
    jobs: Mapping[RunKey, Job]

    @property
    def folder(self) -> Path:
        """Where the runs' folders are, and what is written of tables and figures."""
        return folder_of(self.out, self.paper, self.scale)

    @property
    def item(self) -> Table | Figure:
        return find_item(self.paper, self.key)

    @property
    def command(self) -> str:
        """What does all this again."""
        words = [
            "polyfed reproduce",
            f"{self.source}/{self.key}",
            f"--scale {self.scale} --seeds {self.seeds}",
        ]
        rows, columns = _parts(self.paper, self.item)
        if len(self.rows) < len(rows):
            words.append(f"--rows {','.join(row.key for row in self.rows)}")
        if len(self.columns) < len(columns):
            words.append(f"--columns {','.join(column.key for column in self.columns)}")
        if self.out != OUT:
            words.append(f"--out {self.out}")
        return " ".join(words)


def make_plan(
    what: str,
    *,
    scale: str = SCALE,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    seeds: int | None = None,
    out: Path = OUT,
) -> Plan:
    """The runs that `000/table2` needs. Nothing is written.

    what: a paper's number (or a file of one's own), a slash, and a table or figure.
    rows, columns: only these, by key or name.
    seeds: how many; as many as the scale has unless told. They are 0, 1, 2 …
    """
    name, _, key = what.rpartition("/")
    paper = papers.load(name)
    item = find_item(paper, key)
    if scale not in paper.scales:
        raise ConfigError(f"--scale {scale}: no such scale, {nearest(scale, paper.scales)}")
    if scale not in paper.scales_of(item):
        raise ConfigError(
            f"--scale {scale}: {paper.id}/{key} is there at scale {' or '.join(item.scales)} only"
        )
    number = paper.scales[scale].seeds if seeds is None else seeds
    if isinstance(item, Features):
        number = 1  # a picture of one model
    all_rows, all_columns = _parts(paper, item)
    shown_rows = _pick(all_rows, {row.key: row.name for row in all_rows}, rows, "--rows")
    names = {column.key: paper.column_name(column) for column in all_columns}
    shown_columns = _pick(all_columns, names, columns, "--columns")
    folder = folder_of(out, paper, scale)
    jobs = {}
    for run, setting in dict.fromkeys(_needed(paper, key, shown_rows, shown_columns)):
        for seed in range(number):
            path = folder / run / setting / f"seed-{seed}"
            jobs[RunKey(run, setting, seed)] = Job(path, config_of(paper, run, setting, scale, seed))
    return Plan(name, paper, key, scale, number, shown_rows, shown_columns, out, jobs)


def folder_of(out: Path, paper: Paper, scale: str) -> Path:
    return out / paper.id / scale


def find_item(paper: Paper, key: str) -> Table | Figure:
    """A table or figure of a paper."""
    items: dict[str, Table | Figure] = {**paper.tables, **paper.figures}
    if key not in items:
        raise ConfigError(f"paper {paper.id} has no '{key}', {nearest(key, items)}")
    return items[key]


def config_of(paper: Paper, run: str, setting: str, scale: str, seed: int) -> RunConfig:
    """The config of one run, checked; a mistake in it is one in the paper's file."""
    try:
        return read_config(paper.config(run, setting, scale, seed))
    except UserError as error:
        raise ConfigError(f"paper {paper.id}, {run} in {setting} at scale {scale}: {error}") from None


def _parts(paper: Paper, item: Table | Figure) -> tuple[tuple[Row, ...], tuple[Column, ...]]:
    """The rows and columns that there are to choose from."""
    if isinstance(item, Table):
        return item.rows, item.columns
    if isinstance(item, Curves):
        table = paper.tables[item.table]
        return tuple(table.row(key) for key in item.rows), table.columns
    return (), item.columns if isinstance(item, Holdings) else ()


def _pick(
    parts: tuple[Any, ...], names: Mapping[str, str], wanted: Sequence[str], flag: str
) -> tuple[Any, ...]:
    """The parts of these keys or names, in the table's order; all if none is named."""
    keys = {spelling.casefold(): key for key, name in names.items() for spelling in (name, key)}
    for word in wanted:
        if word.casefold() not in keys:
            raise ConfigError(f"{flag} {word}: no such one, {nearest(word.casefold(), keys)}")
    chosen = {keys[word.casefold()] for word in wanted} or set(names)
    return tuple(part for part in parts if part.key in chosen)


def _needed(
    paper: Paper, key: str, rows: Sequence[Row], columns: Sequence[Column]
) -> Iterator[tuple[str, str]]:
    """Every (run, setting) of these cells, and of the other tables' cells that claims set beside them."""
    item = find_item(paper, key)
    if isinstance(item, Lines | Features | Holdings):
        yield from item.needed
        return
    table = item if isinstance(item, Table) else paper.tables[item.table]
    for row in rows:
        for column in columns:
            yield from table.runs_for(row, column)
    if isinstance(item, Table):
        own = {(row.key, column.key) for row in rows for column in columns}
        for claim in item.claims:
            yield from _needed_beside(paper, key, claim, own)


def _needed_beside(
    paper: Paper, key: str, claim: Claim, own: set[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """What a claim needs of other tables, if all that it needs of its own is asked for."""
    for place in places_of(claim, key, paper):
        terms = [(term.table, term.row, term.column or place or "") for term in terms_of(claim, key)]
        if all((row, column) in own for table, row, column in terms if table == key):
            for name, row, column in terms:
                if name != key:
                    table = paper.tables[name]
                    yield from table.runs_for(table.row(row), table.column(column))


def check_ready(plan: Plan) -> None:
    """Set up one federation of each run that has something left to do: data or models may not be at hand."""
    left: dict[str, Job] = {}
    for key, job in plan.jobs.items():
        if state_of(job) != "finished":
            left.setdefault(key.run, job)
    for job in left.values():
        Federation(job.config)


# -- looking at a plan --------------------------------------------------------------------------------------------


Which = tuple[str, str]  # run, setting

OWNERS: tuple[Callable[[Which], str], ...] = (
    lambda which: "all",
    lambda which: f"run {which[0]}",
    lambda which: f"setting {which[1]}",
    lambda which: f"{which[0]} in {which[1]}",
)


def settings_of(plan: Plan) -> dict[str, dict[str, Any]]:
    """What the plan's runs set: all of them, each run, each setting, or both together.

    Keys that have their default value in all runs are left out.
    """
    defaults = dict(flat(_facts(RunConfig())))
    contents: dict[Which, dict[str, Any]] = {}
    for (run, setting, _), job in plan.jobs.items():
        contents[run, setting] = dict(flat(_facts(job.config)))
    found: dict[str, dict[str, Any]] = {owner(which): {} for owner in OWNERS[:3] for which in contents}
    for key in dict.fromkeys(key for content in contents.values() for key in content):
        given = {which: content.get(key) for which, content in contents.items()}
        if key == "method.name" or any(value != defaults.get(key) for value in given.values()):
            owner = next(owner for owner in OWNERS if _owns(owner, given))
            for which, value in given.items():
                if value not in (None, {}):
                    found.setdefault(owner(which), {})[key] = value
    return found


def _owns(owner: Callable[[Which], str], given: Mapping[Which, Any]) -> bool:
    """Whether all that have the same owner are given the same value."""
    seen: dict[str, Any] = {}
    return all(seen.setdefault(owner(which), value) == value for which, value in given.items())


def _facts(config: RunConfig) -> dict[str, Any]:
    """A config's content, but for what tells seeds apart."""
    return {key: value for key, value in config.as_file().items() if key not in ("name", "seed")}


def states_of(plan: Plan) -> dict[str, dict[str, str]]:
    """How far the runs are, by run and setting: `2 finished, 1 new`."""
    states: dict[str, dict[str, list[str]]] = {}
    for (run, setting, _), job in plan.jobs.items():
        states.setdefault(run, {}).setdefault(setting, []).append(state_of(job))
    return {
        run: {
            setting: ", ".join(f"{each.count(state)} {state}" for state in dict.fromkeys(each))
            for setting, each in found.items()
        }
        for run, found in states.items()
    }
