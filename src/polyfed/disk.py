"""Files that must be on the disk, and digests that tell whether one was changed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def write_through(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, data: bytes) -> None:
    """Put a file in another's place in one move: whoever looks sees the old one or the new one, whole."""
    beside = path.with_name(f"{path.name}.tmp")
    write_through(beside, data)
    beside.replace(path)


def digest(data: bytes) -> str:
    """What the manifest keeps of a file's content."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
