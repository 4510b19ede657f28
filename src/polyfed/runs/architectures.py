"""The models of a federation: which client trains what, and how a model is made."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from polyfed import learn, models
from polyfed.engines import keep_freed_memory
from polyfed.errors import ConfigError, ModelError
from polyfed.federation.declaration import Need
from polyfed.federation.method import Method
from polyfed.federation.roster import Facts
from polyfed.models import Budget
from polyfed.runs.assignment import MOST, Assignment, Group, Limits, ModelSize, limits_in_words
from polyfed.runs.building import Builder
from polyfed.runs.building import ModelMaker as ModelMaker  # noqa: PLC0414  (others know it from here)
from polyfed.runs.config import SMALLEST_MODEL, Models, OwnModel, RunConfig
from polyfed.runs.holdings import Holdings
from polyfed.seeds import Seeds
from polyfed.tasks import Task, Trait

logger = logging.getLogger(__name__)

RULES = {"round-robin": "in turn", "random": "drawn at random"}
ONLY = "the only model"
LEFT = "the only model without a share"
NAMED = "named in models.clients"
SHARED = "drawn by models.shares"
REASONS = ("", SHARED, NAMED)
"""Why a client trains what it does, by `Architectures.reasons`; the first is the rule for all."""


class Architectures:
    """Which architecture each client trains.

    makers: the user's own models, by name.
    """

    def __init__(
        self,
        config: RunConfig,
        held: Holdings,
        method: Method,
        task: Task,
        *,
        seeds: Seeds,
        device: torch.device,
        makers: Mapping[str, ModelMaker],
    ) -> None:
        self.config = config
        """With the server's model by its name."""
        self.seeds = seeds
        self.device = device
        clients = held.names
        self.shape = held.agreement.model_shape
        self.task = task
        self.outputs = _output_count(held, method, task)
        self.builder: Builder = Builder(
            config.models,
            seeds,
            device,
            makers,
            shape=self.shape,
            outputs=self.outputs,
            largest_id=held.agreement.largest_id,
        )
        self.makers = self.builder.makers
        self.dealt = _dealt(config.models, self.makers)
        """The names of the models that are dealt out to clients."""
        self.own = self.builder.own
        self._features: dict[str, int] = {}
        self.builder.check_adapters([*self.dealt, *config.models.all_names()])
        self._assign(clients)
        self._name_server_model(method)
        self._warn_of_weights(method)
        self._check_outputs(held.agreement.classes)
        self._try_own_models(config.stack_size(len(clients)))

    def _assign(self, clients: Sequence[str]) -> None:
        wanted = self.config.models
        self.offered = [name for name in self.dealt if name not in wanted.shares] or self.dealt
        """The names of the models that are dealt out to those clients for which none is drawn or named."""
        which = models.assign_models(
            self.offered,
            len(clients),
            wanted.assign,
            rng=self.seeds.numpy("models"),
            budgets=[section.budget() for section in wanted.budgets] or None,
            shape=self.shape,
            outputs=self.outputs,
            norm=wanted.norm,
            batch=self.config.training.batch,
            features=wanted.features,
            own={name: self.build(name) for name in self.offered if self.is_own(name)},
        )
        self.reasons = np.zeros(len(clients), dtype=np.int8)
        """For each client the place in `REASONS` of why it trains what it does."""
        by_name = _by_name(wanted.clients, clients)
        # What is offered stays as it is: a name may be listed twice, to be dealt out twice as often.
        others = dict.fromkeys([*wanted.shares, *by_name.values()])
        names = [*self.offered, *(name for name in others if name not in self.offered)]
        for name, drawn in _by_share(wanted.shares, len(clients), self.seeds.numpy("shares")).items():
            which[drawn], self.reasons[drawn] = names.index(name), REASONS.index(SHARED)
        for index, name in by_name.items():
            which[index], self.reasons[index] = names.index(name), REASONS.index(NAMED)
        self._check_shares(wanted)
        used = np.unique(which)
        self.makers_of: list[str] = [names[place] for place in used]
        """Every model that a client trains, by the name that it was given."""
        self.made_by = np.searchsorted(used, which)
        """For each client the place of its model in `makers_of`."""
        self.builder.find_same(self.makers_of)
        architectures = [self.builder.same.get(name, name) for name in self.makers_of]
        self.names = tuple(dict.fromkeys(architectures))
        """Every architecture that a client trains; of models that are the same by their structure the first's name."""
        self.which = np.array([self.names.index(name) for name in architectures])[self.made_by]
        """For each client the place of its architecture in `names`."""

    def _warn_of_weights(self, method: Method) -> None:
        """Say where models that were given with weights of their own will not begin with them."""
        if "model" in method.declared.keeps or self.config.models.init is not None:
            return
        for architecture in self.names:
            alike = [name for name in self.makers_of if self.builder.same.get(name, name) == architecture]
            if self.builder.given_weights_differ(alike):
                logger.warning(
                    "%s are one architecture, and %s starts all of its clients from one model: the weights of '%s'",
                    " and ".join(f"'{name}'" for name in alike),
                    method.name,
                    architecture,
                )

    def _check_shares(self, wanted: Models) -> None:
        """Refuse shares that leave clients over, to which no other model could be dealt."""
        over = int((self.reasons == 0).sum())
        if wanted.shares and over and set(self.offered) <= wanted.shares.keys():
            raise ConfigError(
                f"models.shares leave {over} of {len(self.reasons)} clients without a model: let them add up to 1, or"
                " name another model in models.names"
            )

    def _name_server_model(self, method: Method) -> None:
        """Resolve `smallest` (of the clients' models), which some methods take where no server model is named."""
        server = self.config.models.server or method.declared.server_model
        if server == SMALLEST_MODEL:
            server = min(self.names, key=lambda name: _parameters(self.build(name)))
        wanted = self.config.models.model_copy(update={"server": server})
        self.config = self.config.model_copy(update={"models": wanted})

    def _check_outputs(self, classes: Sequence[str]) -> None:
        private = len(classes)
        server = self.config.models.server
        for name in dict.fromkeys([*self.names, *([server] if server else [])]):
            shape = models.output_shape(self.build(name), self.shape)
            if not self.task.admits_outputs(shape, self.outputs):
                public = f" and {self.outputs - private} public ones" if self.outputs > private else ""
                needed = f"the data have {_told(classes)}{public}"
                if Trait.PROBABILITIES not in self.task.traits:
                    needed = f"a {self.task.name} of {', '.join(classes)} has {self.outputs}"
                raise ModelError(
                    f"model '{name}' has {'×'.join(map(str, shape))} outputs, but {needed}: give it {self.outputs}"
                )

    def _try_own_models(self, stack: int) -> None:
        """Decide how models of the user's own are trained, where the config does not say it already.

        It changes the last bits of the arithmetic, so the decision becomes part of the resolved config.
        """
        used = [*self.names, *([self.config.models.server] if self.config.models.server else [])]
        keep_freed_memory()  # as workers do: it counts in the comparison
        for name in dict.fromkeys(used):
            if not self.is_own(name) or name in self.own or self.device.type != "cpu":
                continue
            model = self.build(name)
            batch = self.config.training.batch
            last = learn.prefers_channels_last(model, self.shape, self.outputs, batch, self.task)
            self.own[name] = OwnModel(channels_last=getattr(model, "channels_last", last))
            stacked = learn.worth_stacking(
                self.build(name), self.shape, self.outputs, self.config.training, stack, self.task
            )
            self.own[name] = self.own[name].model_copy(update={"stack": stacked})
            logger.info("%s, by a trial: channels-last %s, stacked %s", name, last, stacked)

    def is_own(self, architecture: str) -> bool:
        """Whether it is the user's own: given from Python, a function named in the config, or a plug-in's."""
        return self.builder.is_own(architecture)

    def build(self, architecture: str, *stream: str) -> nn.Module:
        """A model of this architecture (see `Builder.build`)."""
        return self.builder.build(architecture, *stream)

    def own_model(self, index: int, client: str) -> nn.Module:
        """A client's own model as it is at first: of its own maker, where several make one architecture."""
        return self.builder.build(self.makers_of[self.made_by[index]], "own model", client)

    def feature_count(self, architecture: str) -> int:
        """How many features the models of this architecture have."""
        if architecture not in self._features:
            self._features[architecture] = models.feature_count(self.build(architecture), self.shape)
        return self._features[architecture]

    def size(self, architecture: str) -> models.Size:
        """How big the models of this architecture are; memory is that of a step with the run's batch."""
        wanted = self.config.models
        model = self.build(architecture) if self.is_own(architecture) else architecture
        batch = self.config.training.batch
        return models.size(model, self.shape, self.outputs, wanted.norm, batch, wanted.features)

    def stackable(self) -> frozenset[str]:
        """The architectures whose clients can be trained stacked."""
        return frozenset(name for name in self.names if self._stacks(name))

    def _stacks(self, name: str) -> bool:
        model = self.build(name)
        wanted = self.own[name].stack if name in self.own else getattr(model, "stackable", False)
        return wanted and not models.has_half(model)


def _output_count(held: Holdings, method: Method, task: Task) -> int:
    """One output per private class; and one per public class, if the method learns from labels of other classes."""
    outputs, public = task.outputs(len(held.agreement.classes)), held.public
    if public is not None and Need.PUBLIC_LABELS in method.declared.needs and public.dataset.first_class:
        outputs += len(public.dataset.classes)
    return outputs


def _told(classes: Sequence[str]) -> str:
    """How many classes there are; and which, if they are few and not simply numbered."""
    few = len(classes) <= 10 and list(classes) != [str(number) for number in range(len(classes))]
    return f"{len(classes)} classes{' (' + ', '.join(classes) + ')' if few else ''}"


def _dealt(wanted: Models, makers: Mapping[str, ModelMaker]) -> list[str]:
    """The models that are dealt out to clients: the user's own if there are any, else those that the config names.

    The user's own server model is not among them, unless the config lists it in `models.names` too, or there is no
    other.
    """
    if not makers:
        return list(wanted.names)
    listed = list(wanted.names) if "names" in wanted.model_fields_set else []
    own = [name for name in makers if name != wanted.server or name in listed]
    # A resumed run lists its own models: they keep that order, in whichever order they are given again.
    if not own or set(own) == set(listed):
        return listed or list(makers)
    return own


def _by_share(
    wanted: Mapping[str, float], clients: int, rng: np.random.Generator
) -> dict[str, NDArray[np.int64]]:
    """The clients that are drawn for each of `models.shares`.

    What is rounded are the ends of the parts, so that shares of 1 in sum are all clients.
    """
    if not wanted:
        return {}
    ends = [round(end * clients) for end in np.cumsum(list(wanted.values())).tolist()]
    return dict(zip(wanted, np.split(rng.permutation(clients), ends)[:-1], strict=True))


def _by_name(wanted: Mapping[str, str], clients: Sequence[str]) -> dict[int, str]:
    """{"0-5": a, "north": b} as the name of an architecture for each client."""
    chosen: dict[int, str] = {}
    for key, name in wanted.items():
        if key in clients:
            chosen[clients.index(key)] = name
            continue
        first, dash, last = key.removeprefix("client-" if clients[0] == "client-0" else "").partition("-")
        try:
            span = range(int(first), int(last if dash else first) + 1)
        except ValueError:
            raise ConfigError(
                f"models.clients: '{key}' is not a client; write a name (as {clients[0]}), 7 or 0-5"
            ) from None
        if not span or span[-1] >= len(clients):
            raise ConfigError(
                f"models.clients: '{key}' is not within the {len(clients)} clients (0-{len(clients) - 1})"
            )
        chosen.update(dict.fromkeys(span, name))
    return chosen


def assignment_of(architectures: Architectures, method: Method) -> Assignment:
    """Who trains what in a federation that is set up."""
    config = architectures.config
    limits = [section.budget() for section in config.models.budgets]
    group_of, firsts, counts = _grouped(architectures, limits)
    groups = []
    for first, clients in zip(firsts.tolist(), counts.tolist(), strict=True):
        model = architectures.names[architectures.which[first]]
        budget = limits[first % len(limits)] if limits else None
        facts = Facts(index=first, name="", samples=0, architecture=model)
        groups.append(
            Group(
                model=model,
                clients=clients,
                why=REASONS[architectures.reasons[first]] or _reason(architectures, budget),
                budget=None if budget is None else Limits(**_within_reason(budget)),
                exchanged=method.exchanged(facts, config.models.server),
            )
        )
    used = [*architectures.names, *(group.exchanged for group in groups if group.exchanged)]
    used += [config.models.server] if config.models.server else []
    sizes = {name: _size(architectures, name) for name in dict.fromkeys(used)}
    return Assignment(
        batch=config.training.batch,
        models=sizes,
        groups=groups,
        clients=group_of.tolist() if len(groups) > 1 else [],
    )


def _grouped(
    architectures: Architectures, limits: Sequence[Budget]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """For each client its group; for each group its first client and how many there are. The first client's is 0."""
    which = architectures.which
    kinds = max(len(limits), 1)
    alike = np.array([limits.index(limit) for limit in limits] or [0])
    marks = which * kinds + alike[np.arange(len(which)) % kinds]
    marks = marks * len(REASONS) + architectures.reasons
    _, firsts, groups, counts = np.unique(marks, return_index=True, return_inverse=True, return_counts=True)
    order = firsts.argsort()
    return order.argsort()[groups], firsts[order], counts[order]


def _size(architectures: Architectures, name: str) -> ModelSize:
    """How big a model is; of the user's own that cannot be trained, what can be counted without training it."""
    try:
        return ModelSize(**vars(architectures.size(name)))
    except ModelError:
        model = architectures.build(name)
        tensors = learn.named_tensors(model).values()
        return ModelSize(
            parameters=_parameters(model), weights_bytes=sum(tensor.nbytes for tensor in tensors)
        )


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _within_reason(budget: Budget) -> dict[str, int | None]:
    return {key: limit if limit is None else min(limit, MOST) for key, limit in vars(budget).items()}


def _reason(architectures: Architectures, budget: Budget | None) -> str:
    rule, offered = architectures.config.models.assign, len(architectures.offered)
    if offered == 1:
        return LEFT if architectures.config.models.shares else ONLY
    if rule != "budget" or budget is None:
        return RULES[rule]
    return f"largest of {offered} that fits {limits_in_words(vars(budget)) or 'any budget'}"
