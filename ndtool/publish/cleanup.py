"""Removal of temporary files and folders that killed runs abandoned: no process locks them."""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from threading import Condition, get_ident
from typing import NamedTuple

from ndtool.errors import OutputError, argument_name
from ndtool.storage.descriptors import lock

NEW_FOLDER = "new"  # the only entry of a temporary folder, except during a rename
PARTIAL_SUFFIX = ".partial"  # suffix of incomplete files next to the new folder
_TEMPORARY_NAME = r"\.ndtool-[0-9a-f]{12}"


def boot_id() -> str:
    """Return an identifier of this boot of the system, "" if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read(8)
    except OSError:
        return ""


def open_locked(path: str, kind: int = os.O_DIRECTORY) -> int:
    """Open and lock a file or folder; return the descriptor, -1 if locks are unsupported.

    Raises BlockingIOError if another process holds the lock.
    """
    fd = os.open(path, os.O_RDONLY | kind | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if lock(fd):
            return fd
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return -1


class CleanupResult(NamedTuple):
    """The paths removed by a cleanup, and its failed removals with their errors."""

    removed: list[str]
    failed: list[tuple[str, OSError]]


def clean(parent: str, all_boots: bool = False) -> CleanupResult:
    """Remove the unlocked temporary files and folders of killed runs on this system.

    all_boots: also files and folders of other systems or boots. A folder with unknown entries is
    not removed: no run created it, or it contains a store whose replacement was interrupted,
    perhaps the only copy.
    """
    suffix = "(-[0-9a-f-]{8})?" if all_boots else f"-{boot_id()}"
    result = CleanupResult([], [])
    for path in _lock_each(parent, ".*", suffix):
        if error := remove(path):
            result.failed.append((path, error))
        else:
            result.removed.append(path)
    return result


def remove(path: str) -> OSError | None:
    """Remove a file or a folder tree; return the error if any of it remains.

    Opens one descriptor at a time, where shutil.rmtree has one open per level.
    """
    for _ in range(2):  # a writer may have added a file meanwhile
        errors: list[OSError] = []
        for folder, folders, files in chain(
            os.walk(path, False, errors.append), [(path, [], [""])]
        ):
            for name in (*files, *folders):
                entry = os.path.join(folder, name).rstrip("/")
                try:
                    is_folder = os.path.isdir(entry) and not os.path.islink(entry)
                    (os.rmdir if is_folder else os.unlink)(entry)
                except OSError as exc:
                    errors.append(exc)
        if not os.path.lexists(path):
            return None
    return errors[0]


def abandoned_folders(parent: str, name: str) -> list[str]:
    """Return the temporary folders that killed runs on this system abandoned.

    name: a pattern of their final names.
    """
    return list(_lock_each(parent, name, f"-{boot_id()}"))


def _lock_each(parent: str, name: str, suffix: str) -> Iterator[str]:
    """Yield the paths of abandoned files and folders, each locked until the next one."""
    pattern = re.compile(rf"\.{name}{_TEMPORARY_NAME}{suffix}", re.DOTALL)
    for entry in os.listdir(parent) if suffix != "-" else ():
        path = os.path.join(parent, entry)
        if pattern.fullmatch(entry) and (lock_fd := _lock(path)) >= 0:
            yield path
            os.close(lock_fd)


def _lock(path: str) -> int:
    """Lock an abandoned file or folder; -1 if it is in use, another user's, or no run's."""
    try:
        status = os.lstat(path)
        is_folder = stat.S_ISDIR(status.st_mode)
        if status.st_uid != os.geteuid() or not (is_folder or stat.S_ISREG(status.st_mode)):
            return -1
        if is_folder and any(
            n != NEW_FOLDER and not n.endswith(PARTIAL_SUFFIX) for n in os.listdir(path)
        ):
            return -1
        return open_locked(path, os.O_DIRECTORY if is_folder else 0)
    except OSError:
        return -1  # it was removed, is in use, or has another file type


class AdmissionLock:
    """A lock that admits writers until it is closed, so that none recreates a removed folder.

    name: the output's name in messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._threads, self._closed = list[int](), False  # IDs of the threads that write
        self._changed = Condition()

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Admit a writer; OutputError if the lock is closed."""
        with self._changed:
            if self._closed:
                raise OutputError(f"{argument_name(self._name)}: the run has ended")
            self._threads.append(get_ident())
        try:
            yield
        finally:
            with self._changed:
                self._threads.remove(get_ident())
                self._changed.notify_all()

    def close(self, timeout: float | None = None) -> None:
        """Admit no more writers, and wait for the admitted ones, at most `timeout` seconds.

        Writers of this thread are ignored: if this is called by a signal handler, the handler has
        interrupted the write, which never completes.
        """
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: {*self._threads} <= {get_ident()}, timeout)
