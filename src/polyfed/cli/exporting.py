"""A trained model as a file for other programs: `export`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from polyfed.cli.screen import say
from polyfed.errors import ConfigError
from polyfed.runs import api
from polyfed.runs.export import INPUT, export
from polyfed.runs.trained import task_of


def export_model(
    directory: Path, client: str, out: Path, trust: Sequence[str], as_client: str | None = None
) -> None:
    """Write a client's model as one file, and say what it takes."""
    try:
        export(directory, client, out, as_client=as_client, trust=trust)
    except api.OwnModelError as error:
        raise ConfigError(
            f"{client} trains '{error.architecture}', a model of your own: from Python,"
            f" polyfed.export({str(directory)!r}, {client!r}, {str(out)!r}, make=…)"
        ) from None
    given = task_of(directory, trust).given_as
    say(f"wrote {out}: it takes {INPUT} as they come and gives {given}; checked by running it")
