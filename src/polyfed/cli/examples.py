"""The run files that come with polyfed."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from polyfed.cli.screen import console
from polyfed.errors import ConfigError


def new(path: Path) -> None:
    """Write a commented run file to start from."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder: name a file, such as {path / 'polyfed.yaml'}")
    if path.exists():
        raise ConfigError(f"{path} is there already: choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml_text("new.yaml"))
    console.print(f"wrote {path}; now: polyfed run {path}", soft_wrap=True)


def yaml_text(name: str) -> str:
    """One of the run files that come with polyfed."""
    return (files("polyfed") / "examples" / name).read_text()
