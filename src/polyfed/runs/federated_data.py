"""The data of a federation: what is public, who holds what of the rest, and on what models are tested."""

from __future__ import annotations

import functools
import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfed import data
from polyfed.data import DataSet, Rows
from polyfed.errors import DataError
from polyfed.federation.nodes import Holdings
from polyfed.runs.config import RunConfig
from polyfed.runs.federation import scored_clients
from polyfed.seeds import Seeds

Ints = NDArray[np.int64]

log = logging.getLogger(__name__)

GIVEN = "(given from Python)"  # stands for the user's own data in a resolved config
HOLDINGS_KEPT = 4096


class FederatedData:
    """A data set dealt out to clients. A client's rows are divided when they are asked for.

    given: the user's own data, instead of those that the config names.
    pooled: whether every client sees everybody's training rows (`Need.ALL_DATA`).
    """

    def __init__(self, config: RunConfig, seeds: Seeds, given: Any = None, *, pooled: bool = False) -> None:
        self.config = config
        self.seeds = seeds
        self.pooled = pooled
        self._holdings: OrderedDict[int, Holdings] = OrderedDict()
        wanted = config.data
        settings = wanted.partition
        self._shared_origin = isinstance(settings, data.Rotated) and settings.shared_split
        self.dataset, self._test_set = self._load(given)
        self.labels = self.dataset.need_labels()
        self._rank = self._rank_origins() if self._shared_origin else None
        self.public, self.private = data.make_public(
            wanted.public, self.dataset, seeds.numpy("public"), rank=self._rank, domain=settings.domain
        )
        self.partition = data.make_partition(
            settings, self.dataset, wanted.client_count(), seeds.numpy("partition"), rows=self.private
        )
        self.clients = len(self.partition)
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
        """The rows to learn from, and the data set's own test split if it has one that can be used."""
        wanted = self.config.data
        if given is None and wanted.source == GIVEN:
            raise DataError("this run began with data of your own: pass them again as data=…")
        source = wanted.source if given is None else given
        options: dict[str, Any] = {
            "image": wanted.image,
            "label": wanted.label,
            "drop": wanted.drop,
            "size": wanted.size,
        }
        settings = wanted.partition
        if isinstance(settings, data.Natural):
            options["columns"] = (settings.column,)
        train: DataSet = data.load(source, "train", limit=wanted.limit, per_class=wanted.per_class, **options)
        if isinstance(settings, data.Rotated):
            # Each domain is tested on rows of its own, and all on everybody's.
            return data.prepare(settings, train), None
        return train, data.load(source, "test", **options) if data.has_split(source, "test") else None

    @property
    def fingerprint(self) -> str:
        """Of all that is learnt from and tested on: where it is another, so is the result. See `other_data`."""
        test = None if self._test_set is None else self._test_set.fingerprint
        public = None if self.public is None else self.public.dataset.fingerprint
        return f"{self.dataset.fingerprint} test={test} public={public}"

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
        rng = self.seeds.numpy("split") if self._shared_origin else self.seeds.numpy("split", index)
        origin = self.dataset.column("origin") if self._shared_origin else None
        return data.split_client(
            self.partition.rows(index),
            self.labels,
            wanted.validation,
            wanted.test,
            rng,
            by=origin,
            among=self.private,
            rank=self._rank,
        )

    def samples(self) -> Ints:
        """How many rows each client trains on."""
        if self._shared_origin:  # a few domains, whose rows must be divided to be counted
            return np.array([len(self.split(index)[0]) for index in range(self.clients)])
        wanted = self.config.data
        sizes, place = np.unique(np.diff(self.partition.offsets), return_inverse=True)
        trained = [data.split_sizes(int(size), wanted.validation, wanted.test)[0] for size in sizes]
        return np.array(trained)[place]

    def holdings(self, index: int) -> Holdings:
        """What a client can see."""
        known = self._holdings.get(index)
        if known is None:
            train, validation, test = self.split(index)
            known = Holdings(
                train=self.dataset.rows(train),
                validation=self.dataset.rows(validation),
                test=self.dataset.rows(test),
                whole_test=self.whole_test,
                whole_validation=self.whole_validation,
                public=self.public,
                own_public=self._own_public(index),
                everyone=self.everyone if self.pooled else None,
            )
            self._holdings[index] = known
            if len(self._holdings) > HOLDINGS_KEPT:
                self._holdings.popitem(last=False)
        return known

    def _own_public(self, index: int) -> Tensor | None:
        """The places of the public rows of a client's own domain; without domains they are dealt out in turn."""
        if self.public is None:
            return None
        domain = self.config.data.partition.domain
        if domain is None or self.config.data.public.source != "share":
            own = np.arange(index % len(self.public), len(self.public), self.clients)
        else:
            mine = np.unique(self.dataset.column(domain)[self.partition.rows(index)])
            own = np.flatnonzero(np.isin(self.public.column(domain), mine))
        return torch.from_numpy(own)

    # -- what all have in common -----------------------------------------------------------------------------

    @functools.cached_property
    def whole_test(self) -> Rows:
        """The data set's own test split; where there is none, the test rows of all clients that are scored."""
        rows = self._test_set.rows() if self._test_set is not None else self._together(2, self._scored())
        most = self.config.evaluate.test_rows
        if most is not None and most < len(rows):
            chosen = self.seeds.numpy("test rows").choice(len(rows), most, replace=False)
            rows = rows[np.sort(chosen)]
        return rows

    @property
    def own_in_whole(self) -> bool:
        """Whether the whole test set is the clients' own test rows, so that the others' rows can be told apart."""
        return self._test_set is None and self.config.evaluate.test_rows is None

    @functools.cached_property
    def whole_validation(self) -> Rows | None:
        """The validation rows of all that are scored, if the best round is to be chosen on them."""
        return None if self.config.evaluate.validation == "own" else self._together(1, self._scored())

    @functools.cached_property
    def everyone(self) -> Rows:
        """Everybody's training rows in one place."""
        return self._together(0, range(self.clients))

    def _scored(self) -> Sequence[int]:
        return scored_clients(self.config, self.seeds, self.clients)

    def _together(self, part: int, clients: Sequence[int]) -> Rows:
        return self.dataset.rows(np.concatenate([self.split(index)[part] for index in clients]))
