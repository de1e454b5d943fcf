"""New folders that receive their final names only when complete."""

import ctypes
import errno
import os
import stat
from contextlib import suppress

from ndtool.arrays.sink import Unpublished
from ndtool.errors import OutputError, printable
from ndtool.machine import signals
from ndtool.machine.threads import AdmissionLock
from ndtool.publish.cleanup import NEW_FOLDER, PARTIAL_SUFFIX, boot_id, clean, open_locked, remove
from ndtool.publish.newfile import sync_errors
from ndtool.publish.targets import exists_error
from ndtool.storage.descriptors import failure, temporary_name, write_at

_WRITE_TIMEOUT = 10  # timeout in seconds for writes in progress
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # Linux's AT_FDCWD and RENAME_EXCHANGE


class NewFolder(Unpublished):
    """A folder that replaces the one at `path` when it is published.

    It is created in a temporary folder next to `path`, which is removed on any failure except a
    kill -9 or SIGBUS; the next NewFolder in the same directory removes it then. Without
    RENAME_EXCHANGE, the current folder moves into the temporary folder first: a kill before the
    second rename leaves no folder at `path`, and both in the temporary folder.
    replaces: whether to replace the current folder; a folder that another
    process creates during the run is never replaced. abandoned: the temporary folder of a killed
    run, to be resumed. cleans: whether to remove folders of other killed runs, as a dry run must
    not. Raises OSError.
    """

    def __init__(
        self,
        path: str,
        replaces: bool = False,
        clobber: bool = False,
        sync: bool = False,
        abandoned: str = "",
        cleans: bool = True,
    ) -> None:
        self.path = path
        self._replaces = replaces
        self._real_path = os.path.realpath(path)
        self._clobber, self._sync = clobber, sync
        self._parent, self._name = os.path.split(self._real_path)
        self._temporary, self._lock, self._is_published = "", -1, False
        self._admission_lock = AdmissionLock(path)
        signals.set_published(False)
        signals.add_cleanup(self.drop)
        try:
            if abandoned:
                self._resume(abandoned)
                return
            if cleans:
                with suppress(PermissionError):  # a folder may be writable and not readable
                    clean(self._parent)
            while not self._create():
                pass
        except BaseException:
            self.drop()
            raise

    @property
    def working_folder(self) -> str:
        """The path of the new folder until it is published."""
        return os.path.join(self._temporary, NEW_FOLDER)

    def _create(self) -> bool:
        """Create the temporary folder; False if a cleanup removed or locked it first."""
        self._temporary = os.path.join(self._parent, f"{temporary_name(self._name)}-{boot_id()}")
        os.mkdir(self._temporary)
        try:
            self._lock = open_locked(self._temporary)
            os.mkdir(self.working_folder)
        except (FileNotFoundError, BlockingIOError):
            self._unlock()
            return False
        return True

    def _resume(self, abandoned: str) -> None:
        """Lock the temporary folder of a killed run and resume it."""
        self._lock = open_locked(abandoned)
        if self._lock < 0 or not os.path.isdir(os.path.join(abandoned, NEW_FOLDER)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        self._temporary = abandoned

    def suspend(self) -> None:
        """Release the temporary folder and keep its content, so that another run can resume it."""
        signals.remove_cleanup(self.drop)
        self._temporary = ""
        self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def sync(self) -> None:
        if not self._sync:
            return
        for folder, _, files in os.walk(self.working_folder):
            for name in (*files, "."):
                _fsync(os.path.join(folder, name))

    def publish(self) -> None:
        new, path = self.working_folder, self._real_path
        if os.path.lexists(path):
            if not self._clobber or os.path.islink(path) or not os.path.isdir(path):
                raise exists_error(self.path)
            if not self._replaces:
                raise OutputError(
                    f"{printable(self.path)} was created by another process during the run"
                )
            os.chmod(new, stat.S_IMODE(os.stat(path).st_mode))
            if not _exchange(new, path):
                replaced_path = os.path.join(self._temporary, "old")
                os.rename(path, replaced_path)
                try:
                    os.rename(new, path)
                except BaseException:
                    os.rename(replaced_path, path)
                    raise
        else:
            os.rename(new, path)
        self._is_published = True

    def write(self, key: str, body: bytes | memoryview) -> None:
        """Write a file in the folder; thread-safe; see `write_file`."""
        with self._admission_lock.admit():
            write_file(self.working_folder, key, body)

    def sync_folder(self) -> None:
        if self._sync:
            with sync_errors(self.path):
                _fsync(self._parent)

    def drop(self) -> None:
        """Stop the writers, and remove the unpublished folder, or the folder that it replaced.

        Raises OutputError or ResourceError if the replaced folder cannot be removed completely.
        """
        self._admission_lock.close(_WRITE_TIMEOUT)
        temporary = self._temporary
        self._unlock()  # first, as `remove` may need its descriptor
        error = remove(temporary) if temporary else None
        self._temporary = ""  # last, as a signal handler that interrupts this call repeats it
        signals.remove_cleanup(self.drop)
        if error and self._is_published:
            message = f"{self.path} is written, but the replaced store remains at {temporary}"
            raise failure(error, message, OutputError)


def write_file(root: str, key: str, body: bytes | memoryview, mode: int = 0o666) -> None:
    """Write a file in a new folder, replacing an existing file by an atomic rename.

    Several writers may write the same file. It is written outside the folder and renamed when
    complete, so that a killed writer leaves no partial file in the folder. `root` must exist: it is
    not recreated after a run has removed it.
    """
    path = os.path.join(root, key)
    partial = os.path.join(os.path.dirname(root), f"{os.urandom(6).hex()}{PARTIAL_SUFFIX}")
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            write_at(fd, 0, body)
        finally:
            os.close(fd)
        try:
            os.replace(partial, path)
        except FileNotFoundError:
            folders = key.split("/")[:-1]
            for depth in range(len(folders)):
                with suppress(FileExistsError):
                    os.mkdir(os.path.join(root, *folders[: depth + 1]))
            os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial)
        raise


def _exchange(first: str, second: str) -> bool:
    """Exchange two paths atomically; False if the system does not support it."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    return bool(
        rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0
    )


def _fsync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
