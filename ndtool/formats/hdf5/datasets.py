"""The metadata of HDF5 datasets: element type, shape and storage layout."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from ndtool.arrays.source import ArrayMetadata, ChunkLayout
from ndtool.errors import DtypeError, InputError, ResourceError, UsageError, printable
from ndtool.formats import numpytypes
from ndtool.formats.hdf5.library import library
from ndtool.rules import shapes
from ndtool.rules.dtypes import Dtype

MAX_CHUNK_BYTES = 1 << 31  # limited because each thread has a chunk in memory
CODECS = ("gzip", "none")  # of --codec
DEFLATE, SHUFFLE = 1, 2
LZF = 32000
_FILTER_NAMES = {
    DEFLATE: "gzip", SHUFFLE: "shuffle", 3: "fletcher32", 4: "szip", 5: "nbit", 6: "scaleoffset",
    LZF: "lzf",
}  # fmt: skip
# Filters, in order of encoding, that ndtool applies without h5py, which decodes one chunk at a
# time: two threads of ndtool decode gzip 1.7 times as fast.
NATIVE_FILTERS = ((), ("shuffle",), ("gzip",), ("shuffle", "gzip"))
# Attributes by which NetCDF libraries convert the values.
_NETCDF_ATTRIBUTES = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")


class Filter(NamedTuple):
    """A filter of chunks. number: as registered. parameters: of gzip, the compression level."""

    number: int
    parameters: tuple[int, ...]
    name: str

    def __str__(self) -> str:
        level = f" {self.parameters[0]}" if self.number == DEFLATE and self.parameters else ""
        return f"{self.name}{level}"


class StorageLayout(NamedTuple):
    """The storage layout of a dataset.

    position: the offset of contiguous values, None for other layouts. chunks: the shape of a chunk,
    None if the dataset has none. filters: in order of encoding. is_compact: whether the values are
    in the dataset's header.
    """

    position: int | None
    chunks: tuple[int, ...] | None
    filters: tuple[Filter, ...]
    is_compact: bool

    @property
    def chunk_layout(self) -> ChunkLayout | None:
        """The chunks and their filters, None if the dataset has no chunks."""
        if self.chunks is None:
            return None
        return ChunkLayout(self.chunks, None, tuple(map(str, self.filters)), None)

    @property
    def unmapped_reason(self) -> str:
        """The reason why the values cannot be memory-mapped, "" if they can."""
        if self.chunks is not None:
            return "in chunks"
        if self.is_compact:
            return "in the dataset's header"
        return "never written" if self.position is None else ""

    @property
    def is_native(self) -> bool:
        """Whether ndtool encodes and decodes the chunks without h5py."""
        return tuple(_FILTER_NAMES.get(item.number) for item in self.filters) in NATIVE_FILTERS


def layout_of(dataset: Any, name: str, start: int) -> StorageLayout:
    """Return the storage layout of a dataset; InputError if its values are in other files.

    start: the offset of the file's signature.
    """
    h5d = library().h5d
    creation_properties = dataset.get_create_plist()
    layout = creation_properties.get_layout()
    if layout == h5d.VIRTUAL:
        raise _error(name, "a virtual dataset, whose values are in other datasets")
    if layout == h5d.CONTIGUOUS and creation_properties.get_external_count():
        raise _error(name, "its values are in external files, which are not read")
    filters = tuple(
        _parse_filter(creation_properties, i) for i in range(creation_properties.get_nfilters())
    )
    if layout == h5d.CHUNKED:
        return StorageLayout(None, tuple(map(int, creation_properties.get_chunk())), filters, False)
    offset = None if layout == h5d.COMPACT else dataset.get_offset()
    position = None if offset is None else start + offset
    return StorageLayout(position, None, (), layout == h5d.COMPACT)


def _parse_filter(creation_properties: Any, index: int) -> Filter:
    number, _, parameters, description = creation_properties.get_filter(index)
    name = (
        _FILTER_NAMES.get(number)
        or description.decode("utf-8", "replace").split("\0")[0].split(";")[0].strip()
    )
    return Filter(
        int(number), tuple(map(int, parameters)), printable(name or f"filter {number}", 40)
    )


def metadata_of(dataset: Any, name: str, layout: StorageLayout) -> ArrayMetadata:
    """Return the array metadata of a dataset; NdtoolError if its values cannot be read."""
    dtype = _dtype(dataset, name)
    if dataset.get_space().get_simple_extent_type() == library().h5s.NULL:
        raise _error(name, "a null dataset, without values")
    shape = tuple(map(int, dataset.shape))
    # Sizes of 0 count as 1: the strides of (0, 2**62, 2**62) overflow int64.
    if prod(size or 1 for size in shape) * dtype.itemsize > shapes.MAX_SIZE:
        raise _error(name, f"no array can have shape {list(shape)}")
    if layout.chunks is None:
        notes = {} if layout.position is None else {"offset": layout.position}
        return ArrayMetadata(dtype, shape, "C", shape, notes)
    if len(layout.chunks) != len(shape) or min(layout.chunks) < 1:
        raise _error(name, f"chunks {list(layout.chunks)} of shape {list(shape)}")
    if (nbytes := prod(layout.chunks) * dtype.itemsize) > MAX_CHUNK_BYTES:
        raise ResourceError(
            f"{printable(name)}: a chunk has {nbytes} bytes: at most {MAX_CHUNK_BYTES} are read"
            " at once"
        )
    return ArrayMetadata(dtype, shape, "C", layout.chunks, {}, layout.chunk_layout)


def _dtype(dataset: Any, name: str) -> Dtype:
    """Return the element type; InputError unless NumPy has exactly that type."""
    h5t = library().h5t
    file_type = dataset.get_type()
    type_class = file_type.get_class()
    if type_class == h5t.VLEN or (type_class == h5t.STRING and file_type.is_variable_str()):
        raise _error(name, "elements of variable length: expected a type of fixed size")
    if type_class == h5t.REFERENCE:
        raise _error(name, "elements are references: expected a type of fixed size")
    try:
        dtype = file_type.dtype
        if dtype.hasobject or dtype.subdtype or dtype.itemsize != file_type.get_size():
            raise TypeError
        if type_class != h5t.STRING and not h5t.py_create(dtype, logical=True).equal(file_type):
            raise TypeError  # such as integers of 24 bits, which h5py would convert
        return numpytypes.from_numpy(dtype)
    except (TypeError, ValueError, DtypeError):
        raise _error(name, "elements of a type that NumPy lacks") from None


def stored_type(dtype: Any) -> Any:
    """Return HDF5's type for NumPy's dtype; TypeError if it has none."""
    h5py = library()
    hdf5_dtype = h5py.opaque_dtype(dtype) if dtype.kind in "mM" else dtype
    return h5py.h5t.py_create(hdf5_dtype, logical=True)


def fill_element(dataset: Any, dtype: Dtype) -> bytes:
    """Return the bytes of the fill value, the value of elements that were never written."""
    import numpy as np

    element = np.zeros((), numpytypes.numpy_dtype(dtype))
    creation_properties = dataset.get_create_plist()
    if creation_properties.fill_value_defined() == library().h5d.FILL_VALUE_USER_DEFINED:
        creation_properties.get_fill_value(element)
    return element.tobytes()


def attribute_warning(dataset: Any, name: str) -> str | None:
    """Return the warning that NetCDF attributes are not applied, None without such attributes."""
    h5a = library().h5a
    names = [
        attribute for attribute in _NETCDF_ATTRIBUTES if h5a.exists(dataset, attribute.encode())
    ]
    if "_FillValue" in names and _is_nan(h5a.open(dataset, b"_FillValue")):
        names.remove("_FillValue")
    if not names:
        return None
    return f"{printable(name)}: values as stored: {', '.join(names)} not applied"


def _is_nan(attribute: Any) -> bool:
    import numpy as np

    if attribute.shape not in ((), (1,)) or attribute.dtype.kind != "f":
        return False
    value = np.zeros(attribute.shape, attribute.dtype)
    attribute.read(value)
    return bool(np.isnan(value).all())


def require_filters(layout: StorageLayout, name: str) -> None:
    """Raise UsageError if hdf5plugin may have a missing filter, InputError if it lacks it, too."""
    h5z = library().h5z
    for chunk_filter in layout.filters:
        if h5z.filter_avail(chunk_filter.number):
            continue
        filter_name = (
            f"{printable(name)}: filter {chunk_filter.name} ({chunk_filter.number}) of its chunks"
        )
        try:
            import hdf5plugin  # noqa: F401 # registers its filters
        except ModuleNotFoundError:
            raise UsageError(
                f"{filter_name} needs the hdf5plugin package", hint="pip install hdf5plugin"
            ) from None
        if not h5z.filter_avail(chunk_filter.number):
            raise InputError(f"{filter_name} is not one of h5py's or hdf5plugin's")


def _error(name: str, reason: str) -> InputError:
    return InputError(f"{printable(name)}: {reason}")
