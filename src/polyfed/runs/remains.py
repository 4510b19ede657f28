"""What a run leaves in its folder, by name: all that may be deleted there. Anything else is somebody's own.

No link is followed, and what is not of its kind (a link, a folder in place of a file) is no part of a run.
"""

from __future__ import annotations

import re
from collections.abc import Container
from pathlib import Path

from polyfed.disk import LOCK, Folder
from polyfed.errors import CheckpointError
from polyfed.runs.manifest import (
    ASSIGNMENT,
    CLIENTS,
    CONFIG,
    DESCRIPTION,
    HISTORY,
    LEDGER,
    MANIFEST,
    MODELS,
    SUMMARY,
)

STATES = "states"
INDEX = "states.jsonl"
SCRATCH = "scratch"
FIGURE = "curves.png"
FAILURES_LOG = "failures.log"

LOGS = frozenset({HISTORY, LEDGER, INDEX})
FOLDERS = frozenset({STATES, MODELS, SCRATCH})
FILES_BEFORE_A_CHECKPOINT = LOGS | {LOCK, CONFIG, DESCRIPTION, ASSIGNMENT, f"{MANIFEST}.tmp"}
FILES = FILES_BEFORE_A_CHECKPOINT | {
    MANIFEST,
    SUMMARY,
    f"{SUMMARY}.tmp",
    f"{CONFIG}.tmp",
    *(f"{log}.tmp" for log in (*LOGS, FAILURES_LOG)),
    FAILURES_LOG,
    FIGURE,
    f"{FIGURE}.tmp",
}

_STATE = re.compile(r"(?s:.+)\.(start|\d+)(\.slot|\.hashed-slot)?\.safetensors")
_FIRST_STATE = "server.start.safetensors"
_MODEL = re.compile(r"(?s:.+)\.safetensors(\.tmp)?")


def is_a_state(name: str) -> bool:
    """Whether a file in `states/` has a name that a commit gives."""
    return _STATE.fullmatch(name) is not None


def is_a_model(name: str) -> bool:
    """Whether a file in `models/` has a name that the end of a run gives."""
    return _MODEL.fullmatch(name) is not None or name in (CLIENTS, f"{CLIENTS}.tmp")


def check_kinds(folder: Folder) -> None:
    """Refuse a run directory in which something of a run's is a link, or not of its kind."""
    for name in folder.names():
        if name in FOLDERS:
            folder.folder(name).check()
        elif name in FILES:
            folder.has(name)


def first_strange(folder: Folder, models: Container[str] | None = None) -> Path | None:
    """The first thing in a folder that no run writes, or that is not of its kind; None if all is of a run.

    models: the files in `models/`, where it is known which this run wrote.
    """
    for name in folder.names():
        try:
            if name in FOLDERS:
                inside = folder.folder(name)
                for each in inside.names() if name != SCRATCH else ():
                    ours = is_a_state(each) if name == STATES else is_a_model(each)
                    if name == MODELS and models is not None:
                        ours = each.removesuffix(".tmp") in models
                    if not ours or not inside.has(each):
                        return inside.path / each
                inside.check()
            elif name not in FILES or not folder.has(name):
                return folder.path / name
        except CheckpointError:  # a link, or not of its kind
            return folder.path / name
    return None


def is_unused(path: Path) -> bool:
    """Whether there is nothing, or an empty folder."""
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def was_killed_before_a_checkpoint(path: Path) -> bool:
    """Whether all that is there is what a run leaves that was killed before its first checkpoint.

    That is its lock and a few files without content of value; or two empty folders, before there is a lock.
    """
    if not path.is_dir():
        return False
    folder = Folder(path)
    names = set(folder.names())
    if first_strange(folder) is not None or not names <= FILES_BEFORE_A_CHECKPOINT | FOLDERS:
        return False
    inside = {name: folder.folder(name).names() for name in names & {STATES, MODELS}}
    if LOCK not in names:
        return names <= inside.keys() and not any(inside.values())
    return (
        not any((path / log).lstat().st_size for log in names & LOGS)
        and not inside.get(MODELS)
        and set(inside.get(STATES, ())) <= {_FIRST_STATE}
    )


def remove_all(folder: Folder, *, last: tuple[str, ...] = (), but: tuple[str, ...] = ()) -> None:
    """Delete all of a run but for some files, and some files last, in that order. Nothing else may be in the folder."""
    files = []
    for name in folder.names():
        if name == SCRATCH:
            folder.remove_folder(name)
        elif name in FOLDERS:
            inside = folder.folder(name)
            for each in inside.names():
                inside.remove(each)
            inside.path.rmdir()
        elif name not in but:
            files.append(name)
    for name in sorted(files, key=lambda name: last.index(name) if name in last else -1):
        folder.remove(name)
