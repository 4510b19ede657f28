"""A trained model of a run, applied to new data: raw rows or images in, answers out."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from pydantic import ValidationError
from torch import nn

from polyfed import learn, models
from polyfed.data import InputForm, read_new_rows
from polyfed.errors import CheckpointError, ConfigError
from polyfed.federation.roster import Names
from polyfed.learn import Metric, metrics_for
from polyfed.runs.config import Evaluation, RunConfig
from polyfed.runs.history import RunRecord
from polyfed.runs.manifest import RunFiles, read_manifest
from polyfed.schema import explain
from polyfed.tasks import Tally, Task, Trait

FEW_NAMES = 50  # listed in a message; of more clients only the first and the last


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model says of new rows.

    answers: of each row: the word of the most probable class; a number; or the words of all classes that it has.
    columns, table: what else is said of each row, rows × columns: the probability of each class, float32.
    words: of what was learnt: the classes, or what the number is called.
    rows: what each row is called: its number, or the name of an image's file.
    labels: the true answer of each row, where the new data say it; None for one that is not known.
    task: what was learnt.
    outputs: what the model gave, rows × outputs.
    """

    answers: Sequence[Any]
    columns: Sequence[str]
    table: npt.NDArray[np.float32]
    words: Sequence[str]
    rows: Sequence[str]
    labels: Sequence[Any] | None
    task: Task
    outputs: torch.Tensor = field(repr=False)

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def classes(self) -> Sequence[Any]:
        """The word of the most probable class of each row (or all words that it has)."""
        if Trait.PROBABILITIES not in self.task.traits:
            raise AttributeError(f"a {self.task.name} gives no classes: use answers")
        return self.answers

    @property
    def probabilities(self) -> npt.NDArray[np.float32]:
        """Of each class, rows × classes; of a classification each row's sum is 1."""
        if Trait.PROBABILITIES not in self.task.traits:
            raise AttributeError(f"a {self.task.name} gives no probabilities: use answers")
        return self.table

    @property
    def tally(self) -> Tally | None:
        """[sum, rows] of the task's measure over the rows whose true answer is known; None without any."""
        pairs = [pair for pair in zip(self.answers, self.labels or (), strict=False) if pair[1] is not None]
        return self.task.tally_of(*zip(*pairs, strict=True)) if pairs else None

    @property
    def score(self) -> float | None:
        """How good the answers are, by the task's measure: accuracy as a share, or an error in the number's unit."""
        return None if self.tally is None else self.task.value(self.tally)

    def metrics(self, names: Sequence[Any] | str) -> dict[str, Any]:
        """Metrics by name over the rows whose true answer is known, as `evaluate.metrics` has them; None: no value.

        found.metrics(["recall", "pr-auc", "my_module:cost"])
        """
        return {metric.name: value for metric, value in measured(self, names)}


def measured(found: Predictions, names: Sequence[Any] | str) -> list[tuple[Metric, Any]]:
    """Metrics of what a model said, by their names, with their values; None of one that has none."""
    try:
        wishes = Evaluation.model_validate({"metrics": names}).metrics
    except ValidationError as error:
        raise ConfigError(explain(error, Evaluation, "evaluate")) from None
    asked = metrics_for(wishes, found.task)
    known = [row for row, label in enumerate(found.labels or ()) if label is not None]
    if not known:
        return [(metric, None) for metric in asked]
    labels = found.task.as_labels([(found.labels or ())[row] for row in known], found.words)
    outputs = found.outputs[known]
    if Trait.ONE_CLASS in found.task.traits:
        outputs = outputs[:, : len(found.words)]
    values = learn.metrics_of(outputs, labels, asked, found.task)
    return [(metric, values.get(metric.name)) for metric in asked]


class TrainedModel(nn.Module):
    """A model that was read from a run directory: a module as any other that can also predict from raw data.

    What it is called with must be normalised already; `predict` takes data as they come. Where a model has attributes
    of these names itself, those stay.
    """

    polyfed_run: Path
    polyfed_name: str
    polyfed_task: Task

    # Not a property: where a model has set an attribute of that name, that one is found first.
    @functools.cached_property
    def classes(self) -> tuple[str, ...]:
        """The word for each class."""
        return _files(self.polyfed_run).description().agreement.classes

    def predict(self, rows: Any, as_client: str | None = None) -> Predictions:
        """What the model says of new rows: classes and probabilities, or numbers.

        rows: a CSV or parquet table with the columns of training in any order (others are ignored), an .npz file, an
            image or a folder of images; or an array, a mapping of columns by name, a pair (x, y). All as they come:
            they are brought into the form of the training data here.
        as_client: the client as whose rows they are normalised. A client's model takes them as that client's; the
            server's, or one that clients share, must be told where each client normalises by its own statistics.
        """
        form = form_of(self.polyfed_run, self.polyfed_name, as_client)
        return predict(self, form, self.polyfed_task, rows)


def as_trained(model: nn.Module, run: Path, name: str, task: Task) -> TrainedModel:
    """The same model with what `TrainedModel` adds; attributes and methods of its own stay as they are."""
    layers = (*model.named_children(), *model.named_parameters(), *model.named_buffers())
    if {name for name, _ in layers} & {"classes", "predict"}:  # a class's attributes would hide these
        return cast("TrainedModel", model)
    model.__class__ = _trained_kind(type(model))
    model.polyfed_run = run.absolute()  # type: ignore[assignment]
    model.polyfed_name = name  # type: ignore[assignment]
    model.polyfed_task = task  # type: ignore[assignment]
    assert isinstance(model, TrainedModel)
    return model


def predict(model: nn.Module, form: InputForm, task: Task, rows: Any) -> Predictions:
    """What a model says of new rows of this form.

    The answer is one of the private classes: outputs that stand for a public set's classes only served to learn.
    """
    new = read_new_rows(rows, form)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    x = new.inputs(models.memory_format(model)).to(device)
    models.expect_tokens(model, new.data.largest_id)
    with models.explained(model, form.model_shape):
        outputs = learn.predict(model, x).cpu()
    said = task.read(outputs, form.classes)
    labels = None if new.labels is None else task.targets.meant(list(new.labels), form.classes)
    return Predictions(
        said.answers, said.columns, said.table.float().numpy(), form.classes, new.names, labels, task, outputs
    )


def task_of(run: Path, trust: models.Trust = ()) -> Task:
    """What the models of a run have learnt.

    trust: modules whose code may be run, where that is a class of one of them.
    """
    record = RunRecord(run)
    config = RunConfig.model_validate(record.config)
    models.check_trusted([config.task.name], trust, run)
    return config.make_task().for_classes(_files(run).description().classes)


def form_of(run: Path, name: str, as_client: str | None = None) -> InputForm:
    """The form into which new rows are brought for a model of a run.

    name: of the client whose model it is, or `server`, or an architecture.
    as_client: the client as whose rows they are normalised; for a model that is nobody's own, where each client
        normalises by its own statistics.
    """
    files = _files(run)
    description = files.description()
    names = Names(files.assignment().count, description.clients)
    if as_client is not None and as_client not in names:
        raise CheckpointError(f"no client of {run} is called '{as_client!s:.60}': use {few(names)}")
    form = description.form(name if as_client is None else as_client)
    if form is None:
        raise CheckpointError(
            f"each client of {run} normalises by its own statistics, and the model '{name:.60}' is not one client's:"
            f" say as whose rows new ones are read, such as --as {names[0]} (from Python: as_client={names[0]!r});"
            f" the clients are {few(names)}"
        )
    return form


def _files(run: Path) -> RunFiles:
    return RunFiles(run, read_manifest(run))


def few(names: Names) -> str:
    """The clients' names in a message; of many, or if they are numbered, only the first and the last."""
    all_of_them = names.given is not None and len(names) <= FEW_NAMES
    return ", ".join(names) if all_of_them else f"{names[0]} to {names[len(names) - 1]}"


_kinds: dict[type[nn.Module], type[nn.Module]] = {}


def _trained_kind(kind: type[nn.Module]) -> type[nn.Module]:
    """The class of a trained model whose own class is this: its own first, so that nothing of it is hidden."""
    if kind not in _kinds:
        members = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__reduce_ex__": _reduce}
        _kinds[kind] = type(kind.__name__, (kind, TrainedModel), members)
    return _kinds[kind]


def _reduce(self: TrainedModel, _protocol: object) -> tuple[Any, ...]:
    """A class that is made here cannot be imported elsewhere: copies and pickles name the model's own."""
    return _empty, (type(self).__bases__[0],), self.__dict__


def _empty(kind: type[nn.Module]) -> nn.Module:
    trained = _trained_kind(kind)
    return trained.__new__(trained)
