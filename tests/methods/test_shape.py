"""How a method file reads: short, alone beside its paper, with the paper's phases for names."""

from __future__ import annotations

import ast
import inspect
import re
import sys

import pytest

from polyfed.federation.message import Kind
from polyfed.federation.method import Method, registered
from polyfed.learn import Training

OURS = [kind for kind in registered().values() if kind.__module__.startswith("polyfed.methods.")]
LONGEST = 91
BOUNDS = {"local", "pooled", "aggregated"}  # of no paper
MAY_BE_INHERITED = {"fedavg"}  # by a method that is FedAvg with another local loss
HOOKS = {"also_sent", "remember", "check"}  # what such a loss may need beside: see fedavg.py


def source_of(kind: type[Method]) -> str:
    return inspect.getsource(sys.modules[kind.__module__])


def lines_of_code(source: str) -> int:
    """Lines that are neither empty, nor comments, nor part of a docstring, nor imports."""
    others = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        or (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        )
    ]
    skipped = {line for node in others for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    lines = enumerate(source.splitlines(), start=1)
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in skipped
        for number, line in lines
    )


def own_steps(kind: type[Method]) -> list[str]:
    """The steps that a method's own file defines."""
    return [
        name
        for name, value in vars(kind).items()
        if getattr(value, "is_client_step", False) or getattr(value, "is_server_step", False)
    ]


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.name)
def test_a_method_fits_on_two_screens(kind: type[Method]) -> None:
    assert lines_of_code(source_of(kind)) <= LONGEST


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.name)
def test_the_header_names_every_step(kind: type[Method]) -> None:
    header = inspect.getdoc(sys.modules[kind.__module__]) or ""
    missing = [step for step in own_steps(kind) if f"{step.replace('_', ' ')}:" not in header]
    assert not missing or len(own_steps(kind)) == 1  # a bound of one line


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.name)
def test_the_header_cites_a_paper_that_can_be_looked_up(kind: type[Method]) -> None:
    """With a title, a year and a link; and no number that only we know it by."""
    header = inspect.getdoc(sys.modules[kind.__module__]) or ""
    cited = re.search(
        r"\(.*\".*\",\s.*20\d\d\).*\n.*https://\S+\n", header.partition("\n\n")[0] + "\n", re.DOTALL
    )
    assert (cited is None) is (kind.name in BOUNDS)
    assert not re.search(r"paper 0\d\d", source_of(kind), re.IGNORECASE)


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.name)
def test_no_method_inherits_steps_but_from_fedavg(kind: type[Method]) -> None:
    ancestors = {base.name for base in kind.__mro__[1:] if issubclass(base, Method) and base is not Method}
    assert ancestors <= MAY_BE_INHERITED
    if ancestors:
        assert set(own_steps(kind)) == set()
        written = {name for name in vars(kind) if inspect.isfunction(vars(kind)[name])}
        assert "local_loss" in written
        assert written <= {"local_loss", "declare", *HOOKS}


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.name)
def test_weights_that_the_server_sends_are_counted_as_weights(kind: type[Method]) -> None:
    """Not as control, which is left out where bytes are compared."""
    method = kind(kind.Settings(), Training())
    taken = {
        name
        for step in own_steps(kind)
        for name, given in inspect.signature(getattr(kind, step)).parameters.items()
        if given.annotation == "Weights"
    }
    down = method.declared.kinds_down
    assert [name for name in taken if down.get(name, Kind.CONTROL) is Kind.CONTROL] == []
