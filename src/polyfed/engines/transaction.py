"""A client before a step: what it is set back to if the step fails, and what of the step's changes lasts if not.

A step can do anything to the object that it is given. Of what it leaves behind, only what the method keeps is taken
over, and only if every engine can keep it: a module of the same structure, and a memory that can be written down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from polyfed import learn
from polyfed.errors import MethodError
from polyfed.federation.message import has_memory, plain
from polyfed.federation.nodes import Client
from polyfed.models import check_frozen, frozen_marks

LASTING = ("memory", "residuals")


class Transaction:
    """One client in one step."""

    def __init__(
        self, me: Client, keeps: frozenset[str], *, reads_only: bool, new_model: Callable[[], nn.Module]
    ) -> None:
        """new_model: makes one of the client's architecture, should a step have broken the client's own."""
        self._me = me
        self._keeps = keeps
        self.reads_only = reads_only
        self._new_model = new_model
        self._kind = type(me)
        self._attributes = dict(vars(me))
        self._model = me.model
        self._before: dict[str, Any] = {name: getattr(me, name) if name in keeps else {} for name in LASTING}
        self._weights: Mapping[str, Tensor] = {}
        self._frozen = frozen_marks(me.model)
        if reads_only:
            # No numbers are copied. The containers are, so that what is put into them is gone after the step.
            if "model" in keeps:
                self._weights = learn.named_tensors(me.model)
            me.memory = without_copying(me.memory)
            me.residuals = dict(me.residuals)
        else:
            state = me.state(keeps)
            self._weights = state.pop("model", {})
            self._before.update(state)

    def commit(self) -> None:
        """Take over what the step left, or raise a `MethodError` that says why it cannot be kept."""
        left = dict(vars(self._me))
        check_frozen(self._model, self._frozen)
        self._put_back(self._before if self.reads_only else left)
        if not self.reads_only:
            for name in LASTING:
                setattr(self._me, name, self._kept(name, left) if name in self._keeps else self._before[name])
        if "model" in self._keeps:
            self._take_model(left.get("model"))

    def roll_back(self) -> None:
        """Be what the client was before the step."""
        self._put_back(self._before)
        if "model" in self._keeps:
            whole = alike(self._model, self._weights)
            if not whole:
                self._me.model = self._new_model()
            if not (whole and self.reads_only):
                readable = {name: tensor for name, tensor in self._weights.items() if has_memory(tensor)}
                learn.load_weights(self._me.model, readable, partly=True)

    def _put_back(self, lasting: Mapping[str, Any]) -> None:
        """All that a step cannot change for good: who the client is, its data, its settings, its model's module."""
        kept = {name: lasting[name] for name in LASTING if name in lasting}
        self._me.__class__ = self._kind
        self._me.__dict__ = {**self._attributes, **kept}

    def _kept(self, name: str, left: Mapping[str, Any]) -> dict[str, Any]:
        value = left.get(name)
        if not issubclass(type(value), dict):
            raise MethodError(f"it left {type(value).__name__} as me.{name}, not a dictionary")
        try:
            kept: dict[str, Any] = plain({name: value})[name]  # as deep as it will be in its file
        except TypeError as error:
            raise MethodError(f"what it left in me.{name} cannot be kept: {error}") from None
        return kept

    def _take_model(self, left: Any) -> None:
        """What lasts of a model is its numbers: another module in its place gives its own."""
        if not issubclass(type(left), nn.Module):
            raise MethodError(f"it left {type(left).__name__} as me.model, not a module")
        if not alike(left, self._weights):
            raise MethodError(
                "it left another model as me.model: the names, shapes and types of its tensors must stay the same"
            )
        if left is not self._model:
            if self.reads_only or not alike(self._model, self._weights):
                raise MethodError(
                    "it put another model in the place of me.model: load weights into it instead"
                )
            learn.load_weights(self._model, learn.named_tensors(left))


def without_copying(value: Any) -> Any:
    """The dictionaries and lists of a memory anew, with the same tensors in them."""
    if isinstance(value, dict):
        return {name: without_copying(item) for name, item in value.items()}
    return [without_copying(item) for item in value] if isinstance(value, list) else value


def alike(model: nn.Module, weights: Mapping[str, Tensor]) -> bool:
    """Whether the tensors of a model are still such as these. A module that is broken in any way is not."""
    try:
        now = learn.named_tensors(model)
        return now.keys() == weights.keys() and all(_is_like(now[name], weights[name]) for name in now)
    except Exception:
        return False


def _is_like(tensor: Tensor, other: Tensor) -> bool:
    return (
        tensor.shape == other.shape
        and tensor.dtype is other.dtype
        and tensor.layout is other.layout
        and tensor.device == other.device
        and has_memory(tensor)
    )
