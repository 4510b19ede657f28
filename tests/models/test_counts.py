"""Parameter counts against the papers and the public nets they used."""

from __future__ import annotations

import pytest

from polyfed.models import Shape, build, size

CIFAR: Shape = (3, 32, 32)
MNIST: Shape = (1, 28, 28)


# Shi, Radu and Yang (2022), Table 1: 79k, 177k, 274k, 372k, 469k, 567k are the biased ones.
@pytest.mark.parametrize(
    ("depth", "biased", "usual"),
    [
        (10, 79_486, 79_150),
        (16, 176_926, 176_366),
        (22, 274_366, 273_582),
        (28, 371_806, 370_798),
        (34, 469_246, 468_014),
        (40, 566_686, 565_230),
    ],
)
def test_wide_resnets_with_30_outputs_have_the_sizes_of_paper_000(
    depth: int, biased: int, usual: int
) -> None:
    assert size(f"wrn-{depth}-1-biased", CIFAR, outputs=30).parameters == biased
    assert size(f"wrn-{depth}-1", CIFAR, outputs=30).parameters == usual


@pytest.mark.parametrize(
    ("name", "shape", "outputs", "count"),
    [
        ("mlp-small", MNIST, 10, 784 * 64 + 64 + 64 * 10 + 10),
        ("mlp", MNIST, 10, 784 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10),
        ("mlp-large", MNIST, 10, 269_322),
        ("cnn", CIFAR, 10, 151_978),
        ("cnn-small", CIFAR, 10, 38_618),
        ("lenet5", MNIST, 10, 61_706),
        ("lenet5", (1, 32, 32), 10, 61_706),
        ("lenet5-fedkf", (1, 32, 32), 26, 63_066),
        ("lenet-caffe", MNIST, 10, 431_080),
        ("resnet8", CIFAR, 10, 75_290),
        ("resnet8-b", CIFAR, 10, 78_042),
        ("resnet20", CIFAR, 10, 269_722),
        ("resnet20-b", CIFAR, 10, 272_474),
        ("resnet32", CIFAR, 10, 464_154),
        ("resnet32-b", CIFAR, 10, 466_906),
        ("resnet44", CIFAR, 10, 658_586),
        ("resnet44-b", CIFAR, 10, 661_338),
        ("resnet56", CIFAR, 10, 853_018),
        ("resnet56-b", CIFAR, 10, 855_770),
        ("resnet8-fedkf", CIFAR, 10, 1_227_594),
        ("resnet8-fedkf", CIFAR, 100, 1_250_724),
        ("resnet18", CIFAR, 10, 11_173_962),
        ("resnet34", CIFAR, 10, 21_282_122),
        ("resnet18-imagenet", (3, 224, 224), 1000, 11_689_512),
        ("resnet34-imagenet", (3, 224, 224), 1000, 21_797_672),
        ("wrn-16-1", CIFAR, 10, 175_066),
        ("wrn-40-1", CIFAR, 10, 563_930),
        ("wrn-40-2", CIFAR, 10, 2_243_546),
        ("vgg11", CIFAR, 10, 9_750_922),
        ("vgg11-linear", CIFAR, 10, 9_225_610),
        ("alexnet", CIFAR, 10, 4_560_714),
        # The published nets with 1000 outputs, head replaced: 1281 (1025) parameters per output.
        ("mobilenetv2", CIFAR, 10, 3_504_872 - 990 * 1281),
        ("efficientnet-b0", CIFAR, 10, 5_288_548 - 990 * 1281),
        ("shufflenetv2", CIFAR, 10, 2_278_604 - 990 * 1025),
    ],
)
def test_parameters_are_those_of_the_published_net(name: str, shape: Shape, outputs: int, count: int) -> None:
    assert size(name, shape, outputs).parameters == count


def test_group_norm_has_as_many_parameters_as_batch_norm() -> None:
    for name in ("cnn", "resnet20", "wrn-16-1", "mobilenetv2"):
        assert size(name, CIFAR, norm="group").parameters == size(name, CIFAR, norm="batch").parameters


@pytest.mark.parametrize("name", ["lenet5", "lenet5-fedkf", "lenet-caffe", "cnn", "vgg11", "alexnet"])
def test_parameters_do_not_depend_on_the_size_of_the_image(name: str) -> None:
    counts = {size(name, (3, *sides)).parameters for sides in ((8, 8), (9, 31), (32, 32), (33, 33), (64, 48))}
    assert len(counts) == 1


def test_the_count_of_a_name_is_that_of_the_model_it_builds() -> None:
    model = build("resnet20", CIFAR, 10)
    assert sum(p.numel() for p in model.parameters()) == 269_722
