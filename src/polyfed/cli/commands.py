"""The commands of `polyfed`: what can be typed, and its help. What is done then is in the modules beside this one.

Those are imported inside the commands: PyTorch takes seconds, and `polyfed --help` should not.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

import polyfed
from polyfed.cli.screen import console, log_to_screen
from polyfed.errors import PolyfedError, UserError, describe_os_error, in_one_line, visible

app = typer.Typer(
    name="polyfed",
    help="Federated learning between different models: what travels is knowledge.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

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
    typer.Option(metavar="SHARE", help="Show what this accuracy costs, such as 0.6: rounds and bytes."),
]
AccuracyOf = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--of", metavar="WHOSE", help="Whose accuracy reaches the target: own, all (the default) or server."
    ),
]
NoFigure = Annotated[bool, typer.Option("--no-figure", help="Draw nothing.")]


@app.command()
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


@app.command()
def resume(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory.")],
    rounds: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Go on to so many rounds in all, also if the run has finished."),
    ] = None,
    workers: Workers = None,
    engine: EngineName = "auto",
    no_figure: NoFigure = False,
) -> None:
    """Go on with a run that was stopped or killed. The result is the same, bit for bit."""
    from polyfed.cli import running

    running.resume(directory, rounds, workers, engine, figure=not no_figure)


@app.command()
def show(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory.")],
    clients: Annotated[
        bool, typer.Option("--clients", help="Also list the clients one by one (the first 50).")
    ] = False,
) -> None:
    """Show who trains which model and why, and the result."""
    from polyfed.cli import running

    running.show(directory, clients=clients)


@app.command()
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
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="The CSV file to write; printed by default."),
    ] = None,
) -> None:
    """Apply a trained model to new data.

    The class of each row and the probability of each class are printed. Data are given as they come; columns are
    found by their names, and normalised as in training. Where the data have the label column too, the accuracy is
    printed.

    \b
    polyfed predict polyfed-runs/run --client north new.csv --out predictions.csv
    """
    from polyfed.cli import predicting

    predicting.predict_rows(directory, source, client, out)


@app.command()
def samples(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a finished run.")],
    client: Annotated[str, typer.Option(help="Whose generator: a client's name.")],
    figure: Annotated[Path, typer.Option("--figure", "-o", help="The picture to write.")] = Path(
        "samples.png"
    ),
) -> None:
    """Draw images that a client's generator makes.

    By class, with how sure the served model is of each. For runs whose clients keep a generator: fedkf with
    keep_generator=true, or flavour=authors.
    """
    from polyfed.cli import sampling

    sampling.samples(directory, client, figure)


@app.command()
def noise(
    shape: Annotated[str, typer.Option(help="Channels×height×width of the images.")] = "3x32x32",
    seed: Annotated[int, typer.Option(min=0, help="Other noise for every seed.")] = 0,
    figure: Annotated[Path, typer.Option("--figure", "-o", help="The picture to write.")] = Path("noise.png"),
) -> None:
    """Draw the kinds of noise that can stand in for public data.

    Gaussian noise, dead leaves, and what an untrained StyleGAN makes. In a run file:
    data: {public: {source: noise, kind: dead-leaves, rows: 5000}}.
    """
    from polyfed.cli import sampling

    sampling.noise(shape, seed, figure)


@app.command()
def compare(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR", help="Run directories.")],
    figure: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--figure", "-o", help="The picture to write; compare.png by default."),
    ] = None,
    no_figure: NoFigure = False,
    target: Target = None,
    of: AccuracyOf = None,
) -> None:
    """Compare runs in one table, and draw their accuracy over rounds.

    With --target also rounds and bytes to that accuracy, beside what FedKEM's Eq. 6 predicts, and accuracy over
    megabytes in the picture. Runs that differ in their seeds alone are then one row.

    \b
    polyfed compare --target 0.6 polyfed-runs/fedavg polyfed-runs/dsfl
    """
    from polyfed.cli import running

    running.compare(directories, figure, figure=not no_figure, target=target, of=of)


@app.command()
def sweep(
    file: RunFile,
    set_: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--set",
            metavar="A.B=C,D",
            help="Values of a key, such as training.lr=0.1,0.01; a single one is set in all runs. [a,b] is one value.",
        ),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(min=1, help="Runs of each combination: with the file's seed, then with the next ones."),
    ] = 1,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="The sweep's folder; polyfed-runs/NAME-sweep by default."),
    ] = None,
    workers: Workers = None,
    target: Target = None,
    of: AccuracyOf = None,
) -> None:
    """Run every combination of some values and compare them.

    Each is run with several seeds, and several runs are done at a time. Where the file has `variants`, every one of
    them is run. The same command given again goes on with what is left, whether the sweep was stopped (Ctrl-C) or
    killed. It ends with a table; results.csv, results.md, curves.png and cost.png are in the sweep's folder.

    \b
    polyfed sweep my.yaml --set method=local,fedavg --seeds 3
    polyfed sweep my.yaml --set method=fedprox --set method.mu=0.01,0.1,1 --set rounds=50
    """
    from polyfed.cli import experimenting

    experimenting.sweep(file, set_ or (), seeds, out, workers, target=target, of=of)


@app.command()
def reproduce(
    what: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(
            metavar="PAPER/TABLE", help="Such as 000/table2. Without it: list what can be reproduced."
        ),
    ] = None,
    scale: Annotated[str, typer.Option(help="The paper's scale (paper), or a smaller one.")] = "tiny",
    rows: Annotated[str, typer.Option(metavar="A,B", help="Only these rows, by key or name.")] = "",
    columns: Annotated[str, typer.Option(metavar="A,B", help="Only these columns, by key or name.")] = "",
    seeds: Annotated[Optional[int], typer.Option(min=1, help="How many seeds: 0, 1, 2 …")] = None,  # noqa: UP045
    plan: Annotated[bool, typer.Option("--plan", help="Print what would be run, and run nothing.")] = False,
    out: Annotated[Path, typer.Option(help="Where the runs are written.")] = Path("polyfed-runs/reproduce"),
    workers: Workers = None,
) -> None:
    """Measure a paper's table again and judge its claims.

    The same command again goes on with what is left.
    """
    from polyfed.cli import experimenting

    experimenting.reproduce(what, scale, rows, columns, seeds, plan, out, workers)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the runs are written.")] = Path("polyfed-runs"),
    workers: Workers = None,
) -> None:
    """Run five methods on handwritten digits; a table and a picture. There are eight clients and four architectures."""
    from polyfed.cli import demonstrating

    demonstrating.demo(out, workers)


@app.command()
def toy(
    method: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            help="Any method; by default one whose server learns from its clients' answers to noise."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the runs and the picture are written.")] = Path(
        "polyfed-runs"
    ),
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each run.")] = 20,
) -> None:
    """Draw what three clients and a server know, in the plane.

    The toy of paper 002's Figure 1: points of three classes, and three clients with different small networks, each of
    which has seen two of the classes. toy.png shows the decision regions of every client alone, and of the clients and
    the server after some rounds of a method. It takes seconds.

    \b
    polyfed toy --method dsfl
    """
    from polyfed.cli import toying

    toying.toy(method, out, rounds)


@app.command()
def cost(
    clients: Annotated[
        int, typer.Option("--clients", "-N", min=1, help="N, clients, all of which take part.")
    ] = 30,
    prototypes: Annotated[
        int, typer.Option("--prototypes", "-P", min=1, help="P, different models: FedDF fuses each of them.")
    ] = 5,
    ratio: Annotated[
        float,
        typer.Option(
            "--ratio",
            "-M",
            min=0,
            help="M, time of the large model in times of the small one; 22 = 11 M / 0.5 M.",
        ),
    ] = 22.0,
    alpha: Annotated[
        float,
        typer.Option(
            "--alpha",
            min=0,
            max=1,
            help="α, the share of clients that have the small model and skip mutual learning; 1/P if dealt out evenly.",
        ),
    ] = 0.2,
    backward: Annotated[
        float, typer.Option("--backward", "-K", min=0, help="K, time of a backward pass in forward passes.")
    ] = 3.0,
    local: Annotated[
        float, typer.Option("--local", min=0, help="I_c, iterations of a client in a round.")
    ] = 10.0,
    server: Annotated[
        float, typer.Option("--server", min=0, help="I_s, iterations of the server in a round.")
    ] = 5.0,
    figure: Annotated[Path, typer.Option("--figure", "-o", help="The picture to write.")] = Path("cost.png"),
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Also time both methods on this machine, in a federation of six clients; takes about half a minute.",
        ),
    ] = False,
    no_figure: NoFigure = False,
) -> None:
    """Predict how much less FedORION computes than FedDF.

    By the cost model of paper 002, appendix B, with its Figure 5 as a picture. Work is counted in training steps of the
    small model, those of all clients and of the server together, so it is not the time that passes where clients work
    at the same moment. The appendix sets I_c and I_s to its numbers of epochs, takes all models but the smallest to be
    as large as the largest, and M for a ratio of parameters. It says "up to 3.25" for N = 20, where its formula gives
    3.35 at α = 1.

    \b
    polyfed cost -N 20 --alpha 1
    polyfed cost --measure
    """
    from polyfed.cli import costing
    from polyfed.report.cost_model import CostModel

    model = CostModel(clients, prototypes, ratio, alpha, backward, local, server)
    costing.cost(model, None if no_figure else figure, measured=measure)


@app.command()
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
) -> None:
    """List the methods, or tell everything about one.

    With options: which methods fit what you have and allow, with the setting that it takes, and why the others do not.

    \b
    polyfed methods --no-public-data --different-models
    """
    from polyfed.cli import listing
    from polyfed.report.selection import Wishes

    listing.methods(name, Wishes(no_public_data, no_weights, no_server, different_models))


@app.command(name="models")
def list_models(
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


@app.command(name="data")
def list_data(
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


@app.command()
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


@app.command()
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
) -> None:
    """Print and plot who holds what, or list the kinds of partitions."""
    from polyfed.cli import listing

    listing.partition(what, set_ or (), figure)


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"polyfed {polyfed.__version__}")
        raise typer.Exit


@app.callback()
def common(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log what is done: set-up, workers, rounds, checkpoints.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Federated learning between different models: what travels is knowledge."""
    log_to_screen(verbose=verbose)


def main() -> None:
    """The command `polyfed`: a user's mistake is one line and exit code 2, never a traceback."""
    try:
        app()
    except UserError as error:
        sys.stderr.write(f"polyfed: {in_one_line(str(error))}\n")
        sys.exit(2)
    except BrokenPipeError:
        # Whoever reads has seen enough, as in `polyfed models | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        sys.stderr.write(f"polyfed: {in_one_line(describe_os_error(error))}\n")
        sys.exit(2)
    except PolyfedError as error:
        sys.stderr.write(f"polyfed: {visible(f'{type(error).__name__}: {error}')}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("polyfed: stopped\n")
        sys.exit(130)
