"""New files that receive their final names only when complete, and locks on their folders."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from ndtool.arrays.sink import Unpublished
from ndtool.errors import NdtoolError, OutputError, printable
from ndtool.machine import signals
from ndtool.publish.targets import CurrentFile, Target, exists_error
from ndtool.storage.descriptors import NO_TMPFILE_ERRNOS, failure, lock, temporary_name

if TYPE_CHECKING:
    from ndtool.publish.newobjects import NewObject

LOCK_TIMEOUT = 30.0  # seconds; a run holds a lock for microseconds, longer for many Zarr metadata
_RETRY_INTERVAL = 0.001  # seconds
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP)  # hard links are not supported
_NO_SYNC = (errno.EINVAL, errno.EROFS)  # fsync of a folder is not supported
_DESCRIPTORS = "/proc/self/fd"  # links to open files, unnamed ones included
_ACL = "system.posix_acl_access"


class NewFile(Unpublished):
    """A file in the directory of the target that replaces the current file when it is published.

    The file is unnamed (O_TMPFILE) until then, so that a killed process abandons no file; without
    support for it, it has a temporary name next to the target. Replacement links the file to a
    temporary name and renames it: a kill -9 between the two calls leaves the complete file under
    that name. The permissions of the current file are inherited; a symbolic link's target is
    replaced. descriptor: open for reading and writing. Raises OSError.
    """

    def __init__(self, target: Target, current: CurrentFile) -> None:
        self.path, self._sync, self._current = target.path, target.sync, current
        real_path, status = target.path, target.current
        if os.path.islink(real_path):
            real_path = os.path.realpath(real_path)
            if status is not None and not os.path.samestat(os.stat(real_path), status):
                raise OutputError(
                    f"{printable(self.path)}: it is a link to a file without a name:"
                    " expected a file"
                )
        parent, self._name = os.path.split(real_path)
        # fsync requires read permission on the directory, a new file only write permission.
        access = os.O_RDONLY if self._sync else getattr(os, "O_PATH", os.O_RDONLY)
        # The slot is the registration of the temporary name, for `signals.unregister_file`.
        self._temporary, self._slot, self.descriptor = "", -1, -1
        signals.set_published(False)  # an earlier publication by this process may have set it
        self._parent = os.open(parent or ".", access | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.descriptor = self._create(0o666 if status is None else 0o600)
            if status is not None:
                _inherit(self.descriptor, real_path, status)
        except BaseException:
            self.drop()
            raise

    def _create(self, mode: int) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC
        tmpfile_flag = getattr(os, "O_TMPFILE", 0)
        if tmpfile_flag and os.path.isdir(_DESCRIPTORS):
            try:
                return os.open(".", flags | tmpfile_flag, mode, dir_fd=self._parent)
            except OSError as exc:
                if exc.errno not in NO_TMPFILE_ERRNOS:
                    raise
        temporary = self._set_temporary_name()  # before open: a signal after it removes the file
        fd = os.open(temporary, flags | os.O_CREAT | os.O_EXCL, mode, dir_fd=self._parent)
        lock(fd)  # else `clean` would remove it as abandoned
        return fd

    def _set_temporary_name(self, suffix: str = "") -> str:
        """Choose the temporary name and register it for removal on failure or a signal."""
        self._temporary = temporary_name(self._name) + suffix
        self._slot = signals.register_file(self._parent, self._temporary)
        return self._temporary

    def share(self, cleans: bool = True) -> str:
        """Return a path where other processes can write to the file until it is published.

        After a kill -9 the path remains, until the next call in this folder removes it. cleans:
        whether this call removes such abandoned files.
        """
        from ndtool.publish import cleanup

        folder = os.path.dirname(os.path.realpath(self.path))
        if cleans:
            cleanup.clean(folder)
        lock(self.descriptor)  # else the next cleanup would remove it
        if not self._temporary:
            self._link(self._set_temporary_name(f"-{cleanup.boot_id()}"))
        return os.path.join(folder, self._temporary)

    def sync(self) -> None:
        if self._sync:
            os.fsync(self.descriptor)

    def open_folder(self) -> int | None:
        if not self._current.is_compared:
            return None
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._parent)

    def require_unchanged(self) -> None:
        self._current.require_unchanged()

    def publish(self) -> None:
        parent, may_replace = self._parent, self._current.may_replace
        try:
            if not self._temporary:
                self._link(self._name)
                return
            os.close(os.dup(self.descriptor))  # network file systems report write errors on close
            if not may_replace:
                os.link(self._temporary, self._name, src_dir_fd=parent, dst_dir_fd=parent)
                return
        except FileExistsError:
            if not may_replace:
                raise exists_error(self.path) from None
            lock(self.descriptor)
            self._link(self._set_temporary_name())
        except OSError as exc:
            if exc.errno not in _NO_LINKS or not self._temporary or not self._current.clobber:
                raise
        os.replace(self._temporary, self._name, src_dir_fd=parent, dst_dir_fd=parent)
        self._forget()  # not only in `drop`: slots are few, and many files may be published

    def _link(self, name: str) -> None:
        """Give the unnamed file a name."""
        # os.link follows the link in /proc only with a directory descriptor.
        link, parent = f"{_DESCRIPTORS}/{self.descriptor}", self._parent
        os.link(link, name, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=True)

    def sync_folder(self) -> None:
        if self._sync and self._parent >= 0:
            with sync_errors(self.path):
                os.fsync(self._parent)

    def _forget(self) -> None:
        """Unregister the temporary name, which no longer exists."""
        self._temporary = ""
        signals.unregister_file(self._slot)
        self._slot = -1

    def drop(self) -> None:
        if self._temporary:
            with suppress(OSError):
                os.unlink(self._temporary, dir_fd=self._parent)
        self._forget()
        descriptors = self.descriptor, self._parent
        self.descriptor = self._parent = -1
        for fd in descriptors:
            with suppress(OSError):
                os.close(fd)


def _inherit(fd: int, path: str, current: os.stat_result) -> None:
    """Copy the owner, mode and ACL of a file to a new file of mode 0600. Raises OSError.

    If the group or the ACL cannot be set, the group gets at most the permissions of others.
    """
    mode, acl, created = stat.S_IMODE(current.st_mode) & 0o777, b"", os.fstat(fd)
    if (created.st_uid, created.st_gid) != (current.st_uid, current.st_gid):
        try:
            os.fchown(fd, current.st_uid, current.st_gid)
        except OSError:  # only root may change the owner
            with suppress(OSError):
                os.fchown(fd, -1, current.st_gid)
    is_same_group = os.fstat(fd).st_gid == current.st_gid
    with _if_supported():
        acl = os.getxattr(path, _ACL)
    with _if_supported():
        os.removexattr(fd, _ACL)  # inherited from the folder's default ACL
    if acl and is_same_group:
        with suppress(OSError):
            os.setxattr(fd, _ACL, acl)  # sets the mode, too
            return
    if acl or not is_same_group:
        mode &= ~0o070 | (mode & 7) << 3
    os.fchmod(fd, mode)


@contextmanager
def _if_supported() -> Iterator[None]:
    """Ignore errors of attributes that the system, the file system or the file lacks."""
    try:
        yield
    except AttributeError:
        pass
    except OSError as exc:
        if exc.errno not in (errno.EOPNOTSUPP, errno.ENODATA, errno.ENOSYS):
            raise


@contextmanager
def sync_errors(path: str) -> Iterator[None]:
    """Raise an error of fsync of a folder as OutputError about the output published in it."""
    try:
        yield
    except OSError as exc:
        if exc.errno not in _NO_SYNC:
            raise OutputError(
                f"{printable(path)} is written, but may not survive a power failure: {exc.strerror}"
            ) from None


def new_file(target: Target, current: CurrentFile | None = None) -> NewFile | NewObject:
    """Return a file or upload that replaces the current file when published.

    current: the current file, in a format of several members. Raises OSError and OutputError.
    """
    current = current or CurrentFile(target, has_members=False)
    if target.url:
        from ndtool.publish.newobjects import NewObject

        return NewObject(target, current)
    return NewFile(target, current)


def publish(files: Sequence[Unpublished]) -> None:
    """Publish files in order; no signal ends the run between the first and the last.

    Their folders are locked while current files are compared and replaced. Raises OutputError if a
    file exists and may not be replaced, or a rename fails; the files before it remain published.
    """
    if not files:
        return
    file = files[0]
    try:
        with lock_folders(files):
            for file in files:
                file.require_unchanged()
            signals.set_published()
            try:
                for file in files:
                    file.publish()
            except BaseException:
                signals.set_published(False)
                raise
    except NdtoolError:
        raise
    except OSError as exc:
        raise failure(exc, file.path, OutputError) from None
    with ExitStack() as callbacks:  # calls all callbacks, even if one raises
        for file in reversed(files):
            callbacks.callback(file.drop)
            callbacks.callback(file.sync_folder)


@contextmanager
def lock_folders(files: Sequence[Unpublished]) -> Iterator[None]:
    """Lock the folders of unpublished files while they are compared and replaced.

    All processes lock folders in the same order, which prevents deadlocks. A folder that is not
    readable, or whose file system supports no locks, is not locked. Raises OutputError if another
    process holds a lock for LOCK_TIMEOUT seconds, and OSError.
    """
    folders: dict[tuple[int, int], int] = {}
    deadline = time.monotonic() + LOCK_TIMEOUT
    with ExitStack() as stack:
        for file in files:
            fd = None
            with suppress(PermissionError):
                fd = file.open_folder()
            if fd is not None:
                stack.callback(_release, fd)
                status = os.fstat(fd)
                folders.setdefault((status.st_dev, status.st_ino), fd)
        for _, fd in sorted(folders.items()):
            while True:
                with suppress(BlockingIOError):
                    lock(fd)
                    break
                if time.monotonic() > deadline:
                    raise OutputError(
                        "the output's folder was locked by another process for"
                        f" {LOCK_TIMEOUT:.0f} seconds",
                        hint="do not run ndtool under flock on this folder: ndtool locks it itself",
                    )
                time.sleep(_RETRY_INTERVAL)
        yield


def _release(fd: int) -> None:
    """Unlock and close a folder; errors are ignored, as the files are published."""
    import fcntl

    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)  # else a child forked meanwhile would hold the lock
    with suppress(OSError):
        os.close(fd)
