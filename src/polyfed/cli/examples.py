"""The run files that come with polyfed."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from polyfed.cli.screen import console
from polyfed.errors import ConfigError, nearest

EXAMPLES = {
    "start": ("new.yaml", "polyfed run {path}"),
    "demo": ("demo.yaml", "polyfed run {path}"),
    "overview": ("overview.yaml", "polyfed sweep {path} --seeds 3"),
}
"""The run files that can be had, and what to do with each."""


def new(path: Path, example: str = "start") -> None:
    """Write a commented run file to start from."""
    if example not in EXAMPLES:
        raise ConfigError(f"--example {example}: {nearest(example, EXAMPLES)}")
    if path.is_dir():
        raise ConfigError(f"{path} is a folder: name a file, such as {path / 'polyfed.yaml'}")
    if path.exists():
        raise ConfigError(f"{path} is there already: choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    file, command = EXAMPLES[example]
    path.write_text(yaml_text(file))
    console.print(f"wrote {path}; now: {command.format(path=path)}", soft_wrap=True)


def yaml_text(name: str) -> str:
    """One of the run files that come with polyfed."""
    return (files("polyfed") / "examples" / name).read_text()
