"""Commands that compare: runs, sweeps, papers, and what the papers' pictures show.

What they do is in other modules, imported inside the commands: PyTorch takes seconds, and `polyfed --help` should not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from polyfed.cli.options import NoFigure, RunFile, ScoreOf, Target, Workers


def compare(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR", help="Run directories.")],
    figure: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--figure", "-o", help="The picture to write; compare.png by default."),
    ] = None,
    no_figure: NoFigure = False,
    target: Target = None,
    of: ScoreOf = None,
) -> None:
    """Compare runs in one table, and draw their scores over rounds.

    All of them must have learnt the same task. With --target also rounds and bytes to that score, beside what FedKEM's
    Eq. 6 predicts, and scores over megabytes in the picture. Runs that differ in their seeds alone are then one row.

    \b
    polyfed compare --target 0.6 polyfed-runs/fedavg polyfed-runs/dsfl
    """
    from polyfed.cli import running

    running.compare(directories, figure, figure=not no_figure, target=target, of=of)


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
    of: ScoreOf = None,
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


def reproduce(
    what: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(
            metavar="PAPER/TABLE", help="Such as lwof/table2. Without it: list what can be reproduced."
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


def demo(
    out: Annotated[Path, typer.Option(help="Where the runs are written.")] = Path("polyfed-runs"),
    workers: Workers = None,
) -> None:
    """Run five methods on handwritten digits; a table and a picture. There are eight clients and four architectures."""
    from polyfed.cli import demonstrating

    demonstrating.demo(out, workers)


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

    The toy of FedORION's Figure 1: points of three classes, and three clients with different small networks, each of
    which has seen two of the classes. toy.png shows the decision regions of every client alone, and of the clients and
    the server after some rounds of a method. It takes seconds.

    \b
    polyfed toy --method dsfl
    """
    from polyfed.cli import toying

    toying.toy(method, out, rounds)


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

    By FedORION's cost model (appendix B), with its Figure 5 as a picture. Work is counted in training steps of the
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
