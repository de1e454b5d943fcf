"""A new file that takes its name only when it is complete."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Protocol

from ndtool import endings
from ndtool.arrays.storage import NAMELESS, failure, hidden_name, is_fixed, lock
from ndtool.errors import NdtoolError, OutputError, printable

_DESCRIPTORS = "/proc/self/fd"  # where a file without a name can be linked from


class Unpublished(Protocol):
    """What waits for its name; path: where it will be."""

    path: str

    def take_name(self) -> None:
        """Take it; OutputError if what is there may not be replaced."""

    def sync_folder(self) -> None:
        """Wait until the disk has the name, if that was asked for."""

    def drop(self) -> None:
        """Remove what was not published."""


class Pending(Unpublished, Protocol):
    """A file that has no name yet: descriptor is open on its bytes."""

    @property
    def descriptor(self) -> int: ...

    def sync(self) -> None:
        """Wait until the bytes are where they must be before the name is taken."""


class NewFile:
    """A file in the directory of `path` that replaces `path` when it is published.

    It has no name until then, so that a killed process leaves nothing behind; where the file
    system has no such files, a hidden name beside `path`. Replacing a file takes two calls, a
    link to a hidden name and a rename: a kill -9 in the microseconds between them leaves that
    name, on a whole file. old: what is at `path` now; its rights are kept, and where it is a
    link, its target is replaced. `fd` is open for reading and writing. Raises OSError.
    """

    def __init__(self, path: str, old: os.stat_result | None, clobber: bool, sync: bool) -> None:
        self.path = path
        self._clobber = clobber
        real = path
        if os.path.islink(path):
            real = os.path.realpath(path)
            if old is not None and not os.path.samestat(os.stat(real), old):
                raise OutputError(f"{printable(path)}: a link to a file without a name")
        parent, self._name = os.path.split(real)
        # fsync needs a directory that may be read, a new file only one that may be written.
        kind = os.O_RDONLY if sync else getattr(os, "O_PATH", os.O_RDONLY)
        self._sync = sync
        self._hidden: str | None = None
        self._slot = -1  # of the hidden name, in what every end removes
        endings.settle(False)  # what was published before may be followed by this one
        self.fd: int | None = None
        self._parent: int | None = os.open(parent or ".", kind | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.fd = self._create(0o666 if old is None else 0o600)
            if old is not None:
                from ndtool.arrays import rights

                rights.inherit(self.fd, real, old)
        except BaseException:
            self.drop()
            raise

    def _create(self, mode: int) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC
        nameless = getattr(os, "O_TMPFILE", 0)
        if nameless and os.path.isdir(_DESCRIPTORS):
            try:
                return os.open(".", flags | nameless, mode, dir_fd=self._parent)
            except OSError as exc:
                if exc.errno not in NAMELESS:
                    raise
        hidden = self._hide()  # first, so that an interrupt right after the open removes it
        fd = os.open(hidden, flags | os.O_CREAT | os.O_EXCL, mode, dir_fd=self._parent)
        lock(fd)  # or `clean` takes it for one of a run that is dead
        return fd

    def _hide(self, mark: str = "") -> str:
        """Choose the hidden name, which every end but the right one removes."""
        assert self._parent is not None
        if is_fixed(".", self._parent):
            raise OutputError(f"{printable(self.path)}: in its folder no name can be removed again")
        self._hidden = hidden_name(self._name) + mark
        self._slot = endings.remember(self._parent, self._hidden)
        return self._hidden

    @property
    def descriptor(self) -> int:
        """Where its bytes are written."""
        assert self.fd is not None, "the file is closed"
        return self.fd

    def shared(self) -> str:
        """Return a path where others can write to the file, too, until it is published.

        A kill -9 leaves it: the next one here removes it, unless it is locked.
        """
        from ndtool.arrays import leftovers

        folder = os.path.dirname(os.path.realpath(self.path))
        leftovers.sweep(folder)
        lock(self.descriptor)  # for as long as somebody waits for it
        if self._hidden is None:
            self._link(self.descriptor, self._hide(f"-{leftovers.boot()}"))
        assert self._hidden is not None, "it was hidden just now"
        return os.path.join(folder, self._hidden)

    def sync(self) -> None:
        """Wait until the disk has its bytes, if that was asked for."""
        if self._sync:
            os.fsync(self.descriptor)

    def take_name(self) -> None:
        """Give the file its name; OutputError if what is there may not be replaced."""
        if self._hidden is None:
            self._publish_nameless(self.descriptor)
        else:
            self._close_fd()  # a network file system tells now what it could not write
            self._move()

    def _publish_nameless(self, fd: int) -> None:
        try:
            self._link(fd, self._name)
        except FileExistsError:
            if not self._clobber:
                raise self._refusal() from None
            lock(fd)
            self._link(fd, self._hide())
            self._move()

    def _link(self, fd: int, name: str) -> None:
        parent = self._parent
        # Only with a directory descriptor does os.link follow the link in /proc.
        os.link(
            f"{_DESCRIPTORS}/{fd}", name, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=True
        )

    def _move(self) -> None:
        """Rename the hidden file to the final name, or link it where nothing may be there."""
        hidden, parent = self._hidden, self._parent
        assert hidden is not None
        if self._clobber:
            os.replace(hidden, self._name, src_dir_fd=parent, dst_dir_fd=parent)
            self._forget()  # at once: many files may be replaced together
            return
        try:
            os.link(hidden, self._name, src_dir_fd=parent, dst_dir_fd=parent)
        except FileExistsError:
            raise self._refusal() from None

    def _refusal(self) -> OutputError:
        return OutputError(f"{printable(self.path)} exists, and nothing may be replaced")

    def sync_folder(self) -> None:
        """Wait until the disk has its name, if that was asked for."""
        if not self._sync:
            return
        assert self._parent is not None
        try:
            os.fsync(self._parent)
        except OSError as exc:
            if exc.errno not in (errno.EINVAL, errno.EROFS):  # no such thing here
                raise OutputError(
                    f"{printable(self.path)} is written, but may not survive a power cut:"
                    f" {exc.strerror}"
                ) from None

    def _close_fd(self) -> None:
        fd, self.fd = self.fd, None
        if fd is not None:
            os.close(fd)

    def _forget(self) -> None:
        """Take note that there is no hidden name any more."""
        self._hidden = None
        endings.forget(self._slot)
        self._slot = -1

    def drop(self) -> None:
        """Close everything and remove what was not published."""
        try:
            self._close_fd()
        except OSError:
            pass
        if self._hidden is not None:
            try:
                os.unlink(self._hidden, dir_fd=self._parent)
            except OSError:
                pass
        self._forget()
        parent, self._parent = self._parent, None
        if parent is not None:
            try:
                os.close(parent)
            except OSError:
                pass


def publish(files: Sequence[Unpublished]) -> None:
    """Give files their names, one right after the other; no signal ends the run in between.

    Raises OutputError where one may not be replaced and exists, or cannot have its name: those
    before it have theirs then.
    """
    if not files:
        return
    try:
        endings.settle()
        try:
            for file in files:
                file.take_name()
        except BaseException:
            endings.settle(False)
            raise
    except NdtoolError:
        raise
    except OSError as exc:
        raise failure(exc, file.path, OutputError) from None
    for file in files:
        file.sync_folder()
        file.drop()
