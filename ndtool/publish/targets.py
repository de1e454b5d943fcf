"""Targets of `-o`: a path or URL, perhaps a member, and the current file."""

import errno
import os
import stat
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ndtool.arrays.sink import Encoding
from ndtool.errors import InputError, OutputError, option, printable, redact_urls
from ndtool.storage import locations
from ndtool.storage.descriptors import is_closed, os_errors
from ndtool.storage.local import FILE_TYPES, File, is_zarr_store

if TYPE_CHECKING:
    from ndtool.storage.objects import Version

T = TypeVar("T")
MAX_LISTED = 10  # maximum number of arrays in an error message


class Target(NamedTuple):
    """Location of an output.

    member: the name of the array in the file, if given. current: the status of the current file.
    clobber: whether it may be replaced. sync: whether to flush to disk. only: preserve no other
    members. encoding: the encoding options of chunks. url: whether the path is a URL. version: the
    version of the current object at a URL, None if there is none or it is irrelevant. is_dry_run:
    whether this is a dry run, which drops the file once its space is reserved: no bytes are copied
    to it, and no abandoned files are removed. list_arrays: function that lists the arrays in a
    file. preserves: function that tells if a path's format preserves other members.
    """

    path: str
    member: str | None
    current: os.stat_result | None
    clobber: bool = True
    sync: bool = False
    only: bool = False
    encoding: Encoding = Encoding()
    url: bool = False
    version: "Version | None" = None
    is_dry_run: bool = False
    list_arrays: Callable[[str], Sequence[str]] = lambda path: ()
    preserves: Callable[[str], bool] = lambda path: False

    @property
    def array_name(self) -> str:
        """The name of the array in a file of several, `output` if none is given."""
        return self.member or "output"

    @property
    def exists(self) -> bool:
        """Whether the file or object exists."""
        return self.current is not None or self.version is not None

    @property
    def is_file(self) -> bool:
        """Whether the output is a file or store, which can be replaced, not a FIFO or device."""
        return self.current is None or self.is_store or stat.S_ISREG(self.current.st_mode)

    @property
    def is_store(self) -> bool:
        """Whether the path is a folder, which is a store."""
        return self.current is not None and stat.S_ISDIR(self.current.st_mode)

    def require_replaceable(self) -> None:
        """Raise OutputError if the file exists without clobber, or has several arrays."""
        if self.exists and not self.clobber:
            raise exists_error(self.path)
        if not self.only and (self.version or self.is_store or os.path.isfile(self.path)):
            _require_one_array(self)

    def require_folder(self) -> None:
        """Raise OutputError if the folder is missing or not writable."""
        if self.url:
            return
        with os_errors(self.path, OutputError):
            parent = os.path.dirname(os.path.realpath(self.path))
            os.stat(os.path.join(parent, "."))
            if not os.access(parent, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


class CurrentFile:
    """The current file of a target, open from `read` until it is replaced.

    has_members: whether the format preserves members. preserves: whether other members are
    preserved; then a file that another process creates during the run is not replaced.
    requires_unchanged: whether changes of the file prevent its replacement. is_compared: whether it
    is compared before its replacement, in a locked folder. file: the open file, None if no members
    are preserved.
    """

    def __init__(self, target: Target, has_members: bool = True) -> None:
        self._target, self._path, self._existed = target, target.path, target.exists
        self.preserves = has_members and target.member is not None and not target.only
        self.requires_unchanged = has_members and not target.only
        self.is_compared = not target.only and (has_members or target.exists)
        self.file: File | None = None
        if not self.preserves:
            target.require_replaceable()

    @property
    def clobber(self) -> bool:
        """Whether a file that exists may be replaced, if it is the current one."""
        return self._target.clobber or self.file is not None  # its members are preserved

    @property
    def may_replace(self) -> bool:
        """Whether any file may be replaced."""
        return self.clobber and (self.file is not None or not self.preserves)

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
                hint = f"{option('only', True)} replaces it with {content} alone"
                raise OutputError(exc.message, hint=hint) from None
            raise

    def copy(self, fd: int, ranges: Sequence[tuple[int, int, int]]) -> None:
        """Copy preserved byte ranges (start, stop, offset in the new file) of the current file."""
        assert self.file is not None, "members are preserved"
        self.file.download((start, stop) for start, stop, _ in ranges)  # with few requests
        for start, stop, target_start in ranges:
            if self.file.copy(start, stop - start, fd, target_start) < stop - start:
                raise OutputError(f"{printable(self._path)} changed during the run")

    def require_unchanged(self) -> None:
        """Raise OutputError if another process changed the file, as its changes would be lost.

        The conditional request that replaces a remote object compares it again.
        """
        change, is_url = "", self._target.url
        exists = not is_url and os.path.lexists(self._path)
        if self.file is not None:
            removed = "" if exists or is_url else "was removed during the run"
            change = self.file.describe_change() or removed
        elif self.preserves and exists:
            change = "was created by another process during the run"
        elif self.is_compared and (exists or (is_url and not self.requires_unchanged)):
            self._target.require_replaceable()  # it may have become an archive
        if change:
            raise OutputError(f"{printable(self._path)} {change}")

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


def _require_one_array(target: Target) -> None:
    """Raise OutputError if a file has arrays that would be lost."""
    path, label = target.path, redact_urls(target.path)
    try:
        with os_errors(path, OutputError):
            arrays = target.list_arrays(path)
    except InputError as exc:
        hint = f"{option('only', True)} replaces it in any case"
        raise OutputError(exc.message, hint=hint) from None
    if len(arrays) > 1:
        more = (f"and {len(arrays) - MAX_LISTED} more",) if len(arrays) > MAX_LISTED else ()
        raise OutputError(
            f"{printable(label)} has {len(arrays)} arrays: which is to be written?",
            places=(*(printable(name, 80) for name in arrays[:MAX_LISTED]), *more),
            hint=f"name it, as {printable(label)}:{printable(arrays[0])}; " * target.preserves(path)
            + f"{option('only', True)} replaces the whole file",
        )
    if target.member is not None and any(name not in ("", target.member) for name in arrays):
        raise OutputError(
            f"{printable(label)} has {printable(arrays[0])}, which would be lost:"
            " no other array can be added to it",
            hint=f"{option('only', True)} replaces the whole file",
        )


def exists_error(target: str) -> OutputError:
    """Return the error for a file that exists and may not be replaced."""
    return OutputError(f"{printable(target)} exists and may not be replaced")


def existing(path: str) -> os.stat_result | None:
    """Return the status of an output's path, None if it does not exist; OutputError if invalid."""
    with os_errors(path, OutputError):
        return _status(path)


def _status(path: str) -> os.stat_result | None:
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        if os.path.islink(path):
            raise OutputError(
                f"{printable(path)}: it is a dangling link: expected a file"
            ) from None
        if not os.path.basename(path):
            name = printable(path) or "an empty name"
            raise OutputError(f"{name}: expected a file name") from None
        if not os.path.isdir(os.path.dirname(path) or "."):
            raise OutputError(
                f"{printable(path)}: there is no folder {printable(os.path.dirname(path))}",
                hint="ndtool creates files, but not their folders",
            ) from None
        return None
    except ValueError as exc:
        raise OutputError(f"{printable(path)} is not a valid file name: {exc}") from None
    if is_closed(status):
        raise OutputError(f"{printable(path)}: it is closed")
    kind = stat.S_IFMT(status.st_mode)
    if kind in (stat.S_IFDIR, stat.S_IFBLK, stat.S_IFSOCK) and not is_zarr_store(path):
        raise OutputError(f"{printable(path)} is {FILE_TYPES[kind]}: expected a file")
    # A rename needs no write permission on the file, but its owner has revoked it on purpose.
    if kind == stat.S_IFREG and not os.access(path, os.W_OK):
        hint = "chmod u+w lets it be replaced"
        raise OutputError(f"{printable(path)} is read-only", hint=hint)
    return status
