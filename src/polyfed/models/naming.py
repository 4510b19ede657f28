"""Names of models, which become names of files."""

from __future__ import annotations

import re

from polyfed.errors import ModelError

NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")


def check_name(name: str) -> None:
    """A `ModelError` if a model cannot have this name, which becomes a file's name."""
    if not NAME.fullmatch(name) or name == "server":
        raise ModelError(
            f"a model cannot be called {name!r:.60}: its name becomes a file's name; use letters, digits,"
            " dots and dashes, begin with a letter or digit, and leave 'server' to the server"
        )


def file_name(name: str) -> str:
    """The name of a file for models of this name: `my_models:small_net` has a letter that not every disk takes."""
    return name.replace(":", "+")  # which is in no other name
