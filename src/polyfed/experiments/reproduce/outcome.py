"""What came out of a plan's runs: a table with the paper's claims judged, curves, who holds what; and their files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polyfed
from polyfed import disk
from polyfed.experiments.papers.claims import BySeed, Look, judge_all
from polyfed.experiments.papers.paper import Curves, Features, Holdings, Line, Lines, Paper, Table, Unit
from polyfed.experiments.papers.results import (
    FACTORS,
    MOMENTS,
    Evaluations,
    Moment,
    Outcome,
    RunKey,
    Runs,
    mean_curve,
    read_cell,
    read_curves,
)
from polyfed.experiments.reproduce.features import features_of, flattened
from polyfed.experiments.reproduce.figures import (
    Cloud,
    Panel,
    draw_curves,
    draw_features,
    draw_lines,
    draw_table,
)
from polyfed.experiments.reproduce.markdown import markdown
from polyfed.experiments.reproduce.plan import Plan, config_of
from polyfed.experiments.reproduce.tables import UNIT_NAMES
from polyfed.federation.nodes import client_name
from polyfed.report.figures import bubble_chart
from polyfed.runs import api
from polyfed.runs.metrics import mean_and_spread
from polyfed.runs.setup import Federation


def conclude(plan: Plan) -> tuple[Outcome | None, list[Path]]:
    """What the runs of a plan came to: the table (of a figure nothing), and the files that were written."""
    if isinstance(plan.item, Table):
        outcome = measure(plan)
        return outcome, write_table(plan, outcome)
    if isinstance(plan.item, Curves):
        return None, write_curves(plan, plan.item)
    if isinstance(plan.item, Lines):
        return None, write_lines(plan, plan.item)
    if isinstance(plan.item, Features):
        return None, write_features(plan, plan.item)
    return None, write_holdings(plan, plan.item)


def evaluations(plan: Plan) -> dict[RunKey, Evaluations]:
    """What the plan's finished runs measured."""
    return {
        key: Evaluations.of(job.path, plan.paper.chosen)
        for key, job in plan.jobs.items()
        if (job.path / "summary.json").exists()
    }


def measure(plan: Plan) -> Outcome:
    """A table out of its runs, as far as they have finished, and the claims judged on it."""
    runs = evaluations(plan)
    table = plan.paper.tables[plan.key]
    cells = {
        (row.key, column.key): read_cell(table, row, column, runs)
        for row in plan.rows
        for column in plan.columns
    }
    judgements = judge_all(
        plan.paper,
        plan.key,
        last=_look(plan.paper, runs, "last"),
        chosen=_look(plan.paper, runs, "chosen"),
        printed=printed_look(plan.paper),
    )
    return Outcome(plan.paper, plan.key, plan.scale, plan.seeds, plan.rows, plan.columns, cells, judgements)


def _look(paper: Paper, runs: Runs, moment: Moment) -> Look:
    def look(table: str, row: str, column: str) -> BySeed:
        given = paper.tables[table]
        return read_cell(given, given.row(row), given.column(column), runs).at(moment)

    return look


def printed_look(paper: Paper) -> Look:
    """What the paper itself prints, as if it were one seed."""

    def look(table: str, row: str, column: str) -> BySeed:
        number = paper.tables[table].row(row).paper.get(column)
        return {} if number is None else {0: number.value}

    return look


# -- files -------------------------------------------------------------------------------------------------------


def write_table(plan: Plan, outcome: Outcome) -> list[Path]:
    """Everything that was measured as JSON, the table and the claims as Markdown, a picture."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    picture = draw_table(outcome, plan.folder / f"{plan.key}.png")
    text = plan.folder / f"{plan.key}.md"
    disk.replace(text, markdown(outcome, plan.command, picture.name).encode())
    return [_write_json(plan, as_json(outcome)), text, picture]


def write_curves(plan: Plan, figure: Curves) -> list[Path]:
    """Every curve as JSON, by seed, and a picture of their means."""
    table = plan.paper.tables[figure.table]
    runs = evaluations(plan)
    curves = {
        column.key: {row.key: read_curves(table, row, column, runs) for row in plan.rows}
        for column in plan.columns
    }
    panels = [
        Panel(
            plan.paper.column_name(column),
            {row.name: mean_curve(curves[column.key][row.key].values()) for row in plan.rows},
        )
        for column in plan.columns
    ]
    plan.folder.mkdir(parents=True, exist_ok=True)
    path = plan.folder / f"{plan.key}.png"
    picture = draw_curves(panels, _title(plan), UNIT_NAMES[table.unit], path)
    return [_write_json(plan, {"curves": curves}), picture]


def write_lines(plan: Plan, figure: Lines) -> list[Path]:
    """Every line as JSON, by seed, and a picture of their means."""
    runs = evaluations(plan)
    found = {
        panel.title: {line.name: by_step(plan, runs, line, panel.unit) for line in panel.lines}
        for panel in figure.panels
    }
    panels = [
        Panel(
            panel.title,
            {name: mean_curve(curves.values()) for name, curves in found[panel.title].items()},
            panel.quantity,
        )
        for panel in figure.panels
    ]
    plan.folder.mkdir(parents=True, exist_ok=True)
    picture = draw_lines(panels, _title(plan), "local steps", plan.folder / f"{plan.key}.png")
    return [_write_json(plan, {"by local step": found}), picture]


def by_step(plan: Plan, runs: Runs, line: Line, unit: Unit) -> dict[int, dict[int, float]]:
    """A line by local step instead of round, for each seed, in its unit."""
    curves = {}
    for key, run in runs.items():
        if key.run == line.run:
            each = plan.jobs[key].config.training.steps or 1
            values = run.curve(line.measure).items()
            curves[key.seed] = {number * each: FACTORS[unit] * value for number, value in values}
    return curves


def write_features(plan: Plan, figure: Features) -> list[Path]:
    """The two directions in which a model's features vary most, over the whole test set: a panel a run."""
    clouds, shares = [], {}
    for (run, _, _), job in plan.jobs.items():
        if (job.path / "summary.json").exists():
            test = Federation(job.config).whole_test
            model = api.load_model(job.path, client_name(figure.client))
            points, shares[run] = flattened(features_of(model, test))
            share = f"{100 * sum(shares[run]):.0f} % of the variance"
            clouds.append(Cloud(f"{figure.runs[run]} ({share})", points.numpy()))
    if not clouds:
        return []
    plan.folder.mkdir(parents=True, exist_ok=True)
    picture = plan.folder / f"{plan.key}.png"
    draw_features(clouds, test.labels.numpy(), test.dataset.classes, _title(plan), picture)
    return [_write_json(plan, {"share of the variance along x and y": shares}), picture]


def write_holdings(plan: Plan, figure: Holdings) -> list[Path]:
    """Who holds what, with the first seed: a picture for each column."""
    # All are set up before anything is written: the data may not be at hand.
    federations = {
        column.key: Federation(config_of(plan.paper, figure.run, column.setting, plan.scale, seed=0))
        for column in plan.columns
        if column.setting is not None
    }
    plan.folder.mkdir(parents=True, exist_ok=True)
    pictures, counts = [], {}
    for column in plan.columns:
        federation = federations[column.key]
        classes = federation.dataset.classes
        held = federation.partition.class_counts(federation.labels, len(classes))
        counts[column.key] = held.tolist()
        title = f"{federation.dataset.name}, {federation.clients} clients, {plan.paper.column_name(column)}"
        pictures.append(bubble_chart(held, classes, plan.folder / f"{plan.key}-{column.key}.png", title))
    return [_write_json(plan, {"samples by client and class": counts}), *pictures]


def _title(plan: Plan) -> str:
    seeds = f"mean and spread over {plan.seeds} seeds" if plan.seeds > 1 else "one seed"
    return f"{plan.paper.id}/{plan.key} at scale {plan.scale}: {plan.item.title} ({seeds})"


def as_json(outcome: Outcome) -> dict[str, Any]:
    """A table as measured: every seed's number, and the claims."""
    rows = []
    for row in outcome.rows:
        cells: dict[str, dict[str, Any]] = {}
        for column in outcome.columns:
            cell = outcome.cells[row.key, column.key]
            printed = row.paper.get(column.key)
            cells[column.key] = {
                "unit": outcome.table.unit_of(row, column),
                "paper": printed.value if printed else None,
                **{moment: _numbers(cell.at(moment)) for moment in MOMENTS},
            }
        rows.append({"key": row.key, "name": row.name, "cells": cells})
    claims = [
        {
            "text": judged.claim.text,
            "column": judged.place,
            "last": asdict(judged.last),
            "chosen": asdict(judged.chosen),
            "paper": asdict(judged.paper),
        }
        for judged in outcome.judgements
    ]
    return {"rows": rows, "claims": claims}


def _numbers(values: BySeed) -> dict[str, Any] | None:
    if not values:
        return None
    mean, spread = mean_and_spread(list(values.values()))
    return {"mean": mean, "spread": spread, "seeds": dict(values)}


def _write_json(plan: Plan, content: Mapping[str, Any]) -> Path:
    about = {
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
    path = plan.folder / f"{plan.key}.json"
    disk.replace(path, (json.dumps({**about, **content}, indent=1, ensure_ascii=False) + "\n").encode())
    return path
