"""The commands of `polyfed`, each a few lines that call the packages below."""

from __future__ import annotations

import logging
import sys
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

import polyfed
from polyfed.cli.progress import follow, follow_grid
from polyfed.engines import AUTO, ENGINES
from polyfed.errors import ConfigError, PolyfedError, UserError
from polyfed.experiments import papers, plan_sweep, read_sets
from polyfed.experiments.reproduce import (
    DEFAULT_OUT,
    DEFAULT_SCALE,
    check_ready,
    conclude,
    full_report,
    paper_details,
    papers_table,
    plan_reproduction,
    plan_tables,
)
from polyfed.report.tables import (
    compare_further,
    compare_table,
    confusion_table,
    data_table,
    methods_table,
    models_table,
    partition_table,
    result_table,
)
from polyfed.runs import api
from polyfed.runs.config import read_config
from polyfed.runs.folders import RUNS_FOLDER, unused_folder
from polyfed.runs.history import RunRecord, local_run_for, siblings
from polyfed.runs.rounds import Run
from polyfed.runs.setup import Simulation

PLAIN_WIDTH = 150  # of tables where the output is not a terminal

app = typer.Typer(
    name="polyfed",
    help="Federated learning between different models: what travels is knowledge.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
console = Console()
if not console.is_terminal:
    console = Console(width=PLAIN_WIDTH)

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
    str,
    typer.Option(help=f"How steps reach clients: {', '.join(ENGINES)}, or {AUTO}. The result is the same."),
]


@app.command()
def run(
    file: RunFile,
    set_: Overrides = None,
    out: Annotated[Optional[Path], typer.Option(help="The run directory.")] = None,  # noqa: UP045
    workers: Workers = None,
    engine: EngineName = AUTO,
) -> None:
    """Run a federation."""
    _go(api.prepare(file, overrides=set_ or (), out=out, workers=workers, engine=engine))


@app.command()
def resume(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory.")],
    workers: Workers = None,
    engine: EngineName = AUTO,
) -> None:
    """Go on with a run that was stopped or killed; the result is the same, bit for bit."""
    record = RunRecord(directory)
    if record.finished:
        console.print(f"{directory} has finished already.")
        _show(directory)
    else:
        _go(api.reopen(directory, workers=workers, engine=engine))


@app.command()
def compare(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Run directories.")],
) -> None:
    """Compare runs in one table."""
    records = [RunRecord(path) for path in directories]
    console.print(compare_table(records))
    _print_any(compare_further(records))


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
) -> None:
    """Run every combination of some values, with several seeds, and compare them.

    Several runs are done at a time. The same command given again goes on with what is left, whether the sweep was
    stopped (Ctrl-C) or killed. It ends with a table; results.csv and curves.png are in the sweep's folder.

    \b
    polyfed sweep my.yaml --set method=local,fedavg --seeds 3
    polyfed sweep my.yaml --set method=fedprox --set method.mu=0.01,0.1,1 --set rounds=50
    """
    ready = plan_sweep(file, read_sets(set_ or ()), seeds, out)
    ready.begin()
    try:
        failures = follow_grid(ready.jobs, workers, console)
    except KeyboardInterrupt:
        _show_sweep(ready.result())
        console.print("stopped; the same command goes on", soft_wrap=True)
        raise typer.Exit(130) from None
    result = ready.result(failures)
    _show_sweep(result)
    console.print(f"wrote {', '.join(map(str, ready.write(result)))}", soft_wrap=True, markup=False)
    if failures:
        console.print(f"{len(failures)} of {len(ready.jobs)} runs failed; the same command tries them again")
        raise typer.Exit(1)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the runs are written.")] = RUNS_FOLDER,
    workers: Workers = None,
) -> None:
    """Run six methods with eight clients and four architectures on handwritten digits, and compare them."""
    example = yaml_text("demo.yaml")
    folder = unused_folder(out / "demo")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "demo.yaml").write_text(example)
    paths = []
    for name in ("local", "aggregated", "fedavg", "fedmd", "dsfl", "pooled"):
        overrides = [f"method.name={name}", f"name={name}"]
        overrides += ["method.within=architecture"] if name == "fedavg" else []
        ready = api.prepare(folder / "demo.yaml", overrides=overrides, out=folder / name, workers=workers)
        _go(ready, show=False)
        paths.append(folder / name)
    console.print(compare_table([RunRecord(path) for path in paths]))
    console.print(DEMO_WORDS.format(folder=folder), soft_wrap=True)


DEMO_WORDS = """\
How to read it: `local` is every client alone, `pooled` is what one place with everybody's data would reach. A method
is good if it comes close to `pooled` while only knowledge travels. Here the clients have different models, so FedAvg
can only average weights among clients of the same model; FedMD and DS-FL exchange what each model says of a few public
images instead, and reach every client.
Everything is in {folder}; to change it: polyfed run {folder}/demo.yaml --set method=local --out my-run"""


@app.command()
def methods() -> None:
    """List the methods and what each needs and sends."""
    console.print(methods_table())


@app.command(name="models")
def list_models(
    pattern: Annotated[str, typer.Argument(help="A wildcard, such as 'res*'.")] = "*",
    shape: Annotated[str, typer.Option(help="Channels×height×width of the input.")] = "3x32x32",
    outputs: Annotated[int, typer.Option(min=1, help="Classes.")] = 10,
    norm: Annotated[str, typer.Option(help="batch or group.")] = "batch",
) -> None:
    """List the models with parameters, multiply-accumulates and memory of a training step."""
    try:
        size = tuple(int(part) for part in shape.lower().replace("×", "x").split("x"))
    except ValueError:
        raise ConfigError(f"--shape {shape}: write it as 3x32x32") from None
    if norm not in ("batch", "group"):
        raise ConfigError(f"--norm {norm}: use batch or group")
    console.print(models_table(pattern, size, outputs, norm))  # type: ignore[arg-type]


@app.command(name="data")
def list_data() -> None:
    """List the named data sets and where each would come from."""
    console.print(data_table())


@app.command()
def new(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("polyfed.yaml"),
) -> None:
    """Write a commented run file to start from."""
    if path.exists():
        raise ConfigError(f"{path} is there already: choose another name")
    path.write_text(yaml_text("new.yaml"))
    console.print(f"wrote {path}; now: polyfed run {path}", soft_wrap=True)


@app.command()
def partition(
    file: RunFile,
    set_: Overrides = None,
    figure: Annotated[Path, typer.Option("--figure", "-o", help="The picture to write.")] = Path(
        "partition.png"
    ),
) -> None:
    """Print and plot who holds what."""
    federation = Simulation(read_config(file, set_ or ()))
    classes = federation.dataset.classes
    counts = federation.partition.class_counts(federation.labels, len(classes))
    names = [federation.architecture(index) for index in range(federation.clients)]
    console.print(partition_table(counts, classes, names))
    # Imported only where something is drawn: matplotlib takes half a second of every launch.
    from polyfed.report.figures import bubble_chart  # noqa: PLC0415

    bubble_chart(counts, classes, figure, title=f"{federation.dataset.name}: {federation.clients} clients")
    console.print(f"wrote {figure}", soft_wrap=True)


@app.command()
def reproduce(
    what: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(
            metavar="[PAPER/TABLE]", help="Such as 000/table2. Without it: list what can be reproduced."
        ),
    ] = None,
    scale: Annotated[str, typer.Option(help="The paper's scale (paper), or a smaller one.")] = DEFAULT_SCALE,
    rows: Annotated[str, typer.Option(metavar="A,B", help="Only these rows, by key or name.")] = "",
    columns: Annotated[str, typer.Option(metavar="A,B", help="Only these columns, by key or name.")] = "",
    seeds: Annotated[Optional[int], typer.Option(min=1, help="How many seeds: 0, 1, 2 …")] = None,  # noqa: UP045
    plan: Annotated[bool, typer.Option("--plan", help="Print what would be run, and run nothing.")] = False,
    out: Annotated[Path, typer.Option(help="Where the runs are written.")] = DEFAULT_OUT,
    workers: Workers = None,
) -> None:
    """Measure a paper's table again and judge its claims; the same command again goes on."""
    if what is None:
        console.print(papers_table([papers.load(name) for name in papers.known()]))
        return
    if "/" not in what or what.endswith(papers.ENDING):
        console.print(paper_details(papers.load(what), console.width))
        return
    wanted = plan_reproduction(
        what, scale=scale, rows=_words(rows), columns=_words(columns), seeds=seeds, out=out
    )
    if plan:
        title = f"{what} at scale {scale}: {len(wanted.jobs)} runs in {wanted.folder}/RUN/SETTING/seed-N"
        console.print(title, soft_wrap=True, highlight=False)
        console.print(plan_tables(wanted))
        return
    check_ready(wanted)
    try:
        failures = follow_grid(list(wanted.jobs.values()), workers, console)
    except KeyboardInterrupt:
        console.print(f"go on with: {wanted.command}", soft_wrap=True, markup=False)
        raise typer.Exit(130) from None
    measured, written = conclude(wanted)
    if measured is not None:
        console.print(full_report(measured, console.width))
    console.print(f"wrote {', '.join(map(str, written))}", soft_wrap=True)
    if failures:
        raise typer.Exit(1)


def _show_sweep(result: polyfed.SweepResult) -> None:
    console.print(result.table())
    _print_any(result.further_table())


def _print_any(table: Table | None) -> None:
    if table is not None:
        console.print(table)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _go(ready: Run, *, show: bool = True) -> None:
    """Do a run with its progress on the screen, then show its result."""
    try:
        follow(ready, console)
    finally:
        ready.close()
    if ready.finished and show:
        _show(ready.path)
    elif not ready.finished:
        console.print(
            f"saved after round {ready.round}; go on with: polyfed resume {ready.path}", soft_wrap=True
        )
        raise typer.Exit(130)


def _show(path: Path) -> None:
    record = RunRecord(path)
    local = local_run_for(record, siblings(path))
    known = local if local is not None and local.path.resolve() != path.resolve() else None
    console.print(result_table(record, known))
    _print_any(confusion_table(record))
    if known is None and record.summary["method"] != "local":
        command = f"polyfed run {path}/config.yaml --set method=local --out {path.parent / 'local'}"
        console.print(f"to see the gain over local training: {command}", soft_wrap=True)
    console.print(f"everything is in {path}", soft_wrap=True)


def yaml_text(name: str) -> str:
    """One of the run files that come with polyfed."""
    return (files("polyfed") / "examples" / name).read_text()


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"polyfed {polyfed.__version__}")
        raise typer.Exit


@app.callback()
def common(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print more.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Federated learning between different models: what travels is knowledge."""
    level = logging.DEBUG if verbose else logging.WARNING
    handler = RichHandler(console=Console(stderr=True), show_time=False, show_path=False)
    logging.basicConfig(level=level, format="%(message)s", handlers=[handler])
    logging.getLogger("polyfed").setLevel(logging.DEBUG if verbose else logging.INFO)


def main() -> None:
    """The command `polyfed`: a user's mistake is one line and exit code 2, never a traceback."""
    try:
        app()
    except UserError as error:
        sys.stderr.write(f"polyfed: {error}\n")
        sys.exit(2)
    except OSError as error:
        sys.stderr.write(f"polyfed: {error.strerror or error}: {error.filename or ''}\n")
        sys.exit(2)
    except PolyfedError as error:
        sys.stderr.write(f"polyfed: {type(error).__name__}: {error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("polyfed: stopped\n")
        sys.exit(130)
