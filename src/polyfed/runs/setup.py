"""Sets a federation up from a config: its data, its models, its nodes. Clients are made on demand."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from torch import nn

from polyfed import models as known_models
from polyfed.data import InputForm, Rows, verify
from polyfed.errors import ConfigError, MethodError
from polyfed.federation.declaration import Need
from polyfed.federation.method import Method
from polyfed.federation.nodes import Assistant, Client, Holdings, ScratchModels, Server
from polyfed.federation.roster import FederationFacts, Roster
from polyfed.runs.architectures import Architectures, ModelMaker, assignment_of
from polyfed.runs.assignment import Assignment
from polyfed.runs.client_names import client_names
from polyfed.runs.config import RunConfig, pick_device
from polyfed.runs.evaluation import ClientObserver
from polyfed.runs.federated_data import GIVEN, FederatedData
from polyfed.runs.federation import cohorts_of
from polyfed.runs.needs import check_needs
from polyfed.seeds import Seeds

logger = logging.getLogger(__name__)


class Simulation:
    """A federation simulated in one place: all of its data and models are here, its clients are made on demand.

    given_data, given_models: from Python, the user's own data and models, instead of those that the config names.
    method: the method, where it is not the one that the config names.
    """

    def __init__(
        self,
        config: RunConfig,
        given_data: Any = None,
        given_models: Mapping[str, ModelMaker] | None = None,
        method: Method | None = None,
    ) -> None:
        self.method = method or config.make_method()
        self.seeds = Seeds(config.seed)
        self.device = pick_device(config.device)
        pooled = Need.ALL_DATA in self.method.declared.needs
        self.data = FederatedData(config, self.seeds, given_data, pooled=pooled)
        self.dataset, self.partition = self.data.dataset, self.data.partition
        self.labels, self.public, self.clients = self.data.labels, self.data.public, self.data.clients
        self.classes = len(self.dataset.classes)
        makers = given_models or {}
        names = client_names(
            config.data,
            self.clients,
            self.partition.names,
            [*known_models.names(), *config.models.all_names(), *makers],
        )
        self.models = Architectures(
            config,
            self.data,
            self.method,
            seeds=self.seeds,
            device=self.device,
            clients=names,
            makers=makers,
        )
        config = self.models.config
        self.outputs = self.models.outputs
        samples = self.data.samples()
        self.roster = Roster(samples, self.models.names, self.models.which, names)
        self._check(config)
        self.config = self._resolved(config, given_data is not None, given_method=method is not None)
        self._log(int(samples.min()), int(samples.max()))

    def _log(self, fewest: int, most: int) -> None:
        """Say what was decided."""
        public = "none" if self.public is None else f"{len(self.public)} rows of {self.public.dataset.name}"
        logger.info(
            "%s: %d rows, %d classes; %d clients train on %d to %d rows each; public: %s",
            *(self.dataset.name, len(self.dataset), self.classes),
            *(self.clients, fewest, most, public),
        )
        counts = zip(self.models.names, np.bincount(self.models.which), strict=True)
        logger.info(
            "%s with %s; %d outputs, stack %s, on %s, seed %d",
            self.method.name,
            ", ".join(f"{count} × {name}" for name, count in counts),
            self.outputs,
            *(self.config.stack, self.config.device, self.config.seed),
        )

    def _check(self, config: RunConfig) -> None:
        check_needs(
            self.method,
            architectures=self.models.names,
            public=self.public,
            server_model=config.models.server,
            features=self._needed_features(),
            own=[name for name in self.models.names if self.models.is_own(name)],
        )
        if config.training.keep_optimiser and "memory" not in self.method.declared.keeps:
            raise MethodError(
                f"{self.method.name} keeps nothing of a client: set training.keep_optimiser=false"
            )
        cohorts_of(config, self.clients)
        taken = [name for name in self.models.names if name in self.roster.names]
        if taken:
            raise ConfigError(f"data.names: '{taken[0]}' is also the name of a model: rename the client")
        self.method.check(self._facts(config))

    def _needed_features(self) -> dict[str, int]:
        """How many features each architecture has, if the method needs one number for all."""
        if Need.COMMON_FEATURES not in self.method.declared.needs:
            return {}
        return {name: self.models.feature_count(name) for name in self.models.names}

    def _facts(self, config: RunConfig) -> FederationFacts:
        return FederationFacts(
            roster=self.roster,
            shape=self.models.shape,
            outputs=self.outputs,
            classes=self.classes,
            public=None if self.public is None else len(self.public),
            server=config.models.server,
            feature_count=self.models.feature_count,
        )

    def _resolved(self, config: RunConfig, given_data: bool, *, given_method: bool) -> RunConfig:
        """The config with every `auto` decided: what changes the arithmetic is part of it.

        So are the method's settings, all of them: another version may have other defaults.
        """
        stack = config.stack
        if stack == "auto":
            stack = config.stack_size(self.clients) if self.stackable() else 1
        changes: dict[str, Any] = {"stack": stack, "device": self.device.type}
        if not given_method:
            settings = self.method.settings.model_dump(mode="json", by_alias=True)
            changes["method"] = config.method.model_copy(update={"settings": settings})
        if given_data:
            changes["data"] = config.data.model_copy(update={"source": GIVEN})
        if self.models.makers or self.models.own:
            changes["models"] = config.models.model_copy(
                update={"names": self.models.dealt, "own": self.models.own}
            )
        return config.model_copy(update=changes)

    # -- what a run reads of it ------------------------------------------------------------------------------

    @property
    def population(self) -> Simulation:
        return self

    @property
    def fingerprint(self) -> str:
        return self.data.fingerprint

    def verify_data(self) -> None:
        """Compare what was decoded before with its fingerprints: a run that is resumed must go on with the same."""
        public = [] if self.public is None else [self.public.dataset]
        for dataset in (self.dataset, self.whole_test.dataset, *public):
            verify(dataset)

    @property
    def description(self) -> dict[str, Any]:
        wanted = self.config.data
        classes = list(self.dataset.classes)
        others = list(self.public.dataset.classes) if self.public and self.outputs > self.classes else []
        return {
            "clients": self.roster.names.given,
            "partition_column": wanted.partition.domain,
            "outputs": classes + others,
            **InputForm.of(self.dataset, wanted.image).as_json(),
        }

    @cached_property
    def assignment(self) -> Assignment:
        return assignment_of(self.models, self.method)

    @property
    def sizes(self) -> dict[str, int]:
        public = 0 if self.public is None else len(self.public)
        sizes = {"outputs": self.outputs, "classes": self.classes, "public": public}
        common = set(self._needed_features().values())
        return {**sizes, "features": common.pop()} if common else sizes

    @property
    def scored_outputs(self) -> int | None:
        return self.classes if self.config.evaluate.outputs == "private" else None

    @property
    def whole_rows(self) -> int:
        return len(self.data.whole_test)

    @property
    def own_in_whole(self) -> bool:
        return self.data.own_in_whole

    def stackable(self) -> frozenset[str]:
        return self.models.stackable()

    def server(self) -> Server:
        name = self.config.models.server
        return Server(
            roster=self.roster,
            seeds=self.seeds,
            device=self.device,
            build=self.build,
            shape=self.models.shape,
            outputs=self.outputs,
            classes=self.classes,
            limits=self.dataset.limits,
            model=self.models.build(name, "server model") if name else None,
            architecture=name,
            public=self.public,
        )

    # -- what an engine asks of it ---------------------------------------------------------------------------

    def client(self, index: int, model: nn.Module, scratch_model: ScratchModels) -> Client:
        return Client(
            facts=self.roster[index],
            model=model,
            data=self.holdings(index),
            seeds=self.seeds,
            device=self.device,
            scratch_model=scratch_model,
            observer=ClientObserver(self.scored_outputs, self.config.evaluate.metrics),
            run_training=self.config.training,
            shape=self.models.shape,
            outputs=self.outputs,
            classes=self.classes,
        )

    def assistant(self, scratch_model: ScratchModels) -> Assistant:
        return Assistant(
            device=self.device,
            scratch_model=scratch_model,
            shape=self.models.shape,
            outputs=self.outputs,
            classes=self.classes,
            public=self.public,
            test=self.whole_test,
        )

    def name(self, index: int) -> str:
        return self.roster.name(index)

    def architecture(self, index: int) -> str:
        return self.roster.architecture(index)

    def build(self, architecture: str) -> nn.Module:
        return self.models.build(architecture)

    def own_model(self, index: int) -> nn.Module:
        return self.models.build(self.architecture(index), "own model", self.name(index))

    # -- shorthands ------------------------------------------------------------------------------------------

    @property
    def whole_test(self) -> Rows:
        return self.data.whole_test

    @property
    def architectures(self) -> tuple[str, ...]:
        """Every architecture that a client trains."""
        return self.models.names

    def holdings(self, index: int) -> Holdings:
        """What a client can see."""
        return self.data.holdings(index)
