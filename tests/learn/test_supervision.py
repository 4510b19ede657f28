from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed.federation.message import decode, encode
from polyfed.learn import FeatureLoss, Training, supervised
from polyfed.learn.training import shuffled_batches, take
from polyfed.models import Network


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def linear(inputs: int = 2, outputs: int = 2) -> nn.Linear:
    model = nn.Linear(inputs, outputs)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def net(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def normed() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))


def examples(rows: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    stream = generator(seed)
    return torch.randn(rows, 4, generator=stream), torch.randint(3, (rows,), generator=stream)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


class Recorder(nn.Module):
    """Remembers which rows it saw: a row's input is its number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2)
        self.seen: list[list[int]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.flatten().int().tolist())
        logits: Tensor = self.layer(x / 100)
        return logits


def seen(rows: int, seed: int = 0, **settings: Any) -> list[list[int]]:
    model = Recorder()
    x = torch.arange(float(rows)).unsqueeze(1)
    steps = supervised(
        model, x, torch.zeros(rows, dtype=torch.long), Training(**{"epochs": 1, **settings}), generator(seed)
    )
    assert steps == len(model.seen)
    return model.seen


# -- one step ------------------------------------------------------------------------------------------------


def test_one_step_on_one_row_by_hand() -> None:
    model = linear()
    assert (
        supervised(
            model, torch.tensor([[1.0, 2.0]]), torch.tensor([0]), Training(epochs=1, lr=0.1), generator()
        )
        == 1
    )
    # p = (½, ½); ∂/∂logits = p - onehot(0) = (-½, ½); ∂/∂W = that × (1, 2); a step of 0.1 the other way
    assert torch.allclose(model.weight, torch.tensor([[0.05, 0.1], [-0.05, -0.1]]), atol=1e-6)
    assert torch.allclose(model.bias, torch.tensor([0.05, -0.05]), atol=1e-6)


def test_a_batch_counts_by_its_mean() -> None:
    model = linear()
    x = torch.tensor([[1.0, 0.0], [0.0, 4.0], [0.0, 0.0], [3.0, 0.0]])
    supervised(model, x, torch.tensor([0, 1, 0, 0]), Training(epochs=1, lr=1), generator())
    # ∂/∂logits: (-½, ½) for class 0, (½, -½) for class 1; first row of ∂/∂W: (-½·1 - ½·3, ½·4) / 4
    assert torch.allclose(model.weight, torch.tensor([[0.5, -0.5], [-0.5, 0.5]]), atol=1e-6)
    # (-½ + ½ - ½ - ½) / 4
    assert torch.allclose(model.bias, torch.tensor([0.25, -0.25]), atol=1e-6)


def test_clipping_limits_the_norm_of_the_whole_gradient() -> None:
    model = linear()
    supervised(
        model, torch.tensor([[1.0, 2.0]]), torch.tensor([0]), Training(epochs=1, lr=1, clip=0.5), generator()
    )
    # the gradient's norm is √(2 · (¼ + 1 + ¼)) = √3
    assert weights(model).norm() == pytest.approx(0.5, abs=1e-5)
    free = linear()
    supervised(
        free, torch.tensor([[1.0, 2.0]]), torch.tensor([0]), Training(epochs=1, lr=1, clip=100), generator()
    )
    assert weights(free).norm() == pytest.approx(3**0.5, abs=1e-5)


def test_an_extra_loss_is_added() -> None:
    model = linear()
    nn.init.ones_(model.weight)
    supervised(
        model,
        torch.zeros(1, 2),
        torch.tensor([0]),
        Training(epochs=1, lr=0.1),
        generator(),
        extra=lambda now, _rows, _x, _logits: 2 * now.get_parameter("weight").sum(),
    )
    # inputs of 0 give the weight no gradient of its own: 1 - 0.1 · 2
    assert torch.allclose(model.weight, torch.full((2, 2), 0.8), atol=1e-6)


class Counting(Network):
    """Counts its forward passes."""

    passes = 0

    def features(self, x: Tensor) -> Tensor:
        self.passes += 1
        return super().features(x)


def test_a_loss_on_features_by_hand() -> None:
    """One row x = 1, feature f = w x with w = 3, a head of zeros: cross-entropy gives w no gradient.

    The loss (f - 1)² adds 2 (f - 1) x = 4: w = 3 - 0.1 · 4 = 2.6.
    """
    body = nn.Linear(1, 1, bias=False)
    nn.init.constant_(body.weight, 3.0)
    model = Counting(body, linear(1, 2))

    def near_one(_model: nn.Module, rows: Tensor, x: Tensor, logits: Tensor, features: Tensor) -> Tensor:
        assert rows.tolist() == [0] and x.tolist() == [[1.0]]
        assert logits.tolist() == [[0.0, 0.0]] and features.tolist() == [[3.0]]
        return (features - 1).square().mean()

    ones, label = torch.ones(1, 1), torch.tensor([0])
    supervised(model, ones, label, Training(epochs=1, lr=0.1), generator(), extra=FeatureLoss(near_one))
    assert body.weight.item() == pytest.approx(2.6, abs=1e-6)
    assert model.passes == 1


@pytest.mark.parametrize("make", [net, normed])
def test_a_loss_on_features_that_is_zero_changes_no_bit(make: Any) -> None:
    """Also of a user's module, whose features are found by a hook in the same pass (BatchNorm counts them)."""
    plain, watched = make(), make()
    nothing = FeatureLoss(lambda _model, _rows, _x, _logits, features: 0 * features.sum())
    for model, extra in ((plain, None), (watched, nothing)):
        supervised(model, *examples(20), Training(epochs=1, batch=6), generator(), extra=extra)
    found, expected = watched.state_dict(), plain.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("settings", "optimiser"),
    [
        ({"optimiser": "sgd"}, lambda p: torch.optim.SGD(p, 0.05)),
        (
            {"optimiser": "sgd", "momentum": 0.9, "weight_decay": 0.01},
            lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01),
        ),
        ({"optimiser": "adam"}, lambda p: torch.optim.Adam(p, 0.05)),
        (
            {"optimiser": "amsgrad", "weight_decay": 0.1},
            lambda p: torch.optim.Adam(p, 0.05, weight_decay=0.1, amsgrad=True),
        ),
        # torch's own default would be a decay of 0.01
        ({"optimiser": "adamw"}, lambda p: torch.optim.AdamW(p, 0.05, weight_decay=0)),
        (
            {"optimiser": "adamw", "weight_decay": 0.2},
            lambda p: torch.optim.AdamW(p, 0.05, weight_decay=0.2),
        ),
    ],
    ids=["sgd", "momentum and decay", "adam", "amsgrad", "adamw", "adamw with decay"],
)
def test_training_equals_a_bare_loop(settings: dict[str, Any], optimiser: Any) -> None:
    x, y = examples(10)
    model, bare = net(), net()
    supervised(model, x, y, Training(epochs=3, batch=4, lr=0.05, **settings), generator(5))
    stepper = optimiser(bare.parameters())
    stream = generator(5)
    for _ in range(3):
        for rows in torch.randperm(10, generator=stream).split(4):
            stepper.zero_grad()
            F.cross_entropy(bare(x[rows]), y[rows]).backward()
            stepper.step()
    assert torch.allclose(weights(model), weights(bare), atol=1e-6)
    assert not torch.allclose(weights(model), weights(net()), atol=1e-3)


def test_frozen_parameters_stay() -> None:
    model = net()
    frozen = model.get_parameter("0.weight").requires_grad_(False)
    before = frozen.clone()
    supervised(model, *examples(8), Training(epochs=1, weight_decay=0.1, momentum=0.5), generator())
    assert torch.equal(frozen, before)
    assert not torch.equal(model.get_parameter("2.weight"), net().get_parameter("2.weight"))


def test_the_model_is_left_in_training_mode_without_gradients() -> None:
    model = net().eval()
    supervised(model, *examples(8), Training(), generator())
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_global_random_state_is_not_touched() -> None:
    before = torch.get_rng_state()
    supervised(net(), *examples(8), Training(epochs=2), generator())
    assert torch.equal(torch.get_rng_state(), before)


# -- batches -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 11])
def test_every_row_is_seen_once_an_epoch(rows: int) -> None:
    batches = seen(rows, epochs=3, batch=4)
    per_epoch = -(-rows // 4)
    assert len(batches) == 3 * per_epoch == Training(epochs=3, batch=4).batches(rows)
    for epoch in range(3):
        drawn = chain.from_iterable(batches[epoch * per_epoch : (epoch + 1) * per_epoch])
        assert sorted(drawn) == list(range(rows))


def test_each_epoch_has_another_order_and_each_stream_too() -> None:
    first, second = seen(20, epochs=2, batch=20)
    assert first != second
    assert seen(20, epochs=1, batch=20) == [first]
    assert seen(20, seed=1, epochs=1, batch=20) != [first]


def test_a_client_smaller_than_a_batch_trains_on_what_it_has() -> None:
    assert [sorted(batch) for batch in seen(3, batch=32)] == [[0, 1, 2]]


@pytest.mark.parametrize("steps", [1, 3, 4, 10])
def test_exactly_so_many_steps_whatever_the_epochs(steps: int) -> None:
    batches = seen(10, steps=steps, epochs=2, batch=4)
    assert len(batches) == steps == Training(steps=steps).batches(10)
    assert [len(batch) for batch in batches] == ([4, 4, 2] * 4)[:steps]


def test_a_last_batch_of_one_is_merged_for_batch_norm_only() -> None:
    def sizes(rows: int, batch: int, *, merge: bool) -> list[int]:
        return [
            len(part)
            for part in shuffled_batches(
                rows, Training(epochs=1, batch=batch), generator(), merge_single=merge
            )
        ]

    assert sizes(9, 4, merge=False) == [4, 4, 1]
    assert sizes(9, 4, merge=True) == [4, 5]
    assert sizes(10, 4, merge=True) == [4, 4, 2]
    assert sizes(1, 4, merge=True) == [1]
    assert [len(batch) for batch in seen(9, batch=4)] == [4, 4, 1]


def test_batch_norm_trains_with_a_last_batch_of_one() -> None:
    model = normed()
    assert supervised(model, *examples(9), Training(batch=4, epochs=2), generator()) == 4
    assert model.get_buffer("1.num_batches_tracked").item() == 4
    assert torch.isfinite(weights(model)).all()


def test_a_client_with_one_sample_trains_with_batch_norm() -> None:
    model = normed()
    before = weights(model)
    statistics = [buffer.clone() for buffer in model.buffers()]
    assert supervised(model, *examples(1), Training(epochs=3, lr=0.5), generator()) == 3
    assert torch.isfinite(weights(model)).all()
    assert not torch.equal(weights(model), before)
    for buffer, untouched in zip(model.buffers(), statistics, strict=True):
        assert torch.equal(buffer, untouched)


@pytest.mark.parametrize("settings", [{"epochs": 2}, {"steps": 3}], ids=str)
def test_without_samples_nothing_changes(settings: dict[str, Any]) -> None:
    model = net()
    training = Training(**{"epochs": 1, "weight_decay": 0.1, **settings})
    assert supervised(model, *examples(0), training, generator()) == 0 == training.batches(0)
    assert torch.equal(weights(model), weights(net()))


def test_batches_of_channels_last_images_keep_layout_and_values() -> None:
    x = torch.arange(5.0 * 3 * 4 * 4).reshape(5, 3, 4, 4)
    rows = torch.tensor([4, 0, 2])
    last = take(x.to(memory_format=torch.channels_last), rows)
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(last, x[rows])
    assert take(x, rows).is_contiguous()
    assert torch.equal(take(x, rows), x[rows])
    assert torch.equal(take(x[:, :, ::2], rows), x[:, :, ::2][rows])
    assert torch.equal(take(x[:, 0, 0], rows), x[:, 0, 0][rows])


class Watcher(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 2)
        self.batches: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.batches.append(x.clone())
        logits: Tensor = self.layer(x.flatten(1))
        return logits


def test_augmentation_changes_images_and_leaves_vectors() -> None:
    images = torch.rand(6, 1, 8, 8, generator=generator(3))
    y = torch.zeros(6, dtype=torch.long)
    plain, augmented, vectors = Watcher(), Watcher(), Watcher()
    supervised(plain, images, y, Training(), generator())
    supervised(augmented, images, y, Training(epochs=1, augment=True), generator())
    supervised(vectors, images.flatten(1), y, Training(epochs=1, augment=True), generator())
    order = torch.randperm(6, generator=generator())
    assert torch.equal(plain.batches[0], images[order])
    assert not torch.equal(augmented.batches[0], images[order])
    assert torch.equal(vectors.batches[0], images[order].flatten(1))
    assert set(augmented.batches[0].flatten().tolist()) <= {0.0, *images.flatten().tolist()}


# -- moments between rounds ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [{"momentum": 0.9}, {"optimiser": "adam"}, {"optimiser": "amsgrad"}, {"optimiser": "adamw"}, {}],
    ids=str,
)
def test_kept_moments_make_two_rounds_one_uninterrupted_training(settings: dict[str, Any]) -> None:
    x, y = examples(10)
    whole, parts = net(), net()
    supervised(whole, x, y, Training(epochs=2, batch=4, lr=0.01, **settings), generator())
    stream = generator()
    training = Training(epochs=1, batch=4, lr=0.01, keep_optimiser=True, **settings)
    memory: dict[str, Any] = {}
    supervised(parts, x, y, training, stream, memory=memory)
    memory = decode(encode(memory))  # as after a checkpoint
    supervised(parts, x, y, training, stream, memory=memory)
    assert torch.equal(weights(parts), weights(whole))


def test_moments_are_forgotten_unless_kept() -> None:
    x, y = examples(10)
    whole, parts = net(), net()
    supervised(whole, x, y, Training(epochs=2, batch=4, momentum=0.9), generator())
    stream, memory = generator(), dict[str, Any]()
    for _ in range(2):
        supervised(parts, x, y, Training(epochs=1, batch=4, momentum=0.9), stream, memory=memory)
    assert memory == {}
    assert not torch.allclose(weights(parts), weights(whole), atol=1e-4)
