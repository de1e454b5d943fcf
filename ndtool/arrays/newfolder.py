"""A new folder that takes its name only when all in it is complete."""

import ctypes
import errno
import os
import shutil
import stat

from ndtool import endings
from ndtool.arrays.leftovers import INSIDE, boot, locked, sweep
from ndtool.arrays.storage import hidden_name
from ndtool.arrays.targets import exists
from ndtool.errors import OutputError, printable

_HERE, _EXCHANGE = -100, 2  # Linux's AT_FDCWD and RENAME_EXCHANGE


class NewFolder:
    """A folder that replaces what is at `path` when it is published.

    It is made in a hidden folder beside `path`, which goes at every end but a kill -9 or a lost
    page: what these leave, the next one made beside it removes. Where the system cannot exchange
    two names, what is replaced moves into the hidden folder first: a kill in the microseconds
    between leaves nothing at `path`, and both in the hidden folder. inside: where to make it.
    replaces: whether it is to take the place of another; what others make meanwhile is never
    replaced. left: the hidden folder of a run that was killed, to be taken over.
    Raises OSError.
    """

    def __init__(
        self, path: str, replaces: bool, clobber: bool, sync: bool, left: str = ""
    ) -> None:
        self.path = path
        self._replaces = replaces
        self._real = os.path.realpath(path)
        self._clobber, self._sync = clobber, sync
        self._parent, self._name = os.path.split(self._real)
        self._hidden, self._lock = "", -1
        endings.settle(False)
        endings.unwind()
        try:
            if left:
                self._take_over(left)
                return
            sweep(self._parent)
            while not self._made():
                pass
        except BaseException:
            self.drop()
            raise

    @property
    def inside(self) -> str:
        """Where to make it."""
        return os.path.join(self._hidden, INSIDE)

    def _made(self) -> bool:
        """Make the hidden folder; False where a sweep came between it and its lock."""
        self._hidden = os.path.join(self._parent, f"{hidden_name(self._name)}-{boot()}")
        os.mkdir(self._hidden)
        try:
            self._lock = locked(self._hidden)
            os.mkdir(self.inside)
        except (FileNotFoundError, BlockingIOError):
            self._unlock()
            return False
        return True

    def _take_over(self, left: str) -> None:
        """Lock a hidden folder that is there already, before it is this one's."""
        self._lock = locked(left)
        if self._lock < 0 or not os.path.isdir(os.path.join(left, INSIDE)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        self._hidden = left

    def leave(self) -> None:
        """Let go of it as it is, for another run to take over."""
        self._hidden = ""
        self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def sync(self) -> None:
        """Wait until the disk has all files, if that was asked for."""
        if not self._sync:
            return
        for folder, _, files in os.walk(self.inside):
            for name in (*files, "."):
                _fsync(os.path.join(folder, name))

    def take_name(self) -> None:
        """Give the folder its name; OutputError if what is there may not be replaced."""
        try:
            old = os.lstat(self._real)
        except FileNotFoundError:
            os.rename(self.inside, self._real)
            return
        if not self._clobber or not stat.S_ISDIR(old.st_mode):
            raise exists(self.path)
        if not self._replaces:
            raise OutputError(f"{printable(self.path)} was made by others during the run")
        os.chmod(self.inside, stat.S_IMODE(old.st_mode))
        if not _exchanged(self.inside, self._real):
            aside = os.path.join(self._hidden, "old")
            os.rename(self._real, aside)
            try:
                os.rename(self.inside, self._real)
            except BaseException:
                os.rename(aside, self._real)
                raise

    def sync_folder(self) -> None:
        """Wait until the disk has the name, if that was asked for."""
        if not self._sync:
            return
        try:
            _fsync(os.path.dirname(self._real))
        except OSError as exc:
            raise OutputError(
                f"{printable(self.path)} is written, but may not survive a power cut:"
                f" {exc.strerror}"
            ) from None

    def drop(self) -> None:
        """Remove what was not published, and what was replaced."""
        if self._hidden:
            shutil.rmtree(self._hidden, ignore_errors=True)
            self._hidden = ""
        self._unlock()


def _exchanged(one: str, other: str) -> bool:
    """Let two paths change places in one step; False where the system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    return bool(rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)


def _fsync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
