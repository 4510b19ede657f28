"""What is learnt: one small object says what labels are, what a model minimises and answers, and how good that is.

A new task is one module: a class of its own, registered here, or named in a run file (`task: my_tasks:Tagging`).

    @register
    class Counts(Task):
        name = "counts"
        summary = "how many there are: a Poisson regression"
        targets = NUMBER_LABELS
        ...

Outputs are what a model gives, rows first; what they are beyond that is the task's own affair, unless it says that
they are a table (`Trait.TABLE`), which methods need that let outputs travel.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import entry_points
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from polyfed import plug_ins
from polyfed.data import CLASS_LABELS, Targets
from polyfed.errors import TaskError, nearest
from polyfed.schema import SECTION

Tally: TypeAlias = list[Any]
"""[sum over rows, rows]: what was measured, in a form that adds up over parts and clients."""

MOST_ROWS = 2**31  # that one tally can be made of
PLUG_INS = "polyfed.tasks"  # the entry point group of other packages' tasks


class Trait(StrEnum):
    """What may be true of a task's outputs and answers, and what methods may need of them.

    A task whose answers are probabilities also has `sure`, `sharpened`, `entropy` and `is_answer`.
    """

    TABLE = "outputs in a table, rows × outputs"
    PROBABILITIES = "answers that are probabilities"
    ONE_CLASS = "one class for each row"
    MANY_CLASSES = "more than two classes"


@dataclass(frozen=True)
class Reading:
    """What a model says of some rows, for people and files.

    answers: of each row: the word of a class, a number, or a tuple of words.
    columns, table: what else is said of each row, and what each column of it is called.
    """

    answers: Sequence[Any]
    columns: Sequence[str]
    table: Tensor


class Task(BaseModel, ABC):
    """What is learnt. Its fields are its settings; it holds no state."""

    model_config = ConfigDict(**{**SECTION, "arbitrary_types_allowed": True})

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line, for lists."""
    measure: ClassVar[str]
    """What a score is called: accuracy."""
    unit: ClassVar[str] = ""
    """Of a score as it is shown: `%`; none where it is in the labels' own."""
    smaller_is_better: ClassVar[bool] = False
    traits: ClassVar[frozenset[Trait]] = frozenset()
    targets: ClassVar[Targets] = CLASS_LABELS
    """What labels are, and how they are read."""
    most: ClassVar[float] = math.inf
    """The largest score that there can be."""

    # -- before a run ----------------------------------------------------------------------------------------

    def for_classes(self, classes: Sequence[str]) -> Self:
        """The task on data with these words for what is to be learnt; a `TaskError` if it cannot be learnt on them."""
        return self

    def settled(self, given: Tensor | None, public: Tensor | None) -> Self:
        """The task with all that its settings leave open, from labels that all may know.

        given: everybody's training labels, where one set is cut in one place. public: the public labels; None where
        there are none.
        """
        return self

    def left_open(self) -> frozenset[str]:
        """The settings that `settled` decides."""
        return frozenset()

    def outputs(self, classes: int) -> int:
        """How many outputs a model has, for so many words of what is to be learnt."""
        return classes

    def admits_outputs(self, shape: Sequence[int], outputs: int) -> bool:
        """Whether a model may give outputs of this shape for one row."""
        return tuple(shape) == (outputs,)

    def for_labels(self, labels: Tensor) -> Self:
        """The task as a client learns it that has these training labels."""
        return self

    # -- learning --------------------------------------------------------------------------------------------

    @abstractmethod
    def loss(self, outputs: Tensor, labels: Tensor, *, each: bool = False) -> Tensor:
        """What is minimised: a mean over rows; with `each`, of every row."""

    @property
    def is_weighted(self) -> bool:
        """Whether rows count differently in the loss: then its mean is not that of every row's."""
        return False

    @abstractmethod
    def answer(self, outputs: Tensor, temperature: float = 1.0) -> Tensor:
        """What a teacher's outputs say: what others learn from, such as probabilities at a temperature."""

    @abstractmethod
    def divergence(self, outputs: Tensor, answer: Tensor, temperature: float = 1.0) -> Tensor:
        """How far a student's outputs are from a teacher's answer, a constant: a mean over rows, not below 0."""

    def soft_loss(self, outputs: Tensor, answer: Tensor, temperature: float = 1.0) -> Tensor:
        """The loss of outputs whose labels are a teacher's answers; it has the gradient of the divergence."""
        return self.divergence(outputs, answer, temperature)

    def sure(self, labels: Tensor, outputs: int) -> Tensor:
        """The answer of somebody who knows the labels."""
        raise TaskError(f"task={self.name} has no probabilities")

    def sharpened(self, answer: Tensor, temperature: float) -> Tensor:
        """Answers, such as a mean of several, made surer by a temperature below 1."""
        raise TaskError(f"task={self.name} has no probabilities")

    def entropy(self, answer: Tensor) -> Tensor:
        """How unsure each row's answer is."""
        raise TaskError(f"task={self.name} has no probabilities")

    def is_answer(self, table: Tensor) -> bool:
        """Whether a table of floats, rows × outputs, can be an answer."""
        return True

    def mended(self, answer: Tensor) -> Tensor:
        """An answer again, of one that was rounded on its way."""
        return answer

    def examples(self, rows: int, outputs: int, stream: torch.Generator) -> Tensor:
        """Labels for a trial of a model."""
        return torch.randint(max(outputs, 1), (rows,), generator=stream)

    # -- how good it is --------------------------------------------------------------------------------------

    @abstractmethod
    def tally(self, outputs: Tensor, labels: Tensor) -> Tally:
        """[sum, rows] of what is measured; what is no finite number is never counted in favour."""

    def value(self, tally: Sequence[Any]) -> float:
        """The score that a tally stands for: the mean over rows."""
        total, rows = tally
        return float(total / rows)

    def admits(self, tally: Any) -> bool:
        """Whether this can be a tally: it may come from anybody."""
        return (
            isinstance(tally, list)
            and len(tally) == 2
            and type(tally[1]) is int
            and 0 < tally[1] < MOST_ROWS
            and (type(tally[0]) is int or (type(tally[0]) is float and math.isfinite(tally[0])))
            and 0 <= tally[0] <= tally[1] * self.most
        )

    def is_better(self, one: float, other: float) -> bool:
        return one < other if self.smaller_is_better else one > other

    def gain(self, one: float, other: float) -> float:
        """By how much one score is better than another."""
        return other - one if self.smaller_is_better else one - other

    def shown(self, value: float | None) -> str:
        """A score for people, in its unit but without it; a dash where there is none."""
        if value is None:
            return "–"
        return f"{100 * value:.1f}" if self.unit == "%" else f"{value:.4g}"

    def in_unit(self, value: float) -> float:
        """A score in its unit: a share in per cent."""
        return 100 * value if self.unit == "%" else value

    def blind(self, labels: Tensor) -> float | None:
        """The best score that can be had of these labels without looking at a row; None where nobody can say.

        `check_method` wants a method to be better.
        """
        return None

    @property
    def shown_unit(self) -> str:
        """The unit of a score as it is shown; none where it has none."""
        return self.unit

    @property
    def title(self) -> str:
        """What is measured, with its unit: `accuracy in %`."""
        return f"{self.measure} in {self.shown_unit}" if self.shown_unit else self.measure

    # -- what a file for other programs gives ---------------------------------------------------------------

    given_as: ClassVar[str] = "probabilities"
    """What it is called there."""

    def given(self, outputs: Tensor, classes: int) -> Tensor:
        """What is made of outputs, by operations that other programs know."""
        return self.answer(outputs[:, :classes] if Trait.TABLE in self.traits else outputs)

    def decides(self, words: Sequence[str]) -> dict[str, str]:
        """How an answer is made of that, in words, where it is not the largest number."""
        return {}

    # -- what a model says -----------------------------------------------------------------------------------

    @abstractmethod
    def read(self, outputs: Tensor, words: Sequence[str]) -> Reading:
        """What outputs say, for people. words: of what is learnt."""

    def decided(self, outputs: Tensor) -> Tensor:
        """The answers that outputs stand for, in the form of labels."""
        words = [str(place) for place in range(outputs.shape[1])]
        return self.as_labels(self.read(outputs, words).answers, words)

    def readable(self, outputs: Tensor) -> Tensor:
        """Outputs as people read them: probabilities where there are any, else what is answered."""
        return self.answer(outputs) if Trait.PROBABILITIES in self.traits else self.decided(outputs)

    @property
    def has_answers_as_labels(self) -> bool:
        """Whether answers can be compared with labels, as metrics do."""
        known = self.targets.kind in ("classes", "numbers", "several")
        return known or type(self).as_labels is not Task.as_labels or type(self).decided is not Task.decided

    def as_labels(self, answers: Sequence[Any], words: Sequence[str]) -> Tensor:
        """Answers as people are given them, in the form of labels. words: of what is learnt.

        A task whose labels have a form of their own (`targets`) says it itself.
        """
        if self.targets.kind == "numbers":
            return torch.tensor([float(answer) for answer in answers], dtype=torch.float64)
        if self.targets.kind == "several":
            return torch.tensor([[float(word in answer) for word in words] for answer in answers])
        if self.targets.kind != "classes":
            raise TaskError(
                f"task={self.name} has labels of a form of its own: metrics need its method `as_labels`, which gives"
                " answers in that form"
            )
        places = {word: place for place, word in enumerate(words)}
        return torch.tensor([places[answer] for answer in answers])

    def answer_title(self, words: Sequence[str]) -> str:
        """What to call answers above a column of them."""
        return "class"

    def as_told(self, answer: Any) -> str:
        """An answer as it stands in a table."""
        return " ".join(map(str, answer)) if isinstance(answer, tuple | list) else str(answer)

    @abstractmethod
    def tally_of(self, said: Sequence[Any], true: Sequence[Any]) -> Tally:
        """[sum, rows] of answers of which the true ones are known."""

    def told(self, tally: Tally) -> str:
        """A tally in words: `RMSE 53.2 mmHg (40 rows)`."""
        unit = f" {self.shown_unit}" if self.shown_unit else ""
        return f"{self.measure} {self.shown(self.value(tally))}{unit} ({tally[1]} rows)"


AnyTask = TypeVar("AnyTask", bound=type[Task])

_registered: dict[str, type[Task]] = {}


def register(kind: AnyTask) -> AnyTask:
    """Make a task known by its name; a decorator."""
    if kind.name in _registered:
        raise TaskError(f"a task named '{kind.name}' is registered already; choose another name")
    _registered[kind.name] = kind
    return kind


def registered() -> Mapping[str, type[Task]]:
    """The tasks that are registered, by name."""
    return dict(_registered)


def find(name: str) -> type[Task]:
    """The task of a name: a registered one, a plug-in's, or a class of a module of the user's (`my_tasks:Tagging`)."""
    if name in _registered:
        return _registered[name]
    entry = next((entry for entry in entry_points(group=PLUG_INS) if entry.name == name), None)
    if entry is not None:
        found = plug_ins.load(entry, "task", TaskError)
    elif plug_ins.REFERENCE.fullmatch(name):
        found = plug_ins.named_function(name, "task", TaskError, " of a task")
    else:
        known = [*_registered, *(entry.name for entry in entry_points(group=PLUG_INS))]
        raise TaskError(f"unknown task '{name:.60}'; {nearest(name, known)}")
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise TaskError(f"task '{name}' is not a class of `polyfed.tasks.Task`")
    return found


def lacking(task: Task, needed: Mapping[Trait, str]) -> Trait | None:
    """The first trait that is needed and that a task has not; None if it has all."""
    return next((trait for trait in Trait if trait in needed and trait not in task.traits), None)
