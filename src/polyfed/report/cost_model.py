"""What FedORION and FedDF compute in a round, by the model of FedORION's appendix B, and the speed-up between them.

All work is counted in steps (forward and backward) of the small model, R40 = (K + 1) f: clients' and server's together,
whoever does it. With a = α + (1 − α) M, the mean cost of a client's model:

    FedORION   clients  N (1 + (1 − α) M) I_c            server  (1 + a N / (K + 1)) I_s
    FedDF      clients  N a I_c                          server  (P a N / (K + 1) + 1 + (P − 1) M) I_s

A client that does mutual learning trains the small global model beside its own large one. On the server a student makes
a whole step and each of the N teachers a forward pass; FedDF has P students, each with passes of its own.

What the appendix leaves open or says twice:

- I_c and I_s are called iterations, and set to 10 and 5, the numbers of local and server *epochs*: a client's epoch
  over its data and a server's epoch count as one step each.
- Every model but the smallest is taken to cost M, which is a ratio of parameters (11 / 0.5 = 22), not of times.
- "N = 30" is put in and N is varied. For 20 clients the text says a speed-up of up to 3.25; its formula gives 3.35
  where all clients skip mutual learning (α = 1), and less everywhere else.
- "Clients performing selective DML" are those that skip mutual learning, the share α.
- It counts work, not time: clients that work at the same moment are added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table


@dataclass(frozen=True)
class CostModel:
    """A federation as the appendix sees it.

    clients: N, all of which take part. prototypes: P, different models. ratio: M, the cost of a large model in small
    ones. skipping: α, the share of clients that have the small model and do no mutual learning. backward: K, the cost
    of a backward pass in forward passes. local, server: I_c and I_s.
    """

    clients: int = 30
    prototypes: int = 5
    ratio: float = 22.0
    skipping: float = 0.2
    backward: float = 3.0
    local: float = 10.0
    server: float = 5.0

    @property
    def mean_model(self) -> float:
        """a: what a client's model costs on average, in small ones."""
        return self.skipping + (1 - self.skipping) * self.ratio

    @property
    def teachers(self) -> float:
        """A forward pass of every client's model."""
        return self.mean_model * self.clients / (self.backward + 1)

    def fedorion(self) -> tuple[float, float]:
        """What clients and the server compute in a round of FedORION, in steps of the small model."""
        clients = self.clients * (1 + (1 - self.skipping) * self.ratio) * self.local
        return clients, (1 + self.teachers) * self.server

    def feddf(self, *, asked_once: bool = False) -> tuple[float, float]:
        """What clients and the server compute in a round of FedDF, in steps of the small model.

        asked_once: whether the teachers' answers serve all students, as in `feddf` here; in the appendix each asks.
        """
        students = 1 + (self.prototypes - 1) * self.ratio
        passes = 1 if asked_once else self.prototypes
        return (
            self.clients * self.mean_model * self.local,
            (passes * self.teachers + students) * self.server,
        )

    def speed_up(self, *, asked_once: bool = False) -> float:
        """How many times as much FedDF computes as FedORION."""
        return sum(self.feddf(asked_once=asked_once)) / sum(self.fedorion())


def cost_table(models: Sequence[CostModel]) -> Table:
    """The work of both methods in several federations, and the speed-up of each."""
    table = Table(
        box=box.SIMPLE_HEAD, title_justify="left", title="work of a round, in steps of the small model"
    )
    columns = ("N", "α", "FedDF clients", "FedDF server", "FedORION clients", "FedORION server", "speed-up")
    for name in columns:
        table.add_column(name, justify="right")
    for model in models:
        work = [f"{number:,.0f}" for number in (*model.feddf(), *model.fedorion())]
        table.add_row(str(model.clients), f"{model.skipping:g}", *work, f"{model.speed_up():.2f}")
    return table
