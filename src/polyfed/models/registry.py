"""Models by name: `build("resnet20", (3, 32, 32), 10)`, `names("res*")`, `@register("my-net")`."""

from __future__ import annotations

import fnmatch
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from polyfed.errors import ModelError, nearest
from polyfed.models.layers import Norm, Shape
from polyfed.models.naming import check_name
from polyfed.models.network import Network, project
from polyfed.models.outside import is_plug_in, is_reference, outside_function, outside_maker, plug_in_names

Factory = Callable[[Shape, int, Norm], Network]

SMALLEST_IMAGE = 8


@dataclass(frozen=True)
class RegisteredModel:
    """How to make the model of one name, and whether it takes feature vectors as well as images."""

    factory: Factory
    vectors: bool


_registered: dict[str, RegisteredModel] = {}
_families: list[tuple[re.Pattern[str], Callable[[re.Match[str]], Factory]]] = []

# PyTorch's layers draw from the one generator of the process; two threads must not borrow it at once. What one of them
# makes while it has it may be built of other models.
_borrowing = threading.RLock()
_drawing = threading.local()


def register(name: str, *, vectors: bool = False) -> Callable[[Factory], Factory]:
    """Make a model known under a name; a decorator for a function (shape, outputs, norm) -> Network.

    The function must also work under `torch.device("meta")`, where `size` measures it without memory.

    vectors: whether it takes feature vectors, shape (F,), and images of any size; others take images of 8×8
        and more.
    """
    check_name(name)
    key = name.lower()

    def enter(factory: Factory) -> Factory:
        if key in _registered:
            raise ModelError(f"a model named '{key}' is registered already; choose another name")
        _registered[key] = RegisteredModel(factory, vectors)
        return factory

    return enter


def register_family(pattern: str, parse: Callable[[re.Match[str]], Factory]) -> None:
    """Accept every name that matches a regular expression; `names` lists only what `register` was given."""
    _families.append((re.compile(pattern), parse))


def names(pattern: str = "*") -> list[str]:
    """The registered names that match a wildcard such as 'res*', resnet8 before resnet20."""
    return sorted(fnmatch.filter(_registered, pattern.lower()), key=_natural_order)


def _natural_order(name: str) -> list[tuple[int, int, str]]:
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"(\d+)", name)]


def is_known(name: str) -> bool:
    """Whether a model of this name can be made: it is registered, of a plug-in, or names a module's function."""
    try:
        return _find(name) is not None or is_reference(name) or is_plug_in(name)
    except ModelError:  # an impossible member of a family
        return False


def own_maker(name: str, shape: Shape, outputs: int, norm: Norm) -> Callable[[], nn.Module] | None:
    """What makes the model of a name that is not registered: `my_models:small_net`, or of a plug-in. Else None.

    Such a model is like one that is given from Python: it need not be a `Network`.
    """
    return None if _find(name) is not None else outside_maker(name, shape, outputs, norm)


def registered(name: str) -> RegisteredModel:
    """What is registered under a name; otherwise a ModelError that says the nearest known one."""
    found = _find(name)
    if found is not None:
        return found
    if is_reference(name) or is_plug_in(name):
        return RegisteredModel(partial(_from_outside, name), vectors=True)
    known = [*_registered, *plug_in_names()]
    raise ModelError(f"unknown model '{name}'; {nearest(name, known, 'polyfed models')}")


def _from_outside(name: str, shape: Shape, outputs: int, norm: Norm) -> Network:
    maker = outside_maker(name, shape, outputs, norm)
    assert maker is not None
    return maker()  # type: ignore[return-value]  # what is no Network is refused by `construct`


def _find(name: str) -> RegisteredModel | None:
    key = name.lower()
    if key in _registered:
        return _registered[key]
    for pattern, parse in _families:
        if match := pattern.fullmatch(key):
            return RegisteredModel(parse(match), vectors=False)
    return None


def maker_of(name: str) -> Callable[..., nn.Module]:
    """The function that makes the models of this name: its module says what they are."""
    outside = outside_function(name) if _find(name) is None else None
    if outside is not None:
        return outside
    factory = registered(name).factory
    return factory.func if isinstance(factory, partial) else factory


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """PyTorch's default generator begins at this seed for a while, and then is what it was before.

    What is built in the meantime without a generator of its own draws from it.
    """
    with _borrowing, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        before = getattr(_drawing, "seeded", False)
        _drawing.seeded = True
        try:
            yield
        finally:
            _drawing.seeded = before


def build(
    name: str,
    shape: Shape,
    outputs: int,
    *,
    norm: Norm = "batch",
    features: int | None = None,
    generator: torch.Generator | None = None,
) -> Network:
    """A new model, the same for the same state of the generator; the global random state is left as it was.

    name: one of `names()`, in any case, or any 'wrn-<depth>-<width>[-biased]'.
    shape: (channels, height, width) of an image, or (features,) for the MLPs.
    outputs: the number of classes, or of numbers to be learnt.
    norm: 'batch' or 'group'; models without normalisation, and `resnet8-fedkf`, ignore it.
    features: how many features the head sees, by a projection in front of it (see `project`); None is the model's own.
    generator: where the initial weights come from; None means one fixed seed. Within a function that makes a model
        (one that is registered, or one of the user's that is given to a run), None means the stream that this function
        draws from: clients differ, and each can be made again.
    """
    if generator is None and getattr(_drawing, "seeded", False):
        return construct(name, shape, outputs, norm, features)
    seed = 0
    if generator is not None:
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    with seeded(seed):
        return construct(name, shape, outputs, norm, features)


def construct(name: str, shape: Shape, outputs: int, norm: Norm, features: int | None = None) -> Network:
    """Check the arguments and make the model with PyTorch's default generator and device of the moment."""
    found = registered(name)
    _check(name, shape, outputs, norm, vectors=found.vectors)
    model = found.factory(tuple(shape), outputs, norm)
    if not isinstance(model, Network):
        raise ModelError(
            f"what is registered as '{name}' made a {type(model).__name__}; it must make a Network"
        )
    model.name = name.lower()
    if features is not None:
        project(model, features)
    if model.channels_last:
        # mypy does not know the overload of `to` that takes only a memory format.
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def _check(name: str, shape: Shape, outputs: int, norm: str, *, vectors: bool) -> None:
    shown = tuple(shape)
    if len(shown) == 1 and not vectors:
        raise ModelError(f"model '{name}' needs images; use an MLP for feature vectors")
    if len(shown) not in (1, 3) or min(shown) < 1:
        raise ModelError(
            f"model '{name}' cannot take shape {shown}: give (channels, height, width) or (features,)"
        )
    if not vectors and min(shown[1:]) < SMALLEST_IMAGE:
        raise ModelError(f"model '{name}' cannot take shape {shown}: images must be at least 8×8")
    if outputs < 1:
        raise ModelError(f"model '{name}' cannot have {outputs} outputs: it needs one at least")
    if norm not in ("batch", "group"):
        raise ModelError(f"unknown norm '{norm}'; {nearest(str(norm), ('batch', 'group'))}")
