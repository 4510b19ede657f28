"""FedProto: loss and aggregation in numbers, rounds against a loop written out by hand, replies that are of no use."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.methods.by_hand import BATCH, LR, Bench, Prepare, close, normed, said, state_of
from tests.readers import whole_test
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed import Client, Facts, Fields, Reply, client_step
from polyfed.engines import Inline
from polyfed.errors import MethodError
from polyfed.federation.method import Method
from polyfed.methods import FedProto
from polyfed.methods.fedproto import NearestPrototype, distance, mean_prototypes
from polyfed.runs.checkpoint import RunDirectory, read_lines
from polyfed.runs.config import read_config
from polyfed.runs.rounds import Run
from polyfed.runs.setup import set_up
from polyfed.testing import failures_of

TWO_CLASSES = {"clients": 3, "partition": {"kind": "pathological", "classes_per_client": 2}}


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))


def wider() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


class ByHand(Bench):
    """Train with the pull, take class means, average them over those who hold the class."""

    def __init__(
        self,
        run: Run,
        strength: float = 1.0,
        weighting: str = "clients",
        *,
        features_while_training: bool = False,
    ) -> None:
        super().__init__(run)
        self.strength = strength
        self.prototypes: dict[int, Tensor] = {}
        self.while_training = features_while_training
        for number in range(1, run.config.rounds + 1):
            local = {index: self.update(index, number) for index in self.cohort(number)}
            for label in range(3):
                holders = [held[label] for held in local.values() if label in held]
                shares = [count if weighting == "samples" else 1 for _, count in holders]
                if holders:
                    total = sum(share * mean for share, (mean, _) in zip(shares, holders, strict=True))
                    self.prototypes[label] = torch.as_tensor(total / sum(shares))

    def update(self, index: int, number: int) -> dict[int, tuple[Tensor, int]]:
        model, (x, y) = self.clients[index], self.own(index)
        assert isinstance(model, nn.Sequential)
        body, head = model[:-1], model[-1]
        model.train()
        cuts = list(torch.randperm(len(x), generator=self.stream("batches", index, number, 1)).split(BATCH))
        if len(cuts[-1]) == 1 and "1.running_mean" in model.state_dict():
            cuts[-2:] = [torch.cat(cuts[-2:])]
        for rows in cuts:
            features = body(x[rows])
            squares = torch.zeros(())
            for feature, label in zip(features, y[rows].tolist(), strict=True):
                if label in self.prototypes:
                    squares = squares + (feature - self.prototypes[label]).square().sum()
            loss = F.cross_entropy(head(features), y[rows]) + self.strength * squares / features.numel()
            parameters = list(model.parameters())
            with_gradients = zip(parameters, torch.autograd.grad(loss, parameters), strict=True)
            with torch.no_grad():
                for parameter, gradient in with_gradients:
                    parameter.sub_(LR * gradient)
        model.train(self.while_training)
        with torch.no_grad():
            features = body(x)
        return {
            label: (features[y == label].mean(dim=0), int((y == label).sum()))
            for label in y.unique().tolist()
        }

    def agrees(self, run: Run) -> bool:
        kept = run.server.memory["prototypes"]
        assert kept.keys() == {str(label) for label in self.prototypes}
        same = all(
            torch.allclose(kept[str(label)], mean, atol=1e-6) for label, mean in self.prototypes.items()
        )
        return same and all(close(state_of(run, index), model) for index, model in enumerate(self.clients))


# -- in numbers ----------------------------------------------------------------------------------------------


def test_the_distance_is_a_mean_over_rows_and_features_by_hand() -> None:
    """Rows (1, 2) of class 5, (3, 0) of class 7, (4, 4) of class 6; prototypes of 5: (0, 0), of 6: (4, 2), none of 7.

    (1 + 4) + 0 + (0 + 4) = 9, over 3 rows × 2 features: 1.5. Gradients 2 (f - c) / 6; none in the row of class 7.
    """
    features = torch.tensor([[1.0, 2.0], [3.0, 0.0], [4.0, 4.0]], requires_grad=True)
    known, prototypes = torch.tensor([6, 5]), torch.tensor([[4.0, 2.0], [0.0, 0.0]])
    loss = distance(features, torch.tensor([5, 7, 6]), known, prototypes)
    loss.backward()
    assert loss.item() == pytest.approx(1.5)
    assert features.grad is not None
    assert torch.allclose(features.grad, torch.tensor([[1 / 3, 2 / 3], [0.0, 0.0], [0.0, 2 / 3]]))


def reply(held: list[int], prototypes: list[list[float]], counts: list[int] | None = None) -> Reply:
    fields: dict[str, Tensor] = {"held": torch.tensor(held), "prototypes": torch.tensor(prototypes)}
    if counts is not None:
        fields["counts"] = torch.tensor(counts)
    return Reply(Facts(0, "client-0", 1, "plain"), fields)


def test_prototypes_are_averaged_over_those_who_hold_the_class_by_hand() -> None:
    """Class 0: (1, 1) and (3, 5), mean (2, 3). Class 2: only one has it. Class 1: nobody."""
    replies = [reply([0, 2], [[1.0, 1.0], [9.0, 8.0]]), reply([0], [[3.0, 5.0]])]
    found = mean_prototypes(replies)
    assert found.keys() == {0, 2}
    assert found[0].tolist() == [2.0, 3.0] and found[2].tolist() == [9.0, 8.0]


def test_by_samples_a_client_counts_by_what_it_holds_of_the_class_by_hand() -> None:
    """Class 0: 3 rows at (1, 1) and 1 at (5, 9): (3 + 5, 3 + 9) / 4 = (2, 3). Of class 2 both have one: (0, 4)."""
    replies = [
        reply([0, 2], [[1.0, 1.0], [0.0, 0.0]], [3, 1]),
        reply([2, 0], [[0.0, 8.0], [5.0, 9.0]], [1, 1]),
    ]
    found = mean_prototypes(replies)
    assert found[0].tolist() == [2.0, 3.0] and found[2].tolist() == [0.0, 4.0]


def test_the_nearest_prototype_answers_by_hand() -> None:
    """Features are the inputs; prototypes of classes 2 and 0 at (0, 0) and (4, 0): 1 is never an answer."""
    model = nn.Sequential(nn.Identity(), nn.Linear(2, 3))
    nearest = NearestPrototype(model, torch.tensor([2, 0]), torch.tensor([[0.0, 0.0], [4.0, 0.0]]))
    answers = nearest(torch.tensor([[1.0, 1.0], [3.0, 0.0]]))
    assert answers.argmax(dim=1).tolist() == [2, 0]
    assert answers[0].tolist() == pytest.approx([-(10**0.5), -torch.inf, -(2**0.5)])


# -- rounds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strength", "weighting"), [(1.0, "clients"), (1.0, "samples"), (0.3, "clients")], ids=str
)
def test_rounds_equal_a_loop_by_hand(federate: Prepare, strength: float, weighting: str) -> None:
    method = {"name": "fedproto", "strength": strength, "weighting": weighting}
    run = federate([normed, plain], method=method, rounds=3, server=False)
    run.go()
    assert ByHand(run, strength, weighting).agrees(run)
    other = {"clients": "samples", "samples": "clients"}[weighting]
    assert not ByHand(run, strength, other).agrees(run)
    assert not ByHand(run, 2 * strength, weighting).agrees(run)
    assert not ByHand(run, strength, weighting, features_while_training=True).agrees(run)


def test_all_clients_count_the_same_and_lambda_is_a_tenth_unless_told(federate: Prepare) -> None:
    run = federate([normed, plain], method="fedproto", rounds=2, server=False)
    run.go()
    assert ByHand(run, 0.1, "clients").agrees(run)
    assert not any("counts" in str(line) for line in read_lines(run.path / "ledger.jsonl"))


def test_classes_that_some_lack_and_cohorts_that_change(federate: Prepare) -> None:
    """Two of three classes each, one client in a round: a class that is not held then keeps its last prototype."""
    method = {"name": "fedproto", "strength": 1.0}
    run = federate([plain], method=method, rounds=4, server=False, data=TWO_CLASSES, cohort={"count": 1})
    run.go()
    expected = ByHand(run)
    kept = run.server.memory["prototypes"]
    assert len(kept) == 3  # else nothing was kept beyond a round
    assert all(
        torch.allclose(kept[str(label)], mean, atol=1e-6) for label, mean in expected.prototypes.items()
    )


def test_the_nearest_prototype_is_measured_at_a_stage_of_its_own(federate: Prepare) -> None:
    """With the prototypes of the round before, and not in the first round, which has none."""
    method = {"name": "fedproto", "strength": 1.0}
    run = federate([plain], method={**method, "nearest": True}, rounds=2, server=False)
    run.go()
    before = federate([plain], method=method, rounds=1, server=False)
    before.go()
    kept = ByHand(before).prototypes
    expected = ByHand(run)
    x, y = whole_test(run.federation).tensors()
    accuracies = []
    for model in expected.clients:
        assert isinstance(model, nn.Sequential)
        features = said(model[:-1], x)
        nearest = [min(kept, key=lambda label: float((row - kept[label]).norm())) for row in features]
        accuracies.append((torch.tensor(nearest) == y).double().mean().item())
    stages = run.summary["last"]["stages"]
    assert stages["nearest"]["whole"]["mean"] == pytest.approx(sum(accuracies) / 3, abs=1e-9)
    assert stages["updated"]["whole"]["mean"] == pytest.approx(expected.accuracy(expected.clients), abs=1e-9)
    first = next(line for line in read_lines(run.path / "history.jsonl") if line["round"] == 1)
    assert set(first["stages"]) == {"updated"}


def test_different_feature_sizes_are_refused(federate: Prepare) -> None:
    with pytest.raises(
        MethodError, match="fedproto needs one feature size for all, here are plain 6, wider 8"
    ):
        federate([plain, wider], method="fedproto", server=False)


def test_clients_draw_together(federate: Prepare) -> None:
    """Beside training alone, what clients make of a class lies nearer together."""

    def spread(method: Any) -> float:
        run = federate(
            [plain], method=method, rounds=20, server=False, training={"epochs": 1, "lr": LR, "batch": BATCH}
        )
        run.go()
        means = []
        for index in range(3):
            model = plain()
            model.load_state_dict(state_of(run, index))
            assert isinstance(model, nn.Sequential)
            x, y = whole_test(run.federation).tensors()
            features = said(model[:-1], x)
            means.append(torch.stack([features[y == label].mean(dim=0) for label in range(3)]))
        # clients × classes × features: the spread over clients, beside that over classes
        table = torch.stack(means)
        return float(table.var(dim=0).sum() / table.mean(dim=0).var(dim=0).sum())

    assert spread({"name": "fedproto", "strength": 10.0}) < 0.5 * spread("local")


# -- replies that are of no use --------------------------------------------------------------------------------


def hostile(change: Any) -> type[Method]:
    """FedProto whose first client sends what `change` makes of its reply."""

    class Hostile(FedProto):
        name = "hostile"

        @client_step(sends=("held", "prototypes", "counts"))
        def update(self, me: Client, known: Tensor, prototypes: Tensor) -> Fields:
            found = dict(super().update(me, known, prototypes))
            return change(found) if me.facts.index == 0 else found

    return Hostile


def changed(**fields: Any) -> Any:
    return lambda found: {**found, **{name: value(found) for name, value in fields.items()}}


HOSTILE = {
    "NaN": (changed(prototypes=lambda found: found["prototypes"] * torch.nan), "NaN"),
    "infinite": (changed(prototypes=lambda found: found["prototypes"] + torch.inf), "NaN or infinity"),
    "too narrow": (changed(prototypes=lambda found: found["prototypes"][:, :-1]), "rows × 12 features"),
    "too wide": (changed(prototypes=lambda found: found["prototypes"].repeat(1, 2)), "rows × 12 features"),
    "too few rows": (changed(prototypes=lambda found: found["prototypes"][:-1]), "rows × 12 features"),
    "no such class": (changed(held=lambda found: found["held"] + 5), "different row numbers from 0 to 9"),
    "one class twice": (changed(held=lambda found: found["held"] * 0), "different row numbers from 0 to 9"),
    "no classes": (changed(held=lambda found: found["held"][:0]), "held"),
    "classes that are no list": (changed(held=lambda _: 3), "held"),
    "classes that are a word": (
        lambda found: {"prototypes": found["prototypes"], "held": "all"},
        "does not say how many held there are",
    ),
    "without prototypes": (lambda found: {"held": found["held"]}, "no prototypes"),
    "without classes": (lambda found: {"prototypes": found["prototypes"]}, "no held"),
    "numbers that were not asked for": (changed(counts=lambda found: found["held"]), "counts"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_reply_that_is_of_no_use_is_left_out(what: str, small: dict[str, Any], tmp_path: Any) -> None:
    change, reason = HOSTILE[what]
    run = _run(hostile(change), small, tmp_path / "run")
    failures = failures_of(run.path)
    assert {(failure["client"], failure["step"]) for failure in failures} == {("client-0", "update")}
    assert reason in failures[0]["reason"]
    assert all(bool(mean.isfinite().all()) for mean in run.server.memory["prototypes"].values())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_prototypes_in_another_precision_break_nobodys_next_round(
    dtype: torch.dtype, small: dict[str, Any], tmp_path: Any
) -> None:
    change = changed(prototypes=lambda found: found["prototypes"].to(dtype))
    run = _run(hostile(change), small, tmp_path / "run")
    assert failures_of(run.path) == []
    assert {mean.dtype for mean in run.server.memory["prototypes"].values()} == {torch.float32}


@pytest.mark.parametrize(
    "counts",
    [lambda found: -found["counts"], lambda found: found["counts"] * 0, lambda found: found["counts"][1:]],
    ids=["below 0", "none", "too few"],
)
def test_numbers_of_samples_that_cannot_be_are_left_out(
    counts: Any, small: dict[str, Any], tmp_path: Any
) -> None:
    run = _run(hostile(changed(counts=counts)), small, tmp_path / "run", weighting="samples")
    failures = failures_of(run.path)
    assert {failure["client"] for failure in failures} == {"client-0"}
    assert "whole numbers from 1" in failures[0]["reason"]


def _run(kind: type[Method], small: dict[str, Any], path: Any, **settings: Any) -> Any:
    small["models"] = {"names": ["mlp-small", "cnn-small"], "features": 12}
    config = read_config({**small, "rounds": 2, "method": "local"})
    method = kind(kind.Settings(**settings), config.training)
    run = Run(set_up(config, method=method), Inline(), RunDirectory(path, new=True))
    run.go()
    run.close()
    return run
