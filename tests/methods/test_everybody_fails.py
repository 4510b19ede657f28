"""A round in which every client fails is told alike by all methods, whichever of a method's steps it is."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from tests.conftest import MakeRun

from polyfed import Client
from polyfed.errors import RunError
from polyfed.federation.method import Method, Step, registered
from polyfed.testing import vars_of

NOT_BY_DEFAULT = {
    ("fedavg", "restate"),
    ("fedprox", "restate"),
    ("fedgkd", "restate"),
    ("moon", "restate"),
    ("fedntd", "restate"),
    *(("dsfl", "initialise"), ("ktpfl", "initialise"), ("fdmeta", "initialise"), ("cronus", "initialise")),
    ("fedh2l", "local_step"),  # which `broadcast` calls
}
STEPS = [
    (name, step)
    for name, method in registered().items()
    for step, function in vars_of(method).items()
    if getattr(function, "is_client_step", False) and (name, step) not in NOT_BY_DEFAULT
]


def failing(method: type[Method], name: str) -> type[Method]:
    """The method, one of whose steps raises on every client, once it has done its work."""
    step: Step = vars_of(method)[name]

    @functools.wraps(step)
    def wrapped(self: Method, me: Client, *args: Any, **kwargs: Any) -> Any:
        step(self, me, *args, **kwargs)
        raise ConnectionError("gone")

    vars(wrapped).pop("together", None)
    return type(method.__name__, (method,), {name: wrapped})


@pytest.mark.parametrize(("name", "step"), STEPS, ids=[" ".join(each) for each in STEPS])
def test_a_step_that_nobody_gets_through_ends_the_run_with_its_reason(
    make_run: MakeRun, name: str, step: str
) -> None:
    quick = {"public_training": None, "private_training": None} if name == "fedmd" else {}
    run = make_run(
        failing(registered()[name], step),
        settings=quick,
        data={"limit": 120, "public": {"source": "share", "share": 0.2}},
        models={"server": "mlp-small", "features": 16},
        training={"epochs": 1},
    )
    words = rf"^round [01]: every client failed, client-3 in step '{step}': ConnectionError: gone"
    if name == "pooled":  # one client stands in for the data centre
        words = words.replace("client-3", "client-0")
    with pytest.raises(RunError, match=words):
        run.go()
