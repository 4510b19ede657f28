"""Settings as pydantic models: what each key is, in words for a user, and a mistake in one line that says what to do.

What a key means is the docstring below its field, written once: `SECTION` makes pydantic keep it.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import get_annotations
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from polyfed.errors import ConfigError, nearest

SECTION = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)
"""For every section of a run file: unknown keys are errors, numbers finite, and docstrings below fields say what they
mean."""

LARGEST_WHOLE = 10**18  # but for a seed; what is larger does not fit into 64 bits
LARGEST = 1e30  # of other numbers; what is much larger does not fit into 32 bits, as weights have them
LONGEST_SHOWN = 60  # letters of a wrong value in a message


def as_list(value: Any) -> Any:
    """What stands for a list of one, or words with commas between them, as a list; anything else as it is."""
    if isinstance(value, str):
        return [word.strip() for word in value.split(",") if word.strip()]
    return [value] if isinstance(value, int | float | Mapping) else value


OneOrMore = BeforeValidator(as_list)
"""For lists whose items hold no commas: `names: mlp` is short for `[mlp]`, `names: mlp, cnn` for `[mlp, cnn]`."""


# -- a mistake in words --------------------------------------------------------------------------------------

WORDS = {
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "must be a smaller number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text",
    "list_type": "must be a list such as [a, b]",
    "tuple_type": "must be a list such as [a, b]",
    "dict_type": "must be a section of keys and values such as {{a: b}}",
    "mapping_type": "must be a section of keys and values such as {{a: b}}",
    "model_type": "must be a section of keys and values such as {{a: b}}",
    "model_attributes_type": "must be a section of keys and values such as {{a: b}}",
    "greater_than_equal": "must be at least {ge:g}",
    "greater_than": "must be above {gt:g}",
    "less_than_equal": "must be at most {le:g}",
    "less_than": "must be below {lt:g}",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "too_short": "must have at least {min_length} item",
    "too_long": "must have at most {max_length} items",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} letters",
    "string_pattern_mismatch": "must match {pattern}",
    "missing": "is missing, and has no default",
    "invalid_key": "cannot be a key: a key is text",
}
WITHOUT_VALUE = {"missing", "value_error", "invalid_key", "too_short", "too_long"}


def explain(error: ValidationError, schema: type[BaseModel], prefix: str = "") -> str:
    """A validation error in one line: where, what, and what to do."""
    errors = error.errors()
    paths = [_follow(schema, each["loc"]).path for each in errors]
    # Of a value that may be a section or something else, what is wrong inside the section says all.
    inside = [number for number, path in enumerate(paths) if path[: len(paths[0])] == paths[0]]
    chosen = max(inside, key=lambda number: len(paths[number]))
    first = errors[chosen]
    unknown = first["type"] == "extra_forbidden"
    place = _follow(schema, first["loc"], is_key=unknown)
    others = [
        (each, path)
        for number, (each, path) in enumerate(zip(errors, paths, strict=True))
        if number != chosen
    ]
    same = [each for each, path in others if path == place.path]
    left = sum(path != place.path[: len(path)] for _, path in others)
    more = f" (and {left} more)" if left else ""
    path = [*([prefix] if prefix else []), *place.path]
    where = ".".join(path) or "the file"
    if unknown:
        return f"{where}: unknown key, {nearest(place.path[-1], place.known)}{more}"
    if first["type"].startswith("union_tag"):
        return f"{where}.{_wrong_tag(first, place.models)}{more}"
    # Where one of several types is allowed, pydantic reports an error for each.
    said = list(dict.fromkeys(_in_words(each) for each in (first, *same)))
    message = " or ".join([said[0], *(text.removeprefix("must be ") for text in said[1:])])
    shown = "" if first["type"] in WITHOUT_VALUE else f", not {_shown(first.get('input'))}"
    return f"{where}: {message}{shown}{more}"


def _in_words(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    if error["type"] in WORDS:
        text = WORDS[error["type"]].format(**context)
        return text.replace("True", "true").replace("False", "false")
    message = error["msg"].removeprefix("Value error, ")
    return f"{message[:1].lower()}{message[1:]}"


def _wrong_tag(error: ErrorDetails, options: Sequence[type[BaseModel]]) -> str:
    key = error["ctx"]["discriminator"].strip("'")
    tags = [str(tag) for option in options if (tag := _tag(option)) is not None]
    if "tag" not in error["ctx"]:
        return f"{key}: is missing: {_either(tags)}"
    tag = str(error["ctx"]["tag"])
    return f"{key}: unknown {key} '{tag:.{LONGEST_SHOWN}}', {nearest(tag, tags)}"


def _shown(value: Any) -> str:
    """A wrong value as it would be in the file, if that is short."""
    if isinstance(value, Mapping):
        return "a section"
    if isinstance(value, list | tuple | set):
        return "a list"
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        text = repr(value)
        return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
    return as_yaml(value) if value is None or isinstance(value, bool) else f"a {type(value).__name__}"


@dataclass(frozen=True)
class _Place:
    """Where an error is: the keys as they are in the file, and what is known there."""

    path: list[str]
    known: list[str]
    models: list[type[BaseModel]]


def _follow(schema: type[BaseModel], location: Sequence[Any], *, is_key: bool = False) -> _Place:
    """The place of an error. pydantic's location also names the member of a union that it tried: not a key.

    is_key: what the location ends with is a key for certain, even if it is called `int`.
    """
    path: list[str] = []
    options = [schema]
    known = _keys(schema)
    for number, part in enumerate(location, start=1):
        if path and part in [option.__name__ for option in options]:
            continue  # the member of a union
        tagged = [option for option in options if _tag(option) == part]
        if tagged and len(options) > 1:
            options = tagged
        elif isinstance(part, int) or not _is_type_name(part) or (is_key and number == len(location)):
            path.append(str(part))
            known = [key for option in options for key in _keys(option)]
            fields = [_field(option, str(part)) for option in options]
            options = [
                model for field in fields if field for model in _models_in(field.annotation)
            ] or options
    return _Place(path, known, options)


def _keys(schema: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in schema.model_fields.items()]


def _field(schema: type[BaseModel], key: str) -> FieldInfo | None:
    return next((field for name, field in schema.model_fields.items() if key in (name, field.alias)), None)


def _is_type_name(part: str) -> bool:
    return part in {"int", "float", "str", "bool", "constrained-int"} or "[" in part


def _tag(model: type[BaseModel]) -> Any:
    kind = model.model_fields.get("kind")
    return kind.default if kind is not None else None


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]


def check_sizes(content: Any, key: str = "") -> None:
    """Refuse numbers that no machine counts to or no weight can be, in any section and the settings of any method."""
    if isinstance(content, int) and abs(content) > LARGEST_WHOLE:
        raise ConfigError(
            f"{key}: must be at most {LARGEST_WHOLE:g}, not a number of {len(str(content))} digits"
        )
    if isinstance(content, float) and abs(content) > LARGEST:
        raise ConfigError(f"{key}: must be at most {LARGEST:g}, not {content:g}")
    if isinstance(content, Mapping):
        inside = list(content.items())
    else:
        inside = list(enumerate(content)) if isinstance(content, list | tuple) else []
    for name, value in inside:
        check_sizes(value, f"{key}.{name}".lstrip("."))


# -- what can be set -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Printed:
    """Marks a setting whose default is not what its source prints: `Annotated[float, Printed(0.5)] = 0.8`.

    value: what the source has, as the setting would be given. by: the source, in words.
    """

    value: Any
    by: str = "the paper"


@dataclass(frozen=True)
class Setting:
    """One key of a section, in words.

    default: as it would be written in a run file; empty if the key must be given.
    groups: the sections that its value may be.
    printed: the value of its source where the default is another, with the source: `the paper: 0.5`.
    """

    key: str
    default: str
    allowed: str
    meaning: str
    groups: tuple[type[BaseModel], ...] = ()
    printed: str = ""


def settings_of(schema: type[BaseModel]) -> list[Setting]:
    """Every key of a section: its default, what is allowed, what it means; what it inherits comes last."""
    own_first = dict.fromkeys(name for kind in schema.__mro__ for name in get_annotations(kind))
    fields = schema.model_fields
    return [_setting(schema, name, fields[name]) for name in own_first if name in fields]


def _setting(schema: type[BaseModel], name: str, field: FieldInfo) -> Setting:
    required = field.default is PydanticUndefined and field.default_factory is None
    return Setting(
        key=field.alias or name,
        default="" if required else as_yaml(field.get_default(call_default_factory=True)),
        allowed=_allowed(field.annotation, field.metadata),
        meaning=_meaning(schema, name),
        groups=tuple(_models_in(field.annotation)),
        printed=next((f"{each.by}: {as_yaml(each.value)}" for each in printed_in(field)), ""),
    )


def printed_in(field: FieldInfo) -> list[Printed]:
    """The source's own value of a setting, if it is marked with one."""
    return [each for each in field.metadata if isinstance(each, Printed)]


def _meaning(schema: type[BaseModel], name: str) -> str:
    """The docstring below a field, or below the one of the same name that it takes the place of."""
    for kind in schema.__mro__:
        field = kind.model_fields.get(name) if issubclass(kind, BaseModel) else None
        if field is not None and field.description:
            return " ".join(field.description.split())
    return ""


def as_yaml(value: Any) -> str:
    """A value as it would be written in a run file, in one line; of a section only what was set."""
    plain = _plain(value)
    text: str = yaml.safe_dump(
        plain, default_flow_style=True, width=10**6, allow_unicode=True, sort_keys=False
    )
    return text.removesuffix("\n").removesuffix("\n...")


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _allowed(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """What a value may be: `a whole number, at least 1, or null`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _allowed(arguments[0], [*arguments[1:], *metadata])
    if origin in (Union, types.UnionType):
        options = ["null" if each is type(None) else _allowed(each, metadata) for each in arguments]
        return ", or ".join(dict.fromkeys(options))
    if origin is Literal:
        return _either([as_yaml(choice) for choice in arguments])
    if origin in (list, tuple, dict):
        return f"{'a map' if origin is dict else 'a list'}, of each: {_allowed(arguments[origin is dict])}"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    name = "a section" if _models_in(annotation) else names.get(annotation, "anything")
    return ", ".join(filter(None, [name, " and ".join(_bounds(metadata))]))


def _bounds(metadata: Iterable[Any]) -> Iterator[str]:
    for each in metadata:
        if isinstance(each, FieldInfo):
            yield from _bounds(each.metadata)
        elif isinstance(each, annotated_types.Ge):
            yield f"at least {each.ge}"
        elif isinstance(each, annotated_types.Gt):
            yield f"above {each.gt}"
        elif isinstance(each, annotated_types.Le):
            yield f"at most {each.le}"
        elif isinstance(each, annotated_types.Lt):
            yield f"below {each.lt}"


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
