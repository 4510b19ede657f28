"""What every model must do, whatever its family."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed.models import Network, Norm, Shape, build, features_and_logits, memory_format, names

# One of each kind of block and head; the others differ in depth or width alone.
KINDS = ["mlp", "cnn-small", "lenet5", "lenet5-fedkf", "lenet-caffe", "resnet8", "resnet8-b", "resnet8-fedkf"]
KINDS += ["wrn-10-1", "wrn-10-1-biased", "wrn-16-2", "vgg11", "alexnet", "mobilenetv2", "shufflenetv2"]
KINDS += ["efficientnet-b0"]
NORMED = [name for name in KINDS if not name.startswith(("mlp", "lenet", "vgg", "alexnet"))]


def images(shape: Shape, rows: int = 4) -> Tensor:
    return torch.randn(rows, *shape, generator=torch.Generator().manual_seed(5))


def features_of_head(model: Network) -> int:
    """How many features the head's first linear layer takes."""
    return next(layer.in_features for layer in model.head.modules() if isinstance(layer, nn.Linear))


def check(name: str, shape: Shape, norm: Norm) -> None:
    model = build(name, shape, 5, norm=norm)
    x = images(shape).contiguous(memory_format=memory_format(model))
    features, logits = features_and_logits(model, x)
    assert features.shape == (4, features_of_head(model))
    assert logits.shape == (4, 5)
    loss = F.cross_entropy(logits, torch.tensor([0, 1, 2, 3]))
    # Raises if the loss does not depend on one of the parameters.
    grads = torch.autograd.grad(loss, list(model.parameters()))
    assert all(bool(grad.isfinite().all()) for grad in grads)


@pytest.mark.parametrize("name", names())
def test_every_model_learns_from_the_smallest_images(name: str) -> None:
    check(name, (1, 8, 8), "batch")


@pytest.mark.parametrize("name", [*NORMED, "resnet20", "resnet18"])
def test_every_family_learns_with_group_norm(name: str) -> None:
    check(name, (1, 12, 12), "group")


@pytest.mark.parametrize("name", KINDS)
def test_every_family_learns_from_oblong_images(name: str) -> None:
    check(name, (3, 9, 20), "batch")


@pytest.mark.parametrize("name", KINDS)
def test_every_family_learns_from_cifar_images(name: str) -> None:
    check(name, (3, 32, 32), "batch")


@pytest.mark.parametrize(
    "name", ["mlp", "cnn", "lenet5", "lenet5-fedkf", "lenet-caffe", "resnet8", "alexnet"]
)
def test_larger_images_are_taken_too(name: str) -> None:
    check(name, (3, 64, 64), "batch")


@pytest.mark.parametrize("name", KINDS)
def test_logits_are_the_head_of_the_features(name: str) -> None:
    model = build(name, (3, 16, 16), 4).eval()
    x = images((3, 16, 16))
    with torch.no_grad():
        assert torch.equal(model(x), model.head(model.features(x)))
    assert isinstance(model.head, nn.Sequential if name == "lenet5-fedkf" else nn.Linear)


def test_lenet_of_fedkf_has_120_features() -> None:
    model = build("lenet5-fedkf", (1, 32, 32), 26)
    assert model.features(images((1, 32, 32))).shape == (4, 120)


@pytest.mark.parametrize("name", KINDS)
def test_with_group_norm_there_are_no_buffers(name: str) -> None:
    assert list(build(name, (1, 8, 8), 3, norm="group").buffers()) == []


def test_resnet8_of_fedkf_normalises_each_channel_by_itself_whatever_the_norm() -> None:
    model = build("resnet8-fedkf", (3, 8, 8), 10, norm="batch")
    groups = [
        (part.num_groups, part.num_channels) for part in model.modules() if isinstance(part, nn.GroupNorm)
    ]
    assert len(groups) == 9
    assert all(count == channels for count, channels in groups)


def test_only_mlps_are_stackable_and_they_have_no_buffers() -> None:
    assert [name for name in KINDS if build(name, (1, 8, 8), 3).stackable] == ["mlp"]
    for name in names("mlp*"):
        model = build(name, (1, 8, 8), 3)
        assert model.stackable
        assert list(model.buffers()) == []


def test_stacked_mlps_compute_what_each_computes() -> None:
    models = [build("mlp", (6,), 3, generator=torch.Generator().manual_seed(k)) for k in range(3)]
    stacked, _ = torch.func.stack_module_state(list[nn.Module](models))
    x = images((6,))

    def call(parameters: dict[str, Tensor], rows: Tensor) -> Tensor:
        logits: Tensor = torch.func.functional_call(models[0], parameters, (rows,))
        return logits

    together = torch.func.vmap(call, in_dims=(0, None))(stacked, x)
    apart = torch.stack([model(x) for model in models])
    torch.testing.assert_close(together, apart)


def test_channels_last_models_come_converted_and_compute_the_same() -> None:
    model = build("resnet8", (3, 16, 16), 10).eval()
    stem = next(part for part in model.modules() if isinstance(part, nn.Conv2d))
    assert memory_format(model) == torch.channels_last
    assert stem.weight.is_contiguous(memory_format=torch.channels_last)
    x = images((3, 16, 16))
    torch.testing.assert_close(model(x.contiguous(memory_format=torch.channels_last)), model(x))


class Own(nn.Module):
    """A user's own module, which knows nothing of memory formats."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(self.convolution(x).mean((2, 3)))
        return logits


OWN: dict[str, Callable[[], nn.Module]] = {
    "own module": Own,
    "sequence": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 2)),
    "own network": lambda: Network(nn.Flatten(), nn.Linear(192, 2)),
    "built-in": lambda: build("mlp", (3, 8, 8), 2),
}


@pytest.mark.parametrize("kind", OWN)
def test_channels_last_can_be_set_on_any_module_and_its_copies_keep_it(kind: str) -> None:
    model = OWN[kind]()
    assert memory_format(model) == torch.contiguous_format
    model.channels_last = True  # type: ignore[assignment]
    sent = io.BytesIO()
    torch.save(model, sent)
    sent.seek(0)
    copies = [model, copy.deepcopy(model), copy.copy(model), torch.load(sent, weights_only=False)]
    for each in copies:
        assert memory_format(each) == torch.channels_last
        each.to(memory_format=torch.channels_last)
        assert "channels_last" not in each.state_dict()
        logits = each(images((3, 8, 8)).contiguous(memory_format=memory_format(each)))
        torch.testing.assert_close(logits, model(images((3, 8, 8))))
    assert memory_format(OWN[kind]()) == torch.contiguous_format  # others of the class are as they were


def test_option_a_shortcut_drops_every_second_pixel_and_pads_both_sides_with_zero_channels() -> None:
    from polyfed.models.residual import PaddedShortcut

    x = torch.arange(8.0).reshape(1, 2, 2, 2)  # channel 0: 0 1 / 2 3, channel 1: 4 5 / 6 7
    assert PaddedShortcut(extra=2, stride=2)(x).flatten().tolist() == [0.0, 0.0, 4.0, 0.0]


def test_shuffle_interleaves_the_halves_of_the_channels() -> None:
    from polyfed.models.shufflenet import shuffle

    x = torch.arange(6.0).reshape(1, 6, 1, 1)
    assert shuffle(x).flatten().tolist() == [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]


@pytest.mark.parametrize(
    ("channels", "groups"), [(4, 1), (16, 2), (24, 3), (58, 2), (64, 8), (512, 32), (960, 32)]
)
def test_groups_hold_eight_channels_or_more_and_divide_them(channels: int, groups: int) -> None:
    from polyfed.models.layers import group_count

    assert group_count(channels) == groups
    assert channels % groups == 0


def test_a_network_says_nothing_of_itself_until_the_registry_names_it() -> None:
    assert Network(nn.Flatten(), nn.Linear(3, 2)).name == ""
    assert build("MLP", (3,), 2).name == "mlp"
