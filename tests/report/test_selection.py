"""Which methods fit what somebody has and allows, from what they declare; and why the others do not."""

from __future__ import annotations

import io
from typing import Literal

import pytest
from rich.console import Console
from tests.conftest import Command

from polyfed import Declaration
from polyfed.federation import method as methods
from polyfed.federation.declaration import Need
from polyfed.federation.method import Method, MethodSettings, register, registered
from polyfed.report.selection import Wishes, select, selection_tables

EVERYTHING = Wishes(no_public_data=True, no_weights=True, no_server=True, different_models=True)
BY_ARCHITECTURE = ("method.within=architecture",)


def fitting(wishes: Wishes) -> dict[str, tuple[str, ...]]:
    """The methods that fit, and with which settings."""
    return {name: verdict.settings for name, verdict in select(wishes).items() if not verdict.obstacles}


def why(wishes: Wishes, name: str) -> list[str]:
    return list(map(str, select(wishes)[name].obstacles))


def printed(wishes: Wishes, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(selection_tables(select(wishes)))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_without_public_data_and_with_different_models_some_fit_by_a_setting_of_their_own() -> None:
    assert fitting(Wishes(no_public_data=True, different_models=True)) == {
        "local": (),
        "pooled": (),
        "fedproto": (),
        "fedorion": (),
        "fml": (),
        "fedkem": ("method.fusion=average",),
        **dict.fromkeys(("fedavg", "fedprox", "fedgkd", "moon", "fedntd"), BY_ARCHITECTURE),
    }


def test_without_weights_what_is_left_sends_answers_or_prototypes() -> None:
    left = fitting(Wishes(no_weights=True))
    assert set(left) == {
        "local",
        "aggregated",
        "fedmd",
        "dsfl",
        "ktpfl",
        "fdmeta",
        "cronus",
        "fedh2l",
        "fedproto",
    }
    assert set(fitting(Wishes(no_server=True))) == {"local", "aggregated", "fedh2l"}
    assert set(fitting(EVERYTHING)) == {"local"}
    assert set(fitting(Wishes())) == set(registered())


def test_each_of_the_others_has_every_reason_that_is_in_the_way() -> None:
    assert why(EVERYTHING, "feddf") == ["needs public data", "weights leave a client", "needs a server"]
    assert why(EVERYTHING, "dsfl") == ["needs public data", "needs a server"]
    assert why(Wishes(no_weights=True), "qffl") == ["gradients leave a client"]
    assert why(Wishes(no_weights=True), "scaffold") == ["weights and gradients leave a client"]
    assert why(Wishes(no_weights=True), "pooled") == ["all data leave their clients"]
    assert why(Wishes(different_models=True), "scaffold") == ["one architecture for all"]
    # A setting that removes one obstacle of two is named, and the method is out nevertheless.
    assert why(Wishes(no_weights=True, different_models=True), "fedavg") == [
        "weights leave a client",
        "one architecture for all (method.within=architecture does without)",
    ]


@pytest.mark.parametrize(
    "hint", ["method.public=false", "method.unknown=1", "method.public=true", "data.x=1"]
)
def test_a_hint_is_tried_not_trusted(hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first does what it says: the others are unknown, change nothing, or are none of the method's own."""
    monkeypatch.setattr(methods, "_registered", registered())

    class HintedSettings(MethodSettings):
        public: Literal[True, False] = True
        """Whether there are public data."""

    @register
    class Hinted(Method):
        name = "hinted"
        Settings = HintedSettings
        settings: HintedSettings

        def declare(self) -> Declaration:
            return Declaration(needs={Need.PUBLIC: hint} if self.settings.public else {})

    verdict = select(Wishes(no_public_data=True))["hinted"]
    assert bool(verdict.obstacles) == (hint != "method.public=false")
    assert verdict.settings == (() if verdict.obstacles else (hint,))


@pytest.mark.parametrize("width", [60, 80, 150])
def test_nothing_is_cut_in_a_narrow_terminal(width: int) -> None:
    for wishes in (EVERYTHING, Wishes(no_weights=True), Wishes(no_public_data=True, different_models=True)):
        said = printed(wishes, width)
        assert "…" not in said
        assert max(map(len, said.splitlines())) <= width
        for name, verdict in select(wishes).items():
            line = next(line for line in said.splitlines() if line.split()[:1] == [name])
            assert verdict.obstacles or line.split()[1] == (verdict.settings or ("its",))[0]
        if width >= 80:
            whole = " ".join(said.split())
            assert all(
                str(each) in whole for verdict in select(wishes).values() for each in verdict.obstacles
            )


def test_the_command_filters_says_what_a_setting_means_and_takes_no_name_beside(command: Command) -> None:
    said = command("methods", "--no-public-data", "--different-models")
    assert said.code == 0
    assert "method.within=architecture" in said.out
    assert "method.within: " in said.out
    assert (
        said.out.index("fedproto") < said.out.index("methods that do not, and why") < said.out.index("dsfl")
    )
    both = command("methods", "fedavg", "--no-server")
    assert both.code == 2
    assert "leave the name or the options out" in both.err
