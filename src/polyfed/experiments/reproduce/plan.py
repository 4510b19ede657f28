"""Which runs a paper's table needs, and where they are.

A run has its folder OUT/PAPER/SCALE/RUN/SETTING/seed-N, whichever table asked for it, so tables share runs, and the
same plan made again goes on where it was stopped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyfed.errors import ConfigError, UserError, nearest
from polyfed.experiments import papers
from polyfed.experiments.jobs import Job, state_of
from polyfed.experiments.papers.paper import (
    Claim,
    CurvesFigure,
    FeaturesFigure,
    HoldingsFigure,
    LinesFigure,
    Paper,
    PaperFigure,
    PaperTable,
    TableColumn,
    TableRow,
)
from polyfed.experiments.papers.results import RunKey
from polyfed.experiments.papers.terms import columns_judged, runs_for, terms_of
from polyfed.runs.config import RunConfig, read_config
from polyfed.runs.folders import RUNS_FOLDER
from polyfed.runs.keys import flatten
from polyfed.runs.setup import set_up

DEFAULT_OUT = RUNS_FOLDER / "reproduce"
DEFAULT_SCALE = "tiny"
MOST_LETTERS = 120  # of a file's name for the part that it holds


@dataclass(frozen=True)
class ReproductionPlan:
    """A table or figure of a paper, and the runs that it needs."""

    source: str
    """The paper's name, or the file it was read from."""
    paper: Paper
    key: str
    scale: str
    seeds: int
    rows: tuple[TableRow, ...]
    columns: tuple[TableColumn, ...]
    out: Path
    jobs: Mapping[RunKey, Job]

    @property
    def folder(self) -> Path:
        """Where the runs' folders are, and where tables and figures are written."""
        return folder_of(self.out, self.paper, self.scale)

    @property
    def item(self) -> PaperTable | PaperFigure:
        return find_item(self.paper, self.key)

    @property
    def part(self) -> dict[str, list[str]]:
        """The rows and columns that are shown, by their keys, where these are not all of them."""
        rows, columns = _parts(self.paper, self.item)
        chosen = {
            "rows": [row.key for row in self.rows] if len(self.rows) < len(rows) else [],
            "columns": [column.key for column in self.columns] if len(self.columns) < len(columns) else [],
        }
        return {name: keys for name, keys in chosen.items() if keys}

    @property
    def stem(self) -> str:
        """What the files of this table or figure are called.

        The plain name belongs to all rows and columns with the scale's own number of seeds. Anything else has a name
        that says what it is (`table2.rows-ind+agg.seeds-5`), so that it never replaces the whole.
        """
        words = [f"{name}-{'+'.join(keys)}" for name, keys in self.part.items()]
        if ".".join(words)[MOST_LETTERS:]:
            digest = hashlib.sha256(".".join(words).encode()).hexdigest()[:8]
            words = [*(f"{len(keys)}-{name}" for name, keys in self.part.items()), digest]
        one_model = isinstance(self.item, FeaturesFigure)
        if self.jobs and not one_model and self.seeds != self.paper.scales[self.scale].seeds:
            words.append(f"seeds-{self.seeds}")
        return ".".join([self.key, *words])

    @property
    def command(self) -> str:
        """The command that does all this again."""
        words = [
            "polyfed reproduce",
            f"{self.source}/{self.key}",
            f"--scale {self.scale} --seeds {self.seeds}",
            *(f"--{name} {','.join(keys)}" for name, keys in self.part.items()),
        ]
        if self.out != DEFAULT_OUT:
            words.append(f"--out {self.out}")
        return " ".join(words)


def plan_reproduction(
    what: str,
    *,
    scale: str = DEFAULT_SCALE,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    seeds: int | None = None,
    out: Path = DEFAULT_OUT,
) -> ReproductionPlan:
    """The runs that `lwof/table2` needs. Nothing is written.

    what: a paper's name (or a file of one's own), a slash, and a table or figure.
    rows, columns: only these, by key or name.
    seeds: how many, by default as many as the scale has; they are 0, 1, 2 …
    """
    name, _, key = what.rpartition("/")
    paper = papers.load(name)
    item = find_item(paper, key)
    if scale not in paper.scales:
        raise ConfigError(f"--scale {scale}: no such scale, {nearest(scale, paper.scales)}")
    if scale not in paper.scales_of(item):
        raise ConfigError(
            f"--scale {scale}: {paper.id}/{key} is only there at scale {' or '.join(item.scales)}"
        )
    number = paper.scales[scale].seeds if seeds is None else seeds
    if isinstance(item, FeaturesFigure):
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
    return ReproductionPlan(name, paper, key, scale, number, shown_rows, shown_columns, out, jobs)


def folder_of(out: Path, paper: Paper, scale: str) -> Path:
    return out / paper.id / scale


def find_item(paper: Paper, key: str) -> PaperTable | PaperFigure:
    """A table or figure of a paper."""
    items: dict[str, PaperTable | PaperFigure] = {**paper.tables, **paper.figures}
    if key not in items:
        raise ConfigError(f"paper {paper.id} has no '{key}', {nearest(key, items)}")
    return items[key]


def config_of(paper: Paper, run: str, setting: str, scale: str, seed: int) -> RunConfig:
    """The config of one run, checked; an error names the run in the paper's file."""
    try:
        return read_config(paper.config(run, setting, scale, seed))
    except UserError as error:
        raise ConfigError(f"paper {paper.id}, {run} in {setting} at scale {scale}: {error}") from None


def _parts(
    paper: Paper, item: PaperTable | PaperFigure
) -> tuple[tuple[TableRow, ...], tuple[TableColumn, ...]]:
    """All its rows and columns."""
    if isinstance(item, PaperTable):
        return item.rows, item.columns
    if isinstance(item, CurvesFigure):
        table = paper.tables[item.table]
        return tuple(table.row(key) for key in item.rows), table.columns
    return (), item.columns if isinstance(item, HoldingsFigure) else ()


def _pick(
    parts: tuple[Any, ...], names: Mapping[str, str], wanted: Sequence[str], flag: str
) -> tuple[Any, ...]:
    """The rows or columns of these keys or names, in the table's order; all if none is named."""
    keys = {spelling.casefold(): key for key, name in names.items() for spelling in (name, key)}
    for word in wanted:
        if word.casefold() not in keys:
            raise ConfigError(f"{flag} {word}: not found, {nearest(word.casefold(), keys)}")
    chosen = {keys[word.casefold()] for word in wanted} or set(names)
    return tuple(part for part in parts if part.key in chosen)


def _needed(
    paper: Paper, key: str, rows: Sequence[TableRow], columns: Sequence[TableColumn]
) -> Iterator[tuple[str, str]]:
    """Every (run, setting) of these cells, and of the other tables' cells that claims compare with them."""
    item = find_item(paper, key)
    if isinstance(item, LinesFigure | FeaturesFigure | HoldingsFigure):
        yield from item.needed
        return
    home = key if isinstance(item, PaperTable) else item.table
    for row in rows:
        for column in columns:
            yield from runs_for(paper, home, row, column.key)
    if isinstance(item, PaperTable):
        own = {(row.key, column.key) for row in rows for column in columns}
        for claim in item.claims:
            yield from _needed_beside(paper, key, claim, own)


def _needed_beside(
    paper: Paper, key: str, claim: Claim, own: set[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """The (run, setting) of the cells that a claim needs of other tables, if `own` has all it needs of this one."""
    for judged in columns_judged(claim, key, paper):
        terms = [(term.table, term.row, term.column or judged or "") for term in terms_of(claim, key)]
        if all((row, column) in own for table, row, column in terms if table == key):
            for name, row, column in terms:
                if name != key:
                    yield from runs_for(paper, name, paper.tables[name].row(row), column)


def check_ready(plan: ReproductionPlan) -> None:
    """Set up one federation for each run that is not finished: a `UserError` if data or models are missing."""
    left: dict[str, Job] = {}
    for key, job in plan.jobs.items():
        if state_of(job) != "finished":
            left.setdefault(key.run, job)
    for job in left.values():
        set_up(job.config)


# -- looking at a plan --------------------------------------------------------------------------------------------


RunAndSetting = tuple[str, str]  # run, setting

OWNERS: tuple[Callable[[RunAndSetting], str], ...] = (
    lambda which: "all",
    lambda which: f"run {which[0]}",
    lambda which: f"setting {which[1]}",
    lambda which: f"{which[0]} in {which[1]}",
)


def settings_of(plan: ReproductionPlan) -> dict[str, dict[str, Any]]:
    """What the plan's runs set: all of them, each run, each setting, or both together.

    Keys that have their default value in all runs are left out.
    """
    defaults = flatten(_but_for_seed(RunConfig()))
    contents: dict[RunAndSetting, dict[str, Any]] = {}
    for (run, setting, _), job in plan.jobs.items():
        contents[run, setting] = flatten(_but_for_seed(job.config))
    found: dict[str, dict[str, Any]] = {owner(which): {} for owner in OWNERS[:3] for which in contents}
    for key in dict.fromkeys(key for content in contents.values() for key in content):
        given = {which: content.get(key) for which, content in contents.items()}
        if key == "method.name" or any(value != defaults.get(key) for value in given.values()):
            owner = next(owner for owner in OWNERS if _owns(owner, given))
            for which, value in given.items():
                if value not in (None, {}):
                    found.setdefault(owner(which), {})[key] = value
    return found


def _owns(owner: Callable[[RunAndSetting], str], given: Mapping[RunAndSetting, Any]) -> bool:
    """Whether the value depends on nothing but the owner."""
    seen: dict[str, Any] = {}
    return all(seen.setdefault(owner(which), value) == value for which, value in given.items())


def _but_for_seed(config: RunConfig) -> dict[str, Any]:
    """A config's content without what differs between seeds."""
    return {key: value for key, value in config.as_file().items() if key not in ("name", "seed")}


def states_of(plan: ReproductionPlan) -> dict[str, dict[str, str]]:
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
