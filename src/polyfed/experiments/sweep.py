"""Sweeps: every combination of several values of some keys, each with several seeds, side by side.

OUT/sweep.json            what is swept: the same sweep given again goes on, another one is refused
OUT/VARIANT/seed-0        a run directory; a variant is called `method=fedavg,training.lr=0.1`
OUT/results.csv           one line per run
OUT/results.md            one line per variant, to be put into a page: scores, fairness, bytes, seconds
OUT/curves.png            scores over rounds, one line per variant
OUT/cost.png              scores against bytes, one point per variant
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from rich.table import Table

from polyfed import disk
from polyfed.disk import Folder
from polyfed.errors import ClientFailure, ConfigError, UserError
from polyfed.experiments.grid import run_jobs
from polyfed.experiments.jobs import Job, JobFailure, finished_record
from polyfed.federation.method import Method
from polyfed.report.fitting import FittedTable
from polyfed.report.sweeps import (
    FinishedRun,
    VariantResult,
    failed_clients,
    results_csv,
    stopped_early,
    sweep_further,
    sweep_markdown,
    sweep_table,
    variant_result,
)
from polyfed.runs import api
from polyfed.runs.architectures import ModelMaker
from polyfed.runs.config import RUN_NAME, VARIANTS, RunConfig, read_config, read_content
from polyfed.runs.folders import RUNS_FOLDER, first_difference
from polyfed.runs.history import RunRecord, common_task
from polyfed.runs.keys import flatten, merge, outer_first, parse_assignment
from polyfed.runs.manifest import data_digest
from polyfed.runs.setup import set_up
from polyfed.tasks import Task

logger = logging.getLogger(__name__)

NOTHING_VARIES = "base"
VARIANT = "variant"  # where a run file names its variants: the column with their names
DEFINITION = "sweep.json"
LONGEST_NAME = 120  # file systems take 255 bytes

RunFile = Mapping[str, Any] | str | Path


@dataclass(frozen=True)
class Variant:
    """One combination of values, to be run once per seed. Its name is also its folder's."""

    name: str
    values: Mapping[str, str]
    """The values of the keys that vary, as they were written."""
    jobs: tuple[Job, ...]

    @property
    def runs(self) -> list[RunRecord]:
        """The runs that have finished, in the order of the seeds."""
        return [record for job in self.jobs if (record := finished_record(job.path)) is not None]


@dataclass(frozen=True)
class SweepResult:
    """What came out of a sweep.

    for row in result.rows:
        print(row.variant, row.last_own, row.last_whole)
    result.runs["method=fedavg"][0].summary
    """

    path: Path
    runs: Mapping[str, Sequence[RunRecord]]
    """The finished runs of each variant, one per seed."""
    rows: Sequence[VariantResult]
    failures: Sequence[JobFailure]
    task: Task
    """What all of them learn: it says what scores mean."""

    def table(self) -> FittedTable:
        """The rows, to be printed by rich."""
        return sweep_table(self.rows, self.task)

    def further_table(self) -> Table | None:
        """Stages of a round, servers' models and further metrics, to be printed by rich; None without any."""
        return sweep_further(self.rows, self.task)

    def failed_clients(self) -> list[str]:
        """Where clients failed in runs that finished nevertheless, a line for each variant."""
        return failed_clients(self.runs)

    def stopped_early(self) -> list[str]:
        """Where runs ended before their last round, a line for each variant."""
        return stopped_early(self.runs)


@dataclass(frozen=True)
class SweepPlan:
    """A sweep whose runs have all been checked, before anything is written."""

    path: Path
    variants: Sequence[Variant]
    definition: Mapping[str, Any] = field(repr=False)
    """What is swept, as `sweep.json` keeps it."""
    task: Task
    """What all of its runs learn."""

    @property
    def jobs(self) -> list[Job]:
        """All runs, the first seed of every variant first: there is something to compare early on."""
        by_seed = zip(*(variant.jobs for variant in self.variants), strict=True)
        return [job for same_seed in by_seed for job in same_seed]

    def begin(self) -> None:
        """Make the folder this sweep's own, or check that it is."""
        file = self.path / DEFINITION
        folder = Folder(self.path)
        if folder.has(DEFINITION):
            try:
                there = flatten(json.loads(folder.read(DEFINITION)))
            except (ValueError, AttributeError, RecursionError):
                raise ConfigError(f"{file} was truncated or edited: choose another --out") from None
            difference = first_difference(there, flatten(self.definition))
            if difference is not None:
                raise ConfigError(f"{self.path} holds another sweep, {difference}: choose another --out")
            return
        if self.path.exists() and any(part.name != f"{DEFINITION}.tmp" for part in self.path.iterdir()):
            raise ConfigError(f"{self.path} is not empty and holds no sweep: choose another --out")
        self.path.mkdir(parents=True, exist_ok=True)
        disk.replace(file, (json.dumps(self.definition, indent=1) + "\n").encode())

    def result(self, failures: Sequence[JobFailure] = ()) -> SweepResult:
        """What has come out so far."""
        runs = {variant.name: variant.runs for variant in self.variants}
        rows = [
            variant_result(variant.name, variant.values, len(variant.jobs), runs[variant.name])
            for variant in self.variants
        ]
        return SweepResult(self.path, runs, rows, failures, self.task)

    def write(self, result: SweepResult) -> list[Path]:
        """Write `results.csv`, `results.md` and, if there is anything to draw, the figures; return their paths."""
        finished = [
            FinishedRun(variant.name, variant.values, str(record.path.relative_to(self.path)), record)
            for variant in self.variants
            for record in result.runs[variant.name]
        ]
        written = [self.path / "results.csv"]
        disk.replace(written[0], results_csv(finished).encode())
        if any(row.last_own or row.last_whole for row in result.rows):
            # Imported only where something is drawn: matplotlib takes half a second of every launch.
            from polyfed.report.curves import score_curves  # noqa: PLC0415

            curves = {_label(variant): result.runs[variant.name] for variant in self.variants}
            legend = ", ".join(self.variants[0].values)
            written.append(score_curves(curves, self.path / "curves.png", legend=legend))
        if any((row.last_whole or row.last_own) and row.sent for row in result.rows):
            from polyfed.report.cost_points import score_against_bytes  # noqa: PLC0415

            points = {_label(variant): result.runs[variant.name] for variant in self.variants}
            written.append(score_against_bytes(points, self.path / "cost.png"))
        disk.replace(self.path / "results.md", sweep_markdown(result.rows, self.task).encode())
        return [*written, self.path / "results.md"]


def sweep(
    config: RunFile,
    sets: Mapping[str, Any] | None = None,
    *,
    seeds: int = 1,
    out: str | Path | None = None,
    workers: int | None = None,
    data: Any = None,
    models: api.Models | None = None,
) -> SweepResult:
    """Run every combination of these values, each with several seeds, and return what came out.

        done = polyfed.sweep("my.yaml", {"method": ["fedavg", "fedprox"], "training.lr": [0.1, 0.01]}, seeds=3)

    Called again with the same arguments it goes on where it was. Runs that fail are in `failures`; the others go on.

    config: a run file, or its content; if it has `variants`, each of them is run.
    sets: a list of values for each key that is swept; a single value is set for all.
    seeds: how many; the first is the run file's `seed`, each further one is one higher.
    out: the sweep's folder; `polyfed-runs/NAME-sweep` by default.
    workers: processes; one per core by default. Several runs are done at a time.
    data, models: the user's own, for all runs: see `run`. Given again, they must be the same.
    """
    texts = {
        key: [_as_text(value) for value in (values if isinstance(values, list | tuple) else [values])]
        for key, values in (sets or {}).items()
    }
    planned = plan_sweep(config, texts, seeds, out, data=data, models=models)
    planned.begin()
    failures = run_jobs(planned.jobs, workers)
    for failure in failures:
        logger.warning("%s failed: %s", failure.job.path, failure.reason)
    result = planned.result(failures)
    planned.write(result)
    for line in result.failed_clients():
        warnings.warn(line, ClientFailure, stacklevel=2)
    return result


def plan_sweep(
    config: RunFile,
    sets: Mapping[str, Sequence[str]],
    seeds: int = 1,
    out: str | Path | None = None,
    *,
    data: Any = None,
    models: api.Models | None = None,
) -> SweepPlan:
    """Every combination, checked before the first run starts: hours of work should not end in a typing mistake."""
    if len(sets.get("seed", ())) > 1:
        raise ConfigError("--set seed: several seeds are --seeds 3: the run file's seed and the next two")
    if seeds < 1 or not all(sets.values()):
        raise ConfigError("a sweep needs at least one seed, and one value for each key")
    content = read_content(Path(config) if isinstance(config, str) else config)
    given = _Given(data, api.by_name(models))
    varied = [key for key in sorted(sets) if len(sets[key]) > 1]
    found: dict[str, tuple[RunConfig, dict[str, str]]] = {}
    tasks: dict[str, Task] = {}
    named = named_variants(content)
    for variant, combination in itertools.product(named, itertools.product(*sets.values())):
        values = dict(zip(sets, combination, strict=True))
        shown = ({VARIANT: variant} if variant else {}) | {key: values[key] for key in varied}
        name = _name(shown)
        checked, fingerprint, tasks[name] = _checked(
            named[variant], values, name if shown else "", given, seeds
        )
        for other, (known, _) in found.items():
            if known == checked:
                raise ConfigError(f"{name} is the same run as {other}: leave one out")
        found[f"{name}-{len(found)}" if name in found else name] = checked, shown
        common_task(tasks)
    folder = Path(out) if out is not None else RUNS_FOLDER / f"{checked.name}-sweep"
    variants = [
        Variant(name, shown, tuple(_jobs(one, folder / name, seeds, given)))
        for name, (one, shown) in found.items()
    ]
    definition = {
        "file": content,
        "sets": {key: list(values) for key, values in sets.items()},
        "seeds": seeds,
        **({"data": fingerprint} if data is not None else {}),
        **({"models": sorted(given.models)} if given.models else {}),
    }
    return SweepPlan(
        folder, variants, json.loads(json.dumps(definition, default=str)), next(iter(tasks.values()))
    )


def named_variants(content: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The run files that the variants of a run file stand for, by name; without any, the file itself, with no name."""
    variants = content.get(VARIANTS)
    base = {key: value for key, value in content.items() if key != VARIANTS}
    if variants is None:
        return {"": base}
    if not isinstance(variants, Mapping) or not variants:
        raise ConfigError(f"{VARIANTS}: write name: {{key: value}}, such as slow: {{training.lr: 0.01}}")
    found = {}
    for name, changes in variants.items():
        if not isinstance(name, str) or not RUN_NAME.fullmatch(name):
            raise ConfigError(
                f"{VARIANTS}: the name {name!r} may have letters, digits, '-', '_' and '.' alone"
            )
        if not isinstance(changes, Mapping) or not all(isinstance(key, str) for key in changes):
            raise ConfigError(f"{VARIANTS}.{name}: write what differs, such as {{training.lr: 0.01}}")
        try:
            found[name] = merge(base, changes)
        except ConfigError as error:
            raise ConfigError(f"{VARIANTS}.{name}: {error}") from None
    return found


@dataclass(frozen=True)
class _Given:
    """The user's own data and models."""

    data: Any
    models: Mapping[str, ModelMaker] | None


def _jobs(config: RunConfig, folder: Path, seeds: int, given: _Given) -> list[Job]:
    return [
        Job(folder / f"seed-{seed}", config.model_copy(update={"seed": seed}), given.data, given.models)
        for seed in range(config.seed, config.seed + seeds)
    ]


def _checked(
    content: Mapping[str, Any], values: Mapping[str, str], name: str, given: _Given, seeds: int
) -> tuple[RunConfig, str, Task]:
    """The config of a combination, with which a federation can be made, the fingerprint of its data, and its task.

    What is given from Python has its place in the config, as in that of a run: it is compared when the sweep goes on.
    Other seeds deal out other rows, which matters only to a method that has a check of its own.
    """
    try:
        config = read_config(content, [f"{key}={values[key]}" for key in outer_first(values)])
        federation = set_up(config, given.data, given.models)
        if type(federation.method).check is not Method.check:
            for seed in range(config.seed + 1, config.seed + seeds):
                set_up(config.model_copy(update={"seed": seed}), given.data, given.models)
    except UserError as error:
        raise type(error)(f"{name}: {error}" if name else str(error)) from None
    names = config.models.model_copy(update={"names": federation.config.models.names})
    changes = {"data": federation.config.data, "models": names if given.models else config.models}
    return config.model_copy(update=changes), data_digest(federation.fingerprints), federation.task


# -- names and values ----------------------------------------------------------------------------------------


def _name(values: Mapping[str, str]) -> str:
    """A variant's name, which is also a folder's: safe in a shell and on a disk, and not too long."""
    whole = ",".join(value if key == VARIANT else f"{key}={value}" for key, value in values.items())
    name = re.sub(r"[^\w.,=+-]", "-", re.sub(r"[][{}'\"\s]", "", whole)) or NOTHING_VARIES
    if len(name.encode()) > LONGEST_NAME:
        name = f"{name[: LONGEST_NAME // 2]}-{disk.digest(whole.encode())[:8]}"
    return name


def _label(variant: Variant) -> str:
    """In a figure whose legend names the keys, the values are enough."""
    return ", ".join(variant.values.values()) or variant.name


def read_sets(words: Sequence[str]) -> dict[str, list[str]]:
    """`["method=fedavg,fedprox", "rounds=5"]` as the values of each key."""
    sets: dict[str, list[str]] = {}
    for word in words:
        key, text = parse_assignment(word) or ("", "")
        values = split_values(text)
        if not key or (len(values) > 1 and not all(values)):
            raise ConfigError(
                f"--set {word}: write it as key=value or key=value,value such as training.lr=0.1,0.01"
            )
        if key in sets:
            raise ConfigError(
                f"--set {word}: {key} is set twice; write --set {key}={','.join(sets[key])},{text}"
            )
        sets[key] = values
    return sets


def split_values(text: str) -> list[str]:
    """`a,b` are two values; a comma inside brackets, braces or quotes is part of one."""
    values = [""]
    depth = 0
    quote = ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"" and values[-1].rstrip()[-1:] in ("", "[", "{", ",", ":"):
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth <= 0 and not quote:
            values.append("")
        else:
            values[-1] += letter
    return [value.strip() for value in values]


def _as_text(value: Any) -> str:
    """A value from Python as it would be written after `--set key=`."""
    if isinstance(value, str) and re.fullmatch(r"[\w./-]+", value) and yaml.safe_load(value) == value:
        return value
    return json.dumps(value, default=str)
