"""How the numbers of a paper's table are printed."""

from __future__ import annotations

from polyfed.experiments.papers.numbers import Number, values_of
from polyfed.experiments.papers.paper import Unit
from polyfed.report.tables import amount
from polyfed.runs.metrics import mean_and_spread

UNIT_NAMES: dict[Unit, str] = {
    "percent": "accuracy in %",
    "hundredths": "×10⁻²",
    "thousandths": "×10⁻³",
    "count": "",
    "bytes": "bytes",
    "number": "",
}
MISSING = "–"


def format_number(value: float, unit: Unit, *, sign: bool = False) -> str:
    """A number in its unit."""
    if unit == "percent":
        return f"{value:+.1f}" if sign else f"{value:.1f}"
    if unit in ("hundredths", "thousandths"):
        return f"{value:+.2f}" if sign else f"{value:.2f}"
    if unit == "count":
        return f"{value:+,.0f}" if sign else f"{value:,.0f}"
    if unit == "bytes":
        return ("-" if value < 0 else "+" if sign else "") + amount(abs(value))
    return f"{value:+.4g}" if sign else f"{value:.4g}"


def format_mean(mean: float, spread: float | None, unit: Unit, *, sign: bool = False) -> str:
    return format_number(mean, unit, sign=sign) + (
        "" if spread is None else f" ± {format_number(spread, unit)}"
    )


def format_over_seeds(number: Number, unit: Unit) -> str:
    """Mean and spread over seeds, or what was counted."""
    values = values_of(number)
    return format_mean(*mean_and_spread(values), unit) if values else MISSING


def plural(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
