"""Commands that tell what there is, and write run files.

What they do is in other modules, imported inside the commands: PyTorch takes seconds, and `polyfed --help` should not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from polyfed.cli.options import Overrides, Trust


def methods(
    name: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="NAME", help="A method: everything about it, with all its settings."),
    ] = None,
    no_public_data: Annotated[
        bool, typer.Option("--no-public-data", help="Only methods that need no public data.")
    ] = False,
    no_weights: Annotated[
        bool,
        typer.Option("--no-weights", help="Only those for which no weights or gradients leave a client."),
    ] = False,
    no_server: Annotated[
        bool, typer.Option("--no-server", help="Only those in which no server takes part.")
    ] = False,
    different_models: Annotated[
        bool, typer.Option("--different-models", help="Only those whose clients may have different models.")
    ] = False,
    task: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--task", metavar="TASK", help="Only those for this task, such as regression."),
    ] = None,
    set_: Overrides = None,
) -> None:
    """List the methods, or tell everything about one.

    With options: which methods fit what you have and allow, with the setting that it takes, and why the others do not.
    With --set: what one declares with other settings.

    \b
    polyfed methods --no-public-data --different-models
    polyfed methods --task regression
    polyfed methods fedkem --set method.fusion=average
    """
    from polyfed.cli import listing

    listing.methods(
        name,
        no_public_data=no_public_data,
        no_weights=no_weights,
        no_server=no_server,
        different_models=different_models,
        task=task,
        overrides=set_ or (),
    )


def tasks(
    name: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="NAME", help="A task: everything about it, with all its settings."),
    ] = None,
) -> None:
    """List what can be learnt, or tell everything about one task."""
    from polyfed.cli import listing

    listing.tasks(name)


def models(
    pattern: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A model: everything about it; or a wildcard, such as 'res*'."),
    ] = "*",
    shape: Annotated[str, typer.Option(help="Channels×height×width of the input.")] = "3x32x32",
    outputs: Annotated[int, typer.Option(min=1, help="Classes.")] = 10,
    norm: Annotated[str, typer.Option(help="batch or group.")] = "batch",
) -> None:
    """List the models and their sizes, or tell everything about one."""
    from polyfed.cli import listing

    listing.models(pattern, shape, outputs, norm)


def data(
    name: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="NAME", help="A named data set: everything about it."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Read all of the cache of decoded data; remove what is damaged.")
    ] = False,
) -> None:
    """List the named data sets, or tell everything about one."""
    from polyfed.cli import listing

    if check:
        listing.check_cache()
    else:
        listing.data(name)


def metrics() -> None:
    """List the metrics beside a task's own score.

    `evaluate.metrics` asks for them. With each: for which tasks it is, its range, and whether it adds up over clients.
    """
    from polyfed.cli import listing

    listing.metrics()


def new(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("polyfed.yaml"),
    example: Annotated[
        str,
        typer.Option(
            help="start: every key with its default; demo: what `polyfed demo` runs; overview: all methods."
        ),
    ] = "start",
) -> None:
    """Write a commented run file to start from.

    With --example overview: all methods on one small federation, for `polyfed sweep`.

    \b
    polyfed new overview.yaml --example overview
    polyfed sweep overview.yaml --seeds 3
    """
    from polyfed.cli import examples

    examples.new(path, example)


def partition(
    what: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Argument(
            metavar="FILE", help="A run file; or a kind of partition: its settings. Without it: all kinds."
        ),
    ] = None,
    set_: Overrides = None,
    figure: Annotated[Path, typer.Option("--figure", "-o", help="The picture to write.")] = Path(
        "partition.png"
    ),
    trust: Trust = None,
) -> None:
    """Print and plot who holds what, or list the kinds of partitions."""
    from polyfed.cli import listing

    listing.partition(what, set_ or (), figure, trust or ())
