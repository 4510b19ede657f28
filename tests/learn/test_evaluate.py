from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from polyfed.learn import Ensemble, predict, score, weights_of


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


def test_an_answer_can_be_chosen_among_the_first_outputs_only() -> None:
    """Rows whose third output is the largest: among two outputs, the better of those counts."""
    x = torch.tensor([[9.0, 0, 0], [0, 1, 5], [1, 0, 2], [0, 3, 4]])
    y = torch.tensor([0, 1, 0, 0])
    assert score(identity(), x, y) == [1, 4]  # 0, 2, 2, 2
    assert score(identity(), x, y, 3) == [1, 4]
    assert score(identity(), x, y, 2) == [3, 4]  # 0, 1, 0, 1
    assert score(identity(), x, y, 1) == [3, 4]  # always 0


def test_an_ensemble_answers_with_the_mean_of_its_members_logits() -> None:
    """(2, 0, 1) and (0, 3, 1) have the mean (1, 1.5, 1): the second output, though one member says the first."""
    first, second = identity(), identity()
    nn.init.constant_(second.weight, 0.0)
    with torch.no_grad():
        second.bias.copy_(torch.tensor([0.0, 3.0, 1.0]))
    ensemble = Ensemble([first, second])
    x = torch.tensor([[2.0, 0.0, 1.0]])
    assert torch.equal(predict(ensemble, x), torch.tensor([[1.0, 1.5, 1.0]]))
    assert score(ensemble, x, torch.tensor([1])) == [1, 1]
    assert score(first, x, torch.tensor([1])) == [0, 1]


def test_an_ensembles_members_are_looked_at_in_evaluation_mode() -> None:
    members = [normed().train(), normed().train()]
    before = [weights_of(member) for member in members]
    x = torch.randn(6, 3)
    expected = (predict(members[0], x) + predict(members[1], x)) / 2
    assert torch.allclose(predict(Ensemble(members), x), expected, atol=1e-6)
    for member, then in zip(members, before, strict=True):
        assert member.training
        assert all(torch.equal(tensor, then[name]) for name, tensor in weights_of(member).items())


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
