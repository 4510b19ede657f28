"""YAML from anybody: bounded in bytes before it is parsed, and in values while it is, so that no file takes long."""

from __future__ import annotations

import re
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from polyfed.disk import check_regular
from polyfed.errors import ConfigError

YAML = "tag:yaml.org,2002:"
MERGE = f"{YAML}merge"  # the key << of YAML, which takes the keys of another map
MOST_YAML_BYTES = 1_000_000  # the largest file that comes with polyfed has 47,000
MOST_YAML_VALUES = 100_000  # read in six seconds; an alias counts as all that it stands for
DEEPEST_YAML = 50
LONGEST_NUMBER = 100

_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
_FLOAT = re.compile(
    r"[-+]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9_]+)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan", re.IGNORECASE
)


def read_yaml(file: Traversable, missing: str) -> dict[str, Any]:
    """The keys and values of a YAML file; an empty file has none.

    missing: the message of the `ConfigError` if there is no such file.
    """
    try:
        content = parse_yaml(_bounded_text(file))
    except FileNotFoundError:
        raise ConfigError(missing) from None
    except IsADirectoryError:
        raise ConfigError(f"cannot read {file}: it is a folder; name a file") from None
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"cannot read {file}: it is not text in UTF-8; save it as that") from None
    except UnfitYaml as error:
        raise ConfigError(f"{file}: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{file} is not YAML: {_yaml_trouble(error)}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        is_a = "a list" if isinstance(content, list) else "a single value"
        raise ConfigError(f"{file} must hold keys and values, such as `rounds: 20`, but it is {is_a}")
    return content


def parse_yaml(text: str) -> Any:
    """The value that a YAML text stands for, of the kinds that JSON has too.

    A key that is given twice is an error: YAML would let the last one win. Dates are text. Numbers are decimal: YAML
    would read 010 as 8 and 1:30 as 90.
    """
    try:
        return yaml.load(text, _Loader)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        # A tag such as !!bool on a value that is none: PyYAML lets through what its conversion raises.
        raise UnfitYaml(f"a value is not of the kind that its tag says ({type(error).__name__})") from None


class UnfitYaml(yaml.YAMLError):
    """YAML that can be read, but that is not taken: too large, ambiguous, or of a kind that has no use here."""


class KeyGivenTwice(UnfitYaml):
    """A key that is there twice in one section."""


class _Loader(yaml.SafeLoader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._values = 0
        self._counts: dict[int, int] = {}  # how many values a node stands for, by its id

    def compose_node(self, parent: Any, index: Any) -> Any:
        """A value, counted with all that it stands for: a few aliases of aliases stand for billions."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            node = super().compose_node(parent, index)
            if id(node) not in self._counts:
                raise UnfitYaml(f"line {line}: *{event.anchor} is inside of what it stands for")
            self._count(self._counts[id(node)], line)
            return node
        before = self._values
        self._count(1, line)
        self._depth += 1
        if self._depth > DEEPEST_YAML:
            raise UnfitYaml(f"line {line}: sections inside each other more than {DEEPEST_YAML} deep")
        node = super().compose_node(parent, index)
        self._depth -= 1
        self._counts[id(node)] = self._values - before
        return node

    def _count(self, values: int, line: int) -> None:
        self._values += values
        if self._values > MOST_YAML_VALUES:
            raise UnfitYaml(f"line {line}: more than {MOST_YAML_VALUES:,} values, aliases written out")

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Here, and not where the map is made: by then the keys of `<<` are among its own.
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == MERGE:
                continue
            line = key.start_mark.line + 1
            first = lines.get((key.tag, key.value))
            if first is not None:
                where = f"lines {first} and {line}" if line > first else f"line {line}"
                raise KeyGivenTwice(f"'{key.value}' is there twice, in {where}: leave one out")
            lines[key.tag, key.value] = line
        return node

    def construct_text(self, node: Any) -> str:
        text = str(self.construct_scalar(node))
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            raise UnfitYaml(f"line {node.start_mark.line + 1}: half of a UTF-16 pair is not text")
        return text

    def construct_number(self, node: Any) -> int | float:
        text = self.construct_text(node)
        whole = node.tag == f"{YAML}int"
        if len(text) > LONGEST_NUMBER or not (_INT if whole else _FLOAT).fullmatch(text):
            raise UnfitYaml(
                f"line {node.start_mark.line + 1}: write {text[:20]}{'…' if text[20:] else ''} as a decimal number"
                f" of at most {LONGEST_NUMBER} digits, or in quotes if it is text"
            )
        digits = text.replace("_", "")
        return int(digits) if whole else float(digits.lower().replace(".inf", "inf").replace(".nan", "nan"))

    def refuse(self, node: Any) -> Any:
        tag = node.tag.removeprefix(YAML)
        raise UnfitYaml(f"line {node.start_mark.line + 1}: !!{tag} has no use here; write plain values")


for _tag, _construct in {
    "str": _Loader.construct_text,
    "timestamp": _Loader.construct_text,
    "int": _Loader.construct_number,
    "float": _Loader.construct_number,
    **dict.fromkeys(("binary", "set", "omap", "pairs"), _Loader.refuse),
}.items():
    _Loader.add_constructor(f"{YAML}{_tag}", _construct)


def _bounded_text(file: Traversable) -> str:
    """The text of a file, if it is a regular file that is not too large for YAML."""
    if isinstance(file, Path):
        check_regular(file)
    with file.open("rb") as content:
        data = content.read(MOST_YAML_BYTES + 1)
    if len(data) > MOST_YAML_BYTES:
        raise UnfitYaml(f"it has more than {MOST_YAML_BYTES / 1e6:g} MB, the most that is read")
    return data.decode()


def _yaml_trouble(error: yaml.YAMLError) -> str:
    """What is wrong and in which line, in one line."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return " ".join(str(error).split())
    problem = ": ".join(filter(None, (getattr(error, part, None) for part in ("context", "problem"))))
    if "'\\t'" in problem:
        problem = "there is a tab: indent with spaces"
    return f"line {mark.line + 1}: {problem}"
