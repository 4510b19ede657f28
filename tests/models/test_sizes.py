"""Parameters, multiply-accumulates and memory, worked out by hand for small models."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polyfed.errors import ModelError
from polyfed.models import Norm, build, names, size, table
from polyfed.models.sizes import Size


def test_size_of_a_small_mlp() -> None:
    # 6-64-3: 6·64 + 64·3 MACs; weights and biases twice (gradients); autograd keeps per row the 6 inputs and
    # the 64 hidden units (result of ReLU and input of the head), 4 bytes each.
    parameters = 6 * 64 + 64 + 64 * 3 + 3
    memory = 4 * (2 * parameters + 5 * (6 + 64))
    expected = Size(parameters, 6 * 64 + 64 * 3, memory, weights_bytes=4 * parameters)
    assert size("mlp-small", (6,), 3, batch=5) == expected


def test_weights_are_parameters_and_buffers_as_they_travel() -> None:
    # 4 weights and 2 biases; of the norm scale, shift, mean and variance of 2 channels, and a count of 8 bytes.
    net = nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2))
    assert size(net, (2, 4, 4)).weights_bytes == 4 * (4 + 2 + 4 * 2) + 8
    made = build("resnet20", (3, 32, 32), 10)
    assert size("resnet20", (3, 32, 32)).weights_bytes == sum(t.nbytes for t in made.state_dict().values())


def test_macs_of_a_small_convolutional_net() -> None:
    # cnn-small on 1×8×8: 3×3 convolution to 16 maps on 8×8, pool to 4×4, 3×3 from 16 to 32 maps on 4×4,
    # no second pool (it would leave 2), 512-64, 64-10.
    macs = 64 * 16 * 9 + 16 * 32 * 16 * 9 + 512 * 64 + 64 * 10
    assert size("cnn-small", (1, 8, 8), 10).macs == macs


def test_macs_of_lenet5() -> None:
    # 28·28 × 6 × 25, 10·10 × 16 × 6·25, 400-120, 120-84, 84-10.
    macs = 784 * 6 * 25 + 100 * 16 * 150 + 400 * 120 + 120 * 84 + 84 * 10
    assert size("lenet5", (1, 28, 28)).macs == macs


def test_macs_of_grouped_and_transposed_convolutions() -> None:
    grouped = nn.Conv2d(4, 8, 3, padding=1, groups=2)  # 5·5 pixels × 8 maps × 2 inputs × 9
    transposed = nn.ConvTranspose2d(4, 6, 2, stride=2)  # 5·5 pixels × 4 inputs × 6 maps × 4
    assert size(grouped, (4, 5, 5)).macs == 25 * 8 * 2 * 9
    assert size(transposed, (4, 5, 5)).macs == 25 * 4 * 6 * 4


def test_macs_are_counted_whichever_way_a_model_computes() -> None:
    class ByFunctions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.filters, self.weight = (
                nn.Parameter(torch.zeros(2, 1, 3, 3)),
                nn.Parameter(torch.zeros(50, 4)),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen = nn.functional.conv2d(x, self.filters, padding=1).flatten(1)
            return nn.functional.linear(seen @ self.weight, torch.eye(4)) + torch.einsum(
                "ni,ij->nj", seen, self.weight
            )

    # 5·5 pixels × 2 maps × 9, 50-4 by @, 4-4 by F.linear, 50-4 by einsum.
    assert size(ByFunctions(), (1, 5, 5)).macs == 25 * 2 * 9 + 50 * 4 + 4 * 4 + 50 * 4


def test_memory_of_a_batch_normed_module() -> None:
    # Per row: the 2×4×4 input of the norm and the 32 inputs of the head. Once: mean and deviation of 2
    # channels. Buffers: 2 running means, 2 variances, one counter of 8 bytes.
    model = nn.Sequential(nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 3))
    parameters = 4 + 32 * 3 + 3
    fixed = 4 * 2 * parameters + 4 * 4 + 8
    assert size(model, (2, 4, 4), batch=6).memory_bytes == fixed + 4 * (6 * (32 + 32) + 4)


def test_frozen_parameters_have_no_gradients_in_memory() -> None:
    model = nn.Linear(10, 10)
    whole = size(model, (10,)).memory_bytes
    model.weight.requires_grad_(False)
    # Nothing asks for the input then: only the bias is trained.
    assert size(model, (10,)).memory_bytes == whole - 400 - 40


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("name", ["resnet8", "resnet8-b", "wrn-10-1-biased", "mobilenetv2", "shufflenetv2"])
def test_a_name_measures_the_same_as_the_model_it_builds(name: str, norm: Norm) -> None:
    built = build(name, (3, 8, 8), 10, norm=norm)
    assert size(name, (3, 8, 8), norm=norm, batch=3) == size(built, (3, 8, 8), batch=3)


def test_measuring_leaves_a_module_and_the_random_state_alone() -> None:
    model = build("resnet8", (3, 8, 8), 10).eval()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    random = torch.get_rng_state()
    size(model, (3, 8, 8))
    assert not any(part.training for part in model.modules())
    assert not any(part._forward_hooks for part in model.modules())
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)


def test_size_refuses_an_empty_batch_and_unknown_names() -> None:
    with pytest.raises(ModelError, match="batch must be at least 1"):
        size("mlp", (3,), batch=0)
    with pytest.raises(ModelError, match="did you mean 'mlp'"):
        size("mpl", (3,))


def test_the_table_has_a_row_for_each_model_that_takes_the_shape() -> None:
    rows = table("resnet8*", (1, 8, 8))
    assert [row.name for row in rows] == ["resnet8", "resnet8-b", "resnet8-fedkf"]
    assert [row.channels_last for row in rows] == [True, True, False]
    assert [row.features for row in rows] == [64, 64, 256]
    assert rows[0].size == size("resnet8", (1, 8, 8))
    assert [row.name for row in table("*", (20,))] == names("mlp*")
