"""Accuracy is a word of classification: what serves every task speaks of the task's own measure."""

from __future__ import annotations

import re
from pathlib import Path

import polyfed

SOURCE = Path(polyfed.__file__).parent
OF_EVERY_TASK = (
    "report",
    "cli",
    "runs",
    "engines",
    "federation",
    "learn",
    "models",
    "data",
    "experiments/sweep.py",
)
OF_CLASSIFICATION = {
    "cli/toying.py": "the toy problem has classes",
    "learn/measures.py": "names of metrics of classes",
    "learn/class_metrics.py": "metrics of classes, one of which has the word in its name",
}


def speaking_of_it(folder: Path) -> set[str]:
    """The modules in which the word stands."""
    files = [path for part in OF_EVERY_TASK for path in (folder / part).rglob("*.py")]
    files += [folder / part for part in OF_EVERY_TASK if part.endswith(".py")]
    assert len(files) > 50
    word = re.compile("accurac(y|ies)", re.IGNORECASE)
    found = [path for path in files if word.search(f"{path.name}\n{path.read_text(encoding='utf-8')}")]
    return {path.relative_to(folder).as_posix() for path in found}


def test_no_module_that_serves_every_task_speaks_of_accuracy() -> None:
    assert speaking_of_it(SOURCE) - OF_CLASSIFICATION.keys() == set()


def test_the_exceptions_are_no_longer_than_they_must_be() -> None:
    assert OF_CLASSIFICATION.keys() <= speaking_of_it(SOURCE)
