"""Sets a federation up from a config: its data, its models, its nodes. Clients are made on demand.

`set_up` gives back what a run needs of it, the protocol `Federation`; the class is nobody else's affair.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel
from torch import Tensor, nn

from polyfed.data import verify
from polyfed.errors import ConfigError, MethodError
from polyfed.federation.declaration import Need
from polyfed.federation.method import Method
from polyfed.federation.nodes import Assistant, Client, ScratchModels, Server
from polyfed.federation.roster import FederationFacts, Roster
from polyfed.learn import (
    CONFUSION,
    Training,
    can_stack,
    check_balancing,
    known_name,
    load_augmentation,
    metrics_for,
    trainings_in,
    wishes_of,
)
from polyfed.runs.architectures import Architectures, ModelMaker, assignment_of
from polyfed.runs.assignment import Assignment
from polyfed.runs.config import RunConfig, pick_device
from polyfed.runs.cut_data import CutData
from polyfed.runs.data_section import TrainAndTest
from polyfed.runs.evaluation import observer_of
from polyfed.runs.federation import Federation, cohorts_of, scored_clients
from polyfed.runs.holdings import GIVEN, Holdings
from polyfed.runs.needs import check_needs, check_task
from polyfed.runs.own_data import OwnData
from polyfed.runs.own_sources import own_sources
from polyfed.runs.start import start_of
from polyfed.seeds import Seeds
from polyfed.tasks import Task

logger = logging.getLogger(__name__)


def set_up(
    config: RunConfig,
    data: Any = None,
    models: Mapping[str, ModelMaker] | None = None,
    method: Method | None = None,
) -> Federation:
    """A federation as a config says, simulated in one place.

    data, models: from Python, the user's own, instead of those that the config names. Data are one data set that is
        cut, or what each client brings, by its name.
    method: the method, where it is not the one that the config names.
    """
    return Simulation(config, data, models, method)


class Simulation:
    """A federation simulated in one place: all of its data and models are here, its clients are made on demand."""

    def __init__(
        self,
        config: RunConfig,
        given_data: Any,
        given_models: Mapping[str, ModelMaker] | None,
        method: Method | None,
    ) -> None:
        self.method = method or config.make_method()
        self.seeds = Seeds(config.seed)
        self.device = pick_device(config.device)
        self.task = config.make_task()
        check_task(self.method, self.task)
        self.holdings, config = self._hold(config, given_data)
        self.public, self.clients = self.holdings.public, len(self.holdings.names)
        self.classes = len(self.holdings.agreement.classes)
        self.task, config = self._settle(config)
        self.metrics = metrics_for(config.evaluate.metrics, self.task)
        if self.metrics and not self.task.has_answers_as_labels:
            raise ConfigError(
                f"evaluate.metrics: task={self.task.name} has labels of a form of its own: metrics need its method"
                " `as_labels`, which gives answers in that form"
            )
        self.models = Architectures(
            config,
            self.holdings,
            self.method,
            self.task,
            seeds=self.seeds,
            device=self.device,
            makers=given_models or {},
        )
        config = self.models.config
        self.outputs = self.models.outputs
        samples = self.holdings.samples()
        self.roster = Roster(samples, self.models.names, self.models.which, self.holdings.names)
        self._check(config)
        self.start = start_of(
            config.models,
            self.method,
            self.roster,
            self.models.build,
            config.models.server,
            self.holdings.agreement,
            self.task,
            config.task.name,
            config.data.normalise,
        )
        self.models.builder.freeze_at(self.start.frozen)
        self.config = self._resolved(config, given_method=method is not None)
        self._log(samples)

    def _hold(self, config: RunConfig, given: Any) -> tuple[Holdings, RunConfig]:
        """Who holds what; and the config with what was given from Python, and what was found, in its place."""
        pooled = Need.ALL_DATA in self.method.declared.needs
        sources = own_sources(config.data, given)
        if sources is None:
            changes = {"normalise": config.data.normalised, **({} if given is None else {"source": GIVEN})}
            config = config.model_copy(update={"data": config.data.model_copy(update=changes)})
            return CutData(config, self.seeds, given, pooled=pooled), config
        clients = dict.fromkeys(sources, GIVEN) if given is not None else _as_config(sources)
        config = config.model_copy(update={"data": config.data.brought(clients)})
        alone = not self.method.declared.sends and not pooled
        return OwnData(config, self.seeds, sources, pooled=pooled, alone=alone), config

    def _settle(self, config: RunConfig) -> tuple[Task, RunConfig]:
        """What is learnt, with all that was left open decided from what all may know; and the config that says it."""
        public = None if self.public is None or self.public.dataset.labels is None else self.public.labels
        task = self.task.for_classes(self.holdings.agreement.classes)
        task = task.settled(self.holdings.training_labels(), public)
        settings = task.model_dump(mode="json")
        choice = config.task.model_copy(update={"settings": settings})
        return task, config.model_copy(update={"task": choice})

    def _log(self, samples: NDArray[np.int64]) -> None:
        """Say what was decided."""
        public = "none" if self.public is None else f"{len(self.public)} rows of {self.public.dataset.name}"
        logger.info(
            "%s: %d classes; %d clients train on %d to %d rows each, %d in all; public: %s",
            *(self.holdings.title, self.classes, self.clients),
            *(int(samples.min()), int(samples.max()), int(samples.sum()), public),
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
        samples = self.holdings.samples()
        largest = int(samples.argmax())
        check_training(
            config.training,
            self.method.settings,
            config.rounds,
            self.holdings.of(largest).train.labels[:8],
            steps=config.training.batches(int(samples[largest])),
            images=self.holdings.agreement.is_image,
        )
        self._check_patience(config)
        self.method.check(self._facts(config))

    def _check_patience(self, config: RunConfig) -> None:
        """Without validation rows nothing could ever improve."""
        wanted = config.evaluate
        if wanted.patience is None:
            if wanted.min_change:
                logger.warning(
                    "evaluate.min_change is for evaluate.patience, which is not set: it does nothing"
                )
            return
        if (wanted.patience + 1) * wanted.every > config.rounds:
            logger.warning(
                "evaluate.patience waits for %d evaluations without a gain, one every %d rounds: a run of %d rounds"
                " cannot end by it",
                *(wanted.patience, wanted.every, config.rounds),
            )
        self._check_validated("patience", config)

    def _chosen_by(self, config: RunConfig) -> str | None:
        """The name of the metric by which rounds are chosen; it must be measured, and be a number."""
        name = config.evaluate.choose_by
        if name is None:
            return None
        asked = [metric.name for metric in self.metrics]
        usual = known_name(name)  # average_precision_score is pr-auc
        with_settings = [each for each in asked if each.startswith(f"{name}(")]  # fbeta_score(beta=2)
        found = next(([each] for each in (name, usual) if each in asked), with_settings)
        if len(found) != 1:
            raise ConfigError(
                f"evaluate.choose_by: '{name:.60}' is not one of evaluate.metrics ({', '.join(asked) or 'none'}): name"
                " one of these, or add it there"
            )
        if found == [CONFUSION]:
            raise ConfigError("evaluate.choose_by: a confusion matrix is not a number: name another metric")
        self._check_validated("choose_by", config)
        return found[0]

    def _check_validated(self, key: str, config: RunConfig) -> None:
        scored = scored_clients(config, self.seeds, self.clients)
        if not any(len(self.holdings.of(index).validation) for index in scored):
            raise ConfigError(
                f"evaluate.{key} needs validation rows, and no client that is scored has any: set data.validation,"
                f" such as 0.1, or leave {key} out"
            )

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
            tokens=self.holdings.agreement.is_tokens,
            feature_count=self.models.feature_count,
        )

    def _resolved(self, config: RunConfig, *, given_method: bool) -> RunConfig:
        """The config with every `auto` decided: what changes the arithmetic is part of it.

        So are the method's settings, all of them: another version may have other defaults.
        """
        stack = config.stack
        if stack == "auto":
            stack = config.stack_size(self.clients) if self.stackable() else 1
        evaluate = {"metrics": wishes_of(self.metrics), "choose_by": self._chosen_by(config)}
        changes: dict[str, Any] = {
            "stack": stack,
            "device": self.device.type,
            "evaluate": config.evaluate.model_copy(update=evaluate),
        }
        if not given_method:
            settings = self.method.settings.model_dump(mode="json", by_alias=True)
            changes["method"] = config.method.model_copy(update={"settings": settings})
        if self.models.makers or self.models.own:
            builder = self.models.builder
            changes["models"] = config.models.model_copy(
                update={"names": self.models.dealt, "own": builder.own, "adapt": builder.adapters}
            )
        return config.model_copy(update=changes)

    # -- what a run reads of it ------------------------------------------------------------------------------

    @property
    def population(self) -> Simulation:
        return self

    @property
    def fingerprints(self) -> Mapping[str, str]:
        return {**self.holdings.fingerprints, **self.start.fingerprints}

    def verify_data(self) -> None:
        for dataset in self.holdings.data_sets():
            verify(dataset)

    @property
    def description(self) -> dict[str, Any]:
        held = self.holdings
        others = list(self.public.dataset.classes) if self.public and self.outputs > self.classes else []
        return {
            "clients": self.roster.names.given,
            "partition_column": None if self.config.data.is_brought else self.config.data.partition.domain,
            "outputs": [*held.agreement.classes, *others],
            **{key: value for key, value in asdict(held.agreement).items() if key != "largest_id"},
            **({"largest_id": held.agreement.largest_id} if held.agreement.is_tokens else {}),
            "constants": held.constants,
            "whole_test": held.whole_test_is,
            "measure": {
                "measure": self.task.measure,
                "unit": self.task.shown_unit,
                "smaller_is_better": self.task.smaller_is_better,
            },
            "fingerprints": self.fingerprints,
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
        return 0 if self.holdings.whole_test is None else len(self.holdings.whole_test)

    @property
    def own_in_whole(self) -> bool:
        return self.holdings.whole_test_is == "clients" and self.config.evaluate.test_rows is None

    def stackable(self) -> frozenset[str]:
        return self.models.stackable() if can_stack(self.models.config.training) else frozenset()

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
            limits=self.holdings.limits,
            model=self.start.of_server(self.models.build(name, "server model")) if name else None,
            architecture=name,
            public=self.public,
            task=self.task,
        )

    # -- what an engine asks of it ---------------------------------------------------------------------------

    def client(self, index: int, model: nn.Module, scratch_model: ScratchModels) -> Client:
        return Client(
            facts=self.roster[index],
            model=model,
            data=self.holdings.seen_by(index),
            seeds=self.seeds,
            device=self.device,
            scratch_model=scratch_model,
            observer=observer_of(self),
            run_training=self.config.training,
            run_task=self.task,
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
            test=self.holdings.whole_test,
            task=self.task,
        )

    def name(self, index: int) -> str:
        return self.roster.name(index)

    def architecture(self, index: int) -> str:
        return self.roster.architecture(index)

    def build(self, architecture: str) -> nn.Module:
        return self.start.common(self.models.build(architecture), architecture)

    def own_model(self, index: int) -> nn.Module:
        name = self.name(index)
        return self.start.client(self.models.own_model(index, name), name)


def check_training(
    training: Training, settings: BaseModel, rounds: int, labels: Tensor, *, steps: int, images: bool
) -> None:
    """Refuse augmentation by a function that cannot be used, and draws by class where there are none; warn of settings
    that do not do what they seem to.

    labels: some of them. steps: that the client with most rows does in a round. images: whether inputs are images.
    """
    within = training.within
    if (within.kind == "step" and within.warm_up + (within.every or 0) >= steps) or within.warm_up >= steps:
        logger.warning(
            "training.within: no client does more than %d steps in a round, so the learning rate %s",
            *(steps, "never falls" if within.warm_up < steps else "never reaches lr"),
        )
    inner = {f"method.{key}": each for key, each in trainings_in(settings).items()}
    for key, each in {"training": training, **inner}.items():
        load_augmentation(each.augment)
        if each.sampling == "balanced":
            check_balancing(labels)
        if each.augment is True and not images:
            logger.warning(
                "%s.augment: true changes images alone, and these inputs are none: it does nothing", key
            )
        for setting, reason in each.idle(rounds):
            logger.warning("%s.%s %s", key, setting, reason)
        length = each.schedule.length
        if length is not None and length < rounds:
            logger.warning(
                "%s.schedule has %d rounds and the run %d: from round %d on the learning rate stays at %.3g",
                *(key, length, rounds, length, each.in_round(length).lr),
            )


def _as_config(sources: Mapping[str, Any]) -> dict[str, str | TrainAndTest]:
    """What clients bring, as the config has it."""
    return {
        name: source if isinstance(source, str) else TrainAndTest(**source)
        for name, source in sources.items()
    }
