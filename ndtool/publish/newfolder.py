"""New folders that receive their final names only when complete."""

import ctypes
import errno
import os
import stat
from contextlib import suppress

from ndtool.errors import OutputError, printable
from ndtool.machine import signals
from ndtool.publish.gate import Gate
from ndtool.publish.leftovers import INSIDE, PARTIAL, boot, locked, remove, sweep
from ndtool.publish.targets import exists
from ndtool.storage.descriptors import failure, hidden_name, write_at

_PATIENCE = 10  # timeout in seconds for writes in progress
_HERE, _EXCHANGE = -100, 2  # Linux's AT_FDCWD and RENAME_EXCHANGE


class NewFolder:
    """A folder that replaces the one at `path` when it is published.

    It is created in a temporary folder next to `path`, which is removed on any failure except a
    kill -9 or SIGBUS; the next NewFolder there removes it then. Without RENAME_EXCHANGE, the old
    folder moves into the temporary folder first: a kill before the second rename leaves none at
    `path`, and both in the temporary folder. inside: the path of the new folder. gate: the
    admission lock of its writers. replaces: whether an old folder is to be replaced; one created by
    others during the run never is. abandoned: the temporary folder of a killed run, to be resumed.
    sweeps: whether to remove folders of other killed runs, as a dry run must not. Raises OSError.
    """

    def __init__(
        self,
        path: str,
        replaces: bool,
        clobber: bool,
        sync: bool,
        abandoned: str = "",
        sweeps: bool = True,
    ) -> None:
        self.path = path
        self._replaces = replaces
        self._real = os.path.realpath(path)
        self._clobber, self._sync = clobber, sync
        self._parent, self._name = os.path.split(self._real)
        self._temporary, self._lock, self._is_published = "", -1, False
        self.gate = Gate(path)
        signals.set_published(False)
        signals.add_cleanup(self.drop)
        try:
            if abandoned:
                self._resume(abandoned)
                return
            if sweeps:
                with suppress(PermissionError):  # a folder may be writable and not readable
                    sweep(self._parent)
            while not self._created():
                pass
        except BaseException:
            self.drop()
            raise

    @property
    def inside(self) -> str:
        """The path of the new folder until it is published."""
        return os.path.join(self._temporary, INSIDE)

    def _created(self) -> bool:
        """Create the temporary folder; False if a sweep removed or locked it first."""
        self._temporary = os.path.join(self._parent, f"{hidden_name(self._name)}-{boot()}")
        os.mkdir(self._temporary)
        try:
            self._lock = locked(self._temporary)
            os.mkdir(self.inside)
        except (FileNotFoundError, BlockingIOError):
            self._unlock()
            return False
        return True

    def _resume(self, abandoned: str) -> None:
        """Lock the temporary folder of a killed run and resume it."""
        self._lock = locked(abandoned)
        if self._lock < 0 or not os.path.isdir(os.path.join(abandoned, INSIDE)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        self._temporary = abandoned

    def leave(self) -> None:
        """Release the temporary folder with its content, for another run to resume."""
        signals.remove_cleanup(self.drop)
        self._temporary = ""
        self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def sync(self) -> None:
        """Flush all files to disk (fsync), if requested."""
        if not self._sync:
            return
        for folder, _, files in os.walk(self.inside):
            for name in (*files, "."):
                _fsync(os.path.join(folder, name))

    def publish(self) -> None:
        """Publish the folder under its name; OutputError if the old one may not be replaced."""
        self.require_own()
        try:
            old = os.lstat(self._real)
        except FileNotFoundError:
            os.rename(self.inside, self._real)
            self._is_published = True
            return
        if not self._clobber or not stat.S_ISDIR(old.st_mode):
            raise exists(self.path)
        if not self._replaces:
            raise OutputError(
                f"{printable(self.path)} was created by another process during the run"
            )
        os.chmod(self.inside, stat.S_IMODE(old.st_mode))
        if not _exchange(self.inside, self._real):
            old_path = os.path.join(self._temporary, "old")
            os.rename(self._real, old_path)
            try:
                os.rename(self.inside, self._real)
            except BaseException:
                os.rename(old_path, self._real)
                raise
        self._is_published = True

    def require_own(self) -> None:
        """Raise OutputError if the temporary folder was moved or removed."""
        try:
            same = self._lock < 0 or os.path.samestat(
                os.fstat(self._lock), os.stat(self._temporary)
            )
        except FileNotFoundError:
            same = False
        if not same:
            raise OutputError(f"{printable(self._parent)} was replaced during the run")

    def write(self, key: str, body: bytes | memoryview) -> None:
        """Write a file in the folder; thread-safe; see `write_below`."""
        with self.gate.entered():
            try:
                write_below(self.inside, key, body)
            except FileNotFoundError:
                self.require_own()
                raise

    def sync_folder(self) -> None:
        """Flush the directory entry to disk (fsync), if requested."""
        if not self._sync:
            return
        try:
            _fsync(os.path.dirname(self._real))
        except OSError as exc:
            raise OutputError(
                f"{printable(self.path)} is written, but may not survive a power failure:"
                f" {exc.strerror}"
            ) from None

    def drop(self) -> None:
        """Stop the writers, and remove the folder unless published, or the replaced one if so.

        Raises OutputError or ResourceError if the replaced folder cannot be removed completely.
        """
        self.gate.close(_PATIENCE)
        temporary = self._temporary
        self._unlock()  # first, as `remove` may need its descriptor
        error = remove(temporary) if temporary else None
        self._temporary = ""  # last, as a signal handler that interrupts this calls it again
        signals.remove_cleanup(self.drop)
        if error and self._is_published:
            message = f"{self.path} is written, but the old store remains at {temporary}"
            raise failure(error, message, OutputError)


def write_below(root: str, key: str, body: bytes | memoryview) -> None:
    """Write a file in a new folder, replacing an old one by an atomic rename.

    Several writers may write the same file. It is outside the folder until complete, so that a
    killed writer leaves no partial file inside. The folder must exist: it is not recreated after a
    run has removed it.
    """
    path = os.path.join(root, key)
    partial = os.path.join(os.path.dirname(root), f"{os.urandom(6).hex()}{PARTIAL}")
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            write_at(fd, 0, body)
        finally:
            os.close(fd)
        try:
            os.replace(partial, path)
        except FileNotFoundError:
            parts = key.split("/")[:-1]
            for depth in range(len(parts)):
                with suppress(FileExistsError):
                    os.mkdir(os.path.join(root, *parts[: depth + 1]))
            os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial)
        raise


def _exchange(one: str, other: str) -> bool:
    """Exchange two paths atomically; False if the system does not support it."""
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
