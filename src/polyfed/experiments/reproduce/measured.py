"""What a plan's runs measured: a table with the paper's claims judged, curves, who holds what; and their files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polyfed
from polyfed import disk
from polyfed.data import Rows
from polyfed.experiments.jobs import finished_record
from polyfed.experiments.papers.chance import Accuracies
from polyfed.experiments.papers.claims import (
    JUDGED,
    FindAccuracies,
    FindNumber,
    Verdict,
    judge_all,
    tally,
    what_of,
)
from polyfed.experiments.papers.numbers import Bounded, Number, values_of
from polyfed.experiments.papers.paper import (
    CurvesFigure,
    FeaturesFigure,
    HoldingsFigure,
    LinesFigure,
    PanelLine,
    Paper,
    PaperTable,
    Unit,
)
from polyfed.experiments.papers.results import (
    FACTORS,
    Evaluations,
    MeasuredTable,
    RunKey,
    Runs,
    mean_curve,
    read_accuracies,
    read_cell,
    read_curves,
    read_printed,
)
from polyfed.experiments.papers.significance import LEAST_SEEDS, LEVEL
from polyfed.experiments.reproduce.features import features_of, principal_components
from polyfed.experiments.reproduce.figures import (
    CurvesPanel,
    FeaturesPanel,
    draw_curves,
    draw_features,
    draw_lines,
    draw_table,
    laid_out,
)
from polyfed.experiments.reproduce.formats import UNIT_NAMES
from polyfed.experiments.reproduce.markdown import markdown
from polyfed.experiments.reproduce.plan import ReproductionPlan, config_of
from polyfed.report.figures import bubble_chart
from polyfed.runs import api
from polyfed.runs.metrics import REPORTED_ROUNDS, ReportedRound, mean_and_spread
from polyfed.runs.setup import set_up


def conclude(plan: ReproductionPlan) -> tuple[MeasuredTable | None, list[Path]]:
    """Read a plan's runs and write what came out: the table (None for a figure), and the files' paths."""
    if isinstance(plan.item, PaperTable):
        measured = measure(plan)
        return measured, write_table(plan, measured)
    if isinstance(plan.item, CurvesFigure):
        return None, write_curves(plan, plan.item)
    if isinstance(plan.item, LinesFigure):
        return None, write_lines(plan, plan.item)
    if isinstance(plan.item, FeaturesFigure):
        return None, write_features(plan, plan.item)
    return None, write_holdings(plan, plan.item)


def evaluations(plan: ReproductionPlan) -> dict[RunKey, Evaluations]:
    """What the plan's finished runs measured."""
    return {
        key: Evaluations.of(job.path, plan.paper.chosen)
        for key, job in plan.jobs.items()
        if finished_record(job.path) is not None
    }


def measure(plan: ReproductionPlan) -> MeasuredTable:
    """A table from the runs that have finished, and the claims judged on it."""
    runs = evaluations(plan)
    cells = {
        (row.key, column.key): read_cell(plan.paper, plan.key, row, column, runs)
        for row in plan.rows
        for column in plan.columns
    }
    judgements = judge_all(
        plan.paper,
        plan.key,
        last=_find_measured(plan.paper, runs, "last"),
        chosen=_find_measured(plan.paper, runs, "chosen"),
        printed=find_printed(plan.paper),
        accuracies={which: _find_accuracies(plan.paper, runs, which) for which in REPORTED_ROUNDS},
    )
    return MeasuredTable(
        plan.paper, plan.key, plan.scale, plan.seeds, plan.rows, plan.columns, cells, judgements
    )


def _find_measured(paper: Paper, runs: Runs, which: ReportedRound) -> FindNumber:
    def find(table: str, row: str, column: str) -> Number:
        given = paper.tables[table]
        return read_cell(paper, table, given.row(row), given.column(column), runs).at(which)

    return find


def _find_accuracies(paper: Paper, runs: Runs, which: ReportedRound) -> FindAccuracies:
    def find(table: str, row: str, column: str) -> list[Accuracies | None]:
        given = paper.tables[table]
        return read_accuracies(paper, table, given.row(row), given.column(column), runs, which)

    return find


def find_printed(paper: Paper) -> FindNumber:
    """What the paper itself prints."""
    return lambda table, row, column: read_printed(paper, table, paper.tables[table].row(row), column)


# -- files -------------------------------------------------------------------------------------------------------


def write_table(plan: ReproductionPlan, measured: MeasuredTable) -> list[Path]:
    """Write everything that was measured as JSON, the table and the claims as Markdown, and a picture."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    picture = draw_table(measured, plan.folder / f"{plan.stem}.png")
    text = plan.folder / f"{plan.stem}.md"
    disk.replace(text, markdown(measured, plan.command, picture.name if picture else None).encode())
    return [_write_json(plan, as_json(measured)), text, *([picture] if picture else [])]


def write_curves(plan: ReproductionPlan, figure: CurvesFigure) -> list[Path]:
    """Write every curve as JSON, by seed, and a picture of their means."""
    table = plan.paper.tables[figure.table]
    runs = evaluations(plan)
    columns, across = laid_out(plan.columns)
    quantities = {column.key: UNIT_NAMES[table.column_unit(column)] for column in columns}
    curves = {
        column.key: {row.key: read_curves(table, row, column, runs) for row in plan.rows}
        for column in plan.columns
    }
    panels = [
        CurvesPanel(
            plan.paper.column_name(column),
            {row.name: mean_curve(curves[column.key][row.key].values()) for row in plan.rows},
            quantities[column.key],
        )
        for column in columns
    ]
    plan.folder.mkdir(parents=True, exist_ok=True)
    path = plan.folder / f"{plan.stem}.png"
    said = set(quantities.values())
    picture = draw_curves(panels, _title(plan), said.pop() if len(said) == 1 else "", path, across)
    return [_write_json(plan, {"curves": curves}), picture]


def write_lines(plan: ReproductionPlan, figure: LinesFigure) -> list[Path]:
    """Write every line as JSON, by seed, and a picture of their means."""
    runs = evaluations(plan)
    found = {
        panel.title: {line.name: by_step(plan, runs, line, panel.unit) for line in panel.lines}
        for panel in figure.panels
    }
    panels = [
        CurvesPanel(
            panel.title,
            {name: mean_curve(curves.values()) for name, curves in found[panel.title].items()},
            panel.quantity,
        )
        for panel in figure.panels
    ]
    plan.folder.mkdir(parents=True, exist_ok=True)
    picture = draw_lines(panels, _title(plan), "local steps", plan.folder / f"{plan.stem}.png")
    return [_write_json(plan, {"by local step": found}), picture]


def by_step(plan: ReproductionPlan, runs: Runs, line: PanelLine, unit: Unit) -> dict[int, dict[int, float]]:
    """A line by local step instead of round, for each seed, in its unit."""
    curves = {}
    for key, run in runs.items():
        if key.run == line.run:
            each = plan.jobs[key].config.training.steps or 1
            values = run.curve(line.measure).items()
            curves[key.seed] = {number * each: FACTORS[unit] * value for number, value in values}
    return curves


def write_features(plan: ReproductionPlan, figure: FeaturesFigure) -> list[Path]:
    """Draw the whole test set along the two directions in which a model's features vary most, one panel per run."""
    panels, shares = [], {}
    test: Rows | None = None
    for (run, _, _), job in plan.jobs.items():
        if finished_record(job.path) is not None:
            federation = set_up(job.config)
            test = federation.holdings.whole_test
            assert test is not None, "a data set that is cut has test rows"
            model = api.load_model(job.path, federation.roster.name(figure.client))
            points, shares[run] = principal_components(features_of(model, test))
            share = f"{100 * sum(shares[run]):.0f} % of the variance"
            panels.append(FeaturesPanel(f"{figure.runs[run]} ({share})", points.numpy()))
    if test is None:
        return []
    plan.folder.mkdir(parents=True, exist_ok=True)
    picture = plan.folder / f"{plan.stem}.png"
    draw_features(panels, test.labels.numpy(), test.dataset.classes, _title(plan), picture)
    return [_write_json(plan, {"share of the variance along x and y": shares}), picture]


def write_holdings(plan: ReproductionPlan, figure: HoldingsFigure) -> list[Path]:
    """Draw who holds what, with the first seed: one picture per column."""
    # All are set up before anything is written: the data may be missing.
    federations = {
        column.key: set_up(config_of(plan.paper, figure.run, column.setting, plan.scale, seed=0))
        for column in plan.columns
        if column.setting is not None
    }
    plan.folder.mkdir(parents=True, exist_ok=True)
    pictures, counts = [], {}
    for column in plan.columns:
        federation = federations[column.key]
        held, names = federation.holdings, federation.roster.names
        by_class = held.class_counts()
        counts[column.key] = by_class.tolist()
        title = f"{held.title}, {len(names)} clients, {plan.paper.column_name(column)}"
        path = plan.folder / f"{plan.key}-{column.key}.png"
        pictures.append(bubble_chart(by_class, held.agreement.classes, path, title, names.given))
    return [_write_json(plan, {"samples by client and class": counts}), *pictures]


def _title(plan: ReproductionPlan) -> str:
    seeds = f"mean and spread over {plan.seeds} seeds" if plan.seeds > 1 else "one seed"
    return f"{plan.paper.id}/{plan.key} at scale {plan.scale}: {plan.item.title} ({seeds})"


def as_json(measured: MeasuredTable) -> dict[str, Any]:
    """A table as measured: every seed's number, and the claims."""
    rows = []
    for row in measured.rows:
        cells: dict[str, dict[str, Any]] = {}
        for column in measured.columns:
            cell = measured.cells[row.key, column.key]
            printed = row.paper.get(column.key)
            cells[column.key] = {
                "unit": measured.table.unit_of(row, column),
                "paper": printed.value if printed else None,
                **{which: _numbers(cell.at(which)) for which in REPORTED_ROUNDS},
            }
        rows.append({"key": row.key, "name": row.name, "cells": cells})
    claims = [
        {
            "text": judged.claim.text,
            "what": what_of(judged.claim, measured.key),
            "between": [end if math.isfinite(end) else None for end in judged.claim.interval],
            "column": judged.column,
            "last": asdict(judged.last),
            "chosen": asdict(judged.chosen),
            "paper": asdict(judged.paper),
        }
        for judged in measured.judgements
    ]
    judged_at = {
        "level": LEVEL,
        "least seeds": LEAST_SEEDS,
        "last": _tally([judged.last for judged in measured.judgements]),
        "chosen": _tally([judged.chosen for judged in measured.judgements]),
    }
    return {"rows": rows, "judged": judged_at, "claims": claims}


def _tally(verdicts: Sequence[Verdict]) -> dict[str, int]:
    marks = tally(verdicts)
    return {
        "judged": sum(marks[mark] for mark in JUDGED),
        "tested": sum(verdict.is_tested for verdict in verdicts),
        "without power": sum(verdict.powerless for verdict in verdicts),
        **{str(mark): count for mark, count in marks.items()},
    }


def _numbers(number: Number) -> dict[str, Any] | None:
    if number == {}:
        return None
    mean, spread = mean_and_spread(values_of(number))
    seeds = dict(number) if isinstance(number, Mapping) else None
    found = {"mean": mean, "spread": spread, "seeds": seeds}
    more = [seed for seed, value in (seeds or {}).items() if isinstance(value, Bounded)]
    return {**found, "not reached": more} if more else found


def _write_json(plan: ReproductionPlan, content: Mapping[str, Any]) -> Path:
    header = {
        "paper": plan.paper.id,
        "what": plan.key,
        "title": plan.item.title,
        "scale": plan.scale,
        "scaled": plan.paper.scales[plan.scale].says,
        "seeds": plan.seeds,
        "command": plan.command,
        "polyfed": polyfed.__version__,
        "runs": [str(job.path.relative_to(plan.folder)) for job in plan.jobs.values()],
    }
    path = plan.folder / f"{plan.stem}.json"
    disk.replace(path, (json.dumps({**header, **content}, indent=1, ensure_ascii=False) + "\n").encode())
    return path
