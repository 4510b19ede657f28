"""What a run reads of the federation it goes over, wherever the clients are; who takes part, who is scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from polyfed.errors import ConfigError
from polyfed.federation.cohorts import Cohorts
from polyfed.federation.engine import Population
from polyfed.federation.method import Method
from polyfed.federation.nodes import Server
from polyfed.federation.roster import Roster
from polyfed.learn import Metric
from polyfed.models import Budget
from polyfed.runs.assignment import Assignment
from polyfed.runs.config import RunConfig
from polyfed.runs.holdings import Holdings
from polyfed.seeds import Seeds
from polyfed.tasks import Task


class Federation(Protocol):
    """All that a run must know of a federation: one simulated in one place, or one of distant nodes."""

    @property
    def config(self) -> RunConfig:
        """The run's config with every `auto` decided."""

    @property
    def method(self) -> Method: ...

    @property
    def task(self) -> Task:
        """What is learnt, with all that its settings leave open decided."""

    @property
    def metrics(self) -> Sequence[Metric]:
        """What is measured beside the task's own score."""

    @property
    def seeds(self) -> Seeds: ...

    @property
    def roster(self) -> Roster:
        """What every client declared."""

    @property
    def population(self) -> Population:
        """The clients as an engine needs them."""

    @property
    def holdings(self) -> Holdings:
        """Who holds what."""

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """What ties a run to its data, by whose they are: others when it is resumed are refused."""

    def verify_data(self) -> None:
        """Compare what was decoded before with its fingerprints: a run that is resumed must go on with the same."""

    @property
    def description(self) -> Mapping[str, Any]:
        """What the data are, as plain values: clients' names, the word for each output, columns, normalisation."""

    @property
    def assignment(self) -> Assignment:
        """Who trains which model, and why."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """What the fields of replies are compared with: outputs, private classes, public rows; and features,
        where the method needs one number for all."""

    @property
    def scored_outputs(self) -> int | None:
        """Among how many of the first outputs an answer is chosen when a model is scored; None is all."""

    @property
    def whole_rows(self) -> int:
        """How many rows the whole test set has; 0 where there is none."""

    @property
    def own_in_whole(self) -> bool:
        """Whether the whole test set is the scored clients' own test rows."""

    def server(self) -> Server:
        """A server as it is before the first round."""

    def stackable(self) -> frozenset[str]:
        """The architectures whose clients can be trained stacked."""


def cohorts_of(config: RunConfig, clients: int) -> Cohorts:
    """How many of so many clients take part in a round, and which never do."""
    wanted = config.cohort
    weak: frozenset[int] | None = None
    if wanted.dropout_by == "budget" and wanted.dropout:
        budgets = [_strength(section.budget()) for section in config.models.budgets]
        if not budgets:
            raise ConfigError("cohort.dropout_by: budget needs models.budgets")
        weakest_first = sorted(set(budgets))
        rank = np.array([weakest_first.index(budget) for budget in budgets])
        order = rank[np.arange(clients) % len(budgets)].argsort(kind="stable")
        weak = frozenset(order[: round(wanted.dropout * clients)].tolist())
    return Cohorts(wanted.size(clients), wanted.dropout, weak)


def scored_clients(config: RunConfig, seeds: Seeds, clients: int) -> list[int]:
    """The clients that are looked at: all, or as many as the config allows, drawn once."""
    most = config.evaluate.clients
    if clients <= most:
        return list(range(clients))
    return sorted(seeds.numpy("scored clients").choice(clients, most, replace=False).tolist())


def _strength(budget: Budget) -> tuple[float, float, float]:
    limits = (budget.parameters, budget.macs, budget.memory_bytes)
    first, second, third = (float("inf") if limit is None else float(limit) for limit in limits)
    return first, second, third
