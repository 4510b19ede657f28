"""Models with the common initial weights: one object per architecture serves all clients of a process."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from polyfed import learn
from polyfed.engines.transaction import alike
from polyfed.federation.engine import Population
from polyfed.federation.message import Weights
from polyfed.models import FrozenMarks, check_frozen, frozen_marks, reset_loose


class InitialModels:
    """One model object per architecture and place, set back to the common initial weights when it is handed out."""

    def __init__(self, population: Population) -> None:
        self._population = population
        self._models: dict[tuple[str, int], nn.Module] = {}
        self._initial: dict[str, Weights] = {}
        self._parameters: dict[tuple[str, int], list[tuple[nn.Parameter, bool]]] = {}
        self._marks: dict[tuple[str, int], list[int]] = {}
        self._frozen: dict[tuple[str, int], FrozenMarks] = {}
        self._taken: set[tuple[str, int]] = set()

    def take(self, architecture: str, place: int = 0) -> nn.Module:
        """The model as it was left earlier in this step; at first with the initial weights."""
        if (architecture, place) not in self._taken:
            self._taken.add((architecture, place))
            learn.make_ready(self.reset(architecture, place))
        return self._models[architecture, place]

    def forget(self) -> None:
        """A new step: nothing of the last one is left."""
        self._taken.clear()

    def reset(self, architecture: str, place: int) -> nn.Module:
        """The model with the initial weights; a new one if a step has left more than other numbers in the last."""
        key = (architecture, place)
        model = self._models.get(key)
        if model is not None:
            check_frozen(model, self._frozen[key])
        if model is None or not self._is_whole(key, model):
            model = self._models[key] = self._population.build(architecture)
            self._parameters[key] = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
            self._initial.setdefault(architecture, learn.weights_of(model))
            self._marks[key] = list(_marks(model))
            self._frozen[key] = frozen_marks(model)
        for parameter, trained in self._parameters[key]:
            if parameter.requires_grad is not trained:
                parameter.requires_grad = trained
        learn.load_weights(model, self._initial[architecture])
        reset_loose(model)
        return model

    def _is_whole(self, key: tuple[str, int], model: nn.Module) -> bool:
        try:
            return list(_marks(model)) == self._marks[key] and alike(model, self._initial[key[0]])
        except Exception:  # a module can be broken in any way
            return False


def _marks(module: nn.Module) -> Iterator[int]:
    """What tells whether a model's modules and parameters are still the same, without hooks of somebody else's."""
    yield id(module)
    yield "forward" in vars(module)
    yield len(module._forward_hooks) + len(module._forward_pre_hooks)
    yield len(module._backward_hooks) + len(module._backward_pre_hooks)
    for parameter in module._parameters.values():
        yield id(parameter)
        yield 0 if parameter is None else len(parameter._backward_hooks or ())
    for child in module._modules.values():
        if child is not None:
            yield from _marks(child)
