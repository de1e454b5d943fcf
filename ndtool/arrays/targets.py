"""What `-o` names: a path, perhaps a member, and what is there now."""

import errno
import os
import stat
from typing import TYPE_CHECKING, Any, NamedTuple

from ndtool.arrays.local import is_store
from ndtool.arrays.storage import failure, is_closed, is_fixed
from ndtool.errors import NdtoolError, OutputError, UsageError, printable, shown

if TYPE_CHECKING:
    from ndtool.arrays.newfile import Pending
    from ndtool.arrays.remote import Version

# Endings under which nobody looks for an array of .npy. What is ours in small letters is an archive
# or a store then.
_OTHERS = frozenset(
    {
        ".7z", ".arrow", ".bmp", ".bz2", ".csv", ".feather", ".gif", ".gz", ".h5", ".hdf", ".hdf5",
        ".html", ".jpeg", ".jpg", ".json", ".jsonl", ".mat", ".npz", ".onnx", ".parquet", ".pb",
        ".pickle", ".pkl", ".png", ".pt", ".pth", ".safetensors", ".svg", ".tar", ".tif", ".tiff",
        ".tsv", ".txt", ".xls", ".xlsx", ".xml", ".xz", ".yaml", ".yml", ".zarr", ".zip", ".zst",
    }
)  # fmt: skip

_LEVELS = {"zstd": 22, "blosc": 9, "gzip": 9}  # what compresses chunks, and its highest level
_CODECS = {f"{name}:{level}" for name, most in _LEVELS.items() for level in range(most + 1)}


def codec(text: str) -> str:
    """Return what names a codec, perhaps with a level; UsageError where it names none."""
    if text not in _CODECS and text not in (*_LEVELS, "none"):
        choice = ", ".join(f"{name}[:0..{most}]" for name, most in _LEVELS.items())
        raise UsageError(f"{shown(text)} is no codec: expected {choice} or none")
    return text


class Storing(NamedTuple):
    """How an output in chunks is stored; None: as data are, else as its format does by default.

    codec: zstd, blosc, gzip or none, perhaps with `:level`. like: what the format of data notes.
    as_void: whether elements of a type that the format lacks may be stored as void.
    """

    chunks: tuple[int, ...] | None = None
    shards: tuple[int, ...] | None = None
    codec: str | None = None
    like: dict[str, Any] = {}  # noqa: RUF012 - never changed
    as_void: bool = True

    @property
    def asked(self) -> tuple[str, ...]:
        """The options that were given."""
        return tuple(f"--{name}" for name in self._fields[:3] if getattr(self, name) is not None)


class Target(NamedTuple):
    """A path to write to.

    member: the name of the array in the file, where one was given. old: what is at the path.
    clobber: whether it may be replaced. sync: whether the disk must have everything. only: that
    no other members are kept. storing: how its chunks are. url: whether the path is one. version:
    what is there then, None for nothing, or nothing that matters.
    """

    path: str
    member: str | None
    old: os.stat_result | None
    clobber: bool = True
    sync: bool = False
    only: bool = False
    storing: Storing = Storing()
    url: bool = False
    version: "Version | None" = None

    @property
    def is_there(self) -> bool:
        """Whether there is something at the path."""
        return self.old is not None or self.version is not None

    @property
    def is_file(self) -> bool:
        """Whether it is a file or a store that is replaced, no FIFO or device."""
        return self.old is None or stat.S_IFMT(self.old.st_mode) in (stat.S_IFREG, stat.S_IFDIR)

    @property
    def is_store(self) -> bool:
        """Whether a store is there, a folder."""
        return self.old is not None and stat.S_ISDIR(self.old.st_mode)

    def require_replaceable(self) -> None:
        """Raise OutputError if something is there that must stay."""
        if self.is_there and not self.clobber:
            raise exists(self.path)

    def new_file(self, clobber: bool, keeps: bool) -> "Pending":
        """Return a file that replaces what is there when it is published.

        keeps: whether parts of what is there are in it, so that it must not change meanwhile.
        """
        if self.url:
            from ndtool.arrays.upload import Upload

            return Upload(self.path, self.version, clobber, keeps)
        from ndtool.arrays.newfile import NewFile

        return NewFile(self.path, self.old, clobber, self.sync)

    def require_folder(self) -> None:
        """Raise OutputError if the folder takes no file, as far as that shows without one."""
        if self.url:
            return
        try:
            parent = os.path.dirname(os.path.realpath(self.path))
            os.stat(os.path.join(parent, "."))
            if not os.access(parent, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as exc:
            raise failure(exc, self.path, OutputError) from None


def require_ours(path: str) -> None:
    """Raise UsageError if a path, or a URL's, promises what other programs write.

    What follows a colon would be a member if the file were one of ours; one that exists under the
    whole name is replaced.
    """
    name = os.path.basename(path)
    for part in (name, name if os.path.lexists(path) else name.partition(":")[0]):
        ending = os.path.splitext(part)[1]
        if ending.lower() in _OTHERS:
            raise UsageError(
                f"{printable(path)}: {ending} is not written:"
                " expected .npy, .npz, .safetensors, .pb or .zarr"
                + ", in small letters"
                * (ending != ending.lower())
            )


def exists(target: str) -> OutputError:
    """Return the refusal to replace something."""
    return OutputError(f"{printable(target)} exists, and nothing may be replaced")


def existing(path: str) -> os.stat_result | None:
    """Return what is at `path`, None where nothing is; OutputError where no file can be."""
    try:
        return _looked_at(path)
    except NdtoolError:
        raise
    except OSError as exc:
        raise failure(exc, path, OutputError) from None


def _looked_at(path: str) -> os.stat_result | None:
    try:
        status = os.stat(path)
    except NotADirectoryError:
        raise _nowhere(path) from None
    except FileNotFoundError:
        if os.path.islink(path):
            raise OutputError(f"{printable(path)}: a link to nothing: expected a file") from None
        if not os.path.basename(path):
            raise OutputError(f"{printable(path)}: no name of a file") from None
        if not os.path.exists(os.path.dirname(path) or "."):
            raise _nowhere(path) from None
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
        if test(status.st_mode) and not is_store(path):
            raise OutputError(f"{printable(path)} is {what}: expected a file")
    # A rename needs no permission of the file itself, but its owner took it away on purpose.
    if stat.S_ISREG(status.st_mode) and not os.access(path, os.W_OK):
        raise OutputError(f"{printable(path)} is read-only", hint="chmod u+w lets it be replaced")
    if stat.S_ISREG(status.st_mode):
        _require_removable(path, status)
    return status


def _nowhere(path: str) -> OutputError:
    """Return that the folder of a file is not there."""
    return OutputError(
        f"{printable(path)}: there is no folder {printable(os.path.dirname(path))}",
        hint="files are made, never the folder that they go to",
    )


def _require_removable(path: str, status: os.stat_result) -> None:
    """Raise OutputError if a rename may not put another file in the place of this one."""
    real = os.path.realpath(path)
    folder = os.stat(os.path.dirname(real))
    sticky = folder.st_mode & stat.S_ISVTX and os.geteuid() not in (
        0, folder.st_uid, status.st_uid,
    )  # fmt: skip
    if sticky or is_fixed(real) or is_fixed(os.path.dirname(real)):
        raise OutputError(
            f"{printable(path)}: it may not be replaced: {os.strerror(errno.EPERM)}",
            hint="it or its folder is append-only, or the folder is another's and sticky",
        )
