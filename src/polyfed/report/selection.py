"""Which methods are of use to somebody who has no public data, wants no weights to leave, and the like.

Default settings decide, and what each method declares. Where a need has a setting that does without it, the method is
asked again with that setting: it fits if what it declares then is what is wished for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import ValidationError
from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from polyfed import schema
from polyfed.errors import ConfigError
from polyfed.federation.declaration import Need
from polyfed.federation.message import Kind
from polyfed.federation.method import Method, registered
from polyfed.learn import Training
from polyfed.report.details import needs_words
from polyfed.report.tables import leaves_words
from polyfed.runs.config import settings_of
from polyfed.runs.keys import parse_assignment
from polyfed.tasks import Task, lacking
from polyfed.yaml_files import parse_yaml


@dataclass(frozen=True)
class Wishes:
    """What somebody has and allows; what is False does not matter."""

    no_public_data: bool = False
    no_weights: bool = False
    """Neither weights nor gradients leave a client: both tell much about its data, and about its model."""
    no_server: bool = False
    different_models: bool = False
    task: Task | None = None
    """What is to be learnt."""

    def __bool__(self) -> bool:
        return self != Wishes()


@dataclass(frozen=True)
class Obstacle:
    """Why a method is out, in words; and the setting of its own that would do without, if it says one."""

    reason: str
    otherwise: str = ""

    def __str__(self) -> str:
        return f"{self.reason} ({self.otherwise} does without)" if self.otherwise else self.reason


@dataclass(frozen=True)
class Verdict:
    """Whether a method fits: as it is, with some settings, or not, and why."""

    method: Method
    settings: tuple[str, ...] = ()
    """What must be set, such as `method.within=architecture`."""
    obstacles: tuple[Obstacle, ...] = ()
    """What is in the way, with the default settings; nothing if the method fits."""


def select(wishes: Wishes) -> dict[str, Verdict]:
    """A verdict for every registered method."""
    return {name: _judge(kind, wishes) for name, kind in registered().items()}


def _judge(kind: type[Method], wishes: Wishes) -> Verdict:
    method = kind(kind.Settings(), Training())
    obstacles = tuple(_obstacles(method, wishes))
    if not obstacles:
        return Verdict(method)
    settings = tuple(obstacle.otherwise for obstacle in obstacles)
    changed = _with_settings(kind, settings) if all(settings) else None
    if changed is not None and not any(_obstacles(changed, wishes)):
        return Verdict(changed, settings)
    return Verdict(method, obstacles=obstacles)


def _obstacles(method: Method, wishes: Wishes) -> Iterator[Obstacle]:
    needs, kinds = method.declared.needs, set(method.declared.kinds_up.values())
    if wishes.no_public_data and Need.PUBLIC in needs:
        yield Obstacle("needs public data", needs[Need.PUBLIC])
    if wishes.no_weights:
        sent = [kind for kind in (Kind.WEIGHTS, Kind.GRADIENTS) if kind in kinds]
        if Need.ALL_DATA in needs:
            yield Obstacle("all data leave their clients")
        elif sent:
            yield Obstacle(f"{' and '.join(sent)} leave a client")
    if wishes.no_server and method.declared.server:
        yield Obstacle("needs a server")
    lacks = lacking(wishes.task, method.declared.tasks) if wishes.task is not None else None
    if lacks is not None:
        yield Obstacle(f"needs {lacks}", method.declared.tasks[lacks])
    if wishes.different_models and Need.COMMON_ARCHITECTURE in needs:
        yield Obstacle(Need.COMMON_ARCHITECTURE.value, needs[Need.COMMON_ARCHITECTURE])


def _with_settings(kind: type[Method], settings: tuple[str, ...]) -> Method | None:
    """A method with such settings as `method.fusion=average`; None if they are no settings of its own."""
    given: dict[str, object] = {}
    for setting in settings:
        key, text = parse_assignment(setting) or ("", "")
        if key.count(".") != 1 or not key.startswith("method."):
            return None
        given[key.removeprefix("method.")] = parse_yaml(text)
    try:
        return kind(settings_of(kind, given), Training())
    except (ConfigError, ValidationError):
        return None


# -- for the terminal ----------------------------------------------------------------------------------------


def selection_tables(verdicts: Mapping[str, Verdict]) -> RenderableType:
    """What fits and what it needs, then the others, each with what is in the way."""
    fitting = {name: verdict for name, verdict in verdicts.items() if not verdict.obstacles}
    others = {name: verdict for name, verdict in verdicts.items() if verdict.obstacles}
    parts: list[RenderableType] = []
    if fitting:
        parts += [_fitting_table(fitting), *_meanings(fitting)]
    else:
        parts.append(Text("no method fits\n"))
    if others:
        parts.append(_others_table(others))
    return Group(*parts)


def _fitting_table(verdicts: Mapping[str, Verdict]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title_justify="left", title="methods that fit", min_width=30)
    for heading in ("method", "with"):
        table.add_column(heading, no_wrap=True)  # to be typed as it stands there
    for heading in ("needs", "leaves a client"):
        table.add_column(heading, overflow="fold")
    for name, verdict in verdicts.items():
        table.add_row(
            name,
            escape("\n".join(verdict.settings)) or "its defaults",
            escape(needs_words(verdict.method)),
            leaves_words(verdict.method),
        )
    return table


def _meanings(verdicts: Mapping[str, Verdict]) -> Iterator[Text]:
    """What the settings mean with which methods fit, each told once."""
    told: set[str] = set()
    for verdict in verdicts.values():
        known = {
            setting.key: setting.meaning for setting in schema.settings_of(type(verdict.method).Settings)
        }
        for setting in verdict.settings:
            key = setting.removeprefix("method.").partition("=")[0]
            if setting not in told and known.get(key):
                told.add(setting)
                yield Text(f"method.{key}: {known[key]}\n")


def _others_table(verdicts: Mapping[str, Verdict]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, title_justify="left", title="methods that do not, and why", min_width=30
    )
    table.add_column("method", no_wrap=True)
    table.add_column("why", overflow="fold")
    for name, verdict in verdicts.items():
        table.add_row(name, escape("; ".join(map(str, verdict.obstacles))))
    return table
