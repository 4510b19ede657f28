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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [1,\nb", r"^\S+a\.yaml is not YAML: "),
        (b"- a", r"^\S+a\.yaml must hold keys and values"),
        (b"\xff\xd8", r"^cannot read \S+a\.yaml: "),
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
