"""Locks and YAML files."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyfed import disk
from polyfed.errors import CheckpointError, ConfigError


def test_a_folder_is_locked_until_the_lock_is_closed(tmp_path: Path) -> None:
    with (
        disk.lock(tmp_path),
        pytest.raises(CheckpointError, match=r"another process is at work in .*: wait for it or stop it"),
    ):
        disk.lock(tmp_path)
    disk.lock(tmp_path).close()


def test_a_yaml_file_gives_its_keys_and_values(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("α: 0.1\nb: {c: [1, 2]}", encoding="utf-8")
    assert disk.read_yaml(file, "missing") == {"α": 0.1, "b": {"c": [1, 2]}}
    file.write_text("# nothing yet")
    assert disk.read_yaml(file, "missing") == {}


def test_merge_keys_may_be_overridden_and_the_same_key_may_be_in_two_sections(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(
        "a: &base {b: 1, c: 2}\nd: &next\n  <<: *base\n  b: 3\ne: {<<: *next, b: 4, '1': x, 1: y}"
    )
    content = disk.read_yaml(file, "missing")
    assert content["d"] == {"b": 3, "c": 2}
    assert content["e"] == {"b": 4, "c": 2, "1": "x", 1: "y"}


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^cannot read \S+: it is a folder; name a file$"):
        disk.read_yaml(tmp_path, "missing")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [1,\nb", r"^\S+a\.yaml is not YAML: "),
        (b"a: 1\nb:\n\tc: 2", r"^\S+a\.yaml is not YAML: line 3: there is a tab: indent with spaces$"),
        (b"a: b: c", r"^\S+a\.yaml is not YAML: line 1: mapping values are not allowed here$"),
        (b"a: \x00", r"^\S+a\.yaml is not YAML: "),
        (b"- a", r"^\S+a\.yaml must hold keys and values, such as `rounds: 20`, but it is a list$"),
        (b"3", r"^\S+a\.yaml must hold keys and values, .* but it is a single value$"),
        (b"\xff\xd8", r"^cannot read \S+a\.yaml: it is not text in UTF-8; save it as that$"),
        (b"a: 1\nb: 2\na: 3", r"^\S+a\.yaml: 'a' is there twice, in lines 1 and 3: leave one out$"),
        (b"a:\n  b: 1\n  'b': 2", r"^\S+a\.yaml: 'b' is there twice, in lines 2 and 3: leave one out$"),
        (b"- {a: 1, a: 1}", r"^\S+a\.yaml: 'a' is there twice, in line 1: leave one out$"),
        (None, "^there is no such file$"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_in_one_line(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    file = tmp_path / "a.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        disk.read_yaml(file, "there is no such file")
    assert "\n" not in str(caught.value)
