from __future__ import annotations

import pytest
import torch
from torch import nn

from polyfed.learn import batch_statistics, evaluating, recompute_statistics, weights_of


def rows(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).unsqueeze(1)


def spoilt(momentum: float | None = 0.1) -> nn.BatchNorm1d:
    """A layer whose statistics are those of other data."""
    layer = nn.BatchNorm1d(1, momentum=momentum)
    layer.running_mean = torch.tensor([50.0])
    layer.running_var = torch.tensor([float("nan")])
    layer.num_batches_tracked = torch.tensor(99)
    return layer


def mean_of(layer: nn.Module) -> float:
    return layer.get_buffer("running_mean").item()


def variance_of(layer: nn.Module) -> float:
    return layer.get_buffer("running_var").item()


def test_statistics_of_one_batch_are_mean_and_variance_of_the_rows() -> None:
    layer = spoilt()
    recompute_statistics(layer, rows(1, 2, 6), batch=10)
    # mean 3; (4 + 1 + 9) / 2: torch keeps the unbiased variance
    assert mean_of(layer) == pytest.approx(3)
    assert variance_of(layer) == pytest.approx(7)


def test_statistics_of_several_batches_count_by_their_rows() -> None:
    layer = spoilt()
    recompute_statistics(layer, rows(0, 10, 2, 20, 4), batch=2)
    # every other row: (0, 2, 4) and (10, 20); means 2 and 15, variances 4 and 50
    assert mean_of(layer) == pytest.approx((3 * 2 + 2 * 15) / 5)
    assert variance_of(layer) == pytest.approx((3 * 4 + 2 * 50) / 5)
    assert layer.num_batches_tracked == 2


def test_rows_sorted_by_class_do_not_lose_the_spread_between_classes() -> None:
    layer = spoilt()
    recompute_statistics(layer, torch.repeat_interleave(rows(-1, 1), 64, dim=0), batch=16)
    assert variance_of(layer) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 100])
def test_no_row_is_left_out_whatever_the_batch(batch: int) -> None:
    layer = spoilt()
    x = torch.randn(13, 1, generator=torch.Generator().manual_seed(0))
    recompute_statistics(layer, x, batch)
    assert mean_of(layer) == pytest.approx(x.mean().item(), abs=1e-6)


def test_a_single_row_leaves_the_statistics_as_they_were() -> None:
    layer = nn.BatchNorm1d(1)
    layer(rows(5, 7))
    before = weights_of(layer)
    recompute_statistics(layer, rows(3), batch=4)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights_of(layer).items())


@pytest.mark.parametrize("momentum", [0.1, 0.9, None])
@pytest.mark.parametrize("training", [True, False])
def test_momentum_and_mode_are_put_back(momentum: float | None, training: bool) -> None:
    layer = spoilt(momentum)
    head = nn.Linear(1, 1)
    model = nn.Sequential(layer, head).train(training)
    trained = head.weight.clone()
    recompute_statistics(model, rows(1, 2, 3, 4), batch=2)
    assert layer.momentum == momentum
    assert all(module.training == training for module in model.modules())
    assert torch.equal(head.weight, trained)
    assert layer.weight.item() == 1


def test_a_deeper_layer_sees_what_the_one_before_makes_of_the_rows() -> None:
    first, layer = nn.Linear(1, 1), spoilt()
    nn.init.constant_(first.weight, 3)
    nn.init.constant_(first.bias, 1)
    recompute_statistics(nn.Sequential(first, layer), rows(1, 2, 6), batch=10)
    assert mean_of(layer) == pytest.approx(3 * 3 + 1)
    assert variance_of(layer) == pytest.approx(9 * 7)


def test_a_model_without_batch_norm_is_left_alone() -> None:
    model = nn.Linear(1, 1)
    before = weights_of(model)
    recompute_statistics(model, rows(1, 2, 3), batch=2)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights_of(model).items())


# -- the statistics of a batch ---------------------------------------------------------------------------------


def layer_of_mean_10_and_variance_4() -> nn.BatchNorm1d:
    layer = nn.BatchNorm1d(1, eps=1e-12)
    layer.running_mean, layer.running_var = torch.tensor([10.0]), torch.tensor([4.0])
    layer.num_batches_tracked = torch.tensor(7)
    return layer


@pytest.mark.parametrize("training", [False, True], ids=["teacher", "student"])
def test_a_batch_is_normalised_by_itself_and_leaves_no_trace(training: bool) -> None:
    """Rows 1 and 5: mean 3, variance ((−2)² + 2²) / 2 = 4, so −1 and 1. By the running ones: −4.5 and −2.5."""
    model = nn.Sequential(layer_of_mean_10_and_variance_4()).train(training)
    before = weights_of(model)
    with batch_statistics(model):
        assert model(rows(1, 5)).flatten().tolist() == pytest.approx([-1, 1])
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert [part.training for part in model.modules()] == [training] * 2
    with evaluating(model):
        assert model(rows(1, 5)).flatten().tolist() == pytest.approx([-4.5, -2.5])
    model.train()(rows(1, 5))  # afterwards it counts batches again: 0.9 · 10 + 0.1 · 3, 0.9 · 4 + 0.1 · 8
    assert (mean_of(model[0]), variance_of(model[0])) == pytest.approx((9.3, 4.4))
    assert int(model[0].get_buffer("num_batches_tracked")) == 8


def test_without_it_noise_reaches_the_running_statistics_even_where_gradients_are_off() -> None:
    """What the context is for, and what it must not be taken for: momentum None is an average, not "off"."""
    for momentum in (0.1, None):
        model = nn.Sequential(layer_of_mean_10_and_variance_4()).train()
        model[0].momentum = momentum  # type: ignore[assignment]
        before = weights_of(model)
        with batch_statistics(model), torch.no_grad():
            model(rows(1, 5))
        assert torch.equal(before["0.running_mean"], model[0].get_buffer("running_mean"))
        assert model[0].momentum == momentum
        with torch.no_grad():
            model(rows(1, 5))
        assert not torch.equal(before["0.running_mean"], model[0].get_buffer("running_mean"))


def test_a_teachers_dropout_stays_off_and_models_without_such_layers_are_as_they_were() -> None:
    teacher = nn.Sequential(nn.BatchNorm1d(1), nn.Dropout(0.5), nn.BatchNorm1d(1, track_running_stats=False))
    plain = nn.Sequential(nn.Linear(1, 2), nn.Dropout(0.9))
    teacher.eval()
    with batch_statistics(teacher, plain):
        assert [part.training for part in teacher] == [True, False, True]
        assert plain[1].training
        assert torch.equal(teacher(rows(1, 5, 9)), teacher(rows(1, 5, 9)))
    assert [part.training for part in teacher] == [False] * 3
    assert [layer.track_running_stats for layer in (teacher[0], teacher[2])] == [True, False]
    with batch_statistics():
        pass


def test_all_is_put_back_after_an_error_a_second_context_and_a_model_given_twice() -> None:
    teacher = nn.Sequential(layer_of_mean_10_and_variance_4()).eval()
    with pytest.raises(ValueError, match="more than 1 value"), batch_statistics(teacher, teacher):
        teacher(rows(1))  # a single row has no variance
    assert not teacher[0].training and teacher[0].track_running_stats
    with batch_statistics(teacher):
        with batch_statistics(teacher):
            pass
        assert teacher(rows(1, 5)).flatten().tolist() == pytest.approx([-1, 1])
    assert teacher(rows(1, 5)).flatten().tolist() == pytest.approx([-4.5, -2.5])
