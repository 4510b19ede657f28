"""How the numbers of a paper's table are printed."""

from __future__ import annotations

import textwrap

from polyfed.experiments.papers.numbers import Bounded, Number, sign_of, values_of
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
    """Mean and spread over seeds, or what was counted; `> 20 (1 of 3)` if one of three runs reached a target."""
    values = values_of(number)
    if not values:
        return MISSING
    mean, spread = mean_and_spread(values)
    bound = sign_of(values)
    if not bound:
        return format_mean(mean, spread, unit)
    known = sum(not isinstance(value, Bounded) for value in values)
    return f"{bound} {format_number(mean, unit)} ({known} of {len(values)})"


def filled(line: str, width: int, first: str, others: str) -> str:
    """A line in a width, after these indents; words with hyphens stay whole, since keys have them."""
    return textwrap.fill(
        line,
        width - 1,
        initial_indent=first,
        subsequent_indent=others,
        break_on_hyphens=False,
        break_long_words=False,
    )


def plural(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
