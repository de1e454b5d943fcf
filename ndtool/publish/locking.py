"""Locks on folders, held while a file or store in the folder is compared and replaced."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from ndtool.errors import OutputError
from ndtool.storage.descriptors import lock

TIMEOUT = 30.0  # seconds; a run holds a lock for microseconds, longer with many Zarr metadata
_RETRY_INTERVAL = 0.001  # seconds


@contextmanager
def lock_folders(openers: Iterable[Callable[[], int | None]]) -> Iterator[None]:
    """Lock the folders that `openers` open; an opener returns None if it has no folder.

    All processes lock folders in the same order, which prevents deadlocks. A folder that is not
    readable, or whose file system supports no locks, is not locked. Raises OutputError on timeout,
    and OSError.
    """
    folders: dict[tuple[int, int], int] = {}
    try:
        for open_folder in openers:
            with suppress(PermissionError):
                if (fd := open_folder()) is not None:
                    _add(folders, fd)
        for _, fd in sorted(folders.items()):
            _wait(fd)
        yield
    finally:
        for fd in folders.values():
            _release(fd)


def _add(folders: dict[tuple[int, int], int], fd: int) -> None:
    """Add the descriptor of a folder, or close it if the folder is a duplicate."""
    try:
        status = os.fstat(fd)
        existing = folders.setdefault((status.st_dev, status.st_ino), fd)
    except BaseException:
        os.close(fd)
        raise
    if existing != fd:
        os.close(fd)


def _wait(fd: int) -> None:
    """Lock a folder; OutputError if another process holds the lock for TIMEOUT seconds."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            lock(fd)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise OutputError(
                    f"the output's folder was locked by another process for {TIMEOUT:.0f} seconds",
                    hint="do not run ndtool under flock on this folder: ndtool locks it itself",
                ) from None
        time.sleep(_RETRY_INTERVAL)


def _release(fd: int) -> None:
    import fcntl

    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)  # else a child forked meanwhile would hold the lock
    with suppress(OSError):  # the files are published: closing a folder loses no data
        os.close(fd)
