"""What `-o` names: a path, perhaps a member, what is there now and what of that stays."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from ndtool.arrays.storage import copy_bytes, failure, is_closed, write_at
from ndtool.errors import InputError, NdtoolError, OutputError, UsageError, printable

if TYPE_CHECKING:
    from ndtool.arrays.local import InputFile

_MEMBER = "output"


class Target(NamedTuple):
    """A path to write to.

    old: what is there. member: the name that the array has in the archive that is written, None
    where that is a .npy file. archive: what else stays in it, None where nothing does.
    """

    path: str
    old: os.stat_result | None
    member: bytes | None
    archive: OldArchive | None

    @property
    def is_file(self) -> bool:
        """Whether it is a file that is replaced, no FIFO or device."""
        return self.old is None or stat.S_ISREG(self.old.st_mode)

    @property
    def kept(self) -> tuple[str, ...] | None:
        """The members that stay in the archive; None where there is none."""
        return None if self.archive is None else self.archive.names

    def close(self) -> None:
        """Let go of the old archive."""
        if self.archive is not None:
            self.archive.close()


def resolve(target: str, *, clobber: bool, only: bool) -> Target:
    """Look at what `target` names and refuse what must not be written to; close what this returns.

    target: a path; `x.npz` for a new archive; `x.npz:member` for a member that is added to the
    archive or replaced in it. clobber: whether what is there may be replaced. only: that members
    are not kept. Raises OutputError, and UsageError for the name of a member.
    """
    path, member = _split(target)
    try:
        old = _existing(path)
        found = Target(path, old, None if member is None else _stored(member), None)
        if not found.is_file:
            return found
        if target != path and member is not None and not only:
            archive = OldArchive(path, old, member)
            found = found._replace(archive=archive)
            if archive.replaces and not clobber:
                archive.close()
                raise exists(target)
        elif old is not None and not clobber:
            raise exists(path)
        return found
    except NdtoolError:
        raise
    except OSError as exc:
        raise failure(exc, path, OutputError) from None


def check(target: str, *, clobber: bool, only: bool) -> tuple[str, ...] | None:
    """Raise what writing would, as far as that shows without it; return the members that stay."""
    found = resolve(target, clobber=clobber, only=only)
    found.close()
    try:
        if found.is_file:
            parent = os.path.dirname(os.path.realpath(found.path))
            os.stat(os.path.join(parent, "."))
            if not os.access(parent, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as exc:
        raise failure(exc, found.path, OutputError) from None
    return found.kept


def exists(target: str) -> OutputError:
    """Return the refusal to replace something."""
    return OutputError(f"{printable(target)} exists, and nothing may be replaced")


def _split(target: str) -> tuple[str, str | None]:
    if target.endswith(".npz"):
        return target, _MEMBER
    path, separator, member = target.rpartition(".npz:")
    if not separator or os.path.lexists(target):
        return target, None
    if not member:
        raise UsageError(f"{printable(target)}: the member has no name: expected x.npz:NAME")
    return path + ".npz", member


def _stored(member: str) -> bytes:
    from ndtool.arrays import zipwriter

    return zipwriter.member_name(member)


def _existing(path: str) -> os.stat_result | None:
    """Return what is at `path`, None where nothing is; OutputError where no file can be."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        if os.path.islink(path):
            raise OutputError(f"{printable(path)}: a link to nothing: expected a file") from None
        if not os.path.basename(path):
            raise OutputError(f"{printable(path)}: no name of a file") from None
        return None
    except ValueError as exc:
        raise OutputError(f"{printable(path)}: no file can have this name: {exc}") from None
    if is_closed(status):
        raise OutputError(f"{printable(path)}: it is closed")
    for test, what in (
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISBLK, "a block device"),
        (stat.S_ISSOCK, "a socket"),
    ):
        if test(status.st_mode):
            raise OutputError(f"{printable(path)} is {what}: expected a file")
    # A rename needs no permission of the file itself, but its owner took it away on purpose.
    if stat.S_ISREG(status.st_mode) and not os.access(path, os.W_OK):
        raise OutputError(f"{printable(path)} is read-only", hint="chmod u+w lets it be replaced")
    return status


class OldArchive:
    """The archive to which a member is written, open until what stays of it is published anew.

    Where there is none yet, one that others make meanwhile is not replaced either.
    """

    def __init__(self, path: str, old: os.stat_result | None, member: str) -> None:
        from ndtool.arrays import local, zipwriter

        self._path = path
        self._file: InputFile | None = None
        self.kept = zipwriter.NOTHING
        if old is None:
            return
        try:
            self._file = local.open_file(path)
            self.kept = zipwriter.keep(self._file.look, self._file.size, path, member)
        except BaseException as exc:
            self.close()
            if isinstance(exc, InputError):
                hint = "--only replaces it by an archive of the new member alone"
                raise OutputError(exc.message, hint=hint) from None
            raise

    @property
    def names(self) -> tuple[str, ...] | None:
        """The members that stay; None where there is no archive yet."""
        return None if self._file is None else self.kept.names

    @property
    def replaces(self) -> bool:
        """Whether a member goes for the new one."""
        return self.kept.replaced

    def copy(self, fd: int) -> None:
        """Copy what stays to where it will be."""
        if self._file is None:
            return
        write_at(fd, 0, self.kept.filler)
        for start, stop, to in self.kept.pieces:
            if copy_bytes(self._file.fd, start, stop - start, fd, to) < stop - start:
                raise OutputError(f"{printable(self._path)} changed during the run")

    def recheck(self) -> None:
        """Raise OutputError if others have written to the archive, which would be lost."""
        change = ""
        if self._file is not None:
            change = self._file.change()
        elif os.path.lexists(self._path):
            change = "was made by others during the run"
        if change:
            raise OutputError(f"{printable(self._path)} {change}")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
