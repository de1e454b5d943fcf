"""Temporary files and folders that killed runs abandoned, which no process has locked."""

import errno
import os
import re
import shutil
import stat
from contextlib import suppress
from typing import NamedTuple

from ndtool.storage.descriptors import lock

INSIDE = "new"  # the only entry of a temporary folder, except during its rename
PARTIAL = ".partial"  # suffix of files next to it, which move into it when complete
_HIDDEN = r"\.ndtool-[0-9a-f]{12}"


def boot() -> str:
    """Return an identifier of the current boot of this system, "" if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read(8)
    except OSError:
        return ""


def locked(path: str, kind: int = os.O_DIRECTORY) -> int:
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


class SweepResult(NamedTuple):
    """The paths removed by a cleanup, and its failed removals with their errors."""

    removed: list[str]
    failed: list[tuple[str, OSError]]


def sweep(parent: str, every: bool = False) -> SweepResult:
    """Remove the unlocked temporary files and folders of killed runs on this system.

    every: include those of other systems or boots. A folder with unknown entries is not removed:
    it is not a run's, or it has a store whose replacement was interrupted, perhaps the only copy.
    """
    start = "(-[0-9a-f-]{8})?" if every else f"-{boot()}"
    done = SweepResult([], [])
    for path in _hidden(parent, ".*", start):
        if (held := _held(path)) < 0:
            continue
        if reason := remove(path):
            done.failed.append((path, reason))
        else:
            done.removed.append(path)
        os.close(held)
    return done


def remove(path: str) -> OSError | None:
    """Remove a file or a folder tree; return the error if any of it remains."""
    if not os.path.isdir(path):
        try:
            os.unlink(path)
        except OSError as exc:
            return exc if os.path.lexists(path) else None
        return None
    try:
        shutil.rmtree(path)
        return None
    except OSError as exc:
        reason = exc
    if reason.errno in (errno.EMFILE, errno.ENFILE):  # rmtree has a descriptor open per level
        _remove_by_paths(path)
    else:
        shutil.rmtree(path, ignore_errors=True)  # removes the rest
    return reason if os.path.lexists(path) else None


def _remove_by_paths(path: str) -> None:
    """Remove a folder tree with one open descriptor at a time; errors are ignored."""
    for folder, below, files in os.walk(path, topdown=False):
        for name in (*files, *below, ""):
            inside = os.path.join(folder, name)
            with suppress(OSError):
                is_folder = os.path.isdir(inside) and not os.path.islink(inside)
                (os.rmdir if is_folder else os.unlink)(inside)
    with suppress(OSError):  # needs no descriptor if the folder is empty
        os.rmdir(path)


def unremovable(path: str) -> str:
    """Return the first folder in a tree whose entries cannot be removed, "" if none."""
    found: list[str] = []
    for folder, below, files in os.walk(path, onerror=lambda exc: found.append(exc.filename)):
        if (below or files) and not os.access(folder, os.W_OK | os.X_OK):
            return folder
        if found:
            return found[0]
    return found[0] if found else ""


def folders(parent: str, name: str) -> tuple[list[str], list[str]]:
    """Return the temporary folders for a name that killed runs abandoned on this system.

    Also returns those of other systems or boots, whose processes may be alive.
    """
    every = _hidden(parent, re.escape(name), "-[0-9a-f-]{8}")
    ours = [path for path in every if boot() and path.endswith(f"-{boot()}")]
    found = []
    for path in ours:
        if (held := _held(path)) >= 0:
            os.close(held)
            found.append(path)
    return found, [path for path in every if path not in ours]


def _hidden(parent: str, name: str, start: str) -> list[str]:
    if start == "-":
        return []
    pattern = re.compile(rf"\.{name}{_HIDDEN}{start}", re.DOTALL)
    with os.scandir(parent) as found:
        return [one.path for one in found if pattern.fullmatch(one.name)]


def _held(path: str) -> int:
    """Lock an abandoned file or folder; -1 if it is in use, or not of this user or a run."""
    try:
        status = os.lstat(path)
        is_folder = stat.S_ISDIR(status.st_mode)
        if status.st_uid != os.geteuid() or not (is_folder or stat.S_ISREG(status.st_mode)):
            return -1
        if is_folder and any(n != INSIDE and not n.endswith(PARTIAL) for n in os.listdir(path)):
            return -1
        return locked(path, os.O_DIRECTORY if is_folder else 0)
    except OSError:
        return -1  # removed, in use, or of another kind
