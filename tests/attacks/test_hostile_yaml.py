"""Run files, papers' files and `--set` from anybody: bombs, odd values, and numbers that are too large."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.attacks.conftest import Refused, unharmed

from polyfed import yaml_files
from polyfed.errors import ConfigError
from polyfed.runs.checkpoint import RunDirectory
from polyfed.runs.config import read_config

LEVELS = 12


def laughs(each: str) -> str:
    """Every list holds the one before ten times."""
    lines = ["a0: &a0 [1]", *(f"a{n}: &a{n} {each.format(n - 1)}" for n in range(1, LEVELS))]
    return "\n".join(lines)


BOMBS = {
    "aliases of aliases": (
        laughs("[" + ", ".join(["*a{0}"] * 10) + "]"),
        "more than 100,000 values, aliases written out",
    ),
    "keys of maps of maps": (
        "a0: &a0 {k: 1}\n"
        + "\n".join(
            f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}], k{n}: 1}}" for n in range(1, LEVELS)
        ),
        "more than 100,000 values",
    ),
    "a value that holds itself": ("a: &a [*a]", "line 1: *a is inside of what it stands for"),
    "a map that takes its own keys": ("a: &a {<<: *a}", "line 1: *a is inside of what it stands for"),
    "deep lists": ("a: " + "[" * 5000, "more than 50 deep"),
    "deep maps": ("a: " + "{a: " * 5000, "more than 50 deep"),
    "many values": ("a: [" + "1," * 110_000 + "]", "more than 100,000 values"),
    "a long text": ("a: " + "x" * 1_000_001, "it has more than 1 MB, the most that is read"),
    "many lines": ("\n" * 1_000_001, "it has more than 1 MB, the most that is read"),
}


@pytest.mark.parametrize("kind", BOMBS)
@pytest.mark.parametrize("words", ["run x.yaml", "reproduce x.yaml"])
def test_bombs_are_refused_while_they_are_read(
    tmp_path: Path, refused: Refused, kind: str, words: str
) -> None:
    content, message = BOMBS[kind]
    (tmp_path / "x.yaml").write_text(content)
    assert message in refused(*words.split())


def test_a_gigabyte_is_not_read(tmp_path: Path, refused: Refused) -> None:
    with (tmp_path / "x.yaml").open("wb") as file:
        file.truncate(2**30)  # of zeros, which take no room on the disk
    assert "more than 1 MB" in refused("run", "x.yaml")


def test_aliases_and_merge_keys_of_a_usual_size_are_read(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("a: &a {x: 1, y: [1, 2]}\nb: {<<: *a, x: 3}\nc: [*a, *a]")
    content = yaml_files.read_yaml(tmp_path / "x.yaml", "missing")
    assert content["b"] == {"x": 3, "y": [1, 2]}
    assert content["c"] == [content["a"]] * 2


ODD = {
    "2024-01-01": "2024-01-01",
    "2024-13-45": "2024-13-45",
    "12_000": 12_000,
    "0": 0,
    "-7": -7,
    "1.5e+3": 1500.0,
    ".5": 0.5,
    "~": None,
    "yes": True,
    "089": "089",
}


@pytest.mark.parametrize("text", ODD)
def test_values_are_what_they_look_like(text: str) -> None:
    assert yaml_files.parse_yaml(text) == ODD[text]
    assert type(yaml_files.parse_yaml(text)) is type(ODD[text])


UNFIT = {
    "010": "write 010 as a decimal number",
    "0x1F": "write 0x1F as a decimal number",
    "0b11": "as a decimal number",
    "1:30": "write 1:30 as a decimal number",
    "1" + ":59" * 300: "…",
    "9" * 5000: "of at most 100 digits",
    "0x" + "f" * 5000: "as a decimal number",
    "!!int x": "as a decimal number",
    "!!float x": "as a decimal number",
    "!!bool maybe": "a value is not of the kind that its tag says",
    "!!binary aGk=": "!!binary has no use here; write plain values",
    "!!set {a, b}": "!!set has no use here",
    "!!omap [a: 1]": "!!omap has no use here",
    "!!pairs [a: 1]": "!!pairs has no use here",
    '"\\ud800"': "half of a UTF-16 pair is not text",
}


@pytest.mark.parametrize("text", UNFIT)
def test_what_reads_in_two_ways_or_has_no_use_is_refused(tmp_path: Path, refused: Refused, text: str) -> None:
    (tmp_path / "x.yaml").write_text(f"rounds: {text}\n")
    assert UNFIT[text] in refused("run", "x.yaml")
    assert UNFIT[text] in refused("run", "x.yaml", "--set", f"seed={text}")


@pytest.mark.parametrize(
    "tag",
    ["!!python/object/apply:os.system [touch harmed]", "!!python/name:os.system", "!mine x", "!!unknown x"],
)
def test_tags_make_nothing(tmp_path: Path, refused: Refused, tag: str) -> None:
    (tmp_path / "x.yaml").write_text(f"rounds: {tag}\n")
    assert "could not determine a constructor" in refused("run", "x.yaml")
    assert not (tmp_path / "harmed").exists()


KEYS = (
    "rounds",
    "seed",
    "timeout",
    "checkpoint_seconds",
    "training.lr",
    "training.batch",
    "data.clients",
    "data.size",
    "data.partition.alpha",
    "cohort.fraction",
    "method.mu",
    "name",
    "data.source",
    "models.names",
)
VALUES = (
    ".inf",
    "-.inf",
    ".nan",
    "1e999",
    "-1e999",
    "1.0e+999",
    "1e400",
    "{a: b}",
    "[[1]]",
    "null",
    "{1: 2}",
    "'\\0'",
    '"\\0"',
    '"\\e[31m"',
    "x" * 3000,
    "-1",
    "[]",
)


@pytest.mark.parametrize("key", KEYS)
def test_odd_values_are_a_config_or_one_line(small: dict[str, Any], key: str) -> None:
    method = {"method": "fedprox"} if key.startswith("method.") else {}
    for value in VALUES:
        try:
            with unharmed():
                read_config({**small, **method}, [f"{key}={value}"])
        except ConfigError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("value", [".inf", ".nan", "1e999", "inf", "nan"])
@pytest.mark.parametrize("key", ["timeout", "checkpoint_seconds", "training.lr", "data.partition.alpha"])
def test_numbers_are_finite(small: dict[str, Any], key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: must be"):
        read_config(small, [f"{key}={value}"])


def test_a_timeout_is_none_that_clocks_cannot_count(small: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^timeout: must be at most 1e\+06, not 1e\+308"):
        read_config(small, ["timeout=1e308"])


@pytest.mark.parametrize(
    "key", ["int", "float", "str", "bool", "training.int", "data.float", "models.str", "a[b"]
)
def test_keys_that_are_called_like_types_are_unknown_keys(small: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(small, [f"{key}=5"])
    assert str(caught.value).startswith(f"{key}: unknown key, ")


def test_large_numbers_of_rounds_cost_nothing(small: dict[str, Any]) -> None:
    with unharmed():
        assert read_config(small, ["rounds=1e9"]).rounds == 10**9


def test_a_config_that_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run", new=True)
    with pytest.raises(ConfigError, match=r"the config takes 1\.\d MB, more than the 1 MB that are read"):
        directory.write_config(
            {"data": {"names": [f"client-of-a-long-name-{number}" for number in range(50_000)]}}
        )
    directory.close()


def test_papers_files_are_refused_in_one_line(tmp_path: Path, refused: Refused) -> None:
    for content in (
        "a: 1",
        "tables: [1]",
        "id: .inf",
        "title: {a: b}",
        "tables: {t: {rows: .nan}}",
        "[1]",
        "x",
        "\0",
    ):
        (tmp_path / "x.yaml").write_text(content)
        assert refused("reproduce", "x.yaml")
        assert refused("reproduce", "x.yaml/t")


def test_yaml_that_polyfed_writes_is_read_again() -> None:
    for value in (
        "010",
        "1:30",
        "2024-01-01",
        "0x1F",
        "1e3",
        "yes",
        ".inf",
        "12_0",
        "\u202e",
        "=",
        "<<",
        "~",
    ):
        assert yaml_files.parse_yaml(yaml.safe_dump({"a": value})) == {"a": value}
