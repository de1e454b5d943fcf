"""Datasets of an HDF5 file, found by links within the file, and the dimensions of NetCDF's."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from ndtool.arrays.assembly import library_errors
from ndtool.errors import printable, refuse
from ndtool.formats.hdf5.library import CheckedFile, library, signature_offset
from ndtool.rules.mistakes import quote
from ndtool.rules.plans import Shape
from ndtool.storage.local import File

_NO_VARIABLE = b"This is a netCDF dimension but not a netCDF variable"
_MAX_SOFT_LINKS = 16  # on a path; links may form a cycle
_NO_DIMENSION = -1
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
    return "/" + "/".join(part for part in member.split("/") if part not in ("", "."))


class OpenFile:
    """An HDF5 file that is open for reading, its links, and the dimensions of NetCDF.

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
        self._lengths: dict[int, int] | None = None  # by the number of the dimension
        self._numbers: dict[tuple[int, int], int] = {}  # by a variable's address and the axis
        self._problem = ""  # of an object that cannot be opened

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
        """Yield all datasets but the dimensions of NetCDF that have no variable."""
        for dataset in self._all_datasets():
            name = None if dataset.node is None else attribute(dataset.node, b"NAME")
            if name is None or not name.tobytes().startswith(_NO_VARIABLE):
                yield dataset

    def _all_datasets(self) -> Iterator[Dataset]:
        """Yield all datasets, by their hard links; each group is visited once."""
        h5l, h5o, h5g, h5d = library().h5l, library().h5o, library().h5g, library().h5d
        visited = set[int]()
        groups = deque([("", h5g.open(self.file.id, b"/"))])
        while groups:
            prefix, group = groups.popleft()
            if (position := address(group)) in visited:
                continue
            visited.add(position)
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
                    yield Dataset(name, node)

    def shape(self, dataset: Any, name: str) -> Shape:
        """Return the shape of a dataset, of a NetCDF variable with the lengths of its dimensions.

        A variable may have fewer values than an unlimited dimension is long; the others are fill
        values.
        """
        h5py = library()
        shape = tuple(map(int, dataset.shape))
        is_netcdf = self.path.endswith(".nc") or any(
            h5py.h5a.exists(dataset, name) for name in (_DIMENSION_ID, _COORDINATES)
        )
        if not is_netcdf or not _is_extensible(dataset):
            return shape
        largest = dataset.get_space().get_simple_extent_dims(True)
        if self._lengths is None:
            self._lengths = self._read_lengths()
        lengths, numbers = self._lengths, self._dimensions(dataset)
        is_unknown = _NO_DIMENSION in numbers and h5py.h5a.exists(dataset, b"DIMENSION_LIST")
        if is_unknown and self._problem:
            problem = printable(self._problem)
            refuse(f"{self.path}:{name}", f"a dimension of unknown length: {problem}")
        return tuple(
            max(size, lengths.get(number, 0)) if limit == h5py.h5s.UNLIMITED else size
            for size, limit, number in zip(shape, largest, numbers, strict=True)
        )

    def _read_lengths(self) -> dict[int, int]:
        h5py, lengths = library(), dict[int, int]()
        for found in self._all_datasets():
            self._problem = self._problem or found.problem
            references = None if found.node is None else attribute(found.node, b"REFERENCE_LIST")
            for reference, axis in () if references is None else references.flat:
                with suppress(ValueError, RuntimeError):  # a variable may have been removed
                    variable = h5py.h5r.dereference(reference, found.node)
                    key = address(variable), int(axis)
                    self._numbers[key] = _number(found.node)
        for found in self.datasets():
            if found.node is not None and _is_extensible(found.node):
                sizes = zip(self._dimensions(found.node), found.node.shape, strict=True)
                for number, size in sizes:
                    lengths[number] = max(lengths.get(number, 0), int(size))
        lengths.pop(_NO_DIMENSION, None)
        return lengths

    def _dimensions(self, dataset: Any) -> list[int]:
        """Return the number of the dimension of each axis, or _NO_DIMENSION."""
        rank, position = len(dataset.shape), address(dataset)
        coordinates, kind = attribute(dataset, _COORDINATES), attribute(dataset, b"CLASS")
        if coordinates is not None and coordinates.size == rank:
            return list(map(int, coordinates.flat))
        if rank == 1 and kind is not None and kind.tobytes().startswith(b"DIMENSION_SCALE"):
            return [_number(dataset)]  # a coordinate variable
        return [self._numbers.get((position, axis), _NO_DIMENSION) for axis in range(rank)]


def address(node: Any) -> int:
    """Return the position of an object in its file."""
    return int(library().h5o.get_info(node).addr)


def attribute(dataset: Any, name: bytes) -> Any:
    """Return an attribute as an ndarray; None if it is absent, or of variable length.

    HDF5 may search a damaged file for elements of variable length without end.
    """
    import numpy as np

    h5py = library()
    if not h5py.h5a.exists(dataset, name):
        return None
    stored = h5py.h5a.open(dataset, name)
    dtype = stored.dtype
    for element in [dtype[field] for field in dtype.names or ()] or [dtype]:
        if element.hasobject and h5py.check_ref_dtype(element) is None:
            return None
    value = np.zeros(stored.shape, dtype)
    stored.read(value)
    return value


def _split_path(path: bytes) -> list[bytes]:
    return [component for component in path.split(b"/") if component not in (b"", b".")]


def encode_name(name: str) -> bytes:
    """Encode a name as h5py does."""
    return name.encode("utf-8", "surrogateescape")


def _decode_name(name: Any) -> str:
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else str(name)


def _is_extensible(dataset: Any) -> bool:
    space = dataset.get_space()
    is_simple = space.get_simple_extent_type() == library().h5s.SIMPLE
    return is_simple and library().h5s.UNLIMITED in space.get_simple_extent_dims(True)


def _number(scale: Any) -> int:
    """Return the number of a dimension, or a number that no other has."""
    number = attribute(scale, _DIMENSION_ID)
    return (1 << 32) + address(scale) if number is None else int(number)


def padding_value(dataset: Any, dtype: Any, stored_fill: Any) -> Any:
    """Return the value of elements that NetCDF adds. stored_fill: HDF5's fill value."""
    import numpy as np

    fill = attribute(dataset, b"_FillValue")
    if fill is not None and fill.size == 1 and fill.dtype.kind == dtype.kind:
        return fill.reshape(()).astype(dtype)[()]
    if stored_fill.any() or dtype.str[1:] not in _FILL_VALUES:
        return stored_fill
    return np.array(_FILL_VALUES[dtype.str[1:]]).astype(dtype)
