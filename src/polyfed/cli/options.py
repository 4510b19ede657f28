"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

RunFile = Annotated[Path, typer.Argument(metavar="FILE", help="A run file; `polyfed new` writes one.")]
Overrides = Annotated[
    Optional[list[str]],  # noqa: UP045  (typer reads this annotation at run time)
    typer.Option("--set", metavar="A.B=C", help="Set a key of the run file, such as training.lr=0.1."),
]
Workers = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(min=1, help="Worker processes; one per core by default."),
]
EngineName = Annotated[
    str, typer.Option(help="How steps reach clients: inline, pool, or auto. The result is the same.")
]

Target = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        metavar="SCORE",
        help="Show what this score costs, in rounds and bytes: a share, such as 0.6, or an error in its unit.",
    ),
]
ScoreOf = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--of", metavar="WHOSE", help="Whose score reaches the target: own, all (the default) or server."
    ),
]
AsClient = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--as",
        metavar="CLIENT",
        help="As whose rows new ones are normalised: for the server's model, where each client normalises by its "
        "own statistics.",
    ),
]
NoFigure = Annotated[bool, typer.Option("--no-figure", help="Draw nothing.")]
Trust = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        metavar="MODULE",
        help="Run the code of this module, where a file names models of it (my_models:small_net). Can be given again.",
    ),
]
