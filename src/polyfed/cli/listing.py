"""What there is: methods, models, data sets, and who holds what in a federation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from polyfed.cli.screen import console
from polyfed.errors import ConfigError
from polyfed.report.tables import data_table, methods_table, models_table, partition_table
from polyfed.runs.config import read_config
from polyfed.runs.setup import Simulation


def methods() -> None:
    """Every method and what it needs and sends."""
    console.print(methods_table())


def models(pattern: str, shape: str, outputs: int, norm: str) -> None:
    """The models whose names match a wildcard, for inputs of a shape such as 3x32x32."""
    try:
        size = tuple(int(part) for part in shape.lower().replace("×", "x").split("x"))
    except ValueError:
        raise ConfigError(f"--shape {shape}: write it as 3x32x32") from None
    if norm not in ("batch", "group"):
        raise ConfigError(f"--norm {norm}: use batch or group")
    console.print(models_table(pattern, size, outputs, norm))  # type: ignore[arg-type]


def data() -> None:
    """The named data sets."""
    console.print(data_table())


def partition(file: Path, overrides: Sequence[str], figure: Path) -> None:
    """Who holds what: a table and a picture."""
    federation = Simulation(read_config(file, overrides))
    classes = federation.dataset.classes
    counts = federation.partition.class_counts(federation.labels, len(classes))
    names = [federation.architecture(index) for index in range(federation.clients)]
    console.print(partition_table(counts, classes, names))
    # Imported only where something is drawn: matplotlib takes half a second of every launch.
    from polyfed.report.figures import bubble_chart  # noqa: PLC0415

    bubble_chart(counts, classes, figure, title=f"{federation.dataset.name}: {federation.clients} clients")
    console.print(f"wrote {figure}", soft_wrap=True)
