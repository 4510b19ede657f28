from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed.learn import (
    FeatureLoss,
    LocalLoss,
    Proximal,
    Training,
    can_stack,
    can_stack_loss,
    supervised,
    supervised_together,
    weights_of,
)
from polyfed.learn.stacked import _chain, stacked_forward
from polyfed.models import build


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model(seed: int) -> nn.Module:
    return build("mlp-small", (1, 3, 3), 4, generator=generator(seed))


def examples(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    stream = generator(100 + seed)
    return torch.randn(rows, 1, 3, 3, generator=stream), torch.randint(4, (rows,), generator=stream)


def weights(of: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in of.parameters()])


def one_by_one(counts: list[int], training: Training, proximal: float) -> list[Tensor]:
    found = []
    for client, count in enumerate(counts):
        own = model(client)
        extra = Proximal(proximal, weights_of(own)) if proximal else None
        supervised(own, *examples(count, client), training, generator(client), extra=extra)
        found.append(weights(own))
    return found


def stacked(counts: list[int], training: Training, proximal: float) -> list[Tensor]:
    models = [model(client) for client in range(len(counts))]
    supervised_together(
        models,
        [examples(count, client) for client, count in enumerate(counts)],
        training,
        [generator(client) for client in range(len(counts))],
        extras=[Proximal(proximal, weights_of(own)) for own in models] if proximal else None,
    )
    return [weights(own) for own in models]


@pytest.mark.parametrize("counts", [[8, 8, 8], [1, 9, 4, 13], [3, 0, 8]], ids=str)
@pytest.mark.parametrize(
    ("settings", "proximal"),
    [
        ({}, 0.0),
        ({"epochs": 3, "momentum": 0.9}, 0.0),
        ({"epochs": 2, "weight_decay": 0.05}, 0.0),
        ({"epochs": 2, "momentum": 0.5}, 0.3),
        ({"steps": 5, "momentum": 0.9, "weight_decay": 0.01}, 0.1),
    ],
    ids=str,
)
def test_stacked_training_equals_training_one_by_one(
    counts: list[int], settings: dict[str, Any], proximal: float
) -> None:
    training = Training(**{"epochs": 1, "batch": 4, "lr": 0.1, **settings})
    alone = one_by_one(counts, training, proximal)
    together = stacked(counts, training, proximal)
    for client, count in enumerate(counts):
        assert torch.allclose(together[client], alone[client], atol=1e-5)
        assert torch.equal(together[client], weights(model(client))) == (count == 0)


def test_the_pull_is_towards_where_each_model_started() -> None:
    training = Training(batch=4, lr=0.1, epochs=5)
    free, held = stacked([8, 8], training, 0.0), stacked([8, 8], training, 5.0)
    for client in range(2):
        start = weights(model(client))
        assert (held[client] - start).norm() < 0.5 * (free[client] - start).norm()


@pytest.mark.parametrize(
    ("settings", "can"),
    [
        ({}, True),
        ({"momentum": 0.9, "weight_decay": 0.1, "steps": 3}, True),
        ({"optimiser": "adam"}, False),
        ({"optimiser": "RMSprop"}, False),
        ({"optimiser": {"name": "sgd", "nesterov": True}, "momentum": 0.9}, False),
        ({"clip": 1.0}, False),
        ({"clip_value": 1.0}, False),
        ({"within": "cosine"}, False),
        ({"within": {"warm_up": 2}}, False),
        ({"schedule": {"kind": "cosine", "length": 4, "warm_up": 2}}, True),
        ({"sampling": "balanced"}, False),
        ({"augment": "my_module:shift"}, False),
        ({"augment": True}, False),
        ({"keep_optimiser": True}, False),
    ],
    ids=str,
)
def test_only_what_the_stack_does_is_stacked(settings: dict[str, Any], can: bool) -> None:
    assert can_stack(Training(**{"epochs": 1, **settings})) == can


# -- extra losses --------------------------------------------------------------------------------------------------


class Line(nn.Module):
    """One weight and one input: logits (w x, 0)."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[weight]]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x @ self.weight, torch.zeros_like(x)], dim=1)


def test_the_proximal_loss_is_half_mu_times_the_squared_distance() -> None:
    # µ/2 ‖w − w_t‖² = 0.4/2 · (3 − 1)² = 0.8, and its gradient µ (w − w_t) = 0.8.
    line = Line(3.0)
    nothing = torch.empty(0)
    loss = Proximal(0.4, {"weight": torch.tensor([[1.0]])})(line, nothing, nothing, nothing)
    loss.backward()
    assert loss.item() == pytest.approx(0.8)
    assert line.weight.grad is not None
    assert line.weight.grad.item() == pytest.approx(0.8)


def test_a_stacked_proximal_step_is_the_one_worked_out_by_hand() -> None:
    # x = 0: the cross-entropy has no gradient in w, so w ← w − 0.5 · µ (w − w_t) with µ = 0.4:
    # 3 − 0.5 · 0.4 · (3 − 1) = 2.6, and −2 − 0.5 · 0.4 · (−2 − 1) = −1.4.
    lines = [Line(3.0), Line(-2.0)]
    supervised_together(
        lines,
        [(torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64))] * 2,
        Training(batch=2, lr=0.5, steps=1),
        [generator(0), generator(1)],
        extras=[Proximal(0.4, {"weight": torch.tensor([[1.0]])})] * 2,
    )
    assert [line.weight.item() for line in lines] == pytest.approx([2.6, -1.4])


def another_loss(_model: nn.Module, _rows: Tensor, _x: Tensor, logits: Tensor) -> Tensor:
    return logits.square().mean()


def loss_on_features(
    _model: nn.Module, _rows: Tensor, _x: Tensor, _logits: Tensor, features: Tensor
) -> Tensor:
    return features.square().mean()


@pytest.mark.parametrize(
    ("extra", "can"),
    [
        (None, True),
        (Proximal(0.1, {}), True),
        (another_loss, False),
        (nn.Identity(), False),
        (FeatureLoss(loss_on_features), False),
    ],
    ids=["none", "proximal", "a function", "a module", "on features"],
)
def test_only_losses_with_a_stacked_form_can_be_stacked(extra: LocalLoss | None, can: bool) -> None:
    assert can_stack_loss(extra) == can


@pytest.mark.parametrize(
    "extras",
    [
        [another_loss, another_loss],
        [FeatureLoss(loss_on_features), FeatureLoss(loss_on_features)],
        [None, Proximal(0.1, {})],
        [Proximal(0.1, {}), Proximal(0.2, {})],
    ],
    ids=["another loss", "on features", "not all", "two strengths"],
)
def test_a_loss_that_cannot_be_stacked_is_refused_and_never_left_out(extras: list[LocalLoss | None]) -> None:
    models = [model(0), model(1)]
    with pytest.raises(ValueError, match="one by one"):
        supervised_together(
            models,
            [examples(4, 0), examples(4, 1)],
            Training(epochs=1, batch=4),
            [generator(0), generator(1)],
            extras=extras,
        )
    assert all(torch.equal(weights(own), weights(model(place))) for place, own in enumerate(models))


# -- modules of the user's own -------------------------------------------------------------------------------------


class ByHand(nn.Module):
    """A forward of one's own: a residual path, a scale, LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(9, 9)
        self.norm = nn.LayerNorm(9)
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.last = nn.Linear(9, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(x.size(0), -1)
        logits: Tensor = self.last(self.scale * torch.relu(self.first(x)) + self.norm(x))
        return logits


def chain() -> nn.Module:
    inner = nn.Sequential(nn.Linear(9, 6, bias=False), nn.ReLU(inplace=True), nn.Identity())
    return nn.Sequential(nn.Flatten(), inner, nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4))


def partly_frozen() -> nn.Module:
    made = chain()
    next(made.parameters()).requires_grad_(False)
    return made


class Unused(ByHand):
    """A parameter that no loss depends on: an optimiser leaves it alone, weight decay and all."""

    def __init__(self) -> None:
        super().__init__()
        self.forgotten = nn.Parameter(torch.ones(3))


class Tied(nn.Module):
    """One matrix in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(9, 9)
        self.second = nn.Linear(9, 9)
        self.second.weight = self.first.weight
        self.last = nn.Linear(9, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.second(self.first(x.flatten(1)).relu()).relu())
        return logits


MAKERS = {
    "chain": chain,
    "by hand": ByHand,
    "convolution": convolution,
    "partly frozen": partly_frozen,
    "unused": Unused,
    "tied": Tied,
}


def made(maker: Any, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        own: nn.Module = maker()
        return own


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_own_modules_are_trained_in_a_stack_as_they_are_one_by_one(maker: Any) -> None:
    training = Training(batch=4, lr=0.1, epochs=2, momentum=0.9, weight_decay=0.05)
    counts = [7, 4, 13]
    together = [made(maker, client) for client in range(3)]
    supervised_together(
        together,
        [examples(count, client) for client, count in enumerate(counts)],
        training,
        [generator(client) for client in range(3)],
    )
    for client, count in enumerate(counts):
        alone = made(maker, client)
        supervised(alone, *examples(count, client), training, generator(client))
        assert torch.allclose(weights(together[client]), weights(alone), atol=1e-5)
        assert not torch.equal(weights(alone), weights(made(maker, client)))


class Written(nn.Module):
    """A plain chain in a forward of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(9, 6)
        self.second = nn.Linear(6, 5)
        self.last = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(x.size(0), -1)
        x = F.relu(self.first(x))
        x = torch.tanh(self.second(x)).sigmoid()
        logits: Tensor = self.last(x)
        return logits


class Flattened(Written):
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.second(self.first(torch.flatten(x, 1)).relu()))
        return logits


CHAINS = {
    "chain": chain,
    "built in": lambda: build("mlp-small", (1, 3, 3), 4),
    "written": Written,
    "flattened": Flattened,
}


@pytest.mark.parametrize("maker", CHAINS.values(), ids=CHAINS)
def test_a_plain_chain_is_recognised_and_agrees_with_vmap(maker: Any) -> None:
    own = made(maker, 0)
    assert _chain(own) is not None
    stack = {key: torch.stack([value, 2 * value]) for key, value in weights_of(own).items()}
    x = torch.stack([examples(5, 0)[0], examples(5, 1)[0]])
    expected = torch.func.vmap(lambda values, rows: torch.func.functional_call(own, values, (rows,)))(
        stack, x
    )
    assert torch.allclose(stacked_forward(own)(stack, x), expected, atol=1e-6)


class Doubled(nn.Sequential):
    """Looks like a chain, and is none."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = 2 * super().forward(x)  # type: ignore[no-untyped-call]
        return logits


def hooked() -> nn.Module:
    own = chain()
    own.register_forward_hook(lambda _module, _args, output: 2 * output)
    return own


@pytest.mark.parametrize("make", [lambda: Doubled(*chain().children()), hooked], ids=["subclass", "hook"])
def test_what_only_looks_like_a_chain_is_not_taken_for_one(make: Any) -> None:
    own, plain = made(make, 0), made(chain, 0)
    assert _chain(own) is None
    stack = {key: torch.stack([value, value]) for key, value in weights_of(own).items()}
    x = torch.stack([examples(5, 0)[0]] * 2)
    assert torch.allclose(stacked_forward(own)(stack, x), 2 * stacked_forward(plain)(stack, x), atol=1e-6)


class Skipping(Written):
    """The second layer's answer is not used."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(x.size(0), -1)
        hidden = F.relu(self.first(x))
        self.second(hidden)
        return hidden[:, :4]


class Doubling(Written):
    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        hidden = F.relu(self.first(x))
        logits: Tensor = 2 * (self.last(self.second(hidden)) + hidden[:, :4])
        return logits


class OtherWay(Written):
    """Flattens rows and channels, which with one channel looks the same from outside."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.second(self.first(torch.flatten(x.squeeze(1), end_dim=1))))
        return logits


@pytest.mark.parametrize("maker", [Skipping, Doubling, OtherWay, ByHand, Unused, convolution])
def test_every_other_model_is_not_taken_for_a_chain(maker: Any) -> None:
    assert _chain(made(maker, 0)) is None
