from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from polyfed.learn import predict, score, weights_of


def normed() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))


class Broken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("broken")


def identity() -> nn.Linear:
    model = nn.Linear(3, 3)
    nn.init.eye_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def test_the_score_counts_rows_whose_largest_logit_is_the_label() -> None:
    x = torch.tensor([[9.0, 0, 0], [0, 1, 0], [1, 0, 2], [0, 3, 4]])
    assert score(identity(), x, torch.tensor([0, 1, 0, 2])) == [3, 4]
    assert score(identity(), x, torch.tensor([1, 0, 0, 1])) == [0, 4]


@pytest.mark.parametrize("batch", [1, 2, 4, 100])
def test_predictions_are_those_of_every_row_in_order(batch: int) -> None:
    x = torch.arange(15.0).reshape(5, 3)
    assert torch.equal(predict(identity(), x, batch), x)


@pytest.mark.parametrize("training", [True, False])
def test_looking_at_a_model_leaves_it_as_it_was(training: bool) -> None:
    model = normed().train(training)
    before = weights_of(model)
    logits = predict(model, torch.randn(9, 3), batch=2)
    assert not logits.requires_grad
    assert all(module.training == training for module in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights_of(model).items())


def test_predictions_are_made_in_evaluation_mode() -> None:
    model = normed().train()
    x = torch.randn(6, 3)
    assert torch.equal(predict(model, x), predict(model, x))
    expected = model.eval()(x).detach()
    assert torch.equal(predict(model.train(), x), expected)


def test_the_mode_is_put_back_after_an_error_too() -> None:
    model = Broken()
    with pytest.raises(RuntimeError, match="broken"):
        predict(model, torch.zeros(1, 3))
    assert model.training
