"""What killed runs leave: hidden files and folders that nobody has locked."""

import os
import re
import shutil
import stat
from contextlib import suppress

from ndtool.arrays.storage import lock

INSIDE = "new"  # all that there is in a hidden folder, but while it takes its name, and but for:
_HIDDEN = r"\..*\.ndtool-[0-9a-f]{12}"
_SPILLED = re.compile(rf"{_HIDDEN}-[0-9a-f-]{{8}}", re.DOTALL)


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
    if start == "-":
        return []
    left = re.compile(_HIDDEN + start, re.DOTALL)
    with os.scandir(parent) as found:
        paths = [one.path for one in found if left.fullmatch(one.name)]
    return [path for path in paths if _removed(path)]


def _removed(path: str) -> bool:
    try:
        status = os.lstat(path)
        if status.st_uid != os.geteuid():
            return False
        is_folder = stat.S_ISDIR(status.st_mode)
        if is_folder and not all(
            name == INSIDE or _SPILLED.fullmatch(name) for name in os.listdir(path)
        ):
            return False
        if not is_folder and not stat.S_ISREG(status.st_mode):
            return False
        held = locked(path, os.O_DIRECTORY if is_folder else 0)
    except OSError:
        return False  # it is gone, in use, or no folder
    if held < 0:
        return False
    if is_folder:
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):  # another sweep was first
            os.unlink(path)
    os.close(held)
    return not os.path.lexists(path)
