"""The papers as data: what each compares, prints and claims. Adding a table is adding data.

paper = load("lwof")
paper.config("fedmd", "le5-a01", scale="tiny", seed=0)      # the content of a run file
"""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from pydantic import ValidationError

from polyfed.errors import ConfigError
from polyfed.experiments.papers.paper import Paper
from polyfed.experiments.papers.validate import check
from polyfed.schema import explain
from polyfed.yaml_files import read_yaml

__all__ = ["Paper", "known", "load"]

ENDING = ".yaml"


def known() -> list[str]:
    """The papers that come with polyfed."""
    folder = files("polyfed.experiments.papers")
    return sorted(file.name.removesuffix(ENDING) for file in folder.iterdir() if file.name.endswith(ENDING))


def load(name: str) -> Paper:
    """A paper by its name, or your own file in the same form (`mine.yaml`)."""
    file: Traversable = Path(name)
    if not name.endswith(ENDING):
        if name not in known():
            papers = ", ".join(known())
            raise ConfigError(
                f"no paper '{name}': there are {papers}; for a file of your own write mine.yaml"
            )
        file = files("polyfed.experiments.papers") / f"{name}{ENDING}"
    content = read_yaml(file, f"no file {name}; papers that come with polyfed: {', '.join(known())}")
    try:
        paper = Paper.model_validate({"id": Path(name).name.removesuffix(ENDING), **content})
        check(paper)
    except ValidationError as error:
        raise ConfigError(f"{name}: {explain(error, Paper)}") from None
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    return paper
