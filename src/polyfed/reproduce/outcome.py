"""What came out of a plan's runs: a table with the paper's claims judged, curves, who holds what; and their files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polyfed
from polyfed import disk
from polyfed.federation import Federation
from polyfed.metrics import mean_and_spread
from polyfed.papers.claims import BySeed, Look, judge_all
from polyfed.papers.paper import Curves, Holdings, Paper, Table
from polyfed.papers.results import (
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
from polyfed.report.figures import bubble_chart
from polyfed.report.reproduced import UNIT_NAMES
from polyfed.report.reproduced_figures import Panel, draw_curves, draw_table
from polyfed.report.reproduced_markdown import markdown
from polyfed.reproduce.plan import Plan, config_of


def conclude(plan: Plan) -> tuple[Outcome | None, list[Path]]:
    """What the runs of a plan came to: the table (of a figure nothing), and the files that were written."""
    if isinstance(plan.item, Table):
        outcome = measure(plan)
        return outcome, write_table(plan, outcome)
    if isinstance(plan.item, Curves):
        return None, write_curves(plan, plan.item)
    return None, write_holdings(plan, plan.item)


def evaluations(plan: Plan) -> dict[RunKey, Evaluations]:
    """What the plan's finished runs measured."""
    return {
        key: Evaluations.of(job.path)
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
    seeds = f"mean and spread over {plan.seeds} seeds" if plan.seeds > 1 else "one seed"
    title = f"{plan.paper.id}/{plan.key} at scale {plan.scale}: {figure.title} ({seeds})"
    picture = draw_curves(panels, title, UNIT_NAMES[table.unit], plan.folder / f"{plan.key}.png")
    return [_write_json(plan, {"curves": curves}), picture]


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
