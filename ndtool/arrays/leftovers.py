"""What killed runs leave: hidden files and folders that nobody has locked."""

import os
import re
import shutil
import stat
from contextlib import suppress

from ndtool.arrays.storage import lock

INSIDE = "new"  # all that there is in a hidden folder, but while it takes its name
_HIDDEN = r"\.ndtool-[0-9a-f]{12}"


def boot() -> str:
    """Return what tells this start of this system from others, and from other systems."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read(8)
    except OSError:
        return ""


def locked(path: str, kind: int = os.O_DIRECTORY) -> int:
    """Lock a folder for as long as this process lives; -1 where folders have no locks.

    Raises BlockingIOError where another process has it.
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


def sweep(parent: str, every: bool = False) -> list[str]:
    """Remove what processes that were killed left: of this system, and no longer locked.

    every: whatever system it is of, or of none. A folder with anything that runs do not make there
    is somebody else's, and stays, as does one in which a store was on its way from one name to the
    other: it may be the only one. Returns what was removed.
    """
    start = "(-[0-9a-f-]{8})?" if every else f"-{boot()}"
    return [path for path in _hidden(parent, ".*", start) if _removed(path)]


def folders(parent: str, name: str) -> tuple[list[str], list[str]]:
    """Return the hidden folders of a name that processes of this system left that were killed.

    And those that are of other systems, or older than this start of it: of these nothing is known.
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
    left = re.compile(rf"\.{name}{_HIDDEN}{start}", re.DOTALL)
    with os.scandir(parent) as found:
        return [one.path for one in found if left.fullmatch(one.name)]


def _held(path: str) -> int:
    """Lock what a process of ours left; -1 where that is in use, or somebody else's."""
    try:
        status = os.lstat(path)
        is_folder = stat.S_ISDIR(status.st_mode)
        if status.st_uid != os.geteuid() or not (is_folder or stat.S_ISREG(status.st_mode)):
            return -1
        if is_folder and not set(os.listdir(path)) <= {INSIDE}:
            return -1
        return locked(path, os.O_DIRECTORY if is_folder else 0)
    except OSError:
        return -1  # it is gone, in use, or no folder


def _removed(path: str) -> bool:
    held = _held(path)
    if held < 0:
        return False
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):  # another sweep was first
            os.unlink(path)
    os.close(held)
    return not os.path.lexists(path)
