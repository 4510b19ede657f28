"""Deep mutual learning in numbers: both directions, peers that are constants, one after the other or at once."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed import models
from polyfed.federation.message import decode, encode
from polyfed.learn import Learner, Peer, Training, batches, mutual, weights_of

LR = 0.5
ONE_BATCH = Training(epochs=1, batch=8, lr=LR)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


class Constant(nn.Module):
    """Answers every row with the logits (a, 0): p = (σ(a), 1 - σ(a))."""

    def __init__(self, a: float) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(a))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.a, torch.zeros(())]).expand(len(x), 2)


def sigmoid(a: float) -> float:
    return 1 / (1 + math.exp(-a))


def log_odds(p: float) -> float:
    return math.log(p / (1 - p))


def data(rows: int = 2) -> tuple[Tensor, Tensor]:
    """Rows of which nothing matters, all of class 0."""
    return torch.zeros(rows, 1), torch.zeros(rows, dtype=torch.long)


def test_the_loss_by_hand_in_both_directions() -> None:
    """p = (0.8, 0.2), peer (0.5, 0.5), class 0: CE = ln 1.25, KL(peer ‖ self) = ½ ln (0.5/0.8) + ½ ln (0.5/0.2).

    The other way, CE = ln 2 and KL = 0.8 ln (0.8/0.5) + 0.2 ln (0.2/0.5).
    """
    sure, unsure = (torch.tensor([[log_odds(p), 0.0]]) for p in (0.8, 0.5))
    peer, label = Peer(nn.Identity(), own=2.0, other=3.0), torch.tensor([0])
    one = 2 * math.log(1.25) + 3 * (math.log(0.5 / 0.8) + math.log(0.5 / 0.2)) / 2
    assert peer.loss(sure, label, unsure).item() == pytest.approx(one, abs=1e-6)
    other = 2 * math.log(2) + 3 * (0.8 * math.log(1.6) + 0.2 * math.log(0.4))
    assert peer.loss(unsure, label, sure).item() == pytest.approx(other, abs=1e-6)


def test_a_mean_over_rows_and_a_sum_over_classes() -> None:
    logits, said = torch.randn(2, 4, 3, generator=generator())
    labels = torch.tensor([0, 2, 1, 1])
    each = [
        -F.log_softmax(z, dim=0)[y] + sum(q * (q.log() - p.log()))
        for z, y, q, p in zip(logits, labels, said.softmax(dim=1), logits.softmax(dim=1), strict=True)
    ]
    assert torch.allclose(Peer(nn.Identity()).loss(logits, labels, said), sum(each) / 4, atol=1e-6)


@pytest.mark.parametrize("in_turn", [False, True])
def test_one_step_by_hand(in_turn: bool) -> None:
    """d/da of CE is p - 1, of KL(q ‖ p) is p - q. With a = ln 4 (p = 0.8) and b = 0 (q = 0.5), lr ½:

    a ← ln 4 - ½ ((0.8 - 1) + (0.8 - 0.5)) = ln 4 - 0.05
    b ← 0 - ½ ((0.5 - 1) + (0.5 - p))   with p = 0.8 at once, and σ(ln 4 - 0.05) in turn.
    """
    one, two = Constant(math.log(4)), Constant(0.0)
    mutual(Peer(one), Peer(two), *data(), ONE_BATCH, generator(), in_turn=in_turn)
    assert one.a.item() == pytest.approx(math.log(4) - 0.05, abs=1e-6)
    p = sigmoid(math.log(4) - 0.05) if in_turn else 0.8
    assert two.a.item() == pytest.approx(-LR * (-0.5 + 0.5 - p), abs=1e-6)
    assert abs(sigmoid(math.log(4) - 0.05) - 0.8) > 1e-3  # so that the two differ by more than rounding


def test_each_weighs_labels_and_the_other_by_its_own() -> None:
    """FML: a ← a - ½ (α (p - 1) + (1 - α) (p - q)), b with β. p = 0.8, q = 0.5; α = 0.9: -0.15; β = 0.2: -0.34."""
    one, two = Constant(math.log(4)), Constant(0.0)
    mutual(Peer(one, 0.9, 0.1), Peer(two, 0.2, 0.8), *data(), ONE_BATCH, generator())
    assert one.a.item() == pytest.approx(math.log(4) - LR * (0.9 * -0.2 + 0.1 * 0.3), abs=1e-6)
    assert two.a.item() == pytest.approx(-LR * (0.2 * -0.5 + 0.8 * -0.3), abs=1e-6)


def test_cross_entropy_to_the_peers_probabilities_has_the_same_gradient() -> None:
    """So KL also serves papers that write the former."""
    logits, said = torch.randn(2, 4, 3, generator=generator())
    labels = torch.tensor([0, 2, 1, 1])
    given = logits.clone().requires_grad_()
    Peer(nn.Identity()).loss(given, labels, said).backward()
    asked = logits.clone().requires_grad_()
    soft = -(said.softmax(dim=1) * asked.log_softmax(dim=1)).sum(dim=1).mean()
    (F.cross_entropy(asked, labels) + soft).backward()
    assert given.grad is not None and asked.grad is not None
    assert torch.allclose(given.grad, asked.grad, atol=1e-6)


def net(seed: int, *, norm: bool = False) -> nn.Module:
    torch.manual_seed(seed)
    middle = [nn.BatchNorm1d(5)] if norm else []
    return nn.Sequential(nn.Linear(4, 5), *middle, nn.ReLU(), nn.Linear(5, 3))


def rows(count: int = 10) -> tuple[Tensor, Tensor]:
    stream = generator()
    return torch.randn(count, 4, generator=stream), torch.randint(0, 3, (count,), generator=stream)


def by_hand(
    pair: tuple[nn.Module, nn.Module], x: Tensor, y: Tensor, training: Training, *, leaking: bool = False
) -> None:
    """At once. `leaking`: peers are not detached and gradients add up, as in much code of others."""
    stream = generator()
    for model in pair:
        model.train()
    for _ in range(training.epochs):
        for batch in torch.randperm(len(x), generator=stream).split(training.batch):
            z = [model(x[batch]) for model in pair]
            losses = []
            for own, other in ((z[0], z[1]), (z[1], z[0])):
                p = other.softmax(dim=1) if leaking else other.softmax(dim=1).detach()
                losses.append(
                    F.cross_entropy(own, y[batch])
                    + (p * (p.log() - own.log_softmax(dim=1))).sum(dim=1).mean()
                )
            if leaking:
                losses = [losses[0] + losses[1]] * 2
            gradients = [
                torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
                for loss, model in zip(losses, pair, strict=True)
            ]
            with torch.no_grad():
                for model, moves in zip(pair, gradients, strict=True):
                    for parameter, gradient in zip(model.parameters(), moves, strict=True):
                        parameter.sub_(training.lr * gradient)


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "normed"])
def test_epochs_equal_a_loop_by_hand_and_no_gradient_leaks_into_a_peer(norm: bool) -> None:
    training, (x, y) = Training(batch=4, epochs=3, lr=0.1), rows()
    found, expected, leaked = ((net(1, norm=norm), net(2)) for _ in range(3))
    assert mutual(Peer(found[0]), Peer(found[1]), x, y, training, generator()) == 9
    by_hand(expected, x, y, training)
    by_hand(leaked, x, y, training, leaking=True)
    assert all(same(one, other) for one, other in zip(found, expected, strict=True))
    assert not any(same(one, other) for one, other in zip(found, leaked, strict=True))


def test_an_answer_given_again_does_not_count_twice_in_running_statistics() -> None:
    training, (x, y) = Training(epochs=1, batch=5, lr=0.1), rows()
    found = [net(1, norm=True) for _ in range(2)]
    for model, in_turn in zip(found, (False, True), strict=True):
        mutual(Peer(model, other=0.0), Peer(net(2)), x, y, training, generator(), in_turn=in_turn)
    assert same(*found)  # the first is not taught by the second: only its statistics could differ
    assert found[1].get_buffer("1.num_batches_tracked").item() == 2


def test_models_of_two_layouts_see_the_same_augmented_batch() -> None:
    seen: list[Tensor] = []

    def watched(channels_last: bool) -> nn.Module:
        model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(2 * 36, 3))
        model.channels_last = channels_last  # type: ignore[assignment]
        model.register_forward_pre_hook(lambda _model, inputs: seen.append(inputs[0]))
        return model

    x = torch.randn(6, 3, 8, 8, generator=generator()).contiguous(memory_format=torch.channels_last)
    pair = Peer(watched(True)), Peer(watched(False))
    training = Training(epochs=1, batch=6, augment=True)
    mutual(*pair, x, torch.zeros(6, dtype=torch.long), training, generator())
    assert models.memory_format(pair[0].model) is torch.channels_last
    assert seen[0].is_contiguous(memory_format=torch.channels_last) and seen[1].is_contiguous()
    assert torch.equal(*seen)
    assert torch.equal(seen[0], next(batches(x, training, generator()))[1])
    assert not torch.equal(seen[0].sort(dim=0).values, x.sort(dim=0).values)  # it was augmented


def test_a_correction_is_added_to_the_gradients_of_one_alone() -> None:
    """As in one step by hand, with 2 added to the gradient of b: b ← ½ · 0.8 - ½ · 2."""
    one, two = Constant(math.log(4)), Constant(0.0)
    corrected = Peer(two, correction={"a": torch.tensor(2.0)})
    mutual(Peer(one), corrected, *data(), ONE_BATCH, generator())
    assert one.a.item() == pytest.approx(math.log(4) - 0.05, abs=1e-6)
    assert two.a.item() == pytest.approx(LR * 0.8 - LR * 2, abs=1e-6)


def test_each_keeps_moments_of_its_own_and_goes_on_as_if_uninterrupted() -> None:
    x, y = rows(8)
    whole, parts = ((net(1), net(2)) for _ in range(2))
    mutual(Peer(whole[0]), Peer(whole[1]), x, y, Training(batch=4, epochs=2, momentum=0.9), generator())
    training = Training(epochs=1, batch=4, momentum=0.9, keep_optimiser=True)
    stream, memories = generator(), [dict[str, Any](), dict[str, Any]()]
    for _ in range(2):
        one, two = (Peer(model, memory=memory) for model, memory in zip(parts, memories, strict=True))
        mutual(one, two, x, y, training, stream)
        memories = [decode(encode(memory)) for memory in memories]
    assert all(same(one, other) for one, other in zip(whole, parts, strict=True))


def test_without_rows_nothing_is_done_and_a_single_row_leaves_running_statistics() -> None:
    model = net(1, norm=True)
    before = weights_of(model)
    assert mutual(Peer(model), Peer(net(2)), *rows(0), Training(), generator()) == 0
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert mutual(Peer(model), Peer(net(2)), *rows(1), Training(epochs=1), generator(), in_turn=True) == 1
    after = weights_of(model)
    assert torch.equal(before["1.running_mean"], after["1.running_mean"])
    assert all(tensor.isfinite().all() for tensor in after.values())


def test_without_a_say_of_the_other_it_is_plain_training() -> None:
    """Also in turn, where the first is looked at once more."""
    training, (x, y) = Training(batch=4, epochs=2, lr=0.1, momentum=0.9), rows()
    found, alone = (net(1), net(2)), (net(1), net(2))
    one, two = (Peer(model, other=0.0) for model in found)
    mutual(one, two, x, y, training, generator(), in_turn=True)
    for model in alone:
        learner = Learner(model, training)
        for places, batch in batches(x, training, generator(), model):
            learner.step(F.cross_entropy(model(batch), y[places]))
    assert all(same(one, other) for one, other in zip(found, alone, strict=True))
