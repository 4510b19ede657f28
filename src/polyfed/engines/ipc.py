"""What goes between the pool and its workers: a JSON head and raw blobs, never pickle.

Small blobs travel in the pipe. Large ones are left in a file and read there: faster than a pipe (50 MB: 6 ms
instead of 160), and a frame always fits into the pipe's buffer, so that two sides that send at the same moment
never wait for each other.
"""

from __future__ import annotations

import itertools
import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SMALL_BLOB = 16 * 1024
SMALL_FRAME = 64 * 1024

_LENGTH = struct.Struct("<I")
_numbers = itertools.count()


def pack(head: dict[str, Any], blobs: Sequence[bytes] = (), folder: Path | None = None) -> bytes:
    """One frame. Blobs that are too large for it go to files in `folder`."""
    inside: list[bytes] = []
    places: list[int | str] = []
    room = SMALL_FRAME
    for blob in blobs:
        if folder is not None and (len(blob) > SMALL_BLOB or len(blob) > room):
            places.append(leave(blob, folder))
        else:
            places.append(len(blob))
            inside.append(blob)
            room -= len(blob)
    text = json.dumps({**head, "blobs": places}).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *inside])


def unpack(frame: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """The head and the blobs of a frame; files are removed once read."""
    (length,) = _LENGTH.unpack_from(frame)
    place = _LENGTH.size + length
    head = json.loads(frame[_LENGTH.size : place])
    blobs = []
    for where in head.pop("blobs"):
        if isinstance(where, str):
            path = Path(where)
            blobs.append(path.read_bytes())
            path.unlink()
        else:
            blobs.append(frame[place : place + where])
            place += where
    return head, blobs


def leave(blob: bytes, folder: Path) -> str:
    """Leave a blob in a file of its own and tell its name."""
    path = folder / f"{os.getpid()}-{next(_numbers)}.blob"
    path.write_bytes(blob)
    return str(path)
