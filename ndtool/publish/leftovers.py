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


def sweep(parent: str, all_boots: bool = False) -> SweepResult:
    """Remove the unlocked temporary files and folders of killed runs on this system.

    all_boots: include those of other systems or boots. A folder with unknown entries is not
    removed: it is not a run's, or it has a store whose replacement was interrupted, perhaps the
    only copy.
    """
    suffix = "(-[0-9a-f-]{8})?" if all_boots else f"-{boot()}"
    result = SweepResult([], [])
    for path in _temporary_paths(parent, ".*", suffix):
        if (lock_fd := _lock(path)) < 0:
            continue
        if error := remove(path):
            result.failed.append((path, error))
        else:
            result.removed.append(path)
        os.close(lock_fd)
    return result


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
        error = exc
    if error.errno in (errno.EMFILE, errno.ENFILE):  # rmtree has a descriptor open per level
        _remove_by_paths(path)
    else:
        shutil.rmtree(path, ignore_errors=True)  # removes the rest
    return error if os.path.lexists(path) else None


def _remove_by_paths(path: str) -> None:
    """Remove a folder tree with one open descriptor at a time; errors are ignored."""
    for folder, folders, files in os.walk(path, topdown=False):
        for name in (*files, *folders, ""):
            entry = os.path.join(folder, name)
            with suppress(OSError):
                is_folder = os.path.isdir(entry) and not os.path.islink(entry)
                (os.rmdir if is_folder else os.unlink)(entry)
    with suppress(OSError):  # needs no descriptor if the folder is empty
        os.rmdir(path)


def unremovable(path: str) -> str:
    """Return the first folder in a tree whose entries cannot be removed, "" if none."""
    errors: list[str] = []
    for folder, folders, files in os.walk(path, onerror=lambda exc: errors.append(exc.filename)):
        if (folders or files) and not os.access(folder, os.W_OK | os.X_OK):
            return folder
        if errors:
            return errors[0]
    return errors[0] if errors else ""


def folders(parent: str, name: str) -> tuple[list[str], list[str]]:
    """Return the temporary folders for a name: those abandoned by killed runs on this system.

    The second list has those of other systems or boots, whose processes may be alive.
    """
    paths = _temporary_paths(parent, re.escape(name), "-[0-9a-f-]{8}")
    own = [path for path in paths if boot() and path.endswith(f"-{boot()}")]
    abandoned = []
    for path in own:
        if (lock_fd := _lock(path)) >= 0:
            os.close(lock_fd)
            abandoned.append(path)
    return abandoned, [path for path in paths if path not in own]


def _temporary_paths(parent: str, name: str, suffix: str) -> list[str]:
    if suffix == "-":
        return []
    pattern = re.compile(rf"\.{name}{_HIDDEN}{suffix}", re.DOTALL)
    with os.scandir(parent) as entries:
        return [entry.path for entry in entries if pattern.fullmatch(entry.name)]


def _lock(path: str) -> int:
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
