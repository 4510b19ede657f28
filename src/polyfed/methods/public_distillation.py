"""What methods that learn through public data have in common: draw rows, answer on them, learn from answers.

    each round:  rows go down · every client's answers on them come up · the server makes one answer of many ·
                 it goes down again · everyone learns from it

How answers become one, and in which order its clients learn, stands in each method's own file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, TypeAlias

import torch
from pydantic import AfterValidator, Field
from torch import Tensor

from polyfed import learn
from polyfed.errors import RunError
from polyfed.federation import Assistant, Client, Facts, MethodSettings, Need, Reply, Server, Weights, when
from polyfed.learn import AnswerForm, Distillation, Training


def _check_once(training: Training | None) -> Training | None:
    if training is not None and training.schedule.changes:
        raise ValueError("this is done once, so no `schedule` over rounds can change its rate: set `within`")
    return training


TrainingOnce: TypeAlias = Annotated[Training | None, AfterValidator(_check_once)]
"""How somebody is trained before the first round, or not at all."""


class PublicDistillationSettings(MethodSettings):
    global_: Annotated[bool, Field(alias="global")] = False
    """Whether the server trains a model of its own (`models.server`) on the same answers."""
    private_training: TrainingOnce = None
    """What a client does with its own data before the first round, or nothing."""
    public_rows: Annotated[int, Field(ge=1)] = 5000
    """Public rows per round, drawn anew each time; all of them if there are fewer."""
    distil: Distillation = Distillation()
    """How clients and server learn from the answers."""

    def needs(self) -> dict[Need, str]:
        """Public data, and a model for the server if it is to have one."""
        return {Need.PUBLIC: "", **when(self.global_, {Need.SERVER_MODEL: "method.global=false"})}


# -- on the client -------------------------------------------------------------------------------------------


def train_first(me: Client, training: Training | None) -> None:
    """Before the first round: train on the client's own data, if so set."""
    if training is not None:
        learn.supervised(me.model, *me.tensors(me.train), training, me.rng("private batches"), task=me.task)


def outputs_on(me: Client, rows: Tensor) -> Tensor:
    """What the client's model gives for these public rows."""
    return learn.predict(me.model, me.inputs(me.public[rows]))


def answers_on(me: Client, rows: Tensor, temperature: float) -> Tensor:
    """The client's answers on these public rows: probabilities, say."""
    return me.task.answer(outputs_on(me, rows), temperature)


def distil_client(
    me: Client, rows: Tensor, answers: Tensor, settings: Distillation, given: AnswerForm = "answers"
) -> None:
    """Fit the client's model to answers on these public rows."""
    learn.distil(
        me.model,
        me.inputs(me.public[rows]),
        answers.to(me.device),
        settings.in_round(me.round),
        me.rng("distil"),
        given=given,
        memory=me.memory.setdefault("distil", {}) if settings.keep_optimiser else None,
        task=me.task,
    )


# -- on the server -------------------------------------------------------------------------------------------


def draw_rows(server: Server, count: int) -> Tensor:
    """This round's public rows, in their order (32 bits each on the wire)."""
    return shuffled_rows(server)[:count].sort().values.int()


def shuffled_rows(server: Server) -> Tensor:
    """All public rows in this round's random order."""
    assert server.public is not None
    return torch.randperm(len(server.public), generator=server.rng("public rows"))


def received_outputs(helper: Assistant, architecture: str, weights: Weights, rows: Tensor) -> Tensor:
    """What a model that a client sent gives for these public rows."""
    assert helper.public is not None
    model = helper.scratch_model(architecture)
    learn.load_weights(model, weights)
    return learn.predict(model, helper.inputs(helper.public[rows], model))


def gather(replies: Iterable[Reply], field: str) -> tuple[list[Facts], Tensor]:
    """Who answered, and all answers in one tensor of float32, in whatever type they came (clients × rows × outputs)."""
    answered = [(reply.client, reply[field].float()) for reply in replies]
    if not answered:
        raise RunError(f"no client gave {field} that are of use")
    return [client for client, _ in answered], torch.stack([answer for _, answer in answered])


def distil_server(
    server: Server,
    rows: Tensor,
    answers: Tensor,
    settings: Distillation,
    given: AnswerForm = "answers",
    *,
    labels: bool = False,
) -> None:
    """Fit the server's model to answers on these public rows; with `labels`, to their labels by half."""
    assert server.model is not None and server.public is not None
    seen = server.public[rows]
    x, y = server.tensors(seen) if labels else (server.inputs(seen), None)
    learn.distil(
        server.model,
        x,
        answers.to(server.device),
        settings.in_round(server.round),
        server.rng("distil"),
        given=given,
        memory=server.memory.setdefault("distil", {}) if settings.keep_optimiser else None,
        labels=y,
        task=server.task,
    )
    server.measure("global")
