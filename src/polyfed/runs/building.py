"""How the models of a federation are made: those that polyfed knows by name, and the user's own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping
from typing import TypeAlias

import torch
from torch import nn

from polyfed import learn, models
from polyfed.disk import digest
from polyfed.errors import ConfigError, ModelError, nearest
from polyfed.federation import Weights
from polyfed.runs.config import Adapter, OwnModel
from polyfed.runs.config import Models as Section
from polyfed.seeds import Seeds

ModelMaker: TypeAlias = Callable[[], nn.Module] | nn.Module


class Builder:
    """Makes models of named architectures, each ready to be used as any other.

    makers: the user's own, by name.
    shape, outputs: of one input, as a model sees it; and how many outputs every model must have.
    largest_id: where inputs are token ids, the largest of them.
    """

    def __init__(
        self,
        wanted: Section,
        seeds: Seeds,
        device: torch.device,
        makers: Mapping[str, ModelMaker],
        *,
        shape: tuple[int, ...],
        outputs: int,
        largest_id: int | None,
    ) -> None:
        self.wanted = wanted
        self.seeds = seeds
        self.device = device
        self.makers = dict(makers)
        self.shape, self.outputs, self.largest_id = shape, outputs, largest_id
        self.own: dict[str, OwnModel] = dict(wanted.own)
        """How each of the user's own models is trained fastest."""
        self.adapters: dict[str, Adapter] = dict(wanted.adapt)
        """How each of the user's own models is used that answers with more than logits, as was said or found out."""
        self.same: dict[str, str] = {}
        """Which of the user's own models have the structure of another that is named before them: that one's name."""
        self._adapted: set[str] = set()  # the models whose adapters were checked
        self._tensors: set[str] = set()  # the models that were found to answer with a tensor
        self._fitted: dict[str, bool | None] = {}  # what `models.fit_types` found out about each architecture
        self._given_frozen: Mapping[str, Weights] = {}
        self._frozen: dict[str, nn.Module] = {}  # of each architecture the model whose frozen parts all have
        self._given: dict[
            str, list[torch.Tensor]
        ] = {}  # what trains of the first module that a function gave
        self._copied: dict[str, bool] = {}  # whether a function gives what trains again and again
        for name, maker in self.makers.items():
            models.check_name(name)
            if not callable(maker):  # as a module is, too
                raise ModelError(
                    f"models=…: '{name}' is a {type(maker).__name__}: give a function that makes a model, or a model"
                )

    def check_adapters(self, used: list[str]) -> None:
        """Refuse adapters for models that there are not, or that need none."""
        for name in self.wanted.adapt:
            if name not in used:
                raise ConfigError(
                    f"models.adapt: '{name}' is no model of this run: {nearest(name, dict.fromkeys(used))}"
                )
            if not self.is_own(name):
                raise ConfigError(
                    f"models.adapt: '{name}' is polyfed's own, and answers with logits: leave it out"
                )

    def is_own(self, architecture: str) -> bool:
        """Whether it is the user's own: given from Python, a function named in the config, or a plug-in's."""
        return self._maker(architecture) is not None

    def _maker(self, architecture: str) -> ModelMaker | None:
        given = self.makers.get(architecture)
        if given is not None:
            return given
        return models.own_maker(architecture, self.shape, self.outputs, self.wanted.norm)

    def build(self, name: str, *stream: str) -> nn.Module:
        """A model of this name.

        stream: the name of the random stream of its initial weights; the architecture's common one by default.
        """
        architecture = self.same.get(name, name)
        model = self._make(name, architecture, stream or ("model", architecture))
        if models.frozen_names(model):
            self._share_frozen(architecture, model)
        return model

    def _make(self, name: str, architecture: str, stream: tuple[str, ...]) -> nn.Module:
        maker = self._maker(name)
        if maker is None:
            model: nn.Module = models.build(
                name,
                self.shape,
                self.outputs,
                norm=self.wanted.norm,
                features=self.wanted.features,
                generator=self.seeds.torch(*stream),
            )
            models.expect_tokens(model, self.largest_id)
        else:
            model = self._own_model(architecture, maker, stream)
        if architecture in self._fitted:
            if (converted := self._fitted[architecture]) is not None:
                models.fit_types(model, self.shape, converted)
        else:
            models.check_types(model, architecture)
            self._fitted[architecture] = models.fit_types(model, self.shape)
        model = model.to(self.device)
        models.note_frozen(model)
        models.note_loose(model)
        return model

    def _own_model(self, architecture: str, maker: ModelMaker, stream: tuple[str, ...]) -> nn.Module:
        copied = isinstance(maker, nn.Module)
        # Copies of a module start alike, also where its lazy layers are filled here.
        seed = self.seeds.number(*(("model", architecture) if copied else stream))
        with models.seeded(seed):
            torch.manual_seed(seed)  # a maker may draw on a GPU
            model = (
                copy.deepcopy(maker) if isinstance(maker, nn.Module) else self._made_new(architecture, maker)
            )
            models.give_name(model, architecture)
            models.expect_tokens(model, self.largest_id)
            self._adapt(architecture, model)
        if architecture in self.own:
            model.channels_last = self.own[architecture].channels_last  # type: ignore[assignment]
        return model.to(memory_format=models.memory_format(model))  # type: ignore[call-overload, no-any-return]

    def _made_new(self, name: str, maker: Callable[[], nn.Module]) -> nn.Module:
        """A module that no other client trains: of what a function gives again and again, a copy."""
        try:
            model = maker()
        except TypeError as error:
            if "required" not in str(error):
                raise
            raise ModelError(
                f"models=…: '{name}' is called without arguments, and {error}: give a function that needs none"
            ) from error
        if not isinstance(model, nn.Module):
            raise ModelError(f"model '{name}' gave a {type(model).__name__}, not an nn.Module")
        if name not in self._copied:
            trained = [*(each for each in model.parameters() if each.requires_grad), *model.buffers()]
            # The first two are only looked at: nobody has begun to train.
            if (before := self._given.pop(name, None)) is None:
                self._given[name] = trained
            else:
                self._copied[name] = not {id(each) for each in trained}.isdisjoint(map(id, before))
        return copy.deepcopy(model) if self._copied.get(name) else model

    def _adapt(self, architecture: str, model: nn.Module) -> None:
        wanted = self.adapters.get(architecture, Adapter())
        found = models.adapt(
            model,
            self.shape,
            self.outputs,
            output=wanted.output,
            input=wanted.input,
            is_tensor=architecture in self._tensors,
            is_known=architecture in self._adapted,
        )
        self._adapted.add(architecture)
        if found is None:
            self._tensors.add(architecture)
        elif wanted.output is None:
            self.adapters[architecture] = wanted.model_copy(update={"output": found})

    def freeze_at(self, weights: Mapping[str, Weights]) -> None:
        """Let the frozen parts of these architectures be others than those that they are made with."""
        self._given_frozen = weights
        self._frozen.clear()

    def _share_frozen(self, architecture: str, model: nn.Module) -> None:
        """Frozen parts are the same for all of an architecture, in one memory: then the rest can be averaged."""
        like = self._frozen.get(architecture)
        if like is None:
            like = self._frozen[architecture] = self._make(
                architecture, architecture, ("model", architecture)
            )
            learn.load_frozen(like, self._given_frozen.get(architecture, {}))
        if models.frozen_names(like) != models.frozen_names(model):
            raise ModelError(
                f"model '{architecture}' has other frozen parts each time it is made: freeze the same"
            )
        models.share_frozen(model, like)

    # -- structure -------------------------------------------------------------------------------------------

    def find_same(self, names: list[str]) -> None:
        """Find out which of these, of the models given from Python, are one architecture by their structure."""
        given = [name for name in dict.fromkeys(names) if name in self.makers]
        first: dict[Hashable, str] = {}
        for name in given if len(given) > 1 else []:
            model = self._make(
                name, name, ("model", given[0])
            )  # of one stream: what is drawn is no difference
            frozen = {key: tensor.contiguous() for key, tensor in learn.frozen_weights_of(model).items()}
            key = (models.structure(model), _digest(frozen), self.wanted.adapt.get(name))
            if key in first:
                self.same[name] = first[key]
            else:
                first[key] = name

    def given_weights_differ(self, names: list[str]) -> bool:
        """Whether these makers are modules of which not all have the same weights."""
        modules = [maker for name in names if isinstance(maker := self.makers.get(name), nn.Module)]
        return len({_digest(learn.all_tensors(module)) for module in modules}) > 1


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    parts = (
        f"{key}{tuple(tensor.shape)}{tensor.dtype}{digest(_bytes(tensor))}" for key, tensor in tensors.items()
    )
    return digest("".join(parts).encode())


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
