"""Where files are: in the file system, or behind a URL."""

import os
from typing import TYPE_CHECKING

from ndtool.arrays.local import (
    ZARR_METADATA,
    File,
    Folder,
    LocalFile,
    LocalFolder,
    is_store,
    open_file,
)

if TYPE_CHECKING:
    from ndtool.arrays.ranged import RemoteFile

_SCHEME = frozenset("abcdefghijklmnopqrstuvwxyz0123456789+.-")


def is_url(argument: str) -> bool:
    """Tell whether an argument begins as a URL does, and no file has it for a name.

    >>> is_url("s3://bucket/x.npy"), is_url("C://x.npy"), is_url("x.npy")
    (True, False, False)
    """
    scheme, found, _ = argument.partition("://")
    if not found or not scheme[:1].isalpha() or not _SCHEME.issuperset(scheme):
        return False
    return not os.path.lexists(argument)


def local_path(path: str) -> str:
    """Return what a `file://` URL says of this machine's files, any other path as it is."""
    return path.removeprefix("file://") if path.startswith("file://") and is_url(path) else path


def is_of_many(url: str) -> bool:
    """Whether other processes see what is behind a URL."""
    return not url.startswith("memory://")


def beside(place: File, path: str, name: str) -> str | None:
    """Return where a file of a relative name is in the folder of another; None if it cannot be.

    place, path: the other one, open, and what it is called.
    """
    url = getattr(place, "address", None)
    if url is None:
        found = os.path.join(os.path.dirname(path), name)
        return None if is_url(found) else found
    from ndtool.arrays.remotefolder import inside

    return None if "::" in name else inside(url, name, beside=True)


def folder(path: str) -> str:
    """Return the directory of a file, or the URL of the folder that something is in."""
    if not is_url(path):
        return os.path.dirname(os.path.abspath(path))
    from ndtool.arrays.remotefolder import inside

    return inside(path, "", beside=True)


def open_place(path: str) -> "LocalFile | RemoteFile":
    """Open a file, or what is behind a URL, to be read."""
    path = local_path(path)
    if not is_url(path):
        return open_file(path)
    from ndtool.arrays.ranged import RemoteFile

    return RemoteFile(path)


def open_folder(path: str) -> Folder | None:
    """Open the folder of a store, None where there is none."""
    path = local_path(path)
    if not is_url(path):
        return LocalFolder(path) if is_store(path) else None
    from ndtool.arrays.remotefolder import RemoteFolder

    folder = RemoteFolder(path)
    found = (folder.read(name) or b"" for name in ZARR_METADATA)  # a server may send a page always
    return folder if any(raw.lstrip()[:1] == b"{" for raw in found) else None
