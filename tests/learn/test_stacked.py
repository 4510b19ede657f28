from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyfed.learn import Training, can_stack, supervised, supervised_together
from polyfed.models import build


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model(seed: int) -> nn.Module:
    return build("mlp-small", (1, 3, 3), 4, generator=generator(seed))


def examples(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    stream = generator(100 + seed)
    return torch.randn(rows, 1, 3, 3, generator=stream), torch.randint(4, (rows,), generator=stream)


def weights(of: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in of.parameters()])


def one_by_one(counts: list[int], training: Training, proximal: float) -> list[Tensor]:
    found = []
    for client, count in enumerate(counts):
        own = model(client)
        start = weights(own)

        def pull(now: nn.Module, _rows: Tensor, _x: Tensor, _logits: Tensor, start: Tensor = start) -> Tensor:
            flat = torch.cat([parameter.flatten() for parameter in now.parameters()])
            return 0.5 * proximal * (flat - start).square().sum()

        extra = pull if proximal else None
        supervised(own, *examples(count, client), training, generator(client), extra=extra)
        found.append(weights(own))
    return found


def stacked(counts: list[int], training: Training, proximal: float) -> list[Tensor]:
    models = [model(client) for client in range(len(counts))]
    supervised_together(
        models,
        [examples(count, client) for client, count in enumerate(counts)],
        training,
        [generator(client) for client in range(len(counts))],
        proximal=proximal,
    )
    return [weights(own) for own in models]


@pytest.mark.parametrize("counts", [[8, 8, 8], [1, 9, 4, 13], [3, 0, 8]], ids=str)
@pytest.mark.parametrize(
    ("settings", "proximal"),
    [
        ({}, 0.0),
        ({"epochs": 3, "momentum": 0.9}, 0.0),
        ({"epochs": 2, "weight_decay": 0.05}, 0.0),
        ({"epochs": 2, "momentum": 0.5}, 0.3),
        ({"steps": 5, "momentum": 0.9, "weight_decay": 0.01}, 0.1),
    ],
    ids=str,
)
def test_stacked_training_equals_training_one_by_one(
    counts: list[int], settings: dict[str, Any], proximal: float
) -> None:
    training = Training(batch=4, lr=0.1, **settings)
    alone = one_by_one(counts, training, proximal)
    together = stacked(counts, training, proximal)
    for client, count in enumerate(counts):
        assert torch.allclose(together[client], alone[client], atol=1e-5)
        assert torch.equal(together[client], weights(model(client))) == (count == 0)


def test_the_pull_is_towards_where_each_model_started() -> None:
    training = Training(batch=4, lr=0.1, epochs=5)
    free, held = stacked([8, 8], training, 0.0), stacked([8, 8], training, 5.0)
    for client in range(2):
        start = weights(model(client))
        assert (held[client] - start).norm() < 0.5 * (free[client] - start).norm()


@pytest.mark.parametrize(
    ("settings", "can"),
    [
        ({}, True),
        ({"momentum": 0.9, "weight_decay": 0.1, "steps": 3}, True),
        ({"optimiser": "adam"}, False),
        ({"clip": 1.0}, False),
        ({"augment": True}, False),
        ({"keep_optimiser": True}, False),
    ],
    ids=str,
)
def test_only_what_the_stack_does_is_stacked(settings: dict[str, Any], can: bool) -> None:
    assert can_stack(Training(**settings)) == can
