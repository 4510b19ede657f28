"""The states that a run directory holds: which file is whose, each read against its digest."""

from __future__ import annotations

from pathlib import Path

from polyfed import disk
from polyfed.disk import Folder, SavedState, digest
from polyfed.errors import CheckpointError
from polyfed.runs.manifest import AS_IT_WAS, RunFiles, read_lines
from polyfed.runs.remains import INDEX, STATES


def read_states(path: Path) -> dict[str, SavedState]:
    """Every owner's last state by `states.jsonl` of a run directory, each in a plain file inside `states/`."""
    states: dict[str, SavedState] = {}
    try:
        for line in read_lines(path / INDEX):
            state = SavedState(**line)
            note(states, state if state.file is None else checked(state, path))
    except (TypeError, ValueError, RecursionError):
        raise CheckpointError(f"{path / INDEX} was edited: it is not a list of states") from None
    return states


def read_state(path: Path, state: SavedState) -> bytes:
    """The file of a state in a run directory, if it is as it was saved."""
    assert state.file is not None, "a deleted state is not among the states"
    file = path / STATES / state.file
    try:
        data = Folder(path).folder(STATES).read(state.file)
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{file} is missing: the run cannot be resumed") from None
    if digest(data) != state.digest:
        raise CheckpointError(f"{file} was truncated or edited since it was saved: {AS_IT_WAS}")
    return data


def verify_states(files: RunFiles) -> None:
    """Read every state of a run, so that damage is noticed now and not when the run is to go on."""
    files.log(INDEX)
    for state in (*read_states(files.path).values(), server_state(files)):
        read_state(files.path, state)


def server_state(files: RunFiles) -> SavedState:
    file, expected = files.manifest["server"]
    return checked(SavedState("server", file, expected), files.path)


def note(states: dict[str, SavedState], state: SavedState) -> None:
    if state.file is None:
        states.pop(state.owner, None)
    else:
        states[state.owner] = state


def checked(state: SavedState, path: Path) -> SavedState:
    """The state, if its file cannot lead out of the run directory: files that were replaced are deleted."""
    name = state.file
    try:
        disk.plain_name(name, path)
    except CheckpointError:
        name = None
    if name is None or not isinstance(state.owner, str):
        raise CheckpointError(
            f"{path} was edited: the state of {state.owner!r:.100} is in {state.file!r:.100},"
            " which is not a file inside states/"
        )
    return state
