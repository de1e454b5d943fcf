"""Datasets of an HDF5 file, found by links within the file."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from ndtool.arrays.assembly import library_errors
from ndtool.errors import printable, refuse
from ndtool.formats.hdf5.library import CheckedFile, library, signature_offset
from ndtool.rules.mistakes import quote
from ndtool.storage.local import File

_NO_VARIABLE = b"This is a netCDF dimension but not a netCDF variable"
_MAX_SOFT_LINKS = 16  # on a path; links may form a cycle


class Dataset(NamedTuple):
    """A dataset of a file. name: its path, as "/group/name". problem: why it cannot be opened."""

    name: str
    node: Any
    problem: str = ""


def normalize_name(member: str) -> str:
    """Return a member's name as a path from the root, without empty components."""
    return "/" + "/".join(
        component for component in member.split("/") if component not in ("", ".")
    )


class OpenFile:
    """An HDF5 file that is open for reading, and its links.

    h5py opens no other file: external links and data in other files are not followed. file: h5py's.
    start: the offset of the signature.
    """

    def __init__(self, storage: File, path: str) -> None:
        h5py, start = library(), signature_offset(storage)
        if storage.peek(0, 3) == b"CDF":
            new_path = path.removesuffix(".nc") + "-nc4.nc"
            hint = f"nccopy converts it. Then: nccopy -k nc4 {quote(path)} {quote(new_path)}"
            refuse(path, "NetCDF-3: expected NetCDF-4", hint=hint)
        if start is None:
            refuse(path, "not an HDF5 file: expected its signature at byte 0, 512, 1024 and so on")
        self.storage, self.path, self.start = storage, path, start
        with library_errors(path):
            self.file = h5py.File(CheckedFile(storage, path, start), "r", rdcc_nbytes=0)

    def close(self) -> None:
        """Close h5py's file."""
        self.file.close()

    def find(self, name: str, follows: bool = True) -> Any:
        """Return the object at a path, None if it does not exist.

        InputError if a link leaves the file. follows: whether soft links are followed, and other
        objects than groups may be on the path, as to read an object; else they are errors.
        """
        h5l, h5o, h5g = library().h5l, library().h5o, library().h5g
        root = h5g.open(self.file.id, b"/")
        node, link_count = root, 0
        components = deque(_split_path(encode_name(name)))
        while components:
            component = components.popleft()
            if not isinstance(node, h5g.GroupID) and not follows:
                refuse(f"{self.path}:{name}", "no group: nothing can be created in a dataset")
            if not isinstance(node, h5g.GroupID) or not node.links.exists(component):
                return None
            link_type = node.links.get_info(component).type
            if link_type == h5l.TYPE_HARD:
                node = h5o.open(node, component)
                continue
            if link_type != h5l.TYPE_SOFT or not follows:
                kind = "a link to another file" if follows else "a soft or external link"
                link = printable(_decode_name(component))
                refuse(f"{self.path}:{name}", f"{link} is {kind}, which is not followed")
            target = node.links.get_val(component)
            if (link_count := link_count + 1) > _MAX_SOFT_LINKS:
                refuse(f"{self.path}:{name}", f"more than {_MAX_SOFT_LINKS} soft links")
            node = root if target.startswith(b"/") else node
            components.extendleft(reversed(_split_path(target)))
        return node

    def datasets(self) -> Iterator[Dataset]:
        """Yield all datasets, by their hard links, but NetCDF's dimensions without a variable.

        Each group is visited once.
        """
        h5l, h5o, h5g, h5d = library().h5l, library().h5o, library().h5g, library().h5d
        visited = set[int]()
        groups = deque([("", h5g.open(self.file.id, b"/"))])
        while groups:
            prefix, group = groups.popleft()
            address = h5o.get_info(group).addr
            if address in visited:
                continue
            visited.add(address)
            links: list[bytes] = []
            group.links.iterate(links.append)
            for link in links:
                name = f"{prefix}/{_decode_name(link)}"
                try:
                    if group.links.get_info(link).type != h5l.TYPE_HARD:
                        continue
                    node = h5o.open(group, link)
                except Exception as exc:  # a damaged object does not prevent listing the others
                    yield Dataset(name, None, str(exc))
                    continue
                if isinstance(node, h5g.GroupID):
                    groups.append((name, node))
                elif isinstance(node, h5d.DatasetID):
                    label = attribute(node, b"NAME")
                    if label is None or not label.tobytes().startswith(_NO_VARIABLE):
                        yield Dataset(name, node)


def attribute(dataset: Any, name: bytes) -> Any:
    """Return an attribute as an ndarray; None if it is absent, or of variable length.

    HDF5 may search a damaged file for elements of variable length without end.
    """
    import numpy as np

    h5py = library()
    if not h5py.h5a.exists(dataset, name):
        return None
    stored = h5py.h5a.open(dataset, name)
    if stored.dtype.hasobject:
        return None
    value = np.zeros(stored.shape, stored.dtype)
    stored.read(value)
    return value


def _split_path(path: bytes) -> list[bytes]:
    return [component for component in path.split(b"/") if component not in (b"", b".")]


def encode_name(name: str) -> bytes:
    """Encode a name as h5py does."""
    return name.encode("utf-8", "surrogateescape")


def _decode_name(name: Any) -> str:
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else str(name)
