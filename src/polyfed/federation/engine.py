"""What every engine takes and gives: requests in, outcomes out, in the order of the calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import torch
from torch import nn

from polyfed.disk import SavedState
from polyfed.federation.message import EMPTY
from polyfed.federation.nodes import Assistant, Client, Moment, ScratchModels
from polyfed.federation.program import Program

DIVERGED = "training diverged: lower"
"""In the reason of a step that failed because of that."""


@dataclass(frozen=True)
class Call:
    """A step for one client, or a job of the server's: what it alone is sent, and what it hears from its neighbours."""

    client: int | None
    """None for a job of the server's, which any worker can do."""
    own: bytes = EMPTY
    heard: tuple[tuple[str, bytes], ...] = ()
    measuring: bool = False
    """Whether this client measures the stages of the step."""


@dataclass(frozen=True)
class Request:
    """A step for a cohort. A unit is what one worker does at once: one client, or several stacked together."""

    step: str
    """Its name in the run's program: `method.train`."""
    moment: Moment
    common: bytes
    units: Sequence[Sequence[Call]]
    window: int | None = None
    """How many units may be under way ahead of the next one to be given back; None for all of them."""
    aloud: bool = False
    """Whether peers hear the replies: they do not know what the sender was sent, so nothing is a difference to it."""


@dataclass(frozen=True)
class Success:
    """A client's encoded reply, and beside it what was measured and noted on the way."""

    client: int | None
    reply: bytes
    seconds: float
    report: bytes = EMPTY


@dataclass(frozen=True)
class Failure:
    """Why a client gave no reply. Its state is what it was before the step."""

    client: int | None
    step: str
    reason: str
    traceback: str = ""
    """The whole of it, where a step raised."""


Outcome: TypeAlias = Success | Failure


class Population(Protocol):
    """The clients as a host needs them: made on demand, never all at once."""

    device: torch.device

    def client(self, index: int, model: nn.Module, scratch_model: ScratchModels) -> Client:
        """The client with this number, around this model."""

    def assistant(self, scratch_model: ScratchModels) -> Assistant:
        """What a server step works with."""

    def name(self, index: int) -> str:
        """The client's name."""

    def architecture(self, index: int) -> str:
        """The name of the client's architecture."""

    def build(self, architecture: str) -> nn.Module:
        """A model of this architecture with the common initial weights."""

    def own_model(self, index: int) -> nn.Module:
        """A model of the client's architecture with the client's own initial weights."""


class Engine(Protocol):
    """Carries steps to clients and keeps their states."""

    width: int
    """How many steps it does at a time."""

    def open(self, population: Population, program: Program, scratch: Path) -> None:
        """Get ready. `scratch` is a directory for states that do not fit in memory."""

    def run(self, request: Request) -> Iterator[Outcome]:
        """Do a request; outcomes come in the order of the calls, whatever the order of arrival.

        Another request may be run before all outcomes of this one have been taken.
        """

    def save(self, directory: Path, label: str) -> list[SavedState]:
        """Write the state of every client that changed since the last save."""

    def restore(self, states: Mapping[int, Path]) -> None:
        """Forget all states; a client's is in its file here, or it has its initial one."""

    def close(self) -> None:
        """Let go of everything."""
