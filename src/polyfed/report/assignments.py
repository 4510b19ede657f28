"""Who trains which model, and why: by model, and client by client."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from polyfed.federation.roster import Names
from polyfed.report.partitions import MOST_CLIENTS
from polyfed.report.tables import amount
from polyfed.runs.assignment import Assignment, Group, in_millions, limits_in_words

MOST_GROUPS = 20


def assignment_table(assignment: Assignment) -> Table:
    """One row for the clients that train the same model for the same reason."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title=f"who trains what: {assignment.count:,} clients (memory: of a step, batch {assignment.batch})",
    )
    table.add_column("model", overflow="fold")
    for name in ("clients", "parameters", "MACs", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for group in assignment.groups[:MOST_GROUPS]:
        size = assignment.models[group.model]
        table.add_row(
            escape(group.model),
            f"{group.clients:,}",
            f"{size.parameters:,}",
            "–" if size.macs is None else in_millions(size.macs),
            "–" if size.memory_bytes is None else amount(size.memory_bytes),
            escape(_why(group)),
        )
    if len(assignment.groups) > MOST_GROUPS:
        table.add_row("…", f"{sum(group.clients for group in assignment.groups[MOST_GROUPS:]):,} more")
    return table


def clients_table(assignment: Assignment, names: Sequence[str] | None) -> Table:
    """The clients one by one, if they are few: each with its model, its budget and the reason."""
    table = Table(box=box.SIMPLE_HEAD, title_justify="left", title="client by client")
    for name in ("client", "model", "budget", "why"):
        table.add_column(name, overflow="fold")
    shown = Names(assignment.count, names)[:MOST_CLIENTS]
    for index, name in enumerate(shown):
        group = assignment.group_of(index)
        table.add_row(escape(name), escape(group.model), _budget(group) or "–", escape(group.why))
    if assignment.count > len(shown):
        table.add_row("…", f"{assignment.count - len(shown):,} more")
    return table


def _why(group: Group) -> str:
    """The reason, and the budget where it does not name it already."""
    budget = _budget(group)
    return group.why if not budget or budget in group.why else f"{group.why} (budget: {budget})"


def _budget(group: Group) -> str:
    return "" if group.budget is None else limits_in_words(group.budget.model_dump())
