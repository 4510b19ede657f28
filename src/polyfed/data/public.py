"""The public set: data that every client and the server may see."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, Field, model_validator

from polyfed.data import noise
from polyfed.data.arrays import Ints
from polyfed.data.dataset import DataSet, Rows, why_not_alike
from polyfed.data.images import resize_images
from polyfed.data.sources import load, table_columns
from polyfed.data.splits import draw_stratified
from polyfed.data.storage import Draft, new_inputs, stored
from polyfed.data.targets import CLASS_LABELS, Targets
from polyfed.errors import DataError
from polyfed.machine import memory
from polyfed.schema import SECTION

log = logging.getLogger(__name__)


class PublicSettings(BaseModel):
    """Where public data come from."""

    model_config = SECTION

    source: str = Field("none", min_length=1)
    """none; share (held out of the training set); noise; or the name or path of another data set."""
    share: float | None = Field(None, gt=0, lt=1)
    """How much of the training set `source: share` holds out."""
    kind: noise.Kind | None = None
    """What `source: noise` is: gaussian, dead-leaves or stylegan (images only). Noise has no labels."""
    rows: int | None = Field(None, ge=1)
    """At most this many rows, with the class proportions of the whole; exactly this many of noise."""
    labels: Literal["own", "none"] = "own"
    """`none` hides them."""
    label: str | None = None
    """The label column of another data set, such as coarse_label of cifar100."""
    classes: Literal["auto", "same", "other"] = "auto"
    """Whether its labels mean the same as the private ones, or other classes; auto looks at the names."""

    @model_validator(mode="after")
    def _share_is_given(self) -> PublicSettings:
        if (self.source == "share") != (self.share is not None):
            raise ValueError("`source: share` and a value for `share`, such as 0.1, go together")
        return self

    @model_validator(mode="after")
    def _noise_is_given(self) -> PublicSettings:
        if (self.source == "noise") != (self.kind is not None):
            raise ValueError("`source: noise` and a value for `kind`, such as gaussian, go together")
        if self.source == "noise" and self.rows is None:
            raise ValueError("`source: noise` needs a value for `rows`, such as 5000")
        return self

    def other_classes(self, public: DataSet, private: DataSet) -> bool:
        """Whether the public labels are classes of their own."""
        if self.source == "share" or public.labels is None or public.labels.dtype.kind == "f":
            return False
        if self.classes == "same" and len(public.classes) > len(private.classes):
            raise DataError(
                f"the public set '{public.name}' has {len(public.classes)} classes and '{private.name}'"
                f" {len(private.classes)}: they cannot mean the same (data.public.classes)"
            )
        return self.classes == "other" or (self.classes == "auto" and public.classes != private.classes)


def make_public(
    settings: PublicSettings,
    dataset: DataSet,
    rng: np.random.Generator,
    cache_dir: Path | str | None = None,
    *,
    rank: Ints | None = None,
    domain: str | None = None,
    part: bool = False,
    targets: Targets = CLASS_LABELS,
) -> tuple[Rows | None, Ints]:
    """The public rows, or None, and the row numbers of the training set that stay private.

    Rows of one `origin` (rotated copies of an image) are all public or all private. With `rank`, a number for each
    origin, the origins of the lowest rank in each class are shared instead of random ones. A share has the class
    proportions of the whole, and with a column `domain` those of each domain. With `rows` fewer are held out, and the
    others stay private. Where the public labels are other classes, their numbers begin after the private ones: 10 to
    29 for cifar100's 20 coarse classes beside cifar10. `part`: its classes are read as those of clients' parts are.
    `targets`: what labels are.
    """
    private = np.arange(len(dataset), dtype=np.int64)
    if settings.source == "none":
        return None, private
    if settings.source == "share":
        taken = _share(dataset, settings, rng, rank=rank, domain=domain)
        public, private = dataset, np.setdiff1d(private, taken, assume_unique=True)
    elif settings.kind is not None:
        if dataset.is_tokens:
            raise DataError(
                "data.public.source: noise is numbers, and the data are token ids: use a share, or a set of such ids"
            )
        public = make_noise(settings.kind, settings.rows or 0, dataset, rng, cache_dir)
        taken = np.arange(len(public), dtype=np.int64)
    else:
        public = _other_set(settings, dataset, targets, cache_dir, part=part)
        if public.fingerprint == dataset.fingerprint:
            log.warning("the public set is the training set itself: clients' private rows are public too")
        count = min(settings.rows or len(public), len(public))
        taken = draw_stratified(public.strata, len(public), count, rng)
    if settings.labels == "none":
        public = public.without_labels()
    if settings.other_classes(public, dataset):
        public = public.with_labels_from(len(dataset.classes))
    return public.rows(taken), private


def _other_set(
    settings: PublicSettings,
    dataset: DataSet,
    targets: Targets,
    cache_dir: Path | str | None,
    *,
    part: bool,
) -> DataSet:
    """A public set that is another one, in the shape of a data set."""
    table = table_columns(settings.source) is not None
    label: str | tuple[str, ...] | None = settings.label
    if label is None and targets != CLASS_LABELS and table:
        label = dataset.label_columns or None  # only what is called alike can be taken to mean the same
    how: dict[str, Any] = {"like": dataset, "part": part, "targets": targets, "cache_dir": cache_dir}
    how["inputs"] = "tokens" if dataset.is_tokens else "numbers"
    try:
        public = load(settings.source, label=label, **how)
    except DataError as error:
        if not table or label == "none":
            raise
        if settings.labels != "none":
            raise DataError(
                f"data.public: {error}; of rows without labels set data.public.label=none"
            ) from None
        public = load(settings.source, label="none", **how)
    if settings.labels != "none" and public.labels is not None:
        _check_same_outputs(public, dataset, targets)
    public = adapt(public, dataset, cache_dir)
    if settings.classes == "auto" and set(public.classes) <= set(dataset.classes):
        return public.seen_as(classes=dataset.classes)  # the same words mean the same
    return public


def _check_same_outputs(public: DataSet, dataset: DataSet, targets: Targets) -> None:
    """Refuse public labels that do not mean what the private ones do, where they cannot be classes of their own."""
    if targets.several_columns and set(public.classes) != set(dataset.classes):
        raise DataError(
            f"the public set '{public.name}' has the classes {', '.join(public.classes[:8])}, and '{dataset.name}'"
            f" {', '.join(dataset.classes[:8])}: give the same label columns, or set data.public.label=none"
        )


def make_noise(
    kind: noise.Kind,
    rows: int,
    like: DataSet,
    rng: np.random.Generator,
    cache_dir: Path | str | None = None,
) -> DataSet:
    """So many rows of noise in the shape of a data set, normalised as it is and without labels; drawn once."""
    noise.check(kind, like.shape)
    size = 4 * rows * math.prod(like.shape)
    if size > memory() // 4:  # it is there twice while it is written
        raise DataError(
            f"data.public.rows: {rows} rows of noise take {size / 1e9:.1f} GB, more than a quarter of the memory:"
            " use fewer"
        )
    seed = int(rng.integers(2**62))

    def build(_: Path) -> Draft:
        stream = torch.Generator().manual_seed(seed)
        x = noise.draw(kind, rows, like.shape, stream, like.limits)
        inputs = np.ascontiguousarray(x.permute(0, 2, 3, 1)) if like.is_image else x.numpy()
        width = inputs.shape[-1]
        return Draft(f"{kind} noise", inputs, None, (), mean=(0.0,) * width, std=(1.0,) * width)

    key = {"noise": kind, "seed": seed, "rows": rows, "shape": like.shape, "limits": like.limits}
    return stored(key, build, cache_dir)


def adapt(dataset: DataSet, like: DataSet, cache_dir: Path | str | None = None) -> DataSet:
    """A data set in the shape of another: resized, grey made colour or colour made grey; done once."""
    if dataset.shape == like.shape:
        reason = why_not_alike(dataset, like, normalised=True)
        if reason is not None:
            raise DataError(f"'{dataset.name}': {reason}")
        return dataset
    shapes = ["×".join(map(str, data.shape)) for data in (dataset, like)]
    if (
        not (dataset.is_image and like.is_image)
        or dataset.inputs.dtype != np.uint8
        or like.shape[0] not in (1, 3)
    ):
        if dataset.is_tokens and like.is_tokens:
            raise DataError(
                f"'{dataset.name}' has rows of {shapes[0]} token ids and '{like.name}' of {shapes[1]}: pad or cut them"
                " to the same length"
            )
        raise DataError(
            f"'{dataset.name}' has rows of {shapes[0]} and '{like.name}' of {shapes[1]}: "
            "only 8-bit images can be brought to another shape"
        )
    channels, height, width = like.shape

    def build(folder: Path) -> Draft:
        log.info("%s: bringing %d images from %s to %s", dataset.name, len(dataset), *shapes)
        inputs = new_inputs(folder, (len(dataset), height, width, channels), np.uint8)
        resize_images(dataset.inputs, "L" if channels == 1 else "RGB", (height, width), inputs)
        return Draft(
            dataset.name, inputs, dataset.labels, dataset.classes, dataset.columns, dataset.column_names
        )

    return stored({"of": dataset.fingerprint, "name": dataset.name, "shape": like.shape}, build, cache_dir)


def _share(
    dataset: DataSet,
    settings: PublicSettings,
    rng: np.random.Generator,
    *,
    rank: Ints | None = None,
    domain: str | None = None,
) -> Ints:
    """The numbers of the rows that are made public of a training set (see `make_public`)."""
    origin = dataset.columns.get("origin", np.arange(len(dataset)))
    origins, first = np.unique(origin, return_index=True)
    copies = len(dataset) // len(origins)
    count = round(len(origins) * (settings.share or 0.0))
    if settings.rows is not None:
        count = min(count, settings.rows // copies)
    if not 0 < count < len(origins):
        raise DataError(
            f"a public share of {settings.share} of {len(dataset)} rows holds out {count * copies}: "
            "some must be public and some must stay private"
        )
    kinds = np.zeros(len(origins), dtype=np.int64) if dataset.strata is None else dataset.strata[first]
    if domain is not None and copies == 1:  # copies of an image are in all domains
        kinds = kinds + (int(kinds.max(initial=0)) + 2) * dataset.column(domain)[first]
    drawn = draw_stratified(kinds, len(origins), count, rng, rank)
    return np.flatnonzero(np.isin(origin, origins[drawn])).astype(np.int64)
