"""Targets of `-o`: a path or URL, perhaps a member, and the current file."""

import errno
import os
import stat
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ndtool.arrays.source import ChunkLayout
from ndtool.errors import InputError, OutputError, UsageError, format_value, printable, redact_urls
from ndtool.storage.descriptors import is_closed, os_errors
from ndtool.storage.local import FILE_TYPES, is_zarr_store

if TYPE_CHECKING:
    from ndtool.storage.objects import Version

MAX_LISTED = 10  # maximum number of arrays in an error message
_MAX_LEVELS = {"zstd": 22, "blosc": 9, "gzip": 9}  # codecs and their highest levels
_CODECS = {
    f"{name}:{level}" for name, max_level in _MAX_LEVELS.items() for level in range(max_level + 1)
}


def codec(text: str) -> str:
    """Validate a codec such as `zstd:3` and return it; UsageError if it is unknown."""
    if text not in _CODECS and text not in (*_MAX_LEVELS, "none"):
        choice = ", ".join(f"{name}[:0..{max_level}]" for name, max_level in _MAX_LEVELS.items())
        raise UsageError(f"{format_value(text)} is not a codec: expected {choice} or none")
    return text


class Encoding(NamedTuple):
    """Encoding options of a chunked output; None: as data is encoded, else the format's default.

    codec: zstd, blosc, gzip or none, perhaps with `:level`. data_layout: the chunk layout of data,
    None for flat data. as_void: whether element types that the format lacks may be stored as void.
    """

    chunks: tuple[int, ...] | None = None
    shards: tuple[int, ...] | None = None
    codec: str | None = None
    data_layout: ChunkLayout | None = None
    as_void: bool = True

    @property
    def options(self) -> tuple[str, ...]:
        """The options that were passed, as on the command line."""
        return tuple(f"--{name}" for name in self._fields[:3] if getattr(self, name) is not None)

    def require_rank(self, rank: int) -> None:
        """Raise UsageError if chunks or shards have another rank."""
        for name, sizes in (("--chunks", self.chunks), ("--shards", self.shards)):
            if sizes is not None and len(sizes) != rank:
                raise UsageError(
                    f"{name} {','.join(map(str, sizes))} has {len(sizes)} sizes: the output has"
                    f" rank {rank}"
                )

    def require_no_options(self, argument: str) -> None:
        """Raise UsageError if options were passed, as the output has no chunks."""
        if self.options:
            raise UsageError(
                f"{' and '.join(self.options)}: {printable(argument)} has no chunks:"
                " expected a Zarr store or an HDF5 file, such as out.zarr"
            )


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
    def exists(self) -> bool:
        """Whether the file or object exists."""
        return self.current is not None or self.version is not None

    @property
    def is_file(self) -> bool:
        """Whether the output is a file or store, which can be replaced, not a FIFO or device."""
        return self.current is None or stat.S_IFMT(self.current.st_mode) in (
            stat.S_IFREG,
            stat.S_IFDIR,
        )

    @property
    def is_store(self) -> bool:
        """Whether the path is a folder, which is a store."""
        return self.current is not None and stat.S_ISDIR(self.current.st_mode)

    def require_replaceable(self) -> None:
        """Raise OutputError if the file exists without clobber, or has several arrays."""
        if self.exists and not self.clobber:
            raise exists_error(self.path)
        if not self.only and (self.version is not None or os.path.isfile(self.path)):
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


def require_supported(path: str) -> None:
    """Raise UsageError if a path or URL has the suffix of an unsupported output format.

    A colon separates a member name, unless a file of the complete name exists. A suffix without
    letters is ignored, as it may be part of a number.
    """
    name = os.path.basename(path)
    for file_name in (name if os.path.lexists(path) else name.partition(":")[0], name):
        suffix = os.path.splitext(file_name)[1]
        if any(map(str.isalpha, suffix)) and ":" not in suffix:
            raise unsupported_error(path, suffix)


def unsupported_error(path: str, suffix: str) -> UsageError:
    """Return the error for a suffix that is not one of an output format."""
    return UsageError(
        f"{printable(path)}: ndtool does not write {printable(suffix)}:"
        " expected .npy, .npz, .safetensors, .pb, .zarr, .h5, .parquet, .arrow, .csv or .txt"
        + ("" if suffix == suffix.lower() else ", in lower case"),
        hint=f"npy:{printable(path)} writes a .npy file of this name",
    )


def _require_one_array(target: Target) -> None:
    """Raise OutputError if a file has arrays that would be lost."""
    path, label = target.path, redact_urls(target.path)
    try:
        with os_errors(path, OutputError):
            arrays = target.list_arrays(path)
    except InputError as exc:
        hint = "--only replaces it in any case"
        raise OutputError(exc.message, hint=hint) from None
    if len(arrays) > 1:
        more = (f"and {len(arrays) - MAX_LISTED} more",) if len(arrays) > MAX_LISTED else ()
        raise OutputError(
            f"{printable(label)} has {len(arrays)} arrays: which is to be written?",
            places=(*(printable(name, 80) for name in arrays[:MAX_LISTED]), *more),
            hint=f"name it, as {printable(label)}:{printable(arrays[0])}; " * target.preserves(path)
            + "--only replaces the whole file",
        )
    if target.member is not None and any(name not in ("", target.member) for name in arrays):
        raise OutputError(
            f"{printable(label)} has {printable(arrays[0])}, which would be lost:"
            " no other array can be added to it",
            hint="--only replaces the whole file",
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
            raise OutputError(f"{printable(path)}: expected a file name") from None
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
