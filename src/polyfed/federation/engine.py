"""What every engine takes and gives: tasks in, outcomes out, in the order of the calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import torch
from torch import nn

from polyfed.federation.message import EMPTY
from polyfed.federation.method import Method
from polyfed.federation.nodes import Client, Moment


@dataclass(frozen=True)
class Call:
    """A step for one client: what it alone is sent, and what it hears from its neighbours."""

    client: int
    own: bytes = EMPTY
    heard: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True)
class Task:
    """A step for a cohort. A unit is what one worker does at once: one client, or several stacked together."""

    step: str
    moment: Moment
    common: bytes
    units: Sequence[Sequence[Call]]
    examining: bool = False
    """A step of `Examination` rather than of the run's method."""
    window: int | None = None
    """How many units may be under way ahead of the next one to be given back; None for all of them."""


@dataclass(frozen=True)
class Answer:
    """A client's encoded reply."""

    client: int
    reply: bytes
    seconds: float


@dataclass(frozen=True)
class Failure:
    """Why a client gave no reply. Its state is what it was before the step."""

    client: int
    step: str
    reason: str


Outcome: TypeAlias = Answer | Failure


@dataclass(frozen=True)
class SavedState:
    """Where a client's state was written, and the digest of the file."""

    client: int
    file: str
    digest: str


class Population(Protocol):
    """The clients as a host needs them: made on demand, never all at once."""

    device: torch.device

    def client(self, index: int, model: nn.Module, scratch_model: Callable[[str], nn.Module]) -> Client:
        """The client with this number, around this model."""

    def architecture(self, index: int) -> str:
        """The name of the client's architecture."""

    def build(self, architecture: str) -> nn.Module:
        """A model of this architecture with the common initial weights."""

    def own_model(self, index: int) -> nn.Module:
        """A model of the client's architecture with the client's own initial weights."""


class Engine(Protocol):
    """Carries steps to clients and keeps their states."""

    def open(self, population: Population, method: Method, scratch: Path) -> None:
        """Get ready. `scratch` is a directory for states that do not fit in memory."""

    def run(self, task: Task) -> Iterator[Outcome]:
        """Do a task; outcomes come in the order of the calls, whatever the order of arrival."""

    def save(self, directory: Path, label: str) -> list[SavedState]:
        """Write the state of every client that changed since the last save."""

    def restore(self, states: Mapping[int, Path]) -> None:
        """Forget all states; a client's is in its file here, or it has its initial one."""

    def close(self) -> None:
        """Let go of everything."""
