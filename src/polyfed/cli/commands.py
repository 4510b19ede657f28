"""The command line of `polyfed`: all commands, and how they end."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

import polyfed
from polyfed.cli import experiment_commands, list_commands, run_commands
from polyfed.cli.screen import console, log_to_screen
from polyfed.errors import Divergence, PolyfedError, UserError, describe_os_error, in_one_line, visible

app = typer.Typer(
    name="polyfed",
    help="Federated learning between different models: what travels is knowledge.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (
    run_commands.run,
    run_commands.resume,
    run_commands.finish,
    run_commands.show,
    run_commands.predict,
    run_commands.export,
    run_commands.samples,
    experiment_commands.compare,
    experiment_commands.sweep,
    experiment_commands.reproduce,
    experiment_commands.demo,
    experiment_commands.toy,
    experiment_commands.cost,
    experiment_commands.noise,
    list_commands.methods,
    list_commands.models,
    list_commands.data,
    list_commands.metrics,
    list_commands.new,
    list_commands.partition,
):
    app.command()(command)


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


# Typer has its own copy of click, and exports no more than this of its errors.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def _explain_usage(error: Any) -> None:
    """Say what was mistyped in one line; or, where nothing was typed, the help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return
    command = error.ctx.command_path if error.ctx else "polyfed"
    said = in_one_line(error.format_message()).rstrip(".")
    sys.stderr.write(f"{command}: {said} (see {command} --help)\n")


def main() -> None:
    """The command `polyfed`: a user's mistake is one line and exit code 2, never a traceback."""
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except UsageError as error:
        _explain_usage(error)
        sys.exit(2)
    except typer.Abort:
        sys.exit(1)
    except UserError as error:
        sys.stderr.write(f"polyfed: {in_one_line(str(error))}\n")
        sys.exit(1 if isinstance(error, Divergence) else 2)
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
