"""Sets a federation up: data, who holds what of it, who trains which model. Clients are made on demand."""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from polyfed import data, learn, models
from polyfed.data import DataSet, Rows
from polyfed.engines.machine import cores
from polyfed.errors import ConfigError, DataError, MethodError, ModelError
from polyfed.federation.fleet import Cohorts
from polyfed.federation.method import Method, Need
from polyfed.federation.nodes import Client, Holdings, Roster, Server, client_name
from polyfed.runs.config import RunConfig, pick_device
from polyfed.seeds import Seeds

ModelMaker: TypeAlias = Callable[[], nn.Module] | nn.Module

GIVEN = "(given from Python)"  # stands for the user's own data in a resolved config
HOLDINGS_KEPT = 4096
STACK_MOST = 10  # more clients in one stack measured no faster


class Federation:
    """All that a run is made of, worked out from its config and, from Python, the user's own data and models."""

    def __init__(
        self,
        config: RunConfig,
        given_data: Any = None,
        given_models: Mapping[str, ModelMaker] | None = None,
        method: Method | None = None,
    ) -> None:
        self.seeds = Seeds(config.seed)
        self.device = pick_device(config.device)
        self.makers = dict(given_models or {})
        self._given_data = given_data is not None
        self._load_data(config, given_data)
        self.config = config
        self.method = method or config.make_method()
        self._assign_models()
        self.check_needs()
        self._holdings: OrderedDict[int, Holdings] = OrderedDict()
        self.roster = Roster(_Samples(self), self.architectures, self.which)
        self.config = self._resolved()

    # -- data ------------------------------------------------------------------------------------------------

    def _load_data(self, config: RunConfig, given: Any) -> None:
        wanted = config.data
        if given is None and wanted.source == GIVEN:
            raise DataError("this run began with data of your own: pass them again as data=…")
        source = wanted.source if given is None else given
        options: dict[str, Any] = {"image": wanted.image, "label": wanted.label, "size": wanted.size}
        settings = wanted.partition
        if isinstance(settings, data.Natural):
            options["columns"] = (settings.column,)
        self.dataset: DataSet = data.load(
            source, "train", limit=wanted.limit, per_class=wanted.per_class, **options
        )
        self.shared_origin = isinstance(settings, data.Rotated) and settings.shared_split
        self._test_set: DataSet | None = None
        if isinstance(settings, data.Rotated):
            # Each domain is tested on rows of its own, and all on everybody's.
            self.dataset = data.prepare(settings, self.dataset)
        elif data.has_split(source, "test"):
            self._test_set = data.load(source, "test", **options)
        self.labels = self.dataset.need_labels()
        self._rank = self._rank_origins() if self.shared_origin else None
        self.public, self.private = data.make_public(
            wanted.public, self.dataset, self.seeds.numpy("public"), rank=self._rank, domain=settings.domain
        )
        self.partition = data.make_partition(
            settings, self.dataset, wanted.client_count(), self.seeds.numpy("partition"), rows=self.private
        )
        self.clients = len(self.partition)

    def _rank_origins(self) -> NDArray[np.int64]:
        """An order of the images that domains are made from: public ones from the front, held out ones from the end.

        So runs that differ in how much is public are tested on the same images.
        """
        origins = np.unique(self.dataset.column("origin"))
        return self.seeds.numpy("origins").permutation(len(origins))

    def holdings(self, index: int) -> Holdings:
        """What a client can see."""
        known = self._holdings.get(index)
        if known is None:
            train, validation, test = self._split(index)
            known = Holdings(
                train=self.dataset.rows(train),
                validation=self.dataset.rows(validation),
                test=self.dataset.rows(test),
                whole_test=self.whole_test,
                whole_validation=self.whole_validation,
                public=self.public,
                own_public=self._own_public(index),
                everyone=self.everyone if Need.ALL_DATA in self.method.needs else None,
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

    def samples(self, index: int) -> int:
        """How many rows a client trains on."""
        if self.shared_origin:
            return len(self.holdings(index).train)
        offsets = self.partition.offsets
        wanted = self.config.data
        return data.split_sizes(int(offsets[index + 1] - offsets[index]), wanted.validation, wanted.test)[0]

    def _split(self, index: int) -> tuple[Any, Any, Any]:
        wanted = self.config.data
        # Rotated copies of one image must fall on the same side in every domain, hence one stream for all.
        rng = self.seeds.numpy("split") if self.shared_origin else self.seeds.numpy("split", index)
        origin = self.dataset.column("origin") if self.shared_origin else None
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

    @functools.cached_property
    def whole_test(self) -> Rows:
        """The data set's own test split; where there is none, all clients' test rows together."""
        if self._test_set is not None:
            rows = self._test_set.rows()
        else:
            rows = self.dataset.rows(np.concatenate([self._split(index)[2] for index in range(self.clients)]))
        most = self.config.evaluate.test_rows
        if most is not None and most < len(rows):
            chosen = self.seeds.numpy("test rows").choice(len(rows), most, replace=False)
            rows = rows[np.sort(chosen)]
        return rows

    @functools.cached_property
    def whole_validation(self) -> Rows | None:
        """All clients' validation rows together, if the best round is to be chosen on them."""
        if self.config.evaluate.validation == "own":
            return None
        return self.dataset.rows(np.concatenate([self._split(index)[1] for index in range(self.clients)]))

    @property
    def own_in_whole(self) -> bool:
        """Whether the whole test set is all clients' own test rows, so that the others' rows can be told apart."""
        return self._test_set is None and self.config.evaluate.test_rows is None

    @functools.cached_property
    def everyone(self) -> Rows:
        """Everybody's training rows in one place."""
        return self.dataset.rows(np.concatenate([self._split(index)[0] for index in range(self.clients)]))

    # -- models ----------------------------------------------------------------------------------------------

    def _assign_models(self) -> None:
        wanted = self.config.models
        names = list(self.makers) or list(wanted.names)
        by_name = _by_name(wanted.clients, self.clients)
        names += [name for name in dict.fromkeys(by_name.values()) if name not in names]
        self.shape = self.dataset.shape
        self.outputs = self._output_count()
        dealt = len(self.makers) or len(wanted.names)
        self.which = models.assign_models(
            names[:dealt],
            self.clients,
            wanted.assign,
            rng=self.seeds.numpy("models"),
            budgets=[wanted.budget_of(index) for index in range(self.clients)] if wanted.budgets else None,
            shape=self.shape,
            outputs=self.outputs,
            norm=wanted.norm,
            batch=self.config.training.batch,
            own={name: self.build(name) for name in self.makers},
        )
        for index, name in by_name.items():
            self.which[index] = names.index(name)
        used = np.unique(self.which)
        self.architectures = tuple(names[place] for place in used)
        self.which = np.searchsorted(used, self.which)
        for name in {*self.architectures, *([wanted.server] if wanted.server else [])}:
            outputs = models.output_count(self.build(name), self.shape)
            if outputs != self.outputs:
                private = len(self.dataset.classes)
                public = f" and {self.outputs - private} public ones" if self.outputs > private else ""
                raise ModelError(
                    f"model '{name}' has {outputs} outputs, but the data have {private} classes{public}:"
                    f" give it {self.outputs}"
                )

    def _output_count(self) -> int:
        """One output a private class; and one a public class, if the method learns from labels of other classes."""
        outputs = len(self.dataset.classes)
        if self.public is not None and Need.PUBLIC_LABELS in self.method.needs:
            public = self.public.dataset
            if public.first_class:
                outputs += len(public.classes)
        return outputs

    def architecture(self, index: int) -> str:
        return self.roster.architecture(index)

    def build(self, architecture: str) -> nn.Module:
        return self._built(architecture, "model", architecture)

    def own_model(self, index: int) -> nn.Module:
        return self._built(self.architecture(index), "own model", client_name(index))

    def _built(self, architecture: str, *seed: str) -> nn.Module:
        maker = self.makers.get(architecture)
        if maker is None:
            model: nn.Module = models.build(
                architecture,
                self.shape,
                self.outputs,
                norm=self.config.models.norm,
                generator=self.seeds.torch(*seed),
            )
        elif isinstance(maker, nn.Module):
            model = copy.deepcopy(maker)
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seeds.number(*seed))
                model = maker()
            if not isinstance(model, nn.Module):
                raise ModelError(f"model '{architecture}' gave a {type(model).__name__}, not an nn.Module")
            model = model.to(memory_format=models.memory_format(model))  # type: ignore[call-overload]
        return model.to(self.device)

    # -- nodes -----------------------------------------------------------------------------------------------

    def client(self, index: int, model: nn.Module, scratch_model: Callable[[str], nn.Module]) -> Client:
        return Client(
            facts=self.roster[index],
            model=model,
            data=self.holdings(index),
            seeds=self.seeds,
            device=self.device,
            scratch_model=scratch_model,
            budget=self.config.models.budget_of(index),
            outputs=self.outputs,
            answers=len(self.dataset.classes) if self.config.evaluate.outputs == "private" else None,
        )

    def server(self) -> Server:
        name = self.config.models.server
        return Server(
            roster=self.roster,
            seeds=self.seeds,
            device=self.device,
            build=self.build,
            outputs=self.outputs,
            model=self._built(name, "server model") if name else None,
            architecture=name,
            public=self.public,
        )

    def cohorts(self) -> Cohorts:
        """Who takes part, from the config."""
        wanted = self.config.cohort
        weak: list[int] | None = None
        if wanted.dropout_by == "budget" and wanted.dropout:
            if not self.config.models.budgets:
                raise ConfigError("cohort.dropout_by: budget needs models.budgets")
            budgets = [self.config.models.budget_of(index) for index in range(self.clients)]
            order = sorted(range(self.clients), key=lambda index: (_strength(budgets[index]), index))
            weak = order[: round(wanted.dropout * self.clients)]
        return Cohorts(wanted.size(self.clients), wanted.dropout, weak)

    def scored_clients(self) -> list[int]:
        """The clients that are looked at: all, or as many as the config allows, drawn once."""
        most = self.config.evaluate.clients
        if self.clients <= most:
            return list(range(self.clients))
        drawn = self.seeds.numpy("scored clients").choice(self.clients, most, replace=False)
        return sorted(int(index) for index in drawn)

    # -- checks ----------------------------------------------------------------------------------------------

    def check_needs(self) -> None:
        """A method's needs are met before a run starts."""
        method = self.method
        needs = method.needs
        name = method.name
        if Need.COMMON_ARCHITECTURE in needs and len(self.architectures) > 1:
            raise MethodError(
                f"{name} needs one architecture for all, here are {len(self.architectures)}"
                f" ({', '.join(self.architectures)}): set models.names to one of them"
                + (" or method.within=architecture" if "within" in method.Settings.model_fields else "")
            )
        if Need.PUBLIC in needs and self.public is None:
            raise MethodError(
                f"{name} needs public data: set data.public.source=share and data.public.share=0.1, or name a data set"
            )
        if Need.PUBLIC_LABELS in needs and self.public is not None and self.public.dataset.labels is None:
            raise MethodError(
                f"{name} needs labels on the public data: set data.public.labels=own"
                + (
                    " or method.public_training=null"
                    if "public_training" in method.Settings.model_fields
                    else ""
                )
            )
        if Need.SERVER_MODEL in needs and self.config.models.server is None:
            choice = method.Settings.model_fields.get("global_")
            optional = " or method.global=false" if choice is not None and choice.annotation is bool else ""
            raise MethodError(f"{name} needs a server model: set models.server{optional}")
        if self.config.training.keep_optimiser and "memory" not in method.keeps:
            raise MethodError(f"{name} keeps nothing of a client: set training.keep_optimiser=false")
        self.cohorts()

    def _resolved(self) -> RunConfig:
        """The config with every `auto` decided: what changes the arithmetic is part of it."""
        stack = self.config.stack
        if stack == "auto":
            stack = self._stack() if learn.can_stack(self.config.training) else 1
        changes: dict[str, Any] = {"stack": stack, "device": self.device.type}
        if self._given_data:
            changes["data"] = self.config.data.model_copy(update={"source": GIVEN})
        if self.makers:
            changes["models"] = self.config.models.model_copy(update={"names": list(self.makers)})
        return self.config.model_copy(update=changes)

    def _stack(self) -> int:
        cohort = self.config.cohort.size(self.clients)
        return min(STACK_MOST, max(1, -(-cohort // cores()))) if self.stackable() else 1

    def stackable(self) -> frozenset[str]:
        """The architectures whose clients can be trained stacked."""
        return frozenset(name for name in self.architectures if getattr(self.build(name), "stackable", False))


class _Samples(Sequence[int]):
    """How many rows each client trains on, worked out when asked."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation

    def __len__(self) -> int:
        return self.federation.clients

    def __getitem__(self, index: Any) -> Any:
        return self.federation.samples(int(index))


def _by_name(wanted: Mapping[str, str], clients: int) -> dict[int, str]:
    """{"0-5": a, "client-7": b} as one name a client."""
    chosen: dict[int, str] = {}
    for key, name in wanted.items():
        first, dash, last = key.removeprefix("client-").partition("-")
        try:
            span = range(int(first), int(last if dash else first) + 1)
        except ValueError:
            raise ConfigError(f"models.clients: '{key}' is no client; write 7, client-7 or 0-5") from None
        if not span or span[-1] >= clients:
            raise ConfigError(
                f"models.clients: '{key}' is not within the {clients} clients (0-{clients - 1})"
            )
        chosen.update(dict.fromkeys(span, name))
    return chosen


def _strength(budget: models.Budget) -> tuple[float, float, float]:
    limits = (budget.parameters, budget.macs, budget.memory_bytes)
    first, second, third = (float("inf") if limit is None else float(limit) for limit in limits)
    return first, second, third
