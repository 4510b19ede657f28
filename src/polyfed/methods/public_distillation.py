"""What methods that learn through answers on public data have in common.

    each round:  rows go down · every client's answers on them come up · the server makes one answer of many ·
                 it goes down again · everyone learns from it

A method of this family says how answers become one, and in which order its clients learn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeGuard

import torch
from pydantic import Field
from torch import Tensor

from polyfed import learn
from polyfed.errors import RunError
from polyfed.federation.message import Fields, Kind
from polyfed.federation.method import Method, MethodSettings, Need, client_step, reads_only
from polyfed.federation.nodes import Client, Facts, Server
from polyfed.learn import Distillation, Training

if TYPE_CHECKING:
    from polyfed.federation.fleet import Fleet, Reply

DTYPES = {"float32": torch.float32, "float16": torch.float16}


class ThroughPublicSettings(MethodSettings):
    global_: Annotated[bool, Field(alias="global")] = False
    """Whether the server trains a model of its own (`models.server`) on the same answers."""
    private_training: Training | None = None
    """What a client does with its own data before the first round, or nothing."""
    public_rows: Annotated[int, Field(ge=1)] = 5000
    """Public rows a round, drawn anew each time; all of them if there are fewer."""
    distil: Distillation = Distillation()
    """How clients and server learn from the answers."""
    travel: Literal["float32", "float16"] = "float32"
    """Precision of the answers on the wire, both ways; float16 halves the bytes."""


class ThroughPublic(Method):
    """Clients answer on public rows, and learn from what the server makes of all answers."""

    sends: ClassVar = {"logits": Kind.LOGITS}
    tells: ClassVar = {"rows": Kind.INDICES}
    answers: ClassVar[Literal["logits", "posteriors"]] = "logits"
    """What a client sends of its model's outputs: as they are, or as probabilities."""
    Settings = ThroughPublicSettings
    settings: ThroughPublicSettings

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({Need.PUBLIC} | ({Need.SERVER_MODEL} if self.settings.global_ else set()))

    # -- on the client ---------------------------------------------------------------------------------------

    @client_step
    def initialise(self, me: Client) -> Fields:
        """What comes before the first round."""
        self.begin(me)
        me.measure("initial")
        return {}

    def begin(self, me: Client) -> None:
        """Train on the client's own data."""
        if self.settings.private_training is not None:
            x, y = me.tensors(me.train)
            learn.supervised(me.model, x, y, self.settings.private_training, me.rng("private batches"))

    @client_step
    @reads_only
    def answer(self, me: Client, rows: Tensor) -> Fields:
        """What this client's model says of the public rows."""
        return {self.answers: self.packed(self.answered(me, rows))}

    def answered(self, me: Client, rows: Tensor) -> Tensor:
        logits = learn.predict(me.model, me.inputs(me.public[rows]))
        return logits if self.answers == "logits" else learn.soften(logits, self.settings.distil.temperature)

    def distil(self, me: Client, rows: Tensor, answers: Tensor) -> None:
        """Fit the client's model to the answers."""
        learn.distil(
            me.model,
            me.inputs(me.public[rows]),
            answers.float().to(me.device),
            self.settings.distil,
            me.rng("distil"),
            given="logits" if self.answers == "logits" else "probabilities",
            memory=me.memory.setdefault("distil", {}) if self.settings.distil.keep_optimiser else None,
        )
        me.measure("distilled")

    def train(self, me: Client, extra: learn.ExtraLoss | None = None) -> None:
        """Train the client's model on its own data."""
        x, y = me.tensors(me.train)
        learn.supervised(me.model, x, y, self.training, me.rng("batches"), extra=extra, memory=me.memory)
        me.measure("personalised")
        me.note_local_loss(self.training.batch)

    # -- on the server ---------------------------------------------------------------------------------------

    def prepare(self, fleet: Fleet, server: Server) -> None:
        if self.settings.private_training is not None:
            fleet.ask(self.initialise, fleet.everyone())

    def draw(self, server: Server) -> Tensor:
        """This round's public rows (32 bits each on the wire)."""
        assert server.public is not None
        order = torch.randperm(len(server.public), generator=server.rng("public rows"))
        return order[: self.settings.public_rows].sort().values.int()

    def width(self, server: Server) -> int:
        """How many outputs an answer has."""
        return server.outputs

    def collect(
        self, fleet: Fleet, server: Server, replies: Iterable[Reply], rows: Tensor
    ) -> Iterator[tuple[Facts, Tensor]]:
        """Who answered what, in 32 bits; an answer that is of no use is left out, with its reason."""
        shape = (len(rows), self.width(server))
        usable = 0
        for reply in replies:
            answer = reply.fields.get(self.answers)
            if not _is_table(answer, shape):
                fleet.reject(
                    reply, f"its {self.answers} are no table of {shape[0]} rows × {shape[1]} outputs"
                )
            elif self.answers == "posteriors" and not learn.are_probabilities(answer):
                fleet.reject(reply, "its posteriors are no probabilities: not below 0, and 1 in sum")
            else:
                usable += 1
                yield reply.client, answer.float()
        if not usable:
            raise RunError(f"round {fleet.round}: not one client gave a usable answer")

    def distil_server(self, server: Server, rows: Tensor, answers: Tensor) -> None:
        """Fit the server's model to the answers too, if there is to be one."""
        if not self.settings.global_:
            return
        assert server.model is not None and server.public is not None
        settings = self.settings.distil
        learn.distil(
            server.model,
            server.inputs(server.public[rows], server.model),
            answers.to(server.device),
            settings,
            server.rng("distil"),
            given="logits" if self.answers == "logits" else "probabilities",
            memory=server.memory.setdefault("distil", {}) if settings.keep_optimiser else None,
        )
        server.measure("global")

    def packed(self, answers: Tensor) -> Tensor:
        """Answers as they travel."""
        return answers.to(DTYPES[self.settings.travel])


class DistilsLast(ThroughPublic):
    """Clients train at home, answer with probabilities, then learn from the others: so a round ends."""

    sends: ClassVar = {"posteriors": Kind.POSTERIORS}
    answers = "posteriors"
    final_stage = "distilled"

    @client_step
    def update(self, me: Client, rows: Tensor) -> Fields:
        """Train on the client's own data, and answer."""
        self.train(me)
        return {"posteriors": self.packed(self.answered(me, rows))}

    @client_step
    def study(self, me: Client, rows: Tensor, posteriors: Tensor) -> Fields:
        """Learn from what the server made of all answers."""
        self.distil(me, rows, posteriors)
        return {}


def _is_table(answer: Any, shape: tuple[int, int]) -> TypeGuard[Tensor]:
    return isinstance(answer, Tensor) and answer.shape == shape and not answer.is_complex()


def mean(answers: Iterable[tuple[Facts, Tensor]]) -> Tensor:
    """The plain mean of the clients' answers, without holding them all."""
    total, count = torch.zeros(()), 0
    for _, answer in answers:
        total = total + answer
        count += 1
    return total / count
