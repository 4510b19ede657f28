"""A model's features in two dimensions."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polyfed.data import load
from polyfed.experiments.reproduce.features import features_of, principal_components
from polyfed.models import build


def test_principal_components_by_hand() -> None:
    # Three points on the line (1, 2, 2) / 3 and its twin across it: all variance is along these two.
    along, across = torch.tensor([1.0, 2.0, 2.0]) / 3, torch.tensor([2.0, 1.0, -2.0]) / 3
    features = torch.stack([-6 * along, 6 * along, 3 * across, -3 * across]) + torch.tensor([7.0, 8.0, 9.0])
    points, shares = principal_components(features)
    # 2 · 36 along and 2 · 9 across: 4/5 and 1/5. The largest entry of a direction is positive.
    assert shares == pytest.approx([0.8, 0.2])
    assert points[:, 0].tolist() == pytest.approx([-6, 6, 0, 0], abs=1e-5)
    assert points[:, 1].abs().tolist() == pytest.approx([0, 0, 3, 3], abs=1e-5)


def test_the_same_features_give_the_same_picture() -> None:
    features = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    points, shares = principal_components(features)
    again, _ = principal_components(features.flip(0))
    assert torch.allclose(again.flip(0), points, atol=1e-9)
    assert 1 > shares[0] > shares[1] > 0


def test_features_are_what_the_last_layer_sees_in_evaluation_mode() -> None:
    """Batch by batch, and with BatchNorm's running statistics: a row's features do not depend on the others."""
    model = build("cnn-small", (1, 8, 8), 10, generator=torch.Generator().manual_seed(0))
    rows = load("digits").rows(range(300))
    found = features_of(model.train(), rows)
    assert found.shape == (300, 64)
    assert model.training
    assert torch.allclose(found[290:], features_of(model, rows[range(290, 300)]), atol=1e-6)
    head = model.head
    assert isinstance(head, nn.Linear)
    assert torch.allclose(head(found[:5]), model.eval()(rows[range(5)].inputs()), atol=1e-5)
