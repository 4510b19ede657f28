"""Rows that are drawn so that classes come alike often."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyfed.errors import ConfigError
from polyfed.learn import (
    Distillation,
    Peer,
    Training,
    batches,
    check_balancing,
    draw_batch,
    mutual,
    row_weights,
    supervised,
)
from polyfed.learn.sampling import random_order

BALANCED = Training(epochs=1, batch=4, sampling="balanced")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def weights(labels: Any) -> list[float]:
    found = row_weights(torch.as_tensor(labels), BALANCED)
    assert found is not None
    return found.tolist()


def test_a_row_weighs_one_over_the_rows_of_its_class() -> None:
    assert weights([5, 2, 5, 5, -1, 2]) == pytest.approx([1 / 3, 1 / 2, 1 / 3, 1 / 3, 1, 1 / 2])


def test_of_several_labels_the_rarest_counts_and_none_is_a_class() -> None:
    """Label 0 is in three rows, label 1 in one; two rows have neither."""
    labels = [[1, 0], [1, 0], [1, 1], [0, 0], [0, 0]]
    expected = pytest.approx([1 / 3, 1 / 3, 1, 1 / 2, 1 / 2])
    assert weights(labels) == expected
    assert weights(torch.tensor(labels, dtype=torch.float32)) == expected
    assert weights(torch.tensor(labels, dtype=torch.bool)) == expected


@pytest.mark.parametrize(
    "labels",
    [torch.tensor([0.5, 1.0]), torch.tensor([[0.5, 1.0]]), torch.zeros(4, 2, 2), torch.tensor([[0, 2]])],
    ids=["numbers", "shares", "three dimensions", "counts"],
)
def test_what_is_no_class_is_refused(labels: Tensor) -> None:
    for refuse in (check_balancing, lambda labels: row_weights(labels, BALANCED)):
        with pytest.raises(ConfigError, match=r"set training\.sampling=all"):
            refuse(labels)
    assert row_weights(labels, Training()) is None


def test_rows_are_drawn_as_often_as_their_weights_say() -> None:
    """Of 10,000 draws a class of three has half of them, give or take 5 standard deviations: 250."""
    drawn = torch.cat(
        [random_order(4, generator(seed), torch.tensor([1.0, 1 / 3, 1 / 3, 1 / 3])) for seed in range(2500)]
    )
    counts = drawn.bincount(minlength=4)
    assert counts.sum() == 10_000
    assert abs(counts[0].item() - 5000) < 250
    assert all(abs(count - 5000 / 3) < 200 for count in counts[1:].tolist())


def test_a_rare_class_comes_as_often_and_an_epoch_is_as_long() -> None:
    labels = torch.zeros(4000, dtype=torch.int64)
    labels[:40] = 1
    x = torch.arange(4000.0).unsqueeze(1)
    training = Training(epochs=2, batch=100, sampling="balanced")
    found = list(batches(x, training, generator(), weights=row_weights(labels, training)))
    assert len(found) == 80 and all(len(rows) == 100 for rows, _ in found)
    rows = torch.cat([rows for rows, _ in found])
    assert abs(labels[rows].float().mean().item() - 0.5) < 0.03
    assert torch.equal(torch.cat([batch for _, batch in found]), x[rows])
    assert not torch.equal(rows[:4000], rows[4000:])
    steps = Training(steps=3, batch=100, sampling="balanced")
    assert len(list(batches(x, steps, generator(), weights=row_weights(labels, steps)))) == 3


def test_batches_are_merged_for_batch_norm_here_too() -> None:
    x, labels = torch.zeros(5, 1), torch.tensor([0, 0, 0, 0, 1])
    found = batches(x, BALANCED, generator(), nn.BatchNorm1d(1), weights=row_weights(labels, BALANCED))
    assert [len(rows) for rows, _ in found] == [5]


def test_a_loop_that_does_not_balance_is_told_so() -> None:
    said = r"pass weights=learn\.row_weights\(y, training\)"
    with pytest.raises(ValueError, match=said):
        next(batches(torch.zeros(4, 1), BALANCED, generator()))


def test_one_class_and_no_rows_at_all_are_fine() -> None:
    x = torch.zeros(3, 1)
    labels = torch.ones(3, dtype=torch.int64)
    assert len(list(batches(x, BALANCED, generator(), weights=row_weights(labels, BALANCED)))) == 1
    assert not list(batches(x[:0], BALANCED, generator(), weights=row_weights(labels[:0], BALANCED)))


def test_single_batches_are_drawn_so_too() -> None:
    x, labels = torch.zeros(100, 1), torch.zeros(100, dtype=torch.int64)
    labels[0] = 1
    rows = [draw_batch(x, labels, BALANCED, generator(seed), generator())[0] for seed in range(500)]
    assert all(len(each) == 4 for each in rows)
    assert abs(labels[torch.cat(rows)].float().mean().item() - 0.5) < 0.06


class Bias(nn.Module):
    """Two logits whatever the input: training fits them to how often each class is seen."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.logits.expand(len(x), 2)


@pytest.mark.parametrize(("sampling", "expected"), [("all", 0.9), ("balanced", 0.5)])
@pytest.mark.parametrize("how", ["supervised", "mutual"])
def test_a_model_learns_how_often_classes_come(how: str, sampling: Any, expected: float) -> None:
    x, y = torch.zeros(200, 1), (torch.arange(200) >= 180).long()
    training = Training(epochs=20, batch=50, lr=0.5, decay=1.0, within="linear", sampling=sampling)
    model = Bias()
    if how == "supervised":
        supervised(model, x, y, training, generator())
    else:
        mutual(Peer(model, other=0.0), Peer(Bias()), x, y, training, generator())
    assert model.logits.softmax(0)[0].item() == pytest.approx(expected, abs=0.05)


def test_answers_are_not_balanced() -> None:
    with pytest.raises(ValueError, match="`sampling` is for labelled rows"):
        Distillation(sampling="balanced")
