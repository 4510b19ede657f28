"""Every error that polyfed raises on purpose.

PolyfedError
├── UserError            something to correct in what polyfed was given; the command line exits with 2
│   ├── ConfigError      a run file, an override, an argument
│   ├── DataError        a data set, a partition, a public set
│   ├── ModelError       a model that is unknown or does not fit its input or its peers
│   ├── TaskError        what is to be learnt, where data or settings do not fit it
│   ├── MethodError      a method whose needs are not met, or which sends what it did not declare
│   ├── CheckpointError  a run directory that is missing, truncated or edited
│   └── RunError         a run that cannot go on: a full disk, every client failing
│       └── Divergence   since no model is finite any more; the command line exits with 1
├── MessageError         bytes that are not a message of polyfed
├── WorkerLost           a worker process ended in the middle of a step
├── RoundSpoilt          replies of some clients spoilt a round, which is done again without them
└── StepFailed           what a client's step raised, with its traceback: the cause of a `RunError`

and one warning: ClientFailure, when a run has ended and some of its clients failed on the way.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import signal
import sysconfig
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NoReturn

REASON_LENGTH = 300
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SYSTEM = {
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO),
    *(errno.EACCES, errno.EPERM, errno.EBUSY, errno.ESTALE, errno.ETIMEDOUT, errno.ENODEV, errno.ENXIO),
}
NOT_USERS = (str(Path(__file__).parent), sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"))


class PolyfedError(Exception):
    """The root of all errors that polyfed raises on purpose."""


class UserError(PolyfedError):
    """Something to correct in what polyfed was given: one line that says what and how."""


class ConfigError(UserError):
    """A run file, an override or an argument that cannot be used."""


class DataError(UserError):
    """A data set, a partition or a public set that cannot be used."""


class ModelError(UserError):
    """A model that is unknown, or that does not fit its input or its peers."""


class TaskError(UserError):
    """What is to be learnt is unknown, or does not fit the data or its settings."""


class MethodError(UserError):
    """A method whose needs are not met, or which sends what it did not declare."""


class CheckpointError(UserError):
    """A run directory that is missing, truncated or edited."""


class RunError(UserError):
    """A run that cannot go on: a full disk, every client failing."""


class Divergence(RunError):
    """A run that cannot go on because no model is finite any more: there is no result."""


class MessageError(PolyfedError):
    """Bytes that are not a message of polyfed."""


class WorkerLost(PolyfedError):
    """A worker process ended in the middle of a step; the run goes back to its last checkpoint."""


class RoundSpoilt(PolyfedError):
    """Replies of some clients spoilt a round: the run goes back to its last checkpoint and does it without them."""

    def __init__(self, number: int, clients: Mapping[int, str] | None = None) -> None:
        super().__init__(f"round {number} was spoilt by replies of clients")
        self.round = number
        self.clients = clients or {}
        """Each with the reason."""


class StepFailed(PolyfedError):
    """What a step raised, wherever it ran: its text is the whole traceback."""


class ClientFailure(UserWarning):
    """A run has ended, and steps of some of its clients failed on the way: these count for nothing in its result."""


def visible(text: str) -> str:
    """A text from anybody as it can be printed: what would steer a terminal is written out, such as \\x1b.

    That is control characters, but for the ends of lines and tabs; what turns the direction of writing; and halves of
    UTF-16 pairs, which cannot be encoded.
    """
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def in_one_line(text: str) -> str:
    """A text from anybody in one line that can be printed."""
    return visible(" ".join(text.split("\n")))


def describe(error: BaseException) -> str:
    """An exception in one line."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # anybody's class: its text is anybody's code
        text = "(its text cannot be read)"
    name = type(error).__name__
    return (f"{name}: {text}" if text else name)[:REASON_LENGTH]


def place_in_users_code(error: BaseException) -> str:
    """`my_method.py:23`, where an exception left code that is neither polyfed's nor a library's; else nothing."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame for frame in frames if not frame.filename.startswith(NOT_USERS) and frame.filename[:1] != "<"
    ]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""


def describe_exit(code: int | None) -> str:
    """How a process ended, from its exit code: `exit code 1`, or `signal SIGKILL`."""
    return f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"


def describe_os_error(error: OSError) -> str:
    """What the system refused, in words: which file or folder, and what is wrong with it."""
    if error.filename is None:
        return error.strerror or str(error)
    path = Path(os.fsdecode(error.filename))
    if isinstance(error, NotADirectoryError):
        file = next((part for part in (path, *path.parents) if part.is_file()), path)
        return f"{file} is a file, not a folder"
    if isinstance(error, IsADirectoryError):
        return f"{path} is a folder, not a file"
    if isinstance(error, FileNotFoundError):
        return f"there is no {path}" if path.parent.exists() else f"there is no folder {path.parent}"
    if isinstance(error, PermissionError):
        return f"no permission to read or write {path}"
    return f"{path}: {error.strerror}"


def system_reason(error: BaseException) -> str:
    """Why the system refused a file, whatever is in it: too many open ones, a full disk, no permission. Else nothing.

    What reads files raises an `OSError` for damaged ones too, mostly without a number.
    """
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno in _SYSTEM else ""


def nearest(word: str, known: Iterable[str], listed_by: str = "") -> str:
    """A hint for a word that is not known: the nearest known one, or all of them. The end of a message.

    listed_by: the command that lists them, where they are too many for a message.
    """
    choices = sorted(known)
    if not choices:
        return "there are none"
    folded = {choice.casefold(): choice for choice in choices}
    close = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{folded[close[0]]}'?"
    return f"`{listed_by}` lists them" if listed_by else f"known: {', '.join(choices)}"


_asked_for: list[BaseException] = []


def stop_at_once() -> NoReturn:
    """End what is under way because somebody asked for it by a signal: a `KeyboardInterrupt` that is known as such."""
    _asked_for[:] = [KeyboardInterrupt()]
    raise _asked_for[0]


def was_asked_for(error: BaseException) -> bool:
    """Whether an exception is that of `stop_at_once`, rather than one that a client's step raised by itself."""
    return any(error is each for each in _asked_for)
