"""Building by name: determinism, and what is refused."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from polyfed.errors import ModelError
from polyfed.models import Network, Norm, Shape, build, names, register, registry, seeded, size, sizes
from polyfed.models.mlp import MLP


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


@pytest.mark.parametrize("name", ["mlp", "lenet5", "resnet8", "wrn-10-1-biased", "vgg11"])
def test_the_same_generator_gives_the_same_model_and_another_gives_another(name: str) -> None:
    def draw(seed: int) -> Tensor:
        return weights(build(name, (1, 8, 8), 3, generator=torch.Generator().manual_seed(seed)))

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


def test_one_generator_gives_a_different_model_each_time() -> None:
    generator = torch.Generator().manual_seed(1)
    first, second = (weights(build("mlp", (4,), 3, generator=generator)) for _ in range(2))
    assert not torch.equal(first, second)


def test_building_neither_touches_nor_heeds_the_global_random_state() -> None:
    built = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        built += [weights(build("resnet8", (1, 8, 8), 3)), weights(build("mlp", (4,), 3))]
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(built[0], built[2])
    assert torch.equal(built[1], built[3])


def test_names_are_listed_by_wildcard_in_natural_order() -> None:
    assert names("resnet*-b") == ["resnet8-b", "resnet20-b", "resnet32-b", "resnet44-b", "resnet56-b"]
    assert names("WRN-1?-1") == ["wrn-10-1", "wrn-16-1"]
    assert names("nothing*") == []
    assert "efficientnet-b0" in names()


def test_any_wide_resnet_is_built_by_its_name() -> None:
    assert build("WRN-10-3", (1, 8, 8), 4).head.in_features == 192


@pytest.mark.parametrize("name", ["wrn-12-1", "wrn-4-1", "wrn-10-0", "wrn-11-2-biased"])
def test_a_wide_resnet_of_impossible_depth_or_width_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match=f"no wide ResNet '{name}'"):
        build(name, (3, 32, 32), 10)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ModelError, match=re.escape("unknown model 'resnet21'; did you mean 'resnet")):
        build("resnet21", (3, 32, 32), 10)
    with pytest.raises(ModelError, match="unknown model 'qqq'; `polyfed models` lists them"):
        build("qqq", (3, 32, 32), 10)


@pytest.mark.parametrize("name", [name for name in names() if not name.startswith("mlp")])
def test_convolutions_refuse_feature_vectors_in_one_line(name: str) -> None:
    with pytest.raises(ModelError, match="needs images; use an MLP for feature vectors") as caught:
        build(name, (64,), 10)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [(3, 7, 32), (3, 32, 7), (0, 8, 8), (8, 8), (1, 3, 32, 32), (3, -8, 8), ()])
def test_shapes_that_cannot_be_are_refused(shape: Shape) -> None:
    with pytest.raises(ModelError, match=re.escape(f"cannot take shape {shape}")):
        build("resnet8", shape, 10)


def test_mlps_take_vectors_and_images_of_any_size() -> None:
    assert build("mlp", (3,), 2)(torch.zeros(5, 3)).shape == (5, 2)
    assert build("mlp", (1, 2, 3), 2)(torch.zeros(5, 1, 2, 3)).shape == (5, 2)


def test_a_model_without_outputs_is_refused() -> None:
    assert build("mlp", (3,), 1)(torch.zeros(5, 3)).shape == (5, 1)  # one number
    with pytest.raises(ModelError, match="cannot have 0 outputs"):
        build("mlp", (3,), 0)


def test_an_unknown_norm_is_refused() -> None:
    with pytest.raises(ModelError, match="unknown norm 'bach'; did you mean 'batch'"):
        build("resnet8", (3, 8, 8), 2, norm="bach")  # type: ignore[arg-type]


def test_ones_own_model_is_registered_by_a_decorator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))

    @register("Mine", vectors=True)
    def mine(shape: Shape, outputs: int, norm: Norm) -> Network:
        return Network(nn.Flatten(), nn.Linear(shape[0], outputs))

    assert build("mine", (3,), 2).name == "mine"
    with pytest.raises(ModelError, match="'mine' is registered already"):
        register("mine")(mine)


def test_what_is_registered_must_make_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    register("plain", vectors=True)(lambda shape, outputs, norm: nn.Linear(3, 2))  # type: ignore[arg-type,return-value]
    with pytest.raises(ModelError, match="made a Linear; it must make a Network"):
        build("plain", (3,), 2)


# -- models that are built of others ---------------------------------------------------------------------------


class Pair(Network):
    """Two nets side by side, whose features are one net's and whose logits are the mean of both."""

    def __init__(self, first: Network, second: Network) -> None:
        super().__init__(first.body, first.head)
        self.second = second


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A registered model that is built of two registered ones."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))

    @register("pair", vectors=True)
    def make(shape: Shape, outputs: int, norm: Norm) -> Network:
        return Pair(build("mlp-small", shape, outputs), build("mlp-small", shape, outputs))

    yield "pair"
    sizes._listed.cache_clear()


def drawn(name: str, seed: int) -> Network:
    return build(name, (4,), 3, generator=torch.Generator().manual_seed(seed))


def built_in_a_thread(name: str) -> list[Network]:
    """A lock that waits for itself must not hang the tests."""
    found: list[Network] = []
    thread = threading.Thread(target=lambda: found.append(drawn(name, 1)), daemon=True)
    thread.start()
    thread.join(timeout=20)
    return found


def test_a_registered_model_may_be_built_of_others(pair: str) -> None:
    (model,) = built_in_a_thread(pair)
    assert model.name == "pair"


def test_what_a_model_is_built_of_draws_from_its_stream(pair: str) -> None:
    one, again, other = drawn(pair, 1), drawn(pair, 1), drawn(pair, 2)
    assert torch.equal(weights(one), weights(again))
    assert not torch.equal(weights(one), weights(other))
    assert isinstance(one, Pair)
    assert not torch.equal(weights(one.body), weights(one.second.body))
    assert torch.equal(weights(build(pair, (4,), 3)), weights(build(pair, (4,), 3)))


def test_a_model_of_others_is_measured_too(pair: str) -> None:
    assert size(pair, (4,), 3).parameters == 2 * size("mlp-small", (4,), 3).parameters


def test_a_generator_of_its_own_is_heeded_within_another_models_function() -> None:
    expected = weights(drawn("mlp-small", 5))
    for seed in (1, 2):
        with seeded(seed):
            assert torch.equal(weights(drawn("mlp-small", 5)), expected)


def test_outside_a_model_without_a_generator_is_that_of_seed_0() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        expected = weights(MLP((4,), 3, hidden=(64,)))
        torch.manual_seed(1)
        assert torch.equal(weights(build("mlp-small", (4,), 3)), expected)
    with seeded(7):
        inside = weights(build("mlp-small", (4,), 3))
    assert not torch.equal(inside, expected)
    assert torch.equal(weights(build("mlp-small", (4,), 3)), expected)


def test_another_thread_does_not_draw_from_a_stream_that_is_not_its_own() -> None:
    expected = weights(build("mlp-small", (4,), 3))
    found: list[Tensor] = []
    thread = threading.Thread(target=lambda: found.append(weights(build("mlp-small", (4,), 3))))
    with seeded(7):
        thread.start()  # it waits until the generator is free
        build("mlp-small", (4,), 3)
    thread.join()
    assert torch.equal(found[0], expected)
