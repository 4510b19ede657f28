"""Models in other types than float32: what they take and give, and which are refused before a run starts."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import polyfed
from polyfed.errors import ModelError
from polyfed.models import Network, features_and_logits, fit_types, size

SHAPE = (1, 8, 8)


def plain() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


def network() -> Network:
    return Network(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU()), nn.Linear(8, 10))


def images() -> nn.Module:
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(144, 10))


class Scaled(nn.Module):
    """float32 with a buffer of float64 at its end, or anything else."""

    def __init__(self, scale: Tensor, *, lasting: bool = True) -> None:
        super().__init__()
        self.net = plain()
        self.register_buffer("scale", scale, persistent=lasting)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * self.get_buffer("scale").real.to(torch.float64)  # type: ignore[no-any-return]


class Converting(nn.Module):
    """Converts its inputs itself, and its first parameter is not what sees them first."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(8, 10), nn.Linear(64, 8).bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.flatten(1).bfloat16()).float())  # type: ignore[no-any-return]


class Tokens(nn.Module):
    """Reads its inputs as numbers of tokens, of which bfloat16 knows no odd ones above 256."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(1000, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.embed(x.flatten(1).long().clamp(0, 999))  # type: ignore[no-any-return]


def mixed() -> nn.Module:
    model = network()
    model.body.bfloat16()
    return model


def frozen_half() -> nn.Module:
    model = network()
    model.body.half().requires_grad_(False)
    return model


def with_parameter(dtype: torch.dtype, *, trained: bool = True) -> nn.Module:
    model = plain()
    model.extra = nn.Parameter(torch.ones(3).to(dtype), requires_grad=trained)
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: plain().double(),
        lambda: plain().bfloat16(),
        lambda: network().double(),
        lambda: network().bfloat16(),
        lambda: images().bfloat16(),
        lambda: images().double(),
        lambda: Scaled(torch.tensor(2.0, dtype=torch.float64)),
        lambda: Scaled(torch.tensor(2.0, dtype=torch.complex64), lasting=False),
        lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(10, dtype=torch.bfloat16)),
        Converting,
        mixed,
        frozen_half,
    ],
)
def test_models_of_any_type_take_and_give_float32_and_train(
    tmp_path: Path, make: Callable[[], nn.Module]
) -> None:
    run = polyfed.run(
        {"rounds": 1, "data": {"limit": 120, "clients": 2}, "method": {"name": "moon"}, "stack": 1},
        models={"net": make},
        out=tmp_path / "run",
        engine="inline",
    )
    model = polyfed.load_model(run.path, "client-0", make=make)
    for twin in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        features, logits = features_and_logits(twin, torch.ones(2, *SHAPE))
        assert (features.dtype, logits.dtype, twin(torch.ones(2, *SHAPE)).dtype) == (torch.float32,) * 3
    assert size(model, SHAPE).parameters > 0


def test_a_model_that_takes_float32_is_given_it() -> None:
    model = Tokens().bfloat16()
    before = model(torch.full((1, *SHAPE), 257.0))
    assert fit_types(model, SHAPE) is False
    torch.testing.assert_close(model(torch.full((1, *SHAPE), 257.0)), before.float(), rtol=0, atol=0)


def test_a_model_can_be_converted_after_it_was_fitted() -> None:
    model = network().bfloat16()
    fit_types(model, SHAPE)
    x = torch.randn(2, *SHAPE)
    for again in (model.float(), model.double()):
        features, logits = features_and_logits(again, x)
        assert (features.dtype, logits.dtype) == (torch.float32, torch.float32)


def test_a_float32_model_stays_as_it_is() -> None:
    model = network()
    assert fit_types(model, SHAPE) is None
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_a_maker_that_gives_one_object_again_and_again_fits_it_once() -> None:
    model = network().double()
    assert [fit_types(model, SHAPE), fit_types(model, SHAPE, converted=True)] == [True, True]
    assert all(len(part._forward_hooks) <= 1 for part in model.modules())
    assert all(len(part._forward_pre_hooks) <= 1 for part in model.modules())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: plain().half(),
            r"'net' has weights of type float16 \('1.weight'\).*\.bfloat16\(\) or \.float",
        ),
        (lambda: with_parameter(torch.complex64), "'net' has 'extra' of type complex64.*make it float32"),
        (lambda: with_parameter(torch.float8_e5m2), "'net' has 'extra' of type float8_e5m2.*make it float32"),
        (lambda: with_parameter(torch.complex64, trained=False), "'net' has 'extra' of type complex64"),
        (
            lambda: Scaled(torch.ones((), dtype=torch.complex128)),
            "'scale' of type complex128.*persistent=False",
        ),
        (lambda: Scaled(torch.ones(3).to_sparse()), "'net' has a sparse, quantised or meta tensor, 'scale'"),
        (lambda: plain().to("meta"), "'net' has a sparse, quantised or meta tensor, '1.weight'"),
        (
            lambda: nn.Sequential(plain().bfloat16(), nn.Linear(10, 10)),
            "weights of bfloat16, float32: convert",
        ),
        (lambda: nn.Sequential(plain(), nn.Linear(10, 10).double()), "weights of float32, float64: convert"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_the_run_starts(
    tmp_path: Path, make: Callable[[], nn.Module], words: str
) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        polyfed.run({"data": {"limit": 120}}, models={"net": make}, out=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
