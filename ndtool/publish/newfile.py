"""New files that receive their final names only when complete, and locks on their folders."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from ndtool.arrays.sink import Unpublished
from ndtool.errors import InputError, NdtoolError, OutputError, printable
from ndtool.machine import signals
from ndtool.publish.targets import Target, exists_error
from ndtool.storage import locations
from ndtool.storage.descriptors import NO_TMPFILE_ERRNOS, failure, lock, temporary_name
from ndtool.storage.local import File

if TYPE_CHECKING:
    from ndtool.publish.newobjects import NewObject

T = TypeVar("T")
LOCK_TIMEOUT = 30.0  # seconds; a run holds a lock for microseconds, longer for many Zarr metadata
_RETRY_INTERVAL = 0.001  # seconds
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP)  # hard links are not supported
_NO_SYNC = (errno.EINVAL, errno.EROFS)  # fsync of a folder is not supported
_DESCRIPTORS = "/proc/self/fd"  # links to open files, unnamed ones included
_ACL = "system.posix_acl_access"


class NewFile(Unpublished):
    """A file in the directory of `path` that replaces `path` when it is published.

    The file is unnamed (O_TMPFILE) until then, so that a killed process abandons no file; without
    support for it, it has a temporary name next to `path`. Replacement links the file to a
    temporary name and renames it: a kill -9 between the two calls leaves the complete file under
    that name. current: the status of the current file, whose permissions are inherited; a symbolic
    link's target is replaced. clobber: whether the file may be replaced. condition: raises
    OutputError if it may no longer be replaced; called while the directory is locked.
    never_replaces: never replace a file, even with clobber; without hard links, the condition and
    the lock ensure it. descriptor: open for reading and writing. Raises OSError.
    """

    def __init__(
        self,
        path: str,
        current: os.stat_result | None,
        clobber: bool,
        sync: bool,
        condition: Callable[[], None] | None = None,
        never_replaces: bool = False,
    ) -> None:
        self.path, self._condition, self._sync = path, condition, sync
        self._clobber, self._may_replace = clobber, clobber and not never_replaces
        real_path = path
        if os.path.islink(path):
            real_path = os.path.realpath(path)
            if current is not None and not os.path.samestat(os.stat(real_path), current):
                raise OutputError(
                    f"{printable(path)}: it is a link to a file without a name: expected a file"
                )
        parent, self._name = os.path.split(real_path)
        # fsync requires read permission on the directory, a new file only write permission.
        access = os.O_RDONLY if sync else getattr(os, "O_PATH", os.O_RDONLY)
        # The slot is the registration of the temporary name, for `signals.unregister_file`.
        self._temporary, self._slot, self.descriptor = "", -1, -1
        signals.set_published(False)  # an earlier publication by this process may have set it
        self._parent = os.open(parent or ".", access | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.descriptor = self._create(0o666 if current is None else 0o600)
            if current is not None:
                _inherit(self.descriptor, real_path, current)
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
        if self._condition is None:
            return None
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._parent)

    def require_unchanged(self) -> None:
        if self._condition is not None:
            self._condition()

    def publish(self) -> None:
        parent = self._parent
        if not self._temporary:
            try:
                self._link(self._name)
                return
            except FileExistsError:
                if not self._may_replace:
                    raise exists_error(self.path) from None
            lock(self.descriptor)
            self._link(self._set_temporary_name())
        else:
            os.close(os.dup(self.descriptor))  # network file systems report write errors on close
            if not self._may_replace:
                try:
                    os.link(self._temporary, self._name, src_dir_fd=parent, dst_dir_fd=parent)
                    return
                except FileExistsError:
                    raise exists_error(self.path) from None
                except OSError as exc:
                    if exc.errno not in _NO_LINKS or not self._clobber:
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
            sync_published(self.path, self._parent)

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


def sync_published(path: str, folder: int) -> None:
    """Flush the directory entry of a published file or folder to disk (fsync)."""
    try:
        os.fsync(folder)
    except OSError as exc:
        if exc.errno not in _NO_SYNC:
            raise OutputError(
                f"{printable(path)} is written, but may not survive a power failure: {exc.strerror}"
            ) from None


class CurrentFile:
    """The current file of a target, open from `read` until it is replaced.

    preserves: whether other members are preserved; then a file that another process creates during
    the run is not replaced. requires_unchanged: whether changes of the file prevent its
    replacement. file: the open file, None if no members are preserved.
    """

    def __init__(self, target: Target) -> None:
        self._target, self._path, self._existed = target, target.path, target.exists
        self.preserves = target.member is not None and not target.only
        self.requires_unchanged = not target.only
        self.file: File | None = None
        if not self.preserves:
            target.require_replaceable()

    def read(self, parse: Callable[[File], T], default: T, content: str) -> T:
        """Open and parse the file; return `default` if no members are preserved.

        content: what the file will contain with --only, such as "the array", for the error's hint.
        Raises OutputError for an invalid file.
        """
        if not (self.preserves and self._existed):
            return default
        try:
            self.file = locations.open_storage(self._path)
            return parse(self.file)
        except BaseException as exc:
            self.close()
            if isinstance(exc, InputError):
                hint = f"--only replaces it with {content} alone"
                raise OutputError(exc.message, hint=hint) from None
            raise

    def copy(self, fd: int, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Copy preserved byte ranges (start, stop, offset in the new file) of the current file."""
        assert self.file is not None, "members are preserved"
        for start, stop, target_start in ranges:
            if self.file.copy(start, stop - start, fd, target_start) < stop - start:
                raise OutputError(f"{printable(self._path)} changed during the run")

    def require_unchanged(self) -> None:
        """Raise OutputError if another process changed the file, as its changes would be lost.

        The conditional request that replaces a remote object compares it again.
        """
        change = ""
        exists = not self._target.url and os.path.lexists(self._path)
        if self.file is not None:
            removed = "" if exists or self._target.url else "was removed during the run"
            change = self.file.describe_change() or removed
        elif self.preserves and exists:
            change = "was created by another process during the run"
        elif self.requires_unchanged and exists:
            self._target.require_replaceable()
        if change:
            raise OutputError(f"{printable(self._path)} {change}")

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


def new_file(target: Target, current: CurrentFile | None = None) -> NewFile | NewObject:
    """Return a file or upload that replaces the current file when published.

    current: the current file, in a format of several members.
    """
    clobber, never_replaces, requires_unchanged = target.clobber, False, False
    condition = None
    if target.exists and not target.only:
        condition = target.require_replaceable  # it may become an archive
    if current is not None:
        condition, requires_unchanged = current.require_unchanged, current.requires_unchanged
        clobber = clobber or current.file is not None  # its members are preserved
        never_replaces = current.preserves and current.file is None
    if target.url:
        from ndtool.publish.newobjects import NewObject

        may_replace = clobber and not never_replaces
        return NewObject(target.path, target.version, may_replace, requires_unchanged, condition)
    return NewFile(target.path, target.current, clobber, target.sync, condition, never_replaces)


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
def lock_folders(files: Sequence[Any]) -> Iterator[None]:
    """Lock the folders of unpublished files while they are compared and replaced.

    All processes lock folders in the same order, which prevents deadlocks. A folder that is not
    readable, or whose file system supports no locks, is not locked. Raises OutputError on timeout,
    and OSError.
    """
    folders: dict[tuple[int, int], int] = {}
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
            _lock(fd)
        yield


def _lock(fd: int) -> None:
    """Lock a folder; OutputError if another process holds the lock for LOCK_TIMEOUT seconds."""
    deadline = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            lock(fd)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise OutputError(
                    "the output's folder was locked by another process for"
                    f" {LOCK_TIMEOUT:.0f} seconds",
                    hint="do not run ndtool under flock on this folder: ndtool locks it itself",
                ) from None
        time.sleep(_RETRY_INTERVAL)


def _release(fd: int) -> None:
    """Unlock and close a folder; errors are ignored, as the files are published."""
    import fcntl

    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)  # else a child forked meanwhile would hold the lock
    with suppress(OSError):
        os.close(fd)
