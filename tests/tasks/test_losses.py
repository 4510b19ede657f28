"""Losses, divergences and answers of every task, by numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed import learn
from polyfed.learn import Distillation, Training, knowledge_loss, supervised_together
from polyfed.tasks import Binary, Classification, MultiLabel, Regression, Task

NUMBERS = Regression.model_validate({"scale": {"mean": 100.0, "std": 20.0}})
TASKS: list[Task] = [Classification(), Binary(), MultiLabel(), NUMBERS]


def outputs_of(task: Task, rows: int = 6, seed: int = 0) -> Tensor:
    width = {"binary": 2, "regression": 1}.get(task.name, 3)
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def labels_of(task: Task, outputs: Tensor) -> Tensor:
    return task.examples(len(outputs), outputs.shape[1], torch.Generator().manual_seed(1))


def test_a_number_is_learnt_on_the_agreed_scale() -> None:
    # 120 is +1 on the scale, 90 is −0.5: errors 0.5 − 1 and 0 + 0.5, both squared 0.25.
    outputs, labels = torch.tensor([[0.5], [0.0]]), torch.tensor([120.0, 90.0])
    assert float(NUMBERS.loss(outputs, labels)) == pytest.approx(0.25)
    # In the number's own unit: 110 for 120 and 100 for 90.
    assert NUMBERS.tally(outputs, labels) == [200.0, 2]
    assert NUMBERS.value([200.0, 2]) == 10.0
    assert NUMBERS.read(outputs, ["pressure"]).answers == [110.0, 100.0]


def test_several_classes_are_questions_of_their_own() -> None:
    task, outputs = MultiLabel(), torch.tensor([[0.0, math.log(3)]])
    # p = 1/2 and 3/4: −log 1/2 for a class that is there, −log 1/4 for one that is not.
    assert float(task.loss(outputs, torch.tensor([[1.0, 0.0]]))) == pytest.approx(math.log(2) + math.log(4))
    assert task.answer(outputs)[0].tolist() == pytest.approx([0.5, 0.75])
    # KL of a teacher that says 1/2 and 1/2: 0 for the first, ½ log(½ / ¾) + ½ log(½ / ¼) for the second.
    teacher = torch.full((1, 2), 0.5)
    expected = 0.5 * math.log(2 / 3) + 0.5 * math.log(2)
    assert float(task.divergence(outputs, teacher)) == pytest.approx(expected, rel=1e-5)


def test_the_score_of_several_classes_is_the_f1_of_each_row() -> None:
    outputs = torch.tensor([[5.0, 5.0, -5.0], [-5.0, -5.0, -5.0], [5.0, -5.0, -5.0]])
    labels = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    # 2·1 / (2 + 1), nothing said and nothing true, nothing of what was said is true.
    assert MultiLabel().tally(outputs, labels) == [pytest.approx(2 / 3 + 1 + 0), 3]
    spoilt = outputs.index_fill(0, torch.tensor([1]), math.nan)
    assert MultiLabel().tally(spoilt, labels) == [pytest.approx(2 / 3), 3]


def test_a_threshold_decides_between_two_classes() -> None:
    outputs, labels = torch.tensor([[math.log(0.7), math.log(0.3)]]), torch.tensor([1])
    assert Binary().tally(outputs, labels) == [0, 1]
    assert Binary(threshold=0.3 - 1e-6).tally(outputs, labels) == [1, 1]
    other = Binary(threshold=0.75, positive="ill").for_classes(["ill", "well"])  # ill has 0.7
    assert other.read(outputs, ["ill", "well"]).answers == ["well"]
    assert other.tally(outputs, labels) == [1, 1]


def test_rare_classes_weigh_more_where_they_are_balanced() -> None:
    task = Classification(class_weights="balanced").for_classes(["a", "b", "c"])
    mine = task.for_labels(torch.tensor([0, 0, 0, 1]))
    # 4 rows of 2 classes: 4 / (2 · 3) and 4 / (2 · 1); a class that is not there counts 1.
    logits, labels = torch.zeros(2, 3), torch.tensor([0, 1])
    expected = F.cross_entropy(logits, labels, weight=torch.tensor([2 / 3, 2.0, 1.0]))
    assert torch.equal(mine.loss(logits, labels), expected)
    assert mine.loss(logits, labels, each=True).tolist() == pytest.approx(
        [2 / 3 * math.log(3), 2 * math.log(3)]
    )
    named = Classification(class_weights={"b": 5.0}).for_classes(["a", "b"]).for_labels(labels)
    assert torch.equal(
        named.loss(logits[:, :2], labels),
        F.cross_entropy(logits[:, :2], labels, weight=torch.tensor([1.0, 5.0])),
    )


def test_a_rare_class_of_several_weighs_more_where_it_is_there() -> None:
    task = MultiLabel(class_weights="balanced").for_classes(["a", "b"])
    mine = task.for_labels(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]))
    outputs = torch.zeros(1, 2)
    # b is there in 1 of 4 rows: its presence counts 3; a in 3 of 4: 1/3.
    assert float(mine.loss(outputs, torch.tensor([[0.0, 1.0]]))) == pytest.approx(4 * math.log(2))
    assert float(mine.loss(outputs, torch.tensor([[1.0, 0.0]]))) == pytest.approx(4 / 3 * math.log(2))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_mean_loss_is_that_of_every_row(task: Task) -> None:
    outputs = outputs_of(task)
    labels = labels_of(task, outputs)
    assert float(task.loss(outputs, labels)) == pytest.approx(
        float(task.loss(outputs, labels, each=True).mean())
    )


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_divergence_is_none_from_ones_own_answer_and_has_the_gradient_of_the_soft_loss(
    task: Task,
) -> None:
    outputs = outputs_of(task).requires_grad_()
    own = task.answer(outputs.detach())
    assert float(task.divergence(outputs, own).detach()) == pytest.approx(0, abs=1e-6)
    teacher = task.answer(outputs_of(task, seed=2)).requires_grad_()
    assert float(task.divergence(outputs, teacher).detach()) > 0
    slopes = [
        torch.autograd.grad(loss(outputs, teacher), outputs)[0] for loss in (task.divergence, task.soft_loss)
    ]
    torch.testing.assert_close(slopes[0], slopes[1])
    assert (
        torch.autograd.grad(
            task.divergence(outputs, teacher), teacher, allow_unused=True, materialize_grads=True
        )[0]
        .abs()
        .max()
        == 0
    ), "the teacher is a constant"


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
@pytest.mark.parametrize("loss", ["l1", "l2", "ce", "kl"])
def test_a_student_comes_to_answer_as_its_teacher_does(task: Task, loss: str) -> None:
    """KL as a classification's softmax of one number would be zero for every student."""
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    width = outputs_of(task).shape[1]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        teacher, student = nn.Linear(4, width), nn.Linear(4, width)
    said = learn.predict(teacher, x)

    def apart() -> float:
        return float((task.answer(learn.predict(student, x)) - task.answer(said)).abs().mean())

    before = apart()
    settings = Distillation.model_validate({"loss": loss, "epochs": 40, "batch": 16, "lr": 0.1})
    learn.distil(student, x, said, settings, torch.Generator().manual_seed(0), task=task)
    assert apart() < before / 2
    assert knowledge_loss(settings, given="answers", task=task)(said, task.answer(said)).isfinite()


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_stack_learns_what_one_model_learns(task: Task) -> None:
    width = outputs_of(task).shape[1]
    training = Training(epochs=3, batch=8, lr=0.1, momentum=0.9)
    found: list[list[Tensor]] = []
    for stacked in (False, True):
        torch.manual_seed(0)
        models = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, width)) for _ in range(3)]
        examples = [
            (torch.randn(rows, 4), task.examples(rows, width, torch.Generator().manual_seed(rows)))
            for rows in (20, 13, 5)
        ]
        streams = [torch.Generator().manual_seed(place) for place in range(3)]
        if stacked:
            supervised_together(models, examples, training, streams, task=task)
        else:
            for model, (x, y), stream in zip(models, examples, streams, strict=True):
                learn.supervised(model, x, y, training, stream, task=task)
        found.append([parameter.detach() for model in models for parameter in model.parameters()])
    for alone, together in zip(*found, strict=True):
        torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_what_is_no_finite_number_never_counts_in_favour(task: Task) -> None:
    outputs = outputs_of(task)
    labels = labels_of(task, outputs)
    sound = task.value(task.tally(outputs, labels))
    for spoilt in (math.nan, math.inf):
        tally = task.tally(torch.full_like(outputs, spoilt), labels)
        assert task.admits(tally)
        assert not task.is_better(task.value(tally), sound) or spoilt == math.inf  # infinity is an answer


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
@pytest.mark.parametrize(
    "tally",
    [
        [1, 0],
        [-1, 3],
        [4, 2**40],
        [math.nan, 3],
        [math.inf, 3],
        [True, 3],
        [10**400, 3],
        (1, 2),
        [1],
        "ab",
        None,
    ],
)
def test_what_cannot_be_a_tally_is_not_let_in(task: Task, tally: object) -> None:
    assert not task.admits(tally)


def test_a_tally_of_shares_is_at_most_its_rows() -> None:
    assert Classification().admits([3, 3]) and not Classification().admits([4, 3])
    assert not Classification().admits([1.5, 3]) and MultiLabel().admits([1.5, 3])
    assert not MultiLabel().admits([3.5, 3]) and NUMBERS.admits([1e9, 3])


def test_the_best_blind_answer() -> None:
    assert Classification().blind(torch.tensor([0, 0, 1])) == pytest.approx(2 / 3)
    assert NUMBERS.blind(torch.tensor([1.0, 3.0])) == 1.0
    # Always the first class: 1, 2/3 and 0; none: 0, 0 and 1; both: 2/3, 1 and 0.
    labels = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    assert MultiLabel().blind(labels) == pytest.approx(5 / 9)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_task_has_words_for_what_it_measures(task: Task) -> None:
    assert task.title.startswith(task.measure) and task.summary
    assert task.shown(None) == "–"
    assert task.is_better(0.1, 0.2) is task.smaller_is_better
