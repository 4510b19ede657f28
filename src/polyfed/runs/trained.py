"""A trained model of a run, applied to new data: raw rows or images in, classes and probabilities out."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from polyfed import learn, models
from polyfed.data import InputForm, read_new_rows
from polyfed.errors import CheckpointError
from polyfed.federation.roster import Names
from polyfed.runs.manifest import RunFiles, read_manifest

FEW_NAMES = 50  # listed in a message; of more clients only the first and the last


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model says of new rows.

    classes: the word of the most probable class of each row.
    probabilities: rows × classes, float32, each row's sum is 1.
    words: the word for each column of `probabilities`.
    rows: what each row is called: its number, or the name of an image's file.
    labels: the class that each row is said to have, where the new data say it; None for one that is not known.
    """

    classes: Sequence[str]
    probabilities: npt.NDArray[np.float32]
    words: Sequence[str]
    rows: Sequence[str]
    labels: Sequence[str | None] | None = None

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def score(self) -> tuple[int, int] | None:
        """How many rows are predicted right, of how many whose class is known; None if no class is known."""
        pairs = [pair for pair in zip(self.classes, self.labels or (), strict=False) if pair[1] is not None]
        return (sum(said == true for said, true in pairs), len(pairs)) if pairs else None


class TrainedModel(nn.Module):
    """A model that was read from a run directory: a module as any other that can also predict from raw data.

    What it is called with must be normalised already; `predict` takes data as they come. Where a model has attributes
    of these names itself, those stay.
    """

    polyfed_run: Path
    polyfed_name: str

    # Not a property: where a model has set an attribute of that name, that one is found first.
    @functools.cached_property
    def classes(self) -> tuple[str, ...]:
        """The word for each class."""
        return _files(self.polyfed_run).description().agreement.classes

    def predict(self, rows: Any, as_client: str | None = None) -> Predictions:
        """Classes and probabilities of new rows.

        rows: a CSV or parquet table with the columns of training in any order (others are ignored), an .npz file, an
            image or a folder of images; or an array, a mapping of columns by name, a pair (x, y). All as they come:
            they are brought into the form of the training data here.
        as_client: the client as whose rows they are normalised. A client's model takes them as that client's; the
            server's, or one that clients share, must be told where each client normalises by its own statistics.
        """
        return predict(self, form_of(self.polyfed_run, self.polyfed_name, as_client), rows)


def as_trained(model: nn.Module, run: Path, name: str) -> TrainedModel:
    """The same model with what `TrainedModel` adds; attributes and methods of its own stay as they are."""
    layers = (*model.named_children(), *model.named_parameters(), *model.named_buffers())
    if {name for name, _ in layers} & {"classes", "predict"}:  # a class's attributes would hide these
        return cast("TrainedModel", model)
    model.__class__ = _trained_kind(type(model))
    model.polyfed_run = run.absolute()  # type: ignore[assignment]
    model.polyfed_name = name  # type: ignore[assignment]
    assert isinstance(model, TrainedModel)
    return model


def predict(model: nn.Module, form: InputForm, rows: Any) -> Predictions:
    """What a model says of new rows of this form.

    The answer is one of the private classes: outputs that stand for a public set's classes only served to learn.
    """
    new = read_new_rows(rows, form)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    x = new.inputs(models.memory_format(model)).to(device)
    models.expect_tokens(model, new.data.largest_id)
    with models.explained(model, form.model_shape):
        logits = learn.predict(model, x)[:, : len(form.classes)].cpu()
    classes = [form.classes[place] for place in logits.argmax(dim=1).tolist()]
    probabilities = torch.softmax(logits, dim=1).numpy()
    return Predictions(classes, probabilities, form.classes, new.names, new.labels)


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
