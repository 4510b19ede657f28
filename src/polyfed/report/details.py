"""Everything about one method, model, data set or kind of partition, as a page for the terminal.

What a method or a model is stands at the head of its file, what a setting means below its field: it is read from there.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel
from rich.text import Text

from polyfed import data, models, tasks
from polyfed.federation.declaration import Need
from polyfed.federation.fields import LOCAL_LOSS, field_of
from polyfed.federation.method import Method, find
from polyfed.learn import Training
from polyfed.report.tables import amount, measure_words, mixed_models
from polyfed.runs.config import read_config
from polyfed.runs.needs import methods_for
from polyfed.schema import Setting, settings_of

WIDEST = 100  # of prose; longer lines are hard to read
NARROWEST = 50
INDENT = 2


class Page:
    """A text that is put together part by part, none of its lines longer than the width."""

    def __init__(self, width: int) -> None:
        self.width = max(NARROWEST, min(width, WIDEST))
        self.text = Text()

    def heading(self, text: str) -> None:
        if self.text:
            self.text.append("\n")
        self.text.append("\n".join(textwrap.wrap(text, self.width)) + "\n", style="bold")

    def prose(self, text: str, indent: int = INDENT, hanging: int | None = None) -> None:
        further = indent if hanging is None else hanging
        lines = textwrap.wrap(
            text,
            self.width,
            initial_indent=" " * indent,
            subsequent_indent=" " * further,
            break_long_words=False,
        )
        self.text.append("\n".join(lines) + "\n")

    def docstring(self, text: str | None) -> None:
        """Paragraphs are filled anew; indented lines, such as an algorithm, stay lines."""
        for number, part in enumerate(re.split(r"\n\s*\n", inspect.cleandoc(text or ""))):
            if number:
                self.text.append("\n")
            lines = part.splitlines()
            if any(line.startswith(" ") for line in lines):
                for line in lines:
                    self._line(line)
            else:
                self.prose(" ".join(lines))

    def _line(self, line: str) -> None:
        if len(line) + INDENT > self.width:
            line = re.sub(r"(?<=\S) {3,}", "  ", line)  # columns that do not fit
        indent = INDENT + len(line) - len(line.lstrip())
        wrapped = textwrap.TextWrapper(
            self.width,
            initial_indent=" " * indent,
            subsequent_indent=" " * (indent + 8),
            drop_whitespace=True,
            break_long_words=False,
        )
        together = line.strip().replace("→ ", "→\N{NO-BREAK SPACE}")
        self.text.append("\n".join(wrapped.wrap(together)).replace("\N{NO-BREAK SPACE}", " ") + "\n")

    def facts(self, pairs: Iterable[tuple[str, str]]) -> None:
        known = [(name, value) for name, value in pairs if value]
        column = INDENT + 2 + max(len(name) for name, _ in known)
        for name, value in known:
            first, *further = textwrap.wrap(
                value, self.width - column, break_long_words=False, break_on_hyphens=False
            )
            self.text.append(f"{' ' * INDENT}{name}".ljust(column) + first + "\n")
            for line in further:
                self.text.append(" " * column + line + "\n")

    def settings(self, settings: Sequence[Setting]) -> None:
        """`key: default`, its source's value if that is another, what is allowed, and below it what it means."""
        for setting in settings:
            given = (
                f"{setting.key}: {setting.default}" if setting.default else f"{setting.key}: (must be given)"
            )
            source = f"  ({setting.printed})" if setting.printed else ""
            self.prose(f"{given}{source}  [{setting.allowed}]", hanging=INDENT + 4)
            if setting.meaning:
                self.prose(setting.meaning, INDENT + 4)

    def groups(self, settings: Sequence[Setting]) -> None:
        """The sections that are values of these settings, each told once."""
        used: dict[type[BaseModel], list[str]] = {}
        _add_groups(settings, used)
        for group in sorted(used, key=lambda group: len(group.__mro__)):
            inner = settings_of(group)
            self.heading(f"In {_quoted(used[group])}: {first_sentence(group)}")
            told = next((base for base in group.__mro__[1:] if base in used), None)
            if told is not None:
                self.prose(f"All that is in {_quoted(used[told])}, and:")
                inner = [setting for setting in inner if setting.key not in told.model_fields]
            self.settings(inner)
        if used:
            self.text.append("\n")
            self.prose(
                "In a section, a key that is left out has the value of its default above, else the one here."
            )


def _add_groups(settings: Sequence[Setting], used: dict[type[BaseModel], list[str]]) -> None:
    """The sections that are values of these settings, and of theirs, with the keys that have them."""
    for setting in settings:
        for group in setting.groups:
            if group not in used:
                _add_groups(settings_of(group), used)
            keys = used.setdefault(group, [])
            keys += [key for key in [setting.key] if key not in keys]


def _quoted(keys: Sequence[str]) -> str:
    return " and ".join(f"`{key}`" for key in keys)


def method_details(name: str, width: int, overrides: Sequence[str] = ()) -> Text:
    """What a method is, all that it declares, and all that can be set.

    overrides: settings with which it is asked what it declares, such as `method.fusion=average`.
    """
    kind = find(name)
    method = read_config({"method": name}, overrides).make_method()
    page = Page(width)
    page.heading(f"{name}: {kind.summary}" if kind.summary else name)
    page.docstring(_head_of(kind))
    page.heading(f"What it declares, with {' and '.join(overrides) or 'its default settings'}")
    page.facts(_declared_facts(method))
    settings = settings_of(kind.Settings)
    if settings:
        page.heading(f"Settings, such as `method: {{name: {name}, {_example(settings[0])}}}`")
        page.settings(settings)
        page.groups(settings)
    else:
        page.heading("It has no settings of its own; `training` says how clients train")
    return page.text


def task_details(name: str, width: int) -> Text:
    """What a task is, by what it is measured, which methods make sense for it, and all that can be set."""
    kind = tasks.find(name)
    task = read_config({"task": name}).make_task()
    page = Page(width)
    page.heading(f"{name}: {kind.summary}")
    page.docstring(inspect.getdoc(kind))
    page.text.append("\n")
    page.facts(
        [
            ("measure", measure_words(kind)),
            ("methods", ", ".join(methods_for(task, Training()))),
            ("in a run file", f"task: {name}"),
        ]
    )
    settings = settings_of(kind)
    if settings:
        page.heading(f"Settings, such as `task: {{name: {name}, {_example(settings[0])}}}`")
        page.settings(settings)
        page.groups(settings)
    else:
        page.heading("It has no settings")
    return page.text


def _declared_facts(method: Method) -> Iterable[tuple[str, str]]:
    """A method's whole declaration in plain words: what somebody is shown who is asked to take part."""
    said = method.declared
    yield "needs", needs_words(method)
    yield "different models", mixed_models(type(method), said.needs)
    yield "leaves a client", _leaves(method)
    yield "when evaluated", _measures(method)
    yield "is sent", _is_sent(method)
    yield "a client keeps", " and ".join(sorted(said.keeps, reverse=True)) or "nothing from round to round"
    yield "uses in the end", _uses(method)
    yield "server", _server(method)
    yield "makes sense for", _tasks(method)


def _tasks(method: Method) -> str:
    """The known tasks; and which settings would do for more."""
    said = method.declared
    more = [f"more with {setting}" for trait, setting in said.tasks.items() if setting]
    return "; ".join([", ".join(said.task_names), *more])


def _leaves(method: Method) -> str:
    said = method.declared
    if Need.ALL_DATA in said.needs:
        return "all data"
    sent = (f"{name} ({field_of(what).kind}): {field_of(what)}" for name, what in said.sends.items())
    return "; ".join(sent) or "nothing"


def _measures(method: Method) -> str:
    stages, notes = method.declared.stages, (LOCAL_LOSS, *method.declared.notes)
    where = f"at the {_plural('stage', stages)} {', '.join(stages)} and " if stages else ""
    return (
        f"leave a client too: sums of scores (of classes: counts of right answers), {where}at the end of a round;"
        f" the metrics that evaluate.metrics asks for; the {_plural('number', notes)} {', '.join(notes)}"
    )


def _plural(word: str, what: Sequence[str]) -> str:
    return word if len(what) == 1 else f"{word}s"


def _is_sent(method: Method) -> str:
    said = method.declared
    told = [f"{name} ({kind})" for name, kind in said.tells.items()]
    same = (
        [f"fields of the {'same ' if told else ''}names and kinds that leave clients"] if said.sends else []
    )
    return "; ".join(filter(None, [", ".join(told), *same])) or "nothing"


def _uses(method: Method) -> str:
    said = method.declared
    if "model" in said.keeps:
        return "its own model"
    return "shared weights" + (", to which it adds something of its own" if said.personal else "")


def _server(method: Method) -> str:
    said = method.declared
    if not said.server:
        return "takes no part"
    reads = "looks at each client's reply" if said.single_replies else "needs only the mean of the replies"
    parts = [reads] if said.sends and Need.ALL_DATA not in said.needs else []
    parts += (
        [f"its model is the {said.server_model} unless models.server names one"] if said.server_model else []
    )
    return "; ".join(["takes part", *parts])


def needs_words(method: Method) -> str:
    """What a method must find in a federation, and which settings of its own would do without."""
    needs = method.declared.needs
    return "; ".join(_need(need, needs[need]) for need in Need if need in needs) or "nothing in particular"


def _need(need: Need, otherwise: str) -> str:
    return f"{need.value} (not with {otherwise})" if otherwise else need.value


def _example(setting: Setting) -> str:
    return f"{setting.key}: {setting.default or '…'}"


def model_details(
    name: str, shape: tuple[int, ...], outputs: int, norm: Literal["batch", "group"], width: int
) -> Text:
    """What a model is, and how big."""
    listed = models.listed(name, shape, outputs, norm)
    page = Page(width)
    page.heading(listed.name)
    page.docstring(_head_of(models.maker_of(name)))
    page.text.append("\n")
    page.facts(
        [
            ("for", f"{'×'.join(map(str, shape))} inputs, {outputs} classes (--shape, --outputs)"),
            ("parameters", f"{listed.size.parameters:,}"),
            ("MACs", f"{listed.size.macs:,} of one forward pass of one input"),
            ("memory", f"{amount(listed.size.memory_bytes)} in a training step of one input"),
            ("features", _features(listed)),
            ("layout", "channels-last" if listed.channels_last else "default"),
            ("in a run file", f"models: {{names: [{listed.name}]}}"),
        ]
    )
    return page.text


def _features(listed: models.ListedModel) -> str:
    if listed.features is None:
        return "none: it has no linear layer"
    settable = "" if models.is_outside(listed.name) else " (`models.features` sets another number)"
    return f"{listed.features:,}{settable}"


def data_details(name: str, width: int) -> Text:
    """What is known of a named data set without reading it."""
    facts = data.about(name)
    whole = facts.published
    page = Page(width)
    page.heading(f"{name}: {whole.what}")
    shape = "all sizes" if whole.shape is None else "×".join(map(str, whole.shape))
    resized = f", brought to {'×'.join(map(str, facts.size))}" if facts.size else ""
    splits = "" if "test" in (facts.here or whole.rows) else "; no test split: `data.test` holds rows out"
    natural = f" (`data.partition: {{kind: natural, column: {facts.columns[0]}}}`)" if facts.columns else ""
    page.facts(
        [
            ("images", f"{shape}{resized}"),
            ("classes", str(whole.classes)),
            ("rows", _rows(whole.rows) + splits),
            ("label column", facts.label),
            ("columns", ", ".join(facts.columns) + natural),
            ("published in", whole.cite),
            ("comes from", facts.whereabouts if facts.name != "digits" else "scikit-learn, with polyfed"),
            ("rows there", _rows(facts.here)),
            ("in a run file", f"data: {{source: {name}}}"),
        ]
    )
    return page.text


def _rows(rows: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {split}" for split, count in rows.items())


def partition_details(kinds: Sequence[str], width: int) -> Text:
    """Kinds of partitions with their settings."""
    page = Page(width)
    for kind in kinds:
        schema = data.PARTITIONS[kind]
        page.heading(f"{kind}: {first_sentence(schema)}")
        page.settings([setting for setting in settings_of(schema) if setting.key != "kind"])
    return page.text


def first_sentence(kind: type) -> str:
    """The first sentence of a class's docstring, if it has one of its own."""
    text = " ".join((kind.__doc__ or "").split())
    return re.split(r"(?<=\.) (?=[A-Z])", text)[0]


def _head_of(what: Any) -> str | None:
    """The text at the head of the file in which something of ours is; of other packages' things their own docstring."""
    module = sys.modules.get(what.__module__)
    ours = what.__module__.startswith("polyfed.")
    return module.__doc__ if ours and module is not None else inspect.getdoc(what)
