"""Removal of temporary files and folders that killed runs abandoned: no process locks them."""

import os
import re
import stat
from collections.abc import Iterator
from itertools import chain

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


def clean(parent: str, all_boots: bool = False) -> tuple[list[str], list[tuple[str, OSError]]]:
    """Remove the unlocked temporary files and folders of killed runs on this system.

    all_boots: also files and folders of other systems or boots. A folder with unknown entries is
    not removed: no run created it, or it contains a store whose replacement was interrupted,
    perhaps the only copy. Returns the removed paths, and those that remain with their errors.
    """
    suffix = "(-[0-9a-f-]{8})?" if all_boots else f"-{boot_id()}"
    outcomes = [(path, remove(path)) for path in _lock_each(parent, ".*", suffix)]
    failed = [(path, error) for path, error in outcomes if error]
    return [path for path, error in outcomes if not error], failed


def remove(path: str) -> OSError | None:
    """Remove a file or a folder tree; return the error if any of it remains.

    Opens one descriptor at a time, where shutil.rmtree has one open per level.
    """
    for _ in range(2):  # a writer may have added a file meanwhile
        errors: list[OSError] = []
        entries = chain(os.walk(path, False, errors.append), [(path, [], [""])])
        for folder, folders, files in entries:
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
