"""Data that each client brings itself: files, folders or arrays of its own, with its own columns, classes and units.

Every owner makes its holding by itself: it draws what it publishes, divides the rest and works out its constants, from
random streams that go by its name. All that they need of each other is the agreement (`data.agree`); and, with
`normalise: all`, how many rows each has, their mean and their variance.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyfed import data
from polyfed.data import Constants, DataSet, Holding, InputForm, Limits, Rows
from polyfed.errors import ConfigError, DataError
from polyfed.federation.nodes import ClientData
from polyfed.federation.roster import Names
from polyfed.runs.config import RunConfig
from polyfed.runs.holdings import Ints, Kept, WholeTest, as_seen, part_in_turn
from polyfed.runs.own_sources import alike, columns_to_drop, read_brought, told_of
from polyfed.seeds import Seeds

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Division:
    """Row numbers of what one client brought: what it publishes, and what it keeps."""

    public: Ints
    train: Ints
    validation: Ints
    test: Ints
    """None of them where the client brought test rows apart."""


class OwnData:
    """What every client of a federation brought.

    sources: what each client brings, by its name (see `own_sources`).
    pooled: whether every client sees everybody's training rows (`Need.ALL_DATA`).
    alone: whether the method exchanges nothing: then no client sees what others have, not even their statistics.
    """

    def __init__(
        self,
        config: RunConfig,
        seeds: Seeds,
        sources: Mapping[str, Any],
        *,
        pooled: bool = False,
        alone: bool = False,
    ) -> None:
        self.config = config
        self.seeds = seeds
        self.names = Names(len(sources), list(sources))
        self._check_settings()
        self.targets = config.make_task().targets
        self._brought, self.agreement = read_brought(sources, config.data, self.targets)
        self.title = f"data of {len(sources)} clients"
        self._published = self._count_published()
        self._divisions = {name: self._divide(name) for name in self.names}
        self._normalise(alone=alone)
        self.public = self._make_public()
        self._test_set = self._read_test_set()
        self.of, self.seen_by = Kept(self._hold), Kept(self._see)
        # Here, so that processes that are forked find it made.
        self.everyone = self._put_together() if pooled else None
        self._warn()

    def _check_settings(self) -> None:
        if self.config.evaluate.validation == "everyone":
            raise ConfigError(
                "evaluate.validation: everyone needs everybody's validation rows in one place, and each client has its"
                " own data: use own"
            )

    # -- what is agreed on -----------------------------------------------------------------------------------

    def _divide(self, name: str) -> Division:
        """What a client publishes, and how the rest is divided, by streams of its name."""
        wanted, train = self.config.data, self._brought[name].train
        train.need_labels()
        labels, rows = train.strata, np.arange(len(train), dtype=np.int64)
        public = rows[:0]
        published = self._published[name]
        if published:
            public = data.draw_stratified(labels, len(train), published, self.seeds.numpy("public", name))
        apart = self._brought[name].test is not None
        shares = wanted.validation, 0.0 if apart else wanted.test
        kept = np.setdiff1d(rows, public, assume_unique=True)
        return Division(public, *data.split_client(kept, labels, *shares, self.seeds.numpy("split", name)))

    def _count_published(self) -> dict[str, int]:
        """How many rows each client publishes: its share, but not its last row; at most `data.public.rows` in all."""
        wanted, names = self.config.data.public, sorted(self.names)
        if wanted.source != "share":
            return dict.fromkeys(names, 0)
        sizes = np.array([len(self._brought[name].train) for name in names])
        counts = np.minimum(np.round(sizes * (wanted.share or 0.0)).astype(np.int64), sizes - 1)
        if wanted.rows is not None and wanted.rows < counts.sum():
            counts = data.apportion(counts, wanted.rows, self.seeds.numpy("public"))
        return dict(zip(names, counts.tolist(), strict=True))

    def _normalise(self, *, alone: bool) -> None:
        """The constants of each client, of training rows alone."""
        how = self.config.data.normalised
        if how == "all" and alone:
            log.warning(
                "%s exchanges nothing, so each client's rows are normalised by its own statistics, not by all",
                self.config.method.name,
            )
            how = "client"
        width = self.agreement.shape[-1]
        trained = {name: self._divisions[name].train for name in self.names}
        if how == "none":
            own = dict.fromkeys(self.names, data.no_normalisation(width))
        else:
            found = {
                name: data.moments(self._brought[name].train.inputs, rows) for name, rows in trained.items()
            }
            same = data.pooled(list(found.values())) if how == "all" else None
            own = {name: same or data.pooled([each]) for name, each in found.items()}
        self._constants: dict[str, Constants] = own
        self.constants: Constants | Mapping[str, Constants] = own if how == "client" else own[self.names[0]]

    @property
    def limits(self) -> Limits | None:
        """Of all clients alike, or not known: with constants of their own, what a pixel is differs."""
        if isinstance(self.constants, Mapping):
            return None
        return InputForm.of(self.agreement, self.constants).limits

    @property
    def fingerprints(self) -> dict[str, str]:
        """Of what each client brought, whatever the others bring; and of what is nobody's."""
        found = {name: each.fingerprint for name, each in self._brought.items()}
        if self.public is not None and self.config.data.public.source != "share":
            found["(public)"] = self.public.dataset.fingerprint
        if self._test_set is not None:
            found["(test set)"] = self._test_set.fingerprint
        return found

    def data_sets(self) -> Iterator[DataSet]:
        for each in self._brought.values():
            yield from each.sets
        yield from (rows.dataset for rows in (self.public, self.whole_test) if rows is not None)

    def _warn(self) -> None:
        for one, other in alike(self._brought):
            log.warning("clients '%s' and '%s' bring the same rows", one, other)
        for note in data.alike_notes(self.agreement.classes, "all clients together"):
            log.warning("%s", note)
        self._warn_of_copies()
        for name, each in self._brought.items():
            for note in dict.fromkeys(note for found in each.sets for note in found.notes):
                log.warning("client '%s': %s", name, note)
            if not len(self._divisions[name].train):
                log.warning("client '%s' has no rows to train on: it takes no part in learning", name)
        if not any(len(self.of(index).test) for index in range(len(self.names))) and self._test_set is None:
            log.warning(
                "no client has test rows, so nothing will be scored: set data.test, such as 0.2, or data.test_set"
            )

    def _warn_of_copies(self) -> None:
        """Say which test rows, and which rows of a public set, are training rows of somebody else."""
        looked_at = {name: each.test for name, each in self._brought.items() if each.test is not None}
        titles = {name: f"the test rows of '{name}'" for name in looked_at}
        if self._test_set is not None:
            looked_at["(test set)"], titles["(test set)"] = self._test_set, "data.test_set"
        if self.public is not None and self.config.data.public.source not in ("share", "noise"):
            looked_at["(public)"], titles["(public)"] = self.public.dataset, "data.public"
        if not looked_at:
            return
        owners = {
            mark: name for name, each in self._brought.items() for mark in data.row_hashes(each.train.inputs)
        }
        for whose, found in looked_at.items():
            marks = (owners.get(mark) for mark in data.row_hashes(found.inputs))
            for name in dict.fromkeys(name for name in marks if name not in (None, whose)):
                train = self._brought[str(name)].train.inputs
                for note in data.copy_notes(found.inputs, train, found.name):
                    log.warning("%s and client '%s': %s", titles[whose], name, note)

    # -- public rows -----------------------------------------------------------------------------------------

    def _make_public(self) -> Rows | None:
        """One tensor for all: shares as their owners normalise them, or another set by its own constants."""
        wanted = self.config.data.public
        if wanted.source == "share":
            self._owners = [name for name in sorted(self.names) if len(self._divisions[name].public)]
            if not self._owners:
                raise DataError(
                    "data.public.share: no client has enough rows to publish one: use a larger share"
                )
            parts = [
                as_seen(self._brought[name].train.rows(self._divisions[name].public), self._constants[name])
                for name in self._owners
            ]
            shared = data.put_together(parts, "published rows")
            return (shared.without_labels() if wanted.labels == "none" else shared).rows()
        public, _ = data.make_public(
            wanted, self._template(), self.seeds.numpy("public"), part=True, targets=self.targets
        )
        if public is None or self.config.data.normalised != "none" or wanted.source == "noise":
            return public
        return as_seen(public, data.no_normalisation(self.agreement.shape[-1]))

    def _template(self) -> DataSet:
        """A set of no rows, for what is to be like the clients' rows."""
        shared = self.constants
        return data.template(self.agreement, None if isinstance(shared, Mapping) else shared)

    def _own_public(self, index: int) -> Tensor | None:
        if self.public is None:
            return None
        if self.config.data.public.source != "share":
            return part_in_turn(self.public, self.names, index)
        counts = [len(self._divisions[name].public) for name in self._owners]
        ends = np.cumsum([0, *counts])
        name = self.names[index]
        if name not in self._owners:
            return torch.empty(0, dtype=torch.int64)
        place = self._owners.index(name)
        return torch.arange(int(ends[place]), int(ends[place + 1]))

    # -- what a client holds ---------------------------------------------------------------------------------

    def samples(self) -> Ints:
        return np.array([len(self._divisions[name].train) for name in self.names])

    def class_counts(self) -> Ints:
        held = (self.of(index) for index in range(len(self.names)))
        width = len(self.group_words)
        if width == 1:  # each client's groups would be its own
            return np.array([[len(each.train) + len(each.validation) + len(each.test)] for each in held])
        return np.stack(
            [
                sum(rows.class_counts(width) for rows in (each.train, each.validation, each.test))
                for each in held
            ]
        )

    def training_labels(self) -> Tensor | None:
        return None

    @property
    def group_words(self) -> tuple[str, ...]:
        if self.targets == data.CLASS_LABELS:
            return self.agreement.classes
        return (*self.agreement.classes, "none") if self.targets.several_columns else ("rows",)

    def _hold(self, index: int) -> Holding:
        name = self.names[index]
        brought, rows = self._brought[name], self._divisions[name]
        mean, std = self._constants[name]
        train = brought.train.seen_as(mean=mean, std=std)
        return Holding(
            name=name,
            train=train.rows(rows.train),
            validation=train.rows(rows.validation),
            test=train.rows(rows.test)
            if brought.test is None
            else brought.test.seen_as(mean=mean, std=std).rows(),
            form=InputForm.of(self.agreement, (mean, std)),
            fingerprint=brought.fingerprint,
        )

    def _see(self, index: int) -> ClientData:
        held = self.of(index)
        return ClientData(
            train=held.train,
            validation=held.validation,
            test=held.test,
            whole_test=self.whole_test,
            public=self.public,
            own_public=self._own_public(index),
            everyone=self.everyone,
        )

    def _put_together(self) -> Rows:
        """Everybody's training rows in one place, each as its owner normalises it."""
        parts = [self.of(index).train for index in range(len(self.names))]
        return data.put_together([part for part in parts if len(part)], "everybody's rows").rows()

    # -- the test set ----------------------------------------------------------------------------------------

    @property
    def whole_test_is(self) -> WholeTest:
        return "none" if self._test_set is None else "file"

    def _read_test_set(self) -> DataSet | None:
        """The file that the server has, normalised as all are, or by its own constants as every owner's rows are."""
        wanted = self.config.data
        if wanted.test_set is None:
            return None
        with told_of("data.test_set"):
            drop = columns_to_drop({"": wanted.test_set}, wanted.drop, strict=False)[""]
            options = {**wanted.reading(), "drop": drop, "like": self.agreement, "part": True}
            options["targets"] = self.targets
            found = data.adapt(data.load(wanted.test_set, **options), self._template())
            found = found.seen_as(classes=self.agreement.classes)
        if isinstance(self.constants, Mapping):
            return found
        mean, std = self.constants
        return found.seen_as(mean=mean, std=std)

    @functools.cached_property
    def whole_test(self) -> Rows | None:
        if self._test_set is None:
            return None
        rows, most = self._test_set.rows(), self.config.evaluate.test_rows
        if most is not None and most < len(rows):
            rows = rows[np.sort(self.seeds.numpy("test rows").choice(len(rows), most, replace=False))]
        return rows
