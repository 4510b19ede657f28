"""What people touch: the command `polyfed`, and the progress of a run, or of many, on the screen."""

from polyfed.cli.commands import main

__all__ = ["main"]
