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
from polyfed.runs.manifest import RunFiles, read_manifest


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

    # Not a property: where a model has set an attribute of that name, that one is found first.
    @functools.cached_property
    def classes(self) -> tuple[str, ...]:
        """The word for each class."""
        return form_of(self.polyfed_run).classes

    def predict(self, rows: Any) -> Predictions:
        """Classes and probabilities of new rows.

        rows: a CSV or parquet table with the columns of training in any order (others are ignored), an .npz file, an
            image or a folder of images; or an array, a mapping of columns by name, a pair (x, y). All as they come:
            they are brought into the form of the training data here.
        """
        return predict(self, form_of(self.polyfed_run), rows)


def as_trained(model: nn.Module, run: Path) -> TrainedModel:
    """The same model with what `TrainedModel` adds; attributes and methods of its own stay as they are."""
    layers = (*model.named_children(), *model.named_parameters(), *model.named_buffers())
    if {name for name, _ in layers} & {"classes", "predict"}:  # a class's attributes would hide these
        return cast("TrainedModel", model)
    model.__class__ = _trained_kind(type(model))
    model.polyfed_run = run.absolute()  # type: ignore[assignment]
    assert isinstance(model, TrainedModel)
    return model


def predict(model: nn.Module, form: InputForm, rows: Any) -> Predictions:
    """What a model says of new rows of this form.

    The answer is one of the private classes: outputs that stand for a public set's classes only served to learn.
    """
    new = read_new_rows(rows, form)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    x = new.inputs(models.memory_format(model)).to(device)
    logits = learn.predict(model, x)[:, : len(form.classes)].cpu()
    classes = [form.classes[place] for place in logits.argmax(dim=1).tolist()]
    probabilities = torch.softmax(logits, dim=1).numpy()
    return Predictions(classes, probabilities, form.classes, new.names, new.labels)


def form_of(run: Path) -> InputForm:
    """The form of the data that a run's models were trained on."""
    return RunFiles(run, read_manifest(run)).description().form


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
