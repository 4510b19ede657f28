"""One data set, cut in one place: what is public, who holds what of the rest, and on what models are tested."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyfed import data
from polyfed.data import Constants, DataSet, Holding, InputForm, Limits, Rows, agreement_of, no_normalisation
from polyfed.errors import ConfigError, DataError
from polyfed.federation.nodes import ClientData
from polyfed.runs.client_names import client_names
from polyfed.runs.config import RunConfig
from polyfed.runs.federation import scored_clients
from polyfed.runs.holdings import GIVEN, Ints, Kept, WholeTest, as_seen, part_in_turn
from polyfed.seeds import Seeds

log = logging.getLogger(__name__)


class CutData:
    """A data set dealt out to clients. A client's rows are divided when they are asked for.

    given: the user's own data, instead of those that the config names.
    pooled: whether every client sees everybody's training rows (`Need.ALL_DATA`).
    """

    def __init__(self, config: RunConfig, seeds: Seeds, given: Any = None, *, pooled: bool = False) -> None:
        self.config = config
        self.seeds = seeds
        self.pooled = pooled
        wanted = config.data
        self.targets = config.make_task().targets
        if wanted.classes:
            raise ConfigError(
                "data.classes is for clients that bring their own data (data.clients: {north: …}, data.each, data={…})"
            )
        settings = wanted.partition
        self._shared_origin = isinstance(settings, data.Rotated) and settings.shared_split
        self.dataset, self._test_set = self._load(given)
        self.dataset.need_labels()
        self.strata = self.dataset.strata
        self.agreement = agreement_of(self.dataset, wanted.image)
        self.title = self.dataset.name
        self._rank = self._rank_origins() if self._shared_origin else None
        self.public, self.private = data.make_public(
            wanted.public,
            self.dataset,
            seeds.numpy("public"),
            rank=self._rank,
            domain=settings.domain,
            targets=self.targets,
        )
        public = None if self.public is None else self.public.dataset
        self.agreement = data.with_ids_of(self.agreement, [self._test_set, public])
        self.partition = data.make_partition(
            settings, self.dataset, wanted.client_count(), seeds.numpy("partition"), rows=self.private
        )
        self.names = client_names(wanted, len(self.partition), self.partition.names)
        self.of, self.seen_by = Kept(self._hold), Kept(self._see)
        self._warn()

    def _warn(self) -> None:
        """Say what looks odd in the data, and what will not be scored."""
        of_test = () if self._test_set is None else self._test_set.notes
        for note in dict.fromkeys(self.dataset.notes + of_test):
            log.warning("%s", note)
        if self._test_set is not None and self.config.evaluate.test_rows != 0:
            return
        wanted = self.config.data
        largest = int(np.diff(self.partition.offsets).max())
        if data.split_sizes(largest, wanted.validation, wanted.test)[2] == 0:
            remedy = "set data.test, such as 0.2" if wanted.test == 0 else "no client has more than a row"
            log.warning("'%s' has no test rows, so nothing will be scored: %s", self.dataset.name, remedy)

    def _load(self, given: Any) -> tuple[DataSet, DataSet | None]:
        """The rows to learn from; and those of `data.test_set`, or the data set's own test split if there is one."""
        wanted = self.config.data
        if given is None and wanted.source == GIVEN:
            raise DataError("this run began with data of your own: pass them again as data=…")
        source = wanted.source if given is None else given
        options = {**wanted.reading(), "targets": self.targets}
        settings = wanted.partition
        if isinstance(settings, data.Natural):
            options["columns"] = (settings.column,)
        train: DataSet = data.load(source, "train", limit=wanted.limit, per_class=wanted.per_class, **options)
        test: DataSet | None = None
        if isinstance(settings, data.Rotated):
            # Each domain is tested on rows of its own, and all on everybody's.
            train = data.prepare(settings, train)
        elif wanted.test_set is None and data.has_split(source, "test"):
            test = data.load(source, "test", **options)
        if wanted.test_set is not None:
            whole = source["train"] if isinstance(source, Mapping) else source
            test = data.load({"train": whole, "test": wanted.test_set}, "test", **options)
        if wanted.normalised == "none":
            train, test = _as_read(train), None if test is None else _as_read(test)
        return train, test

    @property
    def fingerprints(self) -> dict[str, str]:
        test = None if self._test_set is None else self._test_set.fingerprint
        public = None if self.public is None else self.public.dataset.fingerprint
        return {"training": self.dataset.fingerprint, "test": str(test), "public": str(public)}

    @property
    def limits(self) -> Limits | None:
        return self.dataset.limits

    @functools.cached_property
    def constants(self) -> Constants | Mapping[str, Constants]:
        if self.config.data.normalised != "client":
            return self.dataset.mean, self.dataset.std
        each = (self.of(index).form for index in range(len(self.names)))
        return {name: (form.mean, form.std) for name, form in zip(self.names, each, strict=True)}

    def data_sets(self) -> Iterator[DataSet]:
        yield self.dataset
        yield from (rows.dataset for rows in (self.whole_test, self.public) if rows is not None)

    def _rank_origins(self) -> Ints:
        """An order of the images that domains are made from: public ones from the front, held out ones from the end.

        So runs that differ in how much is public are tested on the same images.
        """
        origins = np.unique(self.dataset.column("origin"))
        return self.seeds.numpy("origins").permutation(len(origins))

    # -- what a client holds ---------------------------------------------------------------------------------

    def split(self, index: int) -> tuple[Ints, Ints, Ints]:
        """The numbers of a client's training, validation and test rows."""
        wanted = self.config.data
        # Rotated copies of one image must fall on the same side in every domain, hence one stream for all.
        rng = (
            self.seeds.numpy("split") if self._shared_origin else self.seeds.numpy("split", self.names[index])
        )
        origin = self.dataset.column("origin") if self._shared_origin else None
        return data.split_client(
            self.partition.rows(index),
            self.strata,
            wanted.validation,
            wanted.test,
            rng,
            by=origin,
            among=self.private,
            rank=self._rank,
        )

    def training_labels(self) -> Tensor | None:
        return torch.from_numpy(np.asarray(self.dataset.need_labels()[self.private]))

    @property
    def group_words(self) -> tuple[str, ...]:
        return self.dataset.group_words

    def samples(self) -> Ints:
        if self._shared_origin:  # a few domains, whose rows must be divided to be counted
            return np.array([len(self.split(index)[0]) for index in range(len(self.names))])
        wanted = self.config.data
        sizes, place = np.unique(np.diff(self.partition.offsets), return_inverse=True)
        trained = [data.split_sizes(int(size), wanted.validation, wanted.test)[0] for size in sizes]
        return np.array(trained)[place]

    def class_counts(self) -> Ints:
        assert self.strata is not None
        return self.partition.class_counts(self.strata, len(self.dataset.group_words))

    def _hold(self, index: int) -> Holding:
        train, validation, test = self.split(index)
        seen = self.dataset
        if self.config.data.normalised == "client" and len(train):  # who has no rows has no constants
            mean, std = data.pooled([data.moments(seen.inputs, train)])
            seen = seen.seen_as(mean=mean, std=std)
        return Holding(
            name=self.names[index],
            train=seen.rows(train),
            validation=seen.rows(validation),
            test=seen.rows(test),
            form=InputForm.of(self.agreement, (seen.mean, seen.std)),
            fingerprint=self.dataset.fingerprint,
        )

    def _see(self, index: int) -> ClientData:
        held = self.of(index)
        own = held.form.mean, held.form.std
        whole, validation = self.whole_test, self.whole_validation
        return ClientData(
            train=held.train,
            validation=held.validation,
            test=held.test,
            whole_test=None if whole is None else as_seen(whole, own),
            whole_validation=None if validation is None else as_seen(validation, own),
            public=self.public,
            own_public=self._own_public(index),
            everyone=self.everyone if self.pooled else None,
        )

    def _own_public(self, index: int) -> Tensor | None:
        """The places of the public rows of a client's own domain; without domains they are dealt out in turn."""
        if self.public is None:
            return None
        domain = self.config.data.partition.domain
        if domain is None or self.config.data.public.source != "share":
            return part_in_turn(self.public, self.names, index)
        mine = np.unique(self.dataset.column(domain)[self.partition.rows(index)])
        return torch.from_numpy(np.flatnonzero(np.isin(self.public.column(domain), mine)))

    # -- what all have in common -----------------------------------------------------------------------------

    @property
    def whole_test_is(self) -> WholeTest:
        if self._test_set is None:
            return "clients"
        return "split" if self.config.data.test_set is None else "file"

    @functools.cached_property
    def whole_test(self) -> Rows | None:
        """The data set's own test split; where there is none, the test rows of all clients that are scored."""
        rows = self._test_set.rows() if self._test_set is not None else self._together(2, self._scored())
        most = self.config.evaluate.test_rows
        if most is not None and most < len(rows):
            chosen = self.seeds.numpy("test rows").choice(len(rows), most, replace=False)
            rows = rows[np.sort(chosen)]
        return rows

    @functools.cached_property
    def whole_validation(self) -> Rows | None:
        """The validation rows of all that are scored, if the best round is to be chosen on them."""
        return None if self.config.evaluate.validation == "own" else self._together(1, self._scored())

    @functools.cached_property
    def everyone(self) -> Rows:
        """Everybody's training rows in one place."""
        return self._together(0, range(len(self.names)))

    def _scored(self) -> Sequence[int]:
        return scored_clients(self.config, self.seeds, len(self.names))

    def _together(self, part: int, clients: Sequence[int]) -> Rows:
        return self.dataset.rows(np.concatenate([self.split(index)[part] for index in clients]))


def _as_read(dataset: DataSet) -> DataSet:
    mean, std = no_normalisation(dataset.inputs.shape[-1])
    return dataset.seen_as(mean=mean, std=std)
