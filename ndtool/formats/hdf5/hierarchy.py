"""Datasets of an HDF5 file, found by links within the file, and the dimensions of NetCDF's."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from ndtool.errors import printable, refuse
from ndtool.formats.hdf5.library import library
from ndtool.rules.plans import Shape

_NO_VARIABLE = b"This is a netCDF dimension but not a netCDF variable"
_MAX_SOFT_LINKS = 16  # on a path; links may form a cycle
_DIMENSION_ID, _COORDINATES = b"_Netcdf4Dimid", b"_Netcdf4Coordinates"
# NetCDF's fill values, by NumPy's type.
_FILL_VALUES = {
    "i1": -127, "i2": -32767, "i4": -2147483647, "i8": -9223372036854775806,
    "u1": 255, "u2": 65535, "u4": 4294967295, "u8": 18446744073709551614,
    "f4": 9.9692099683868690e36, "f8": 9.9692099683868690e36,
}  # fmt: skip


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


def find_object(file: Any, path: str, name: str, follows: bool = True) -> Any:
    """Return the object at a path, None if it does not exist; InputError if a link leaves the file.

    path: the file, for messages. follows: whether soft links are followed, and other objects than
    groups may be on the path, as to read an object; else they are errors.
    """
    h5l, h5o, h5g = library().h5l, library().h5o, library().h5g
    root = h5g.open(file.id, b"/")
    node, link_count = root, 0
    components = deque(_split_path(encode_name(name)))
    while components:
        component = components.popleft()
        if not isinstance(node, h5g.GroupID) and not follows:
            refuse(f"{path}:{name}", "no group: nothing can be created in a dataset")
        if not isinstance(node, h5g.GroupID) or not node.links.exists(component):
            return None
        link_type = node.links.get_info(component).type
        if link_type == h5l.TYPE_HARD:
            node = h5o.open(node, component)
            continue
        if link_type != h5l.TYPE_SOFT or not follows:
            kind = "a link to another file" if follows else "a soft or external link"
            link = printable(_decode_name(component))
            refuse(f"{path}:{name}", f"{link} is {kind}, which is not followed")
        target = node.links.get_val(component)
        if (link_count := link_count + 1) > _MAX_SOFT_LINKS:
            refuse(f"{path}:{name}", f"more than {_MAX_SOFT_LINKS} soft links")
        node = root if target.startswith(b"/") else node
        components.extendleft(reversed(_split_path(target)))
    return node


def datasets(file: Any) -> Iterator[Dataset]:
    """Yield all datasets, by their hard links; each group is visited once."""
    h5l, h5o, h5g, h5d = library().h5l, library().h5o, library().h5g, library().h5d
    visited = set[int]()
    groups = deque([("", h5g.open(file.id, b"/"))])
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
            elif isinstance(node, h5d.DatasetID) and not _is_only_dimension(node):
                yield Dataset(name, node)


def _is_only_dimension(dataset: Any) -> bool:
    """Whether a dataset is a dimension of NetCDF without a variable."""
    h5a = library().h5a
    if not h5a.exists(dataset, b"CLASS") or not h5a.exists(dataset, b"NAME"):
        return False
    name = library().Dataset(dataset).attrs["NAME"]
    return bytes(getattr(name, "encode", lambda: name)()).startswith(_NO_VARIABLE)


def _split_path(path: bytes) -> list[bytes]:
    return [component for component in path.split(b"/") if component not in (b"", b".")]


def encode_name(name: str) -> bytes:
    """Encode a name as h5py does."""
    return name.encode("utf-8", "surrogateescape")


def _decode_name(name: Any) -> str:
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else str(name)


class Lengths:
    """The lengths of the dimensions of a file, from the shapes of all of its variables."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._lengths: dict[int, int] | None = None

    def shape(self, dataset: Any, label: str) -> Shape:
        """Return the shape of a dataset, of a NetCDF variable with the lengths of its dimensions.

        A variable may have fewer values than an unlimited dimension is long; the others are fill
        values.
        """
        h5py = library()
        shape = tuple(map(int, dataset.shape))
        is_netcdf = label.partition(":")[0].endswith(".nc") or any(
            h5py.h5a.exists(dataset, name) for name in (_DIMENSION_ID, _COORDINATES)
        )
        if not is_netcdf or not _is_extensible(dataset):
            return shape
        largest = dataset.get_space().get_simple_extent_dims(True)
        if self._lengths is None:
            self._lengths = self._read()
        lengths, keys = self._lengths, _dimensions(dataset) or [-1] * len(shape)
        return tuple(
            max(size, lengths.get(key, 0)) if limit == h5py.h5s.UNLIMITED else size
            for size, limit, key in zip(shape, largest, keys, strict=True)
        )

    def _read(self) -> dict[int, int]:
        lengths = dict[int, int]()
        for found in datasets(self._file):
            if found.node is not None and _is_extensible(found.node):
                for key, size in zip(_dimensions(found.node), found.node.shape, strict=False):
                    lengths[key] = max(lengths.get(key, 0), int(size))
        return lengths


def _is_extensible(dataset: Any) -> bool:
    space = dataset.get_space()
    is_simple = space.get_simple_extent_type() == library().h5s.SIMPLE
    return is_simple and library().h5s.UNLIMITED in space.get_simple_extent_dims(True)


def _dimensions(dataset: Any) -> list[int]:
    """Return the numbers of a variable's dimensions, [] if it has none."""
    h5py, rank = library(), len(dataset.shape)
    attributes = h5py.Dataset(dataset).attrs
    keys = list[int]()
    if h5py.h5a.exists(dataset, _COORDINATES):
        keys = list(map(int, attributes[_COORDINATES.decode()]))
    elif h5py.h5a.exists(dataset, b"DIMENSION_LIST"):  # of older versions of NetCDF
        for references in attributes["DIMENSION_LIST"][:rank]:
            scales = [h5py.h5r.dereference(item, dataset) for item in references[:1]]
            keys += [_number(scale) for scale in scales] or [-1]
    elif h5py.h5ds.is_scale(dataset) and rank == 1:  # a coordinate variable
        keys = [_number(dataset)]
    return keys if len(keys) == rank else []


def _number(scale: Any) -> int:
    """Return the number of a dimension, or a number that no other has."""
    h5py = library()
    if h5py.h5a.exists(scale, _DIMENSION_ID):
        return int(h5py.Dataset(scale).attrs[_DIMENSION_ID.decode()])
    return (1 << 32) + int(h5py.h5o.get_info(scale).addr)


def padding_value(dataset: Any, dtype: Any, stored_fill: Any) -> Any:
    """Return the value of elements that NetCDF adds. stored_fill: HDF5's fill value."""
    import numpy as np

    if library().h5a.exists(dataset, b"_FillValue"):
        attribute = np.asarray(library().Dataset(dataset).attrs["_FillValue"]).reshape(-1)
        if len(attribute) == 1 and attribute.dtype.kind == dtype.kind:
            return attribute.astype(dtype)[0]
    if stored_fill.any() or dtype.str[1:] not in _FILL_VALUES:
        return stored_fill
    return np.array(_FILL_VALUES[dtype.str[1:]]).astype(dtype)
