"""The metadata of HDF5 datasets: element type, shape, and how the values are stored."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from ndtool.arrays.source import ArrayMetadata, ChunkLayout
from ndtool.errors import DtypeError, InputError, ResourceError, UsageError, printable
from ndtool.formats import numpytypes
from ndtool.formats.hdf5.library import library
from ndtool.rules import shapes
from ndtool.rules.dtypes import Dtype

LARGEST = 1 << 31  # maximum bytes of a chunk, as each thread holds one
CODECS = ("gzip", "none")  # of --codec
DEFLATE, SHUFFLE = 1, 2
LZF = 32000
_NAMES = {
    DEFLATE: "gzip", SHUFFLE: "shuffle", 3: "fletcher32", 4: "szip", 5: "nbit", 6: "scaleoffset",
    LZF: "lzf",
}  # fmt: skip
# Filters, in order of encoding, that ndtool applies itself: h5py decodes one chunk at a time, and
# two threads here decode gzip 1.7 times as fast.
NATIVE = ((), ("shuffle",), ("gzip",), ("shuffle", "gzip"))
# Attributes by which NetCDF's readers change the values.
_APPLIED = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")


class Filter(NamedTuple):
    """A filter of chunks: its registered number and its parameters, whose first is gzip's level."""

    number: int
    values: tuple[int, ...]
    name: str

    def __str__(self) -> str:
        level = f" {self.values[0]}" if self.number == DEFLATE and self.values else ""
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
    def unmapped(self) -> str:
        """The reason why the values cannot be mapped, "" if they can."""
        if self.chunks is not None:
            return "in chunks"
        if self.is_compact:
            return "in the dataset's header"
        return "never written" if self.position is None else ""

    @property
    def is_native(self) -> bool:
        """Whether ndtool encodes and decodes the chunks itself."""
        return tuple(_NAMES.get(one.number) for one in self.filters) in NATIVE


def layout_of(dataset: Any, name: str, start: int) -> StorageLayout:
    """Return the storage layout of a dataset; InputError if its values are in other files.

    start: the offset of the file's signature.
    """
    h5d = library().h5d
    creation = dataset.get_create_plist()
    layout = creation.get_layout()
    if layout == h5d.VIRTUAL:
        raise _refused(name, "a virtual dataset, whose values are in other datasets")
    if layout == h5d.CONTIGUOUS and creation.get_external_count():
        raise _refused(name, "its values are in external files, which are not read")
    filters = tuple(_filter(creation, i) for i in range(creation.get_nfilters()))
    if layout == h5d.CHUNKED:
        return StorageLayout(None, tuple(map(int, creation.get_chunk())), filters, False)
    offset = None if layout == h5d.COMPACT else dataset.get_offset()
    position = None if offset is None else start + offset
    return StorageLayout(position, None, (), layout == h5d.COMPACT)


def _filter(creation: Any, number: int) -> Filter:
    code, _, values, text = creation.get_filter(number)
    name = _NAMES.get(code) or text.decode("utf-8", "replace").split("\0")[0].split(";")[0].strip()
    return Filter(int(code), tuple(map(int, values)), printable(name or f"filter {code}", 40))


def metadata_of(dataset: Any, name: str, layout: StorageLayout) -> ArrayMetadata:
    """Return the metadata of a dataset; NdtoolError if its values cannot be read."""
    dtype = _dtype(dataset, name)
    if dataset.get_space().get_simple_extent_type() == library().h5s.NULL:
        raise _refused(name, "a null dataset, without values")
    shape = tuple(map(int, dataset.shape))
    # Sizes of 0 count as 1: the strides of (0, 2**62, 2**62) overflow int64.
    if prod(size or 1 for size in shape) * dtype.itemsize > shapes.MAX_SIZE:
        raise _refused(name, f"no array can have shape {list(shape)}")
    if layout.chunks is None:
        notes = {} if layout.position is None else {"offset": layout.position}
        return ArrayMetadata(dtype, shape, "C", shape, notes)
    if len(layout.chunks) != len(shape) or min(layout.chunks) < 1:
        raise _refused(name, f"chunks {list(layout.chunks)} of shape {list(shape)}")
    if (nbytes := prod(layout.chunks) * dtype.itemsize) > LARGEST:
        raise ResourceError(
            f"{printable(name)}: a chunk has {nbytes} bytes: at most {LARGEST} are read at once"
        )
    return ArrayMetadata(dtype, shape, "C", layout.chunks, {}, layout.chunk_layout)


def _dtype(dataset: Any, name: str) -> Dtype:
    """Return the element type; InputError unless NumPy has exactly that type."""
    h5t = library().h5t
    stored = dataset.get_type()
    kind = stored.get_class()
    if kind == h5t.VLEN or (kind == h5t.STRING and stored.is_variable_str()):
        raise _refused(name, "elements of variable length: expected a type of fixed size")
    if kind == h5t.REFERENCE:
        raise _refused(name, "elements are references: expected a type of fixed size")
    try:
        dtype = stored.dtype
        if dtype.hasobject or dtype.subdtype or dtype.itemsize != stored.get_size():
            raise TypeError
        if kind != h5t.STRING and not h5t.py_create(dtype, logical=True).equal(stored):
            raise TypeError  # such as integers of 24 bits, which h5py would convert
        return numpytypes.from_numpy(dtype)
    except (TypeError, ValueError, DtypeError):
        raise _refused(name, "elements of a type that NumPy lacks") from None


def stored_type(dtype: Any) -> Any:
    """Return HDF5's type for NumPy's dtype; TypeError if it has none."""
    h5py = library()
    supported = h5py.opaque_dtype(dtype) if dtype.kind in "mM" else dtype
    return h5py.h5t.py_create(supported, logical=True)


def fill_element(dataset: Any, dtype: Dtype) -> bytes:
    """Return the bytes of the fill value, which elements have that were never written."""
    import numpy as np

    element = np.zeros((), numpytypes.numpy_dtype(dtype))
    creation = dataset.get_create_plist()
    if creation.fill_value_defined() == library().h5d.FILL_VALUE_USER_DEFINED:
        creation.get_fill_value(element)
    return element.tobytes()


def not_applied(dataset: Any, name: str) -> str | None:
    """Return the warning that attributes for NetCDF's readers are not applied, None without."""
    h5a = library().h5a
    names = [one for one in _APPLIED if h5a.exists(dataset, one.encode())]
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
    """Raise UsageError if a filter of a dataset is not installed, InputError if it is unknown."""
    h5z = library().h5z
    for one in layout.filters:
        if h5z.filter_avail(one.number):
            continue
        filter_name = f"{printable(name)}: filter {one.name} ({one.number}) of its chunks"
        try:
            import hdf5plugin  # noqa: F401 # registers its filters
        except ModuleNotFoundError:
            raise UsageError(
                f"{filter_name} needs the hdf5plugin package", hint="pip install hdf5plugin"
            ) from None
        if not h5z.filter_avail(one.number):
            raise InputError(f"{filter_name} is not one of h5py's or hdf5plugin's")


def _refused(name: str, reason: str) -> InputError:
    return InputError(f"{printable(name)}: {reason}")
