"""What is learnt: classes, several classes at once, numbers. Each task is one module; `Task` says what it must be."""

from polyfed.tasks.classification import CLASSIFICATION, Binary, Classification
from polyfed.tasks.multilabel import MultiLabel
from polyfed.tasks.probabilities import cross_entropy, entropy, kl, soften
from polyfed.tasks.regression import Regression
from polyfed.tasks.task import Reading, Tally, Task, Trait, find, lacking, register, registered
from polyfed.tasks.told import ToldTask

__all__ = [
    "CLASSIFICATION",
    "Binary",
    "Classification",
    "MultiLabel",
    "Reading",
    "Regression",
    "Tally",
    "Task",
    "ToldTask",
    "Trait",
    "cross_entropy",
    "entropy",
    "find",
    "kl",
    "lacking",
    "register",
    "registered",
    "soften",
]
