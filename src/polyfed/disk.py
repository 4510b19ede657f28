"""Files: writes that reach the disk, digests that tell whether one was changed, folders from anybody, locks.

What is read may come from anybody. Only regular files are opened: a named pipe would be waited for until somebody
writes into it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import stat
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from polyfed.errors import CheckpointError

LOCK = ".lock"

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass(frozen=True)
class SavedState:
    """Where a state was written, and the digest of the file; no file where the state was deleted.

    owner: a client's name such as `client-3`, or `shelf/KEY` for a slot of the server's shelf.
    """

    owner: str
    file: str | None
    digest: str | None


def check_regular(path: Path) -> None:
    """Raise an `OSError` in words if a path is anything but a regular file, or a link to one."""
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file", str(path))
    if kind != stat.S_IFREG:
        words = f"it is {_KINDS.get(kind, 'something else')}, not a file"
        raise OSError(errno.EINVAL, words, str(path))


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in an `OSError` that names none: what is raised by writing into an open file says only why."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.strerror, error.filename = error.strerror or str(error), str(path)
        raise


def write_through(path: Path, data: bytes) -> None:
    """Write a new file and wait until it is on the disk. A file or link that is there is removed, not written into."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        descriptor = os.open(path, flags, 0o666)
    except FileExistsError:
        path.unlink()
        descriptor = os.open(path, flags, 0o666)
    with naming(path), os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, data: bytes) -> None:
    """Replace a file in one move: whoever looks sees the old one or the new one, whole; so does a power cut."""
    beside = path.with_name(f"{path.name}.tmp")
    write_through(beside, data)
    beside.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk: a file's own content is not enough for it to be found again."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # some network file systems refuse, and need none
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest(data: bytes) -> str:
    """A digest of a file's content, as the manifest of a run keeps it."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


# -- folders from others ---------------------------------------------------------------------------------------


def read_file(path: Path) -> bytes:
    """The content of a regular file. A link is not followed, and no named pipe is waited for."""
    with naming(path), _open(path, os.O_RDONLY, "rb") as file:
        return file.read()


@dataclass(frozen=True)
class Folder:
    """A folder that may come from anybody: nothing in it is read, written or deleted through a link.

    Names are those of files and folders directly inside. What is not of its kind (a link, a pipe, a folder in place of
    a file) is refused with a `CheckpointError`; a name that would lead outside is, too.

    path: where it is. This may be a link itself, such as `latest`, unless the folder is a part of another.
    """

    path: Path
    part_of: Folder | None = None

    def file(self, name: str) -> Path:
        """The path of a file in here, for messages, and for those who open it by `read_file`."""
        self.check()
        return self.path / plain_name(name, self.path)

    def folder(self, name: str) -> Folder:
        """A folder in here, which may be there or not."""
        return Folder(self.path / plain_name(name, self.path), self)

    def check(self) -> None:
        """Refuse a part of a folder that is there and is no folder of its own."""
        if self.part_of is not None:
            self.part_of.check()
            _check_kind(self.path, stat.S_IFDIR)

    def has(self, name: str) -> bool:
        """Whether there is a file of this name. A `CheckpointError` if there is something else."""
        return _check_kind(self.file(name), stat.S_IFREG)

    def names(self) -> list[str]:
        """What is in here, in the order of the names; nothing if the folder is not there."""
        self.check()
        return sorted(each.name for each in self.path.iterdir()) if self.path.exists() else []

    def make(self) -> None:
        """Make the folder, and those above it, if they are not there."""
        self.check()
        above = self.path.parent
        if not self.path.exists():
            if not above.exists():
                Folder(above).make()
            self.path.mkdir(exist_ok=True)
            sync_folder(above)

    def read(self, name: str) -> bytes:
        return read_file(self.file(name))

    def write(self, name: str, data: bytes) -> None:
        """Write a file and wait until it is on the disk; its name is there only after `sync_folder`."""
        self.has(name)
        write_through(self.path / name, data)

    def replace(self, name: str, data: bytes) -> None:
        """Replace a file in one move."""
        self.has(name)
        replace(self.path / name, data)

    def append(self, name: str) -> BinaryIO:
        """A file to be written at its end. One that has another name elsewhere becomes a copy of its own first."""
        path = self.file(name)
        if self.has(name) and path.lstat().st_nlink > 1:
            replace(path, read_file(path))
        return _open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, "ab")

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        if self.has(name):
            (self.path / name).unlink(missing_ok=True)

    def remove_folder(self, name: str) -> None:
        """Delete a folder with all that is in it, if it is there; what links in it lead to stays."""
        folder = self.folder(name)
        folder.check()
        if folder.path.exists():
            shutil.rmtree(folder.path)


def plain_name(name: Any, folder: Path) -> str:
    """The name, if it is one of a file directly inside of a folder."""
    if not isinstance(name, str) or name in {"", ".", ".."} or set(name) & set("/\\\0"):
        raise CheckpointError(f"{folder} was edited: {name!r:.100} is not the name of a file inside")
    return name


_KINDS_OF_FILES = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
}


def _check_kind(path: Path, expected: int) -> bool:
    """Whether something is there, if it is of this kind; else a `CheckpointError`."""
    try:
        kind = stat.S_IFMT(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    if kind != expected:
        found, wanted = (_KINDS_OF_FILES.get(each, "a device") for each in (kind, expected))
        raise CheckpointError(f"{path} is {found}, not {wanted}, and is left alone: remove it")
    return True


def _open(path: Path, flags: int, mode: str) -> BinaryIO:
    """Open a regular file that is not reached by a link in its last part, whatever happens at the same time."""
    _check_kind(path, stat.S_IFREG)
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    file = cast("BinaryIO", os.fdopen(descriptor, mode))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise CheckpointError(f"{path} is not a file")
    return file


# -- locks -------------------------------------------------------------------------------------------------------

_locks: weakref.WeakSet[BinaryIO] = weakref.WeakSet()


def lock(folder: Path) -> BinaryIO:
    """Keep other processes out of a folder until the file that is returned is closed.

    A process that is forked off does not hold the lock: it may outlive this one.
    """
    path = folder / LOCK
    while True:
        file = _open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, "ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise CheckpointError(f"another process is at work in {folder}: wait for it or stop it") from None
        with contextlib.suppress(FileNotFoundError):
            if path.lstat().st_ino == os.fstat(file.fileno()).st_ino:
                break
        file.close()  # it was deleted by another process just before: it keeps nobody out
    _locks.add(file)
    return file


def wait_until_free(folder: Path, seconds: float) -> None:
    """Wait, for so long at most, for a process that holds the lock of a folder: it may be about to end."""
    deadline = time.monotonic() + seconds
    while os.path.lexists(folder / LOCK) and time.monotonic() < deadline:
        with _open(folder / LOCK, os.O_RDONLY, "rb") as file, contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.02)


def _let_go_of_locks() -> None:
    for file in list(_locks):
        file.close()


os.register_at_fork(after_in_child=_let_go_of_locks)
