"""Locations of files and stores: paths and URLs, and how to open them."""

import os
import re
from typing import TYPE_CHECKING

from ndtool.errors import UsageError, printable, redact_urls, refuse
from ndtool.redaction import register
from ndtool.storage.local import (
    ZARR_METADATA,
    File,
    Folder,
    LocalFile,
    is_zarr_store,
    open_file,
    parquet_files,
)
from ndtool.storage.urls import join, split_query

if TYPE_CHECKING:
    from ndtool.storage.ranged import RemoteFile

_SCHEME = frozenset("abcdefghijklmnopqrstuvwxyz0123456789+.-")


def is_url(argument: str) -> bool:
    """Whether an argument begins with a URL scheme, and no file has this name.

    >>> is_url("s3://bucket/x.npy"), is_url("C://x.npy"), is_url("x.npy")
    (True, False, False)
    """
    scheme, separator, _ = argument.partition("://")
    is_scheme = len(scheme) > 1 and scheme[0].isalpha() and _SCHEME.issuperset(scheme.lower())
    return bool(separator) and is_scheme and not os.path.lexists(argument)


def local_path(path: str) -> str:
    """Return the path of a `file://` URL, other URLs with their schemes in lower case.

    A path is returned unchanged. Raises UsageError for a file of another host.

    >>> local_path("file://localhost/tmp/x.npy"), local_path("HTTPS://Host/x.npy")
    ('/tmp/x.npy', 'https://Host/x.npy')
    """
    if not is_url(path):
        return path
    register(path)
    url = re.sub("(?:^|(?<=::))[A-Za-z0-9+.-]+(?=://)", lambda scheme: scheme[0].lower(), path)
    if not url.startswith("file://"):
        return url
    host, slash, file_path = url.removeprefix("file://").partition("/")
    if host.lower() not in ("", "localhost") or not slash:
        raise UsageError(f"{printable(path)} is on another host: expected file:///PATH, or PATH")
    return slash + file_path


def is_shared(url: str) -> bool:
    """Whether other processes can access a URL's storage; they cannot for memory://."""
    return not url.startswith("memory://")


def is_bucket(url: str) -> bool:
    """Whether a URL is the URL of a bucket or server, which has no parent folder."""
    path = redact_urls(split_query(url)[0]).partition("://")[2]
    return "/" not in path.rstrip("/") and is_shared(url)


def companion(file: File, path: str, name: str, label: str, kind: str) -> str:
    """Return the location of a file in the folder of an open file that refers to it, or below.

    path: of the open file. name: relative to its folder. label, kind: what refers to the file, and
    to what, for messages. Raises InputError for another path, and for a link out of the folder.
    """
    url, folder = getattr(file, "address", None), os.path.dirname(path)
    location = os.path.join(folder, name) if url is None else join(url, name, sibling=True)
    is_inside = name and name[0] != "/" and ".." not in name.split("/") and "\0" not in name
    if not is_inside or is_url(name) or (is_url(location) if url is None else "::" in name):
        refuse(
            label,
            f"the location of {kind} is {printable(repr(name))}: expected a"
            " relative path inside the model's folder",
        )
    # In a cache, the model and its files may be links to files of another folder.
    folders = (os.path.realpath(folder), os.path.dirname(os.path.realpath(path)))
    real_path = os.path.realpath(location)
    if url is None and all(os.path.commonpath([real_path, real]) != real for real in folders):
        refuse(label, f"{kind} is in {printable(location)}, a link out of the model's folder")
    return location


def parent_folder(path: str) -> str:
    """Return the parent folder of a path or URL."""
    return join(path, "", sibling=True) if is_url(path) else os.path.dirname(os.path.abspath(path))


def open_storage(path: str) -> "LocalFile | RemoteFile":
    """Open a local file or a remote object for reading."""
    path = local_path(path)
    if not is_url(path):
        return open_file(path)
    from ndtool.storage.ranged import RemoteFile

    return RemoteFile(path)


def open_folder(path: str) -> Folder | None:
    """Open the folder of a Zarr store or of Parquet files, None if there is none."""
    path = local_path(path)
    if not is_url(path):
        from ndtool.storage.localfolder import LocalFolder

        return LocalFolder(path) if is_zarr_store(path) or parquet_files(path) else None
    from ndtool.storage.remotefolder import RemoteFolder

    folder = RemoteFolder(path)
    bodies = (folder.read(name) or b"" for name in ZARR_METADATA)  # a server may always send HTML
    return folder if any(body.lstrip()[:1] == b"{" for body in bodies) else None
