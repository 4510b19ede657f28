"""Forward passes that leave no trace: outputs counted, modes put back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from polyfed.errors import ModelError
from polyfed.models import build, in_mode, materialise, output_count


@pytest.mark.parametrize("training", [True, False])
def test_every_part_is_in_the_mode_for_a_while_and_has_its_own_back(training: bool) -> None:
    inner = nn.Sequential(nn.Dropout(), nn.ReLU()).eval()
    inner[1].train()
    model = nn.Sequential(nn.Linear(2, 2), inner)
    before = [part.training for part in model.modules()]
    assert before == [True, True, False, False, True]
    with in_mode(model, training=training):
        assert all(part.training is training for part in model.modules())
    assert [part.training for part in model.modules()] == before
    with pytest.raises(KeyboardInterrupt), in_mode(model, training=training):
        raise KeyboardInterrupt
    assert [part.training for part in model.modules()] == before


class Counting(nn.Module):
    """Changes a buffer and draws a number in each forward, and has parts in different modes."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))
        self.norm = nn.BatchNorm1d(3)
        self.linear = nn.Linear(3, 7)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        logits: Tensor = self.linear(self.norm(x + torch.rand(1)))
        return logits


def test_counting_outputs_leaves_modes_buffers_and_random_state_alone() -> None:
    model = Counting().train()
    model.norm.eval()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    random = torch.get_rng_state()
    assert output_count(model, (3,)) == 7
    assert (model.training, model.norm.training, model.linear.training) == (True, False, True)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_counting_outputs_works_for_built_in_models() -> None:
    assert output_count(build("resnet8", (3, 16, 16), 12), (3, 16, 16)) == 12


def test_a_model_that_does_not_fit_the_shape_is_named_with_the_shape_in_one_line() -> None:
    model = build("resnet8", (3, 16, 16), 12)
    with pytest.raises(
        ModelError, match=r"model 'resnet8' cannot take inputs of shape \(1, 16, 16\)"
    ) as caught:
        output_count(model, (1, 16, 16))
    assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match=r"model 'Linear' cannot take inputs of shape \(5,\)"):
        output_count(nn.Linear(3, 2), (5,))


def test_outputs_that_are_not_rows_of_logits_are_refused() -> None:
    with pytest.raises(ModelError, match=r"gives \(1, 2, 3\)"):
        output_count(nn.Identity(), (2, 3))
    with pytest.raises(ModelError, match="returns tuple"):
        output_count(nn.LSTM(3, 2), (4, 3))


def lazy() -> nn.Module:
    return nn.Sequential(
        nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.LazyLinear(5)
    )


def test_lazy_layers_get_their_sizes_and_nothing_else_changes() -> None:
    model = lazy()
    torch.manual_seed(3)
    materialise(model, (1, 8, 8))
    assert output_count(model, (1, 8, 8)) == 5
    assert all(part.training for part in model.modules())
    assert model[1].running_mean.tolist() == [0] * 4  # type: ignore[index]
    assert model[5].weight.shape == (5, 4 * 6 * 6)  # type: ignore[index]
    again = lazy()
    torch.manual_seed(3)
    materialise(again, (1, 8, 8))
    for one, other in zip(model.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_a_model_without_lazy_layers_is_not_run() -> None:
    class Untouchable(nn.Linear):
        def forward(self, _: torch.Tensor) -> torch.Tensor:
            raise AssertionError

    materialise(Untouchable(3, 2), (3,))


def test_lazy_layers_that_cannot_be_filled_are_told_in_one_line() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.LazyLinear(2), nn.LazyLinear(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)  # type: ignore[no-any-return]

    with pytest.raises(ModelError, match=r"has a lazy layer that its forward never uses: 'spare.weight'"):
        materialise(Spare(), (3,))
    with pytest.raises(ModelError, match=r"^model 'Sequential' cannot take inputs of shape \(3,\): [^\n]*$"):
        materialise(lazy(), (3,))
