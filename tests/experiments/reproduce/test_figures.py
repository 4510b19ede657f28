"""Figures, whatever their size: no text is cut."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from tests.experiments.reproduce.test_tables import as_if_measured

from polyfed.experiments.reproduce.figures import (
    Curve,
    CurvesPanel,
    FeaturesPanel,
    draw_curves,
    draw_features,
    draw_lines,
    draw_table,
)
from polyfed.experiments.reproduce.measured import measure
from polyfed.experiments.reproduce.plan import plan_reproduction

CURVE: Curve = {50: (2.0, 0.1), 100: (1.0, 0.1)}
LONG = (
    "fedh2l/figure2 at scale small: what a very long title says of a figure that is not at all wide (3 seeds)"
)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were saved."""
    figures: list[Figure] = []
    save = Figure.savefig

    def keep(self: Figure, *args: Any, **kwargs: Any) -> None:
        figures.append(self)
        save(self, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def texts_outside(figure: Figure) -> list[str]:
    """What is written and does not lie wholly inside the figure."""
    figure.draw_without_rendering()  # it was last drawn at the file's resolution
    width, height = figure.get_size_inches() * figure.dpi
    undrawn = ticks_out_of_view(figure)
    found = []
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        if text.get_visible() and text.get_text().strip() and text not in undrawn:
            box = text.get_window_extent()
            if box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height:
                found.append(text.get_text())
    return found


def ticks_out_of_view(figure: Figure) -> set[Text]:
    """The labels of ticks beyond the ends of their axis: they exist, and are not drawn."""
    labels = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
                if not low <= tick.get_loc() <= high:
                    labels |= {tick.label1, tick.label2}
    return labels


def said_in(figure: Figure) -> str:
    return " ".join(" ".join(str(text.get_text()) for text in figure.findobj(Text)).split())


@pytest.mark.parametrize("name", ["lwof", "fedh2l"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 2), (1, 99), (2, 3), (99, 1)])
def test_a_table_of_any_size_is_drawn_with_its_whole_title_and_key(
    name: str, rows: int, columns: int, drawn: list[Figure], tmp_path: Path
) -> None:
    whole = as_if_measured(name)
    part = dataclasses.replace(whole, rows=whole.rows[:rows], columns=whole.columns[:columns])
    draw_table(part, tmp_path / "table.png")
    (figure,) = drawn
    assert texts_outside(figure) == []
    said = said_in(figure)
    assert f"{whole.table.title} (accuracy in %)" in said
    for label in (
        "paper",
        "here, last round (mean ± spread; small: each seed)",
        "here, round chosen on validation",
    ):
        assert label in said


def test_columns_of_one_unit_have_one_scale_and_others_their_own(drawn: list[Figure], tmp_path: Path) -> None:
    """AMP and WLP in %, and FM, which would be dots at the left end of theirs."""
    draw_table(as_if_measured("fedkf", "table3"), tmp_path / "table.png")
    (figure,) = drawn
    assert texts_outside(figure) == []
    assert "(accuracy in %)" not in said_in(figure)
    ends = {axes.get_title("left"): axes.get_xlim() for axes in figure.axes}
    assert ends["α = 1 AMP (%)"] == ends["α = 0.01 AMP (%)"] == ends["α = 0.1 WLP (%)"]
    assert ends["α = 0.1 FM (×10⁻²)"] == ends["α = 0.01 FM (×10⁻²)"]
    assert len(set(ends.values())) == 3


def test_rows_of_another_unit_have_panels_of_their_own(drawn: list[Figure], tmp_path: Path) -> None:
    """Rounds and bytes to a target: on one axis the rounds would all be at its left end."""
    whole = as_if_measured("lwof")
    units = ("count", "bytes", "count")
    rows = tuple(row.model_copy(update={"unit": unit}) for row, unit in zip(whole.rows, units, strict=False))
    draw_table(dataclasses.replace(whole, rows=rows), tmp_path / "table.png")
    (figure,) = drawn
    assert texts_outside(figure) == []
    assert "accuracy" not in said_in(figure)
    counts, sizes = figure.axes[: len(whole.columns)], figure.axes[len(whole.columns) :]
    for axes, expected, scale in ((counts, [rows[0], rows[2]], "linear"), (sizes, [rows[1]], "log")):
        assert [label.get_text() for label in axes[0].get_yticklabels()] == [row.name for row in expected]
        assert {panel.get_xscale() for panel in axes} == {scale}
        assert len({panel.get_xlim() for panel in axes}) == 1
    assert {panel.get_xlabel() for panel in sizes} <= {"", "bytes"}
    assert sizes[-1].get_xlabel() == "bytes"


def test_curves_of_one_quantity_have_one_scale_and_others_their_own(
    drawn: list[Figure], tmp_path: Path
) -> None:
    high: Curve = {1: (50.0, None), 2: (70.0, None)}
    panels = [
        CurvesPanel("AMP", {"FedAvg": high}, "accuracy in %"),
        CurvesPanel("FM", {"FedAvg": CURVE}, "×10⁻³"),
        CurvesPanel("WLP", {"FedAvg": {1: (10.0, None), 2: (20.0, None)}}, "accuracy in %"),
    ]
    draw_curves(panels, LONG, "", tmp_path / "curves.png", across=1)
    (figure,) = drawn
    assert texts_outside(figure) == []
    amp, fm, wlp = figure.axes
    assert amp.get_ylim() == wlp.get_ylim() != fm.get_ylim()
    assert amp.get_position().x0 == fm.get_position().x0  # below each other


@pytest.mark.parametrize("rows", [("total",), ()])
def test_a_table_of_counts_is_drawn_whole(rows: tuple[str, ...], drawn: list[Figure], tmp_path: Path) -> None:
    draw_table(measure(plan_reproduction("lwof/table1", rows=rows)), tmp_path / "table.png")
    assert texts_outside(drawn[0]) == []


@pytest.mark.parametrize("panels", [1, 2, 5])
def test_curves_lines_and_features_are_drawn_whole(panels: int, drawn: list[Figure], tmp_path: Path) -> None:
    curves = {f"A method with a long name, number {number}": CURVE for number in range(6)}
    panel = CurvesPanel("le = 5, α = 0.1", curves, "loss")
    draw_curves([panel] * panels, LONG, "accuracy in %", tmp_path / "curves.png")
    draw_lines(
        [CurvesPanel("Loss", {"CE": CURVE}, "loss")] * panels, LONG, "local steps", tmp_path / "lines.png"
    )
    cloud = FeaturesPanel("IND (80 % of the variance)", np.arange(12.0).reshape(6, 2))
    names = [str(number) for number in range(10)]
    draw_features([cloud] * panels, np.arange(6) % 3, names, LONG, tmp_path / "features.png")
    assert [texts_outside(figure) for figure in drawn] == [[], [], []]
    assert all(LONG in said_in(figure) for figure in drawn)
