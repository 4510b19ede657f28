"""What one client holds: an object of its own, made by its owner; and rows of several owners put together."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polyfed.data.dataset import DataSet, Rows
from polyfed.data.new_rows import InputForm
from polyfed.data.normalisation import no_normalisation
from polyfed.data.storage import Draft, new_inputs, stored
from polyfed.errors import DataError

_CHUNK = 4096  # rows normalised together


@dataclass(frozen=True, eq=False)
class Holding:
    """What one client holds.

    name: the client's name, its identity: random streams, fingerprints and files go by it.
    train, validation, test: rows to learn from, to choose the best round on, and to be scored on.
    form: columns, classes, and the constants by which all its rows are normalised.
    fingerprint: of the data that it brought, whatever others bring.
    """

    name: str
    train: Rows
    validation: Rows
    test: Rows
    form: InputForm
    fingerprint: str


def put_together(parts: Sequence[Rows], name: str, cache_dir: Path | str | None = None) -> DataSet:
    """Rows of several owners as one set, each as its owner normalises it; done once.

    The parts have the same classes and shape. If one has no labels, the whole has none.
    """
    first = parts[0].dataset
    for part in parts:
        own = part.dataset
        if (own.classes, own.shape, own.is_tokens) != (first.classes, first.shape, first.is_tokens):
            raise DataError(f"{name}: rows of '{part.dataset.name}' are not like those of '{first.name}'")
    counts = [len(part) for part in parts]
    width = first.inputs.shape[-1]

    def build(folder: Path) -> Draft:
        kind = np.int64 if first.is_tokens else np.float32
        inputs = new_inputs(folder, (sum(counts), *first.inputs.shape[1:]), kind)
        start = 0
        for part in parts:
            for begin in range(0, len(part), _CHUNK):
                x = part[begin : begin + _CHUNK].inputs().numpy()
                inputs[start : start + len(x)] = x.transpose(0, 2, 3, 1) if first.is_image else x
                start += len(x)
        mean, std = no_normalisation(width)
        return Draft(name, inputs, _labels(parts), first.classes, mean=mean, std=std, features=first.features)

    key = {"together": [[part.dataset.fingerprint, _digest(part)] for part in parts], "name": name}
    return stored(key, build, cache_dir)


def _labels(parts: Sequence[Rows]) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
    if any(part.dataset.labels is None for part in parts):
        return None
    return np.concatenate([part.dataset.need_labels()[part.index] for part in parts])


def _digest(rows: Rows) -> str:
    return hashlib.blake2b(rows.index.tobytes(), digest_size=16).hexdigest()
