"""A data set as arrays, and the rows of it that a client holds.

The arrays of a stored data set are mapped from the disk and shared by all workers; a client is a list of row
numbers. Tensors are made on demand and kept in one process-wide cache of bounded size, so asking for the same
rows every round costs a look-up. Whoever asks gets a tensor of their own (see `tensor_cache`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Protocol, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from polyfed.data.arrays import Array, Ints
from polyfed.data.targets import group_words, strata_of
from polyfed.data.tensor_cache import TensorCache
from polyfed.errors import DataError, nearest

Limits: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]  # smallest and largest value of each channel
Mode = Literal["L", "RGB"]  # Pillow's words for grey and colour


@dataclass(frozen=True, eq=False)
class DataSet:
    """Inputs, labels and other columns of one split of a data set.

    inputs: images N×H×W×C (uint8, or float32 that is already normalised), feature vectors N×F (float32), or token
        ids N×positions (int64), which are never normalised.
    labels: N class numbers, N numbers or N×classes of 0 and 1 (see `targets`); None when the set is unlabelled.
    classes: the word for each class number, or for each output that is to be learnt.
    columns: further columns, such as `writer_id` or `domain`, as N integer codes each.
    column_names: the words for those codes (a column of plain numbers, such as `origin`, has none).
    mean, std: normalisation constants of the training split, per channel (in 0..1) or per feature.
    fingerprint: a digest of all of the above, the same on every machine.
    first_class: the number that the first class has (see `with_labels_from`).
    features: the names of the columns that inputs N×F were made from, in their order; none for images and arrays.
    notes: what looked odd when the set was read, a line each.
    label_columns: the names of the columns that the labels were in; none where they were in no table.
    """

    name: str
    inputs: Array
    labels: Array | None
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fingerprint: str
    columns: dict[str, Ints] = field(default_factory=dict)
    column_names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    first_class: int = 0
    features: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    label_columns: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.inputs)

    def __bool__(self) -> bool:
        return True  # a set of no rows is a set: `if like` must not pass over it

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.shape))
        kind = " token ids" if self.is_tokens else ""
        return f"DataSet({self.name!r}, {len(self)} rows of {shape}{kind}, {len(self.classes)} classes)"

    @property
    def is_image(self) -> bool:
        """Whether a row is an image (and not a feature vector)."""
        return self.inputs.ndim == 4

    @property
    def is_tokens(self) -> bool:
        """Whether a row is token ids, which stay whole numbers."""
        return is_tokens(self.inputs)

    @property
    def largest_id(self) -> int | None:
        """The largest token id; None of what is not tokens."""
        return int(self.inputs.max(initial=0)) if self.is_tokens else None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input as a model sees it: (C, H, W), (F,) or (positions,)."""
        if not self.is_image:
            return (self.inputs.shape[1],)
        height, width, channels = self.inputs.shape[1:]
        return (channels, height, width)

    @property
    def mode(self) -> Mode | None:
        """Grey or colour, for images."""
        return {1: "L", 3: "RGB"}.get(self.inputs.shape[-1]) if self.is_image else None  # type: ignore[return-value]

    @property
    def limits(self) -> Limits | None:
        """The smallest and the largest normalised value of each channel: of images of 8 bits. Else None."""
        return pixel_limits(self.mean, self.std) if self.inputs.dtype == np.uint8 else None

    def column(self, name: str) -> Ints:
        """The codes of a further column."""
        if name not in self.columns:
            hint = nearest(name, self.columns)
            raise DataError(f"data set '{self.name}' has no column '{name}': {hint}")
        return self.columns[name]

    @cached_property
    def strata(self) -> Ints | None:
        """The group of each row, for draws and partitions: its class, or what stands for it (see `strata_of`)."""
        return None if self.labels is None else strata_of(self.labels)

    @property
    def group_words(self) -> tuple[str, ...]:
        """What to call each group of `strata`."""
        return group_words(self.need_labels(), self.classes)

    def need_labels(self) -> Array:
        """The labels, or an error for a set that has none."""
        if self.labels is None:
            raise DataError(f"data set '{self.name}' has no labels, and they are needed here")
        return self.labels

    def need_classes(self) -> tuple[str, ...]:
        """The words for the classes, or an error for a set without labels."""
        self.need_labels()
        return self.classes

    def rows(self, index: npt.ArrayLike | None = None) -> Rows:
        """The given rows of this set, or all of them."""
        return Rows(self, np.arange(len(self)) if index is None else np.asarray(index))

    def without_labels(self) -> Self:
        """The same set with its labels hidden."""
        return replace(self, labels=None, fingerprint=f"{self.fingerprint}-unlabelled")

    def seen_as(
        self,
        *,
        classes: tuple[str, ...] | None = None,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
    ) -> Self:
        """The same rows with other class numbers (by the classes' words) and other normalisation constants.

        A word of this set's that `classes` does not have is an error if a row has it.
        """
        classes = self.classes if classes is None else classes
        mean, std = (self.mean if mean is None else mean), (self.std if std is None else std)
        if (classes, mean, std) == (self.classes, self.mean, self.std):
            return self
        text = json.dumps([self.fingerprint, classes, mean, std])
        key = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        labels = self.labels if classes == self.classes else self._numbered(classes)
        return replace(self, labels=labels, classes=classes, mean=mean, std=std, fingerprint=key)

    def _numbered(self, classes: Sequence[str]) -> Array | None:
        """The labels with classes in the order of a list of words; numbers have no classes."""
        if self.labels is None or (self.labels.dtype.kind == "f" and self.labels.ndim == 1):
            return self.labels
        if self.labels.dtype.kind == "f":
            order = [self.classes.index(word) for word in classes]
            several: Array = np.stack([self.labels[:, place] for place in order], axis=1)
            return several
        places = {word: place for place, word in enumerate(classes)}
        numbers = np.array([places.get(word, -1) for word in self.classes], dtype=np.int64)
        labels: Array = numbers[np.asarray(self.labels) - self.first_class]
        if (labels < 0).any():
            word = self.classes[int(self.labels.flat[int(labels.argmin())]) - self.first_class]
            raise DataError(f"'{self.name}' has the label '{word}', which is not an agreed class")
        return labels

    def with_labels_from(self, first: int) -> Self:
        """The same set with class numbers that begin at `first`: its classes come after another set's."""
        labels = self.need_labels() + first
        return replace(self, labels=labels, fingerprint=f"{self.fingerprint}-from-{first}", first_class=first)


def is_tokens(inputs: Array) -> bool:
    """Whether inputs are token ids: of all that a set may hold, they alone are int64."""
    return bool(inputs.dtype == np.int64)


class Inputs(Protocol):
    """What two sets must have alike."""

    inputs: Array
    features: tuple[str, ...]


def why_not_alike(found: Inputs | DataSet, like: DataSet, *, normalised: bool = False) -> str | None:
    """Why rows of one shape do not mean the same: images of 8 bits and of floats, columns with names and without.

    normalised: what was found is normalised by its own constants, so 8-bit images can stand for normalised floats.
    """
    if is_tokens(found.inputs) != like.is_tokens:
        kinds = ["token ids" if is_tokens(each.inputs) else "numbers" for each in (found, like)]
        return f"its rows are {kinds[0]}, but those that models are trained on are {kinds[1]}: give the same"
    scaled = found.inputs.dtype == np.uint8, like.inputs.dtype == np.uint8
    if like.is_image and scaled[0] != scaled[1] and not (normalised and scaled[0]):
        kinds = ["8-bit images" if each.inputs.dtype == np.uint8 else "floats" for each in (found, like)]
        return (
            f"its images are {kinds[0]}, but those that models are trained on are {kinds[1]}: give the same"
        )
    if like.features and not like.is_image and not found.features:
        return "its columns have no names, but those that models are trained on have: give a table"
    return None


def pixel_limits(mean: Sequence[float], std: Sequence[float]) -> Limits:
    """What 0 and 1, the darkest and the brightest pixel, are after normalisation: for each channel."""
    channels = list(zip(mean, std, strict=True))
    return tuple(-middle / spread for middle, spread in channels), tuple(
        (1 - middle) / spread for middle, spread in channels
    )


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of a data set, in some order: what a client holds."""

    dataset: DataSet
    index: Ints

    def __post_init__(self) -> None:
        index = np.array(self.index, dtype=np.int64)  # a copy of our own: the cache key below relies on it
        if index.ndim != 1:
            raise DataError(f"rows are a list of row numbers, not an array of {index.ndim} dimensions")
        if index.size and (index.min() < 0 or index.max() >= len(self.dataset)):
            raise DataError(f"row numbers of '{self.dataset.name}' go from 0 to {len(self.dataset) - 1}")
        index.setflags(write=False)
        object.__setattr__(self, "index", index)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, which: slice | Array | torch.Tensor | Sequence[int]) -> Rows:
        """The rows at these places (a slice, or numbers, or a mask) as Rows."""
        if isinstance(which, torch.Tensor):
            which = which.cpu().numpy()
        elif not isinstance(which, slice | np.ndarray):
            which = np.asarray(which, dtype=np.int64)
        return Rows(self.dataset, self.index[which])

    @cached_property
    def _digest(self) -> bytes:
        return hashlib.blake2b(self.index.tobytes(), digest_size=16).digest()

    @property
    def raw(self) -> Array:
        """The inputs as they were read, not normalised: N×H×W×C or N×F."""
        return np.asarray(self.dataset.inputs[self.index])

    @property
    def labels(self) -> torch.Tensor:
        """The labels: class numbers (int64), or as they are."""
        key = (self.dataset.fingerprint, self._digest, "labels")
        return _tensors.get(key, lambda: torch.from_numpy(np.asarray(self.dataset.need_labels()[self.index])))

    def inputs(
        self,
        memory_format: torch.memory_format = torch.contiguous_format,
        device: torch.device | str = "cpu",
    ) -> torch.Tensor:
        """The normalised inputs, float32: N×C×H×W in the wanted layout, or N×F; token ids as they are, int64."""
        key = (self.dataset.fingerprint, self._digest, str(memory_format), str(device))
        return _tensors.get(key, lambda: self._make_inputs(memory_format, torch.device(device)))

    def _make_inputs(self, memory_format: torch.memory_format, device: torch.device) -> torch.Tensor:
        data = self.dataset
        stored = torch.from_numpy(data.inputs[self.index])
        if data.is_tokens:
            return stored.to(device)
        mean, std = torch.tensor(data.mean), torch.tensor(data.std)
        if not data.is_image:
            return stored.sub_(mean).div_(std).to(device)
        # Conversion and layout are one copy: NHWC seen as NCHW is already channels-last.
        x = stored.permute(0, 3, 1, 2).to(torch.float32, memory_format=memory_format)
        if stored.dtype == torch.uint8:
            x.div_(255).sub_(mean.view(-1, 1, 1)).div_(std.view(-1, 1, 1))
        return x.to(device)

    def tensors(
        self,
        memory_format: torch.memory_format = torch.contiguous_format,
        device: torch.device | str = "cpu",
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and labels."""
        return self.inputs(memory_format, device), self.labels.to(device)

    def class_counts(self, classes: int | None = None) -> Ints:
        """How many rows each class has (each group of `DataSet.strata`, where rows have no class of their own)."""
        data = self.dataset
        data.need_labels()
        assert data.strata is not None
        width = len(data.group_words) if classes is None else classes
        return np.bincount(data.strata[self.index] - data.first_class, minlength=width).astype(np.int64)

    def column(self, name: str) -> Ints:
        """The codes of a further column for these rows."""
        return np.asarray(self.dataset.column(name)[self.index])


_tensors = TensorCache(limit=256 * 2**20)  # bytes, in each process
