"""Tables for the terminal: one run, methods, models, data sets, and who holds what."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from rich import box
from rich.markup import escape
from rich.table import Table

from polyfed import data, models
from polyfed.errors import ConfigError
from polyfed.federation.declaration import Need
from polyfed.federation.method import Method, registered
from polyfed.learn import CONFUSION, Training
from polyfed.report.measures import Measure, further_measures, part_titles, stages_on_whole, worst_metrics
from polyfed.runs.history import RunRecord
from polyfed.runs.metrics import REPORTED_ROUNDS, ReportedRound, sent_per_client

MOST_NAMED = 20  # clients in the table of a run's result
MOST_CLIENTS = 50  # listed by `partition`; the others are only counted
MOST_CLASSES = 20  # of a confusion matrix that is printed


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


def amount(size: float) -> str:
    """Bytes in the largest fitting unit (decimal: 1 MB is 1,000,000 bytes)."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError


def sent_words(summary: Mapping[str, Any]) -> str:
    """What a client sent in a run, for people; where all data are in one place, a client's data are there too."""
    if pools_data(summary):
        return "all its data"
    sent = sent_per_client(summary)
    return amount(sent) if sent else "nothing"


def pools_data(summary: Mapping[str, Any]) -> bool:
    """Whether the method of a run needs everybody's data in one place; not of one that is not installed here."""
    kind = registered().get(summary["method"])
    return kind is not None and Need.ALL_DATA in kind(kind.Settings(), Training()).declared.needs


def signed(share: float | None) -> str:
    """In per cent, with its sign; what rounds to zero is +0.0."""
    return "" if share is None else f"{round(100 * share, 1) + 0.0:+.1f}"


def result_table(record: RunRecord, local: RunRecord | None) -> Table:
    """One run's result, at the last round and at the round chosen on validation."""
    summary = record.summary
    chosen = summary["chosen"]
    table = Table(
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title=escape(f"{summary['name']}: {summary['method']}, {summary['clients']} clients"),
    )
    # In a narrow terminal the words are folded, the numbers never.
    table.add_column("in %" if "metrics" in summary["last"] else "accuracy in %", overflow="fold")
    table.add_column(f"last round\n({summary['rounds']})", justify="right", no_wrap=True)
    if chosen:
        table.add_column(f"chosen on\nvalidation ({chosen['round']})", justify="right", no_wrap=True)
    rounds = [summary["last"], *([chosen] if chosen else [])]
    for title, *accuracies in _accuracies(record, rounds):
        table.add_row(title, *map(percent, accuracies))
    if "amp" in summary["last"]:
        table.add_row("AMP (all own test rows together)", *(percent(each.get("amp")) for each in rounds))
        table.add_row("WLP (worst client)", *(percent(each.get("wlp")) for each in rounds))
        table.add_row("FM (variance, ×10⁻³)", *(f"{1000 * each.get('fm', 0):.2f}" for each in rounds))
    for title, cells in _further_rows(record, REPORTED_ROUNDS if chosen else ("last",)):
        table.add_row(escape(title), *cells)
    if local is not None:
        for part, gain in record.gain_over(local).items():
            table.add_row(escape(f"gain over {local.path.resolve().name}, {part}"), signed(gain))
    parts = list(part_titles(record))
    models = summary["last"]["architectures"]
    clients = {
        f"client {name}" if name in models else name: scores for name, scores in _named_clients(record)
    }
    for name, scores in (*models.items(), *clients.items()):
        shown = " / ".join(percent(scores[part]) for part in parts if part in scores)
        table.add_row(escape(f"{name} ({' / '.join(parts)})"), shown or "–")
    for direction in ("up", "down"):
        sizes = summary["bytes"][direction]
        shown = "\n".join(f"{kind} {amount(size)}" for kind, size in sizes.items())
        table.add_row(f"bytes {direction}", shown or "nothing")
    if summary["failures"]:
        table.add_row("failed client steps", str(summary["failures"]))
    for title, names in (
        ("diverged (weights not finite)", summary.get("diverged", ())),
        ("clients without a final model", summary.get("missing", ())),
    ):
        if names:
            table.add_row(title, escape("\n".join(listed(names))))
    return table


def listed(names: Collection[str]) -> list[str]:
    """The first of some names, and how many there are beside them."""
    rest = len(names) - MOST_NAMED
    return [*list(names)[:MOST_NAMED], *([f"and {rest} more"] if rest > 0 else [])]


def _accuracies(record: RunRecord, rounds: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Any, ...]]:
    """What clients reached on test rows; without any, on validation rows."""
    parts = part_titles(record)
    scored = [part for part in parts if part in rounds[0]]
    for part in scored:
        for what in ("mean", "worst", "best", "spread"):
            yield f"{parts[part]}, {what}", *(each.get(part, {}).get(what) for each in rounds)
    if not scored:
        yield "nothing was scored: no test rows (data.test)", *(None for _ in rounds)
        if "validation" in rounds[0]:
            yield "all validation rows together", *(each.get("validation") for each in rounds)


def _further_rows(record: RunRecord, whens: Sequence[ReportedRound]) -> Iterator[tuple[str, list[str]]]:
    """Stages of a round, the server's models, metrics beside accuracy, and what is lost from a stage to the next."""
    found = [further_measures(record, when) for when in whens]
    worst = [worst_metrics(record, when) for when in whens]
    for measure in dict.fromkeys(measure for each in found for measure in each):
        cells = [measure.shown(each.get(measure)) for each in found]
        if measure in worst[0]:
            pairs = zip(cells, worst, strict=True)
            cells = [f"{mean} / {measure.shown(other.get(measure))}" for mean, other in pairs]
        yield f"{measure.title} (mean / worst)" if measure in worst[0] else measure.title, cells
    stages = [stages_on_whole(record, when) for when in whens]
    for before, after in pairwise(dict.fromkeys(stage for each in stages for stage in each)):
        gaps = [each[before] - each[after] if {before, after} <= each.keys() else None for each in stages]
        yield f"gap ({before} − {after})", [percent(gap) for gap in gaps]


def further_table(
    who: str, found: Sequence[tuple[str, Mapping[ReportedRound, Mapping[Measure, str]]]]
) -> Table | None:
    """Stages, the server's models and metrics of several runs, below each other by measure; None if there are none.

    who: what is named in a row: runs or variants. found: their names, and the texts of their measures at the last round
    and at the one chosen on validation.
    """
    measures = dict.fromkeys(measure for _, each in found for when in each.values() for measure in when)
    if not measures:
        return None
    table = Table(
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title="stages, servers' models and metrics in %, mean over clients",
    )
    for name in ("measured", who):
        table.add_column(name, overflow="fold")
    for name in ("last", "chosen"):
        table.add_column(name, justify="right")
    for measure in measures:
        has = [(name, each) for name, each in found if any(measure in when for when in each.values())]
        for place, (name, each) in enumerate(has):
            texts = [each.get(when, {}).get(measure, "–") for when in REPORTED_ROUNDS]
            first = escape(measure.title) if place == 0 else ""
            table.add_row(first, escape(name), *texts, end_section=place == len(has) - 1)
    return table


def compare_further(runs: Mapping[str, RunRecord]) -> Table | None:
    """What was measured beside accuracy in several runs; None if nothing was."""
    found = [
        (
            name,
            {
                when: {
                    measure: measure.shown(value) for measure, value in further_measures(record, when).items()
                }
                for when in REPORTED_ROUNDS
                if record.summary[when]
            },
        )
        for name, record in runs.items()
    ]
    return further_table("run", found)


def confusion_table(record: RunRecord) -> Table | None:
    """The confusion matrix at the last round, all clients' added; None if there is none or it is too large to print."""
    metrics = record.summary["last"].get("metrics", {})
    found = [(title, metrics.get(part, {}).get(CONFUSION)) for part, title in part_titles(record).items()]
    title, counts = next(((title, counts) for title, counts in found if counts is not None), ("", []))
    if not 0 < len(counts) <= MOST_CLASSES:
        return None
    heading = f"confusion matrix, {title} (rows: classes, columns: answers)"
    table = Table(box=box.SIMPLE_HEAD, title_justify="left", title=heading, min_width=len(heading))
    words = record.output_words
    for word in ("", *words[: len(counts)]):
        table.add_column(escape(word), justify="right")
    for word, row in zip(words, counts, strict=False):
        table.add_row(escape(word), *(str(count) if count else "·" for count in row))
    return table


def _named_clients(record: RunRecord) -> list[tuple[str, dict[str, float]]]:
    """The last accuracies of clients that have names of their own, if they are few."""
    names = record.client_names
    if names is None or len(names) > MOST_NAMED:
        return []
    clients = record.last_evaluation["clients"]
    return [
        (
            name,
            {
                part: record.task.value(score)
                for part, score in clients[name].items()
                if part in ("own", "whole")
            },
        )
        for name in names
        if name in clients
    ]


def methods_table(*, in_short: bool = True) -> Table:
    """What every method needs and sends, from its own declarations, and in short what it is."""
    table = Table(box=box.SIMPLE_HEAD, title_justify="left", title="methods, from what each declares")
    table.add_column("method", no_wrap=True)
    for name in ("different models", "server", "weights travel", "public data", "leaves a client"):
        table.add_column(name)
    if in_short:
        table.add_column("in short")
    for name, kind in registered().items():
        method = kind(kind.Settings(), Training())
        said = method.declared
        table.add_row(
            name,
            mixed_models(kind, said.needs),
            _yes(said.server),
            _yes(said.sends_weights),
            "labelled" if Need.PUBLIC_LABELS in said.needs else _yes(Need.PUBLIC in said.needs),
            leaves_words(method),
            *([escape(method.summary)] if in_short else []),
        )
    return table


def leaves_words(method: Method) -> str:
    """The kinds of what leaves a client, or that all its data do."""
    if Need.ALL_DATA in method.declared.needs:
        return "all data"
    return ", ".join(dict.fromkeys(method.declared.kinds_up.values())) or "nothing"


def method_summaries() -> Table:
    """In short what every method is: beside a table in which there is no room for it."""
    table = Table(box=None, show_header=False, padding=(0, 2))
    table.add_column(no_wrap=True)
    for name, kind in registered().items():
        table.add_row(name, escape(kind.summary))
    return table


def mixed_models(kind: type[Method], needs: Collection[Need]) -> str:
    """Whether clients may have different models: yes, no, or in groups of one architecture each."""
    if Need.COMMON_ARCHITECTURE not in needs:
        return "yes"
    return "in groups" if "within" in kind.Settings.model_fields else "no"


def _yes(truth: bool) -> str:
    return "yes" if truth else "no"


def models_table(
    pattern: str, shape: tuple[int, ...], outputs: int, norm: Literal["batch", "group"]
) -> Table:
    """The models whose names match a wildcard: sizes, features, and the memory layout in which each is fastest.

    shape: of the input: channels, height and width.
    """
    rows = models.table(pattern, shape, outputs, norm)
    if not rows:
        raise ConfigError(f"no model is called '{pattern}'; `polyfed models` lists all")
    table = Table(
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title=f"models for {'x'.join(map(str, shape))} inputs and {outputs} classes",
    )
    table.add_column("model", no_wrap=True)
    for name in ("parameters", "MACs", "memory (batch 1)", "features"):
        table.add_column(name, justify="right", no_wrap=" " not in name)
    table.add_column("layout", no_wrap=True)
    for row in rows:
        table.add_row(
            row.name,
            f"{row.size.parameters:,}",
            f"{row.size.macs:,}",
            amount(row.size.memory_bytes),
            "–" if row.features is None else str(row.features),
            "channels-last" if row.channels_last else "default",
        )
    return table


def data_table() -> Table:
    """The named data sets, and where each would be loaded from."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title="named data sets; your own: a parquet, CSV or .npz file, or a folder of images by class",
    )
    table.add_column("name", no_wrap=True)
    table.add_column("from", overflow="fold")
    for name in data.known_sets():
        table.add_row(name, escape(data.whereabouts(name)))
    return table


def partition_table(
    counts: np.ndarray[Any, Any],
    classes: Sequence[str],
    models: Sequence[str],
    clients: Sequence[str] | None = None,
) -> Table:
    """Who holds how many samples of which class.

    models, clients: each client's model, and its name; its number where names are not given.
    """
    table = Table(
        box=box.SIMPLE_HEAD, title_justify="left", title=f"{len(counts)} clients, {counts.sum()} samples"
    )
    for name in ("client", "model", "samples", "classes"):
        table.add_column(name, justify="left" if name in ("client", "model") else "right")
    few = len(classes) <= 20
    for name in classes if few else ("largest class",):
        table.add_column(str(name), justify="right")
    for index, row in enumerate(counts[:MOST_CLIENTS]):
        held = (
            [str(count) if count else "·" for count in row]
            if few
            else [f"{percent(row.max() / row.sum())} %"]
        )
        name = str(index) if clients is None else clients[index]
        table.add_row(name, models[index], str(row.sum()), str((row > 0).sum()), *held)
    if len(counts) > MOST_CLIENTS:
        table.add_row("…", f"{len(counts) - MOST_CLIENTS} more")
    return table
