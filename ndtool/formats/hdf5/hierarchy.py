"""Find datasets in an HDF5 file: links are followed within the file only."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from ndtool.errors import InputError, printable
from ndtool.formats.hdf5.library import library

_HOPS = 16  # maximum soft links on a path, as they may form a circle


class Dataset(NamedTuple):
    """A dataset of a file. name: its path, as "/group/name". problem: why it cannot be opened."""

    name: str
    node: Any
    problem: str = ""


def name_of(member: str) -> str:
    """Return a member as a path from the root, without empty components."""
    return "/" + "/".join(part for part in member.split("/") if part not in ("", "."))


def label(path: str, name: str) -> str:
    """Return the name of a dataset in messages and arguments."""
    return f"{path}:{name}"


def find(file: Any, path: str, name: str) -> Any:
    """Return the object at a path, None if it does not exist; InputError if a link leaves the file.

    path: the file, for messages.
    """
    h5l, h5o, h5g = library().h5l, library().h5o, library().h5g
    root = h5g.open(file.id, b"/")
    node, hops = root, 0
    parts = deque(_parts(encoded(name)))
    while parts:
        part = parts.popleft()
        if not isinstance(node, h5g.GroupID) or not node.links.exists(part):
            return None
        kind = node.links.get_info(part).type
        if kind == h5l.TYPE_HARD:
            node = h5o.open(node, part)
            continue
        if kind != h5l.TYPE_SOFT:
            raise InputError(
                f"{printable(label(path, name))}: {printable(_decoded(part))} is a link to another"
                " file, which is not followed"
            )
        target = node.links.get_val(part)
        if (hops := hops + 1) > _HOPS:
            raise InputError(f"{printable(label(path, name))}: more than {_HOPS} soft links")
        node = root if target.startswith(b"/") else node
        parts.extendleft(reversed(_parts(target)))
    return node


def datasets(file: Any) -> Iterator[Dataset]:
    """Yield all datasets, by their hard links; each group is visited once."""
    h5l, h5o, h5g, h5d = library().h5l, library().h5o, library().h5g, library().h5d
    seen = set[int]()
    groups = deque([("", h5g.open(file.id, b"/"))])
    while groups:
        prefix, group = groups.popleft()
        address = h5o.get_info(group).addr
        if address in seen:
            continue
        seen.add(address)
        links: list[bytes] = []
        group.links.iterate(links.append)
        for link in links:
            name = f"{prefix}/{_decoded(link)}"
            try:
                if group.links.get_info(link).type != h5l.TYPE_HARD:
                    continue
                node = h5o.open(group, link)
            except Exception as exc:  # damaged: the others are listed
                yield Dataset(name, None, str(exc))
                continue
            if isinstance(node, h5g.GroupID):
                groups.append((name, node))
            elif isinstance(node, h5d.DatasetID):
                yield Dataset(name, node)


def _parts(path: bytes) -> list[bytes]:
    return [part for part in path.split(b"/") if part not in (b"", b".")]


def encoded(name: str) -> bytes:
    """Return a name as h5py stores it."""
    return name.encode("utf-8", "surrogateescape")


def _decoded(name: Any) -> str:
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else str(name)
