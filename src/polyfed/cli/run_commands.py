"""Commands for a run: do it, go on with it, look at it, use its models.

What they do is in other modules, imported inside the commands: PyTorch takes seconds, and `polyfed --help` should not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from polyfed.cli.options import AsClient, EngineName, NoFigure, Overrides, RunFile, Trust, Workers


def run(
    file: RunFile,
    set_: Overrides = None,
    out: Annotated[Optional[Path], typer.Option(help="The run directory.")] = None,  # noqa: UP045
    workers: Workers = None,
    engine: EngineName = "auto",
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Delete the run that is in the run directory, if there is one."),
    ] = False,
    no_figure: NoFigure = False,
) -> None:
    """Run a federation. It ends with a table; curves.png is in the run directory."""
    from polyfed.cli import running

    running.run(file, set_ or (), out, workers, engine, overwrite=overwrite, figure=not no_figure)


def resume(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory.")],
    rounds: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Go on to so many rounds in all, also if the run has finished."),
    ] = None,
    workers: Workers = None,
    engine: EngineName = "auto",
    no_figure: NoFigure = False,
    trust: Trust = None,
) -> None:
    """Go on with a run that was stopped or killed. The result is the same, bit for bit."""
    from polyfed.cli import running

    running.resume(directory, rounds, workers, engine, figure=not no_figure, trust=trust or ())


def finish(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The directory of a run that was stopped.")
    ],
    workers: Workers = None,
    engine: EngineName = "auto",
    no_figure: NoFigure = False,
    trust: Trust = None,
) -> None:
    """Give a stopped run its result where it is.

    Summary and models are those of the round that it has reached when it was stopped or killed. Nothing is trained; if
    that round was not evaluated, it is now. Afterwards it is a finished run; `polyfed resume DIR --rounds N` goes on
    with it all the same.
    """
    from polyfed.cli import running

    running.finish(directory, workers, engine, figure=not no_figure, trust=trust or ())


def show(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory.")],
    clients: Annotated[
        bool, typer.Option("--clients", help="Also list the clients one by one (the first 50).")
    ] = False,
) -> None:
    """Show who trains which model and why, and the result."""
    from polyfed.cli import running

    running.show(directory, clients=clients)


def predict(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a finished run.")],
    source: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="A CSV or parquet table with the columns of training, an .npz file, an image, or a folder of images.",
        ),
    ],
    client: Annotated[str, typer.Option(help="Whose model: a client's name, or server.")],
    as_client: AsClient = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="The CSV file to write; printed by default."),
    ] = None,
    metrics: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="NAMES",
            help="Metrics to print where the data have labels: recall,pr-auc. `polyfed metrics` lists them.",
        ),
    ] = None,
    trust: Trust = None,
) -> None:
    """Apply a trained model to new data.

    The answer for each row is printed: its class, or all its classes, and the probability of each; or a number. Data
    are given as they come; columns are found by their names, and normalised as in training. Where the data have the
    label column too, the score is printed: of rows that the model was trained on, it is not a test score.

    \b
    polyfed predict polyfed-runs/run --client north new.csv --out predictions.csv
    polyfed predict polyfed-runs/run --client server --as north new.csv
    """
    from polyfed.cli import predicting

    predicting.predict_rows(directory, source, client, out, trust or (), as_client, metrics)


def export(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a finished run.")],
    client: Annotated[str, typer.Option(help="Whose model: a client's name, or server.")],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="FILE", help="The file to write: .onnx, or .pt for TorchScript."),
    ],
    as_client: AsClient = None,
    trust: Trust = None,
) -> None:
    """Write a trained model as one file for other programs.

    ONNX (which needs the extra `export`) or TorchScript, with normalisation inside: it takes rows as they come, numbers
    (float32, rows × columns in the order of training), images (rows × height × width × channels) or token ids (int64),
    and gives the probability of each class, or a number. Classes, columns, client, run, polyfed's version and, where
    there is one, the threshold are in its metadata. The file is run and compared with the model before it is put in its
    place.

    \b
    polyfed export polyfed-runs/run --client north -o north.onnx
    polyfed export polyfed-runs/run --client server --as north -o server.pt
    """
    from polyfed.cli import exporting

    exporting.export_model(directory, client, out, trust or (), as_client)


def samples(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a finished run.")],
    client: Annotated[str, typer.Option(help="Whose generator: a client's name.")],
    figure: Annotated[Path, typer.Option("--figure", "-o", help="The picture to write.")] = Path(
        "samples.png"
    ),
    trust: Trust = None,
) -> None:
    """Draw images that a client's generator makes.

    By class, with how sure the served model is of each. For runs whose clients keep a generator: fedkf with
    keep_generator=true, or flavour=authors.
    """
    from polyfed.cli import sampling

    sampling.samples(directory, client, figure, trust or ())
