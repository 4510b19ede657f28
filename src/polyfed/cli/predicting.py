"""A trained model on new data: `predict`."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path

from yaml import YAMLError

from polyfed import disk
from polyfed.cli.screen import console
from polyfed.errors import ConfigError, visible
from polyfed.runs import api
from polyfed.runs.trained import Predictions, form_of, measured, predict, task_of
from polyfed.yaml_files import parse_yaml


def predict_rows(
    directory: Path,
    source: Path,
    client: str,
    out: Path | None,
    trust: Sequence[str],
    as_client: str | None = None,
    metrics: str | None = None,
) -> None:
    """Write what a client's model says of new data as CSV, and how good that is where the data say so.

    metrics: further ones to be told, by their names with commas between them.
    """
    try:
        model = api.load_model(directory, client, trust=trust)
    except api.OwnModelError as error:
        raise ConfigError(
            f"{client} trains '{error.architecture}', a model of your own: from Python,"
            f" polyfed.load_model({str(directory)!r}, {client!r}, make=…).predict({str(source)!r})"
        ) from None
    found = predict(model, form_of(directory, client, as_client), task_of(directory, trust), source)
    told = [] if metrics is None else _told_metrics(found, metrics, source)
    text = as_csv(found)
    if out is None:
        sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
    else:
        disk.replace(out, text.encode())
        console.print(f"wrote {out}", soft_wrap=True, markup=False)
    if found.tally is not None:
        known = found.tally[1] == len(found)
        others = (
            "" if known else f"; the labels of {len(found) - found.tally[1]} more are not known to {client}"
        )
        line = "\n".join([f"{found.task.told(found.tally)}{others}", *told, ""])
        # The table alone goes to stdout, where another program may read it.
        (sys.stderr if out is None else sys.stdout).write(visible(line))


def _told_metrics(found: Predictions, names: str, source: Path) -> list[str]:
    """Metrics in words, a line each: `recall 83.3 %`."""
    if found.tally is None:
        raise ConfigError(f"--metrics {names}: {source} does not say what is true of any row")
    lines = []
    try:
        wanted = parse_yaml(names) if names.lstrip().startswith(("[", "{")) else names
    except YAMLError as error:
        raise ConfigError(
            f"--metrics {names}: write names with commas between them, or [recall, {{name: fbeta_score, beta: 2}}]"
        ) from error
    for metric, value in measured(found, wanted):
        if isinstance(value, list):
            rows = zip(found.words, value, strict=False)
            lines += [f"{metric.title}, {word}: {' '.join(map(str, row))}" for word, row in rows]
        else:
            unit = metric.unit_for(found.task)
            lines.append(
                f"{metric.title} {metric.shown(value)}{f' {unit}' if unit and value is not None else ''}"
            )
    return lines


def as_csv(found: Predictions) -> str:
    """One line for each row: what it is called, the answer, and what else is said: the probability of each class."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", found.task.answer_title(found.words), *found.columns])
    for row, answer, shares in zip(found.rows, found.answers, found.table, strict=True):
        writer.writerow([row, found.task.as_told(answer), *(f"{share:.6g}" for share in shares)])
    return text.getvalue()
