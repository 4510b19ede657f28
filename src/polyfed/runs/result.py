"""The end of a run: its final models and `summary.json`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from polyfed.errors import RunError
from polyfed.runs import final_models, metrics
from polyfed.runs.failures import diverged, last_reasons, log_failures, name_of

if TYPE_CHECKING:
    from polyfed.runs.rounds import Run

logger = logging.getLogger(__name__)

_OF_A_ROUND = ("stages", "server", "server_metrics")


def conclude(run: Run) -> None:
    """Write every final model and the summary of a run whose last round is done and evaluated."""
    history = list(run.directory.history.lines())
    lines = [line for line in history if "summary" in line]
    if not lines or lines[-1]["round"] != run.round:
        raise RunError(f"{run.path} has no result: in its last round no client could be scored")
    roster = run.federation.roster
    files, reasons = _write_models(run)
    missing = final_models.missing(run.federation, files, last_reasons(history) | reasons)
    by = metrics.Criterion.of(run.config.evaluate, run.federation.task)
    if by.metric is not None and metrics.chosen_round(lines, by) is None:
        logger.warning(
            "%s: no round could be chosen, and no patience counted: %s has no value on validation rows",
            *(run.path, by.metric.name),
        )
    told = {"stopped": run.stopped, "diverged": diverged(history), "missing": missing}
    summary = {
        "name": run.config.name,
        "method": run.method.name,
        "rounds": run.round,
        **_scores(lines, by),
        "bytes": run.ledger.by_kind(),
        "clients": len(roster),
        "seconds": round(run.seconds, 3),
        "failures": sum(len(line.get("failures", ())) for line in history),
        **{key: found for key, found in told.items() if found},
    }
    run.directory.conclude(files, {**final_models.shared_by(roster), "missing": missing}, summary)


def _write_models(run: Run) -> tuple[dict[str, str], dict[str, str]]:
    """The files with their digests, and of the clients whose models could not be had, why."""
    trained = [run.federation.roster[index] for index in sorted(run.client_files())]
    before = len(run.fleet.failures)
    files = final_models.write(run.federation, run.server, run.evaluation, trained, run.directory.models)
    lost = run.fleet.failures[before:]
    log_failures(lost, run.fleet.round, run.federation.roster, run.directory.folder)
    return files, {name_of(each, run.federation.roster): each.reason for each in lost}


def _scores(lines: Sequence[Mapping[str, Any]], by: metrics.Criterion) -> dict[str, Any]:
    """The last round's scores and those of the round chosen on validation, of the lines with an evaluation."""
    chosen = metrics.chosen_round(lines, by)
    by_round = {
        line["round"]: {**line["summary"], **{key: line[key] for key in _OF_A_ROUND if key in line}}
        for line in lines
    }
    return {
        "last": by_round[lines[-1]["round"]],
        "chosen": {"round": chosen, **by_round[chosen]} if chosen is not None else None,
    }
