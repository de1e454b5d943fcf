"""The metadata of HDF5 datasets: element type, shape, and how the values are stored."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from ndtool.arrays.source import ArrayMetadata, ChunkLayout
from ndtool.errors import DtypeError, InputError, UsageError, printable, refuse
from ndtool.formats import codecs, numpytypes
from ndtool.formats.codecs import default_chunks, require_limits
from ndtool.formats.decoding import NETCDF_ATTRIBUTES, unapplied_warning
from ndtool.formats.hdf5 import hierarchy
from ndtool.formats.hdf5.hierarchy import OpenFile
from ndtool.formats.hdf5.library import library
from ndtool.rules import mistakes
from ndtool.rules.plans import Shape

CODECS = ("gzip", "none")  # of --codec
_BLOCK_BYTES = 4 << 20  # approximate bytes of rows that h5py converts together

FILTERS = {  # by number: the name, and the name in the table of codecs, "" if only h5py applies it
    1: ("gzip", "zlib"), 2: ("shuffle", "shuffle"), 3: ("fletcher32", "fletcher32"),
    4: ("szip", ""), 5: ("nbit", ""), 6: ("scaleoffset", ""), 307: ("bzip2", ""),
    32000: ("lzf", ""), 32001: ("blosc", "blosc"), 32004: ("lz4", ""), 32008: ("bitshuffle", ""),
    32015: ("zstd", "zstd"),
}  # fmt: skip
_LOSSY = (5, 6)  # filters, as unknown ones may be
NAMED_COMPLETELY = (1, 2, 3)  # filters whose name has all parameters


class Filter(NamedTuple):
    """A filter of chunks. number: as registered. name: with its level: "gzip 4".

    config: of its codec, {} if only h5py applies it, which decodes one chunk at a time.
    """

    number: int
    name: str
    config: dict[str, Any]

    @property
    def is_native(self) -> bool:
        """Whether ndtool applies it without h5py."""
        return bool(self.config) and codecs.is_available(codecs.make(self.config).package)


class StoredDataset(NamedTuple):
    """The metadata of a dataset, and how its values are stored.

    dtype: NumPy's, of the values as h5py reads them. inner_shape: of the array that an element is,
    else (). extent: the shape without elements that NetCDF adds. kind: "contiguous", "compact" or
    "chunked". position: the offset of contiguous values, None if there are none.
    filters: in order of encoding. is_native: whether the bytes in the file are NumPy's.
    """

    metadata: ArrayMetadata
    dtype: Any
    inner_shape: Shape
    extent: Shape
    kind: str
    position: int | None
    filters: tuple[Filter, ...]
    is_native: bool

    @property
    def unmapped_reason(self) -> str:
        """The reason why the values cannot be memory-mapped, "" if they can."""
        if self.kind == "contiguous":
            if self.position is None:
                return "never written"
            return "" if self.is_native else "of a type to convert"
        return "in chunks" if self.kind == "chunked" else "in the dataset's header"

    @property
    def keeps_bits(self) -> bool:
        """Whether written values are stored without loss."""
        is_complete = self.extent == self.metadata.shape
        is_lossless = all(
            item.number in FILTERS and item.number not in _LOSSY for item in self.filters
        )
        return self.is_native and not self.inner_shape and is_complete and is_lossless


def describe(file: OpenFile, dataset: Any, name: str) -> StoredDataset:
    """Return the description of a dataset; NdtoolError if its values cannot be read."""
    h5d, label = library().h5d, f"{file.path}:{name}"
    creation_properties = dataset.get_create_plist()
    layout = creation_properties.get_layout()
    kind = {h5d.COMPACT: "compact", h5d.CHUNKED: "chunked"}.get(layout, "contiguous")
    _require_in_file(creation_properties, label)
    dtype, inner_shape, is_native = _element_type(dataset, label)
    if dataset.get_space().get_simple_extent_type() == library().h5s.NULL:
        refuse(label, "a null dataset, without values")
    element = numpytypes.from_numpy(dtype)
    extent = (*map(int, dataset.shape), *inner_shape)
    shape, chunks = extent, None
    if kind == "chunked":
        shape = extent if inner_shape else file.shape(dataset, name)
        chunks = (*map(int, creation_properties.get_chunk()), *inner_shape)
    require_limits(label, shape, element.itemsize, chunks)
    offset = dataset.get_offset() if kind == "contiguous" else None
    position = None if offset is None else file.start + offset
    if position is not None:
        available = min(dataset.get_storage_size(), max(0, file.storage.size - position))
        expected = prod(dataset.shape) * dataset.get_type().get_size()
        if available < expected:
            refuse(label, f"expected {expected} bytes at offset {position}, found {available}")
    if chunks is None:
        notes = {} if position is None or not is_native else {"offset": position}
        blocks = shape
        if prod(shape) and kind != "compact" and not is_native:
            itemsize = prod(inner_shape) * element.itemsize
            blocks = (*default_chunks(dataset.shape, itemsize, _BLOCK_BYTES), *inner_shape)
        metadata = ArrayMetadata(element, shape, "C", blocks, notes)
        return StoredDataset(metadata, dtype, inner_shape, extent, kind, position, (), is_native)
    filters = tuple(
        _parse_filter(creation_properties, i, element.itemsize)
        for i in range(creation_properties.get_nfilters())
    )
    chunk_layout = ChunkLayout(chunks, None, tuple(item.name for item in filters), None)
    metadata = ArrayMetadata(element, shape, "C", chunks, {}, chunk_layout)
    return StoredDataset(metadata, dtype, inner_shape, extent, kind, None, filters, is_native)


_SAVE_DATASET = "import h5py, numpy as np; np.save({2!r}, h5py.File({0!r})[{1!r}][...])"


def _require_in_file(creation_properties: Any, label: str) -> None:
    """Raise InputError if the values are in other datasets or files."""
    h5d, layout = library().h5d, creation_properties.get_layout()
    if layout == h5d.VIRTUAL:
        path, _, member = label.rpartition(":")
        names = path, member, f"{path.rpartition('.')[0]}{member.replace('/', '-')}.npy"
        refuse(
            label,
            "a virtual dataset, whose values are in other datasets, which are not read",
            hint=mistakes.then("h5py reads them.", mistakes.python_command(_SAVE_DATASET, *names)),
        )
    if layout == h5d.CONTIGUOUS and creation_properties.get_external_count():
        refuse(label, "its values are in external files, which are not read")


def _parse_filter(creation_properties: Any, index: int, itemsize: int) -> Filter:
    number, _, parameters, description = creation_properties.get_filter(index)
    text = description.decode("utf-8", "replace").split("\0")[0].split(";")[0].strip()
    unknown = printable(text or f"filter {number}", 40), ""
    name, codec = FILTERS.get(int(number), unknown)
    config: dict[str, Any] = {"id": codec} if codec else {}
    if codec == "shuffle":
        config["elementsize"] = int(parameters[0]) if parameters else itemsize
    is_parameter_named = number == 1 or config.get("elementsize", itemsize) != itemsize
    level = f" {int(parameters[0])}" if is_parameter_named and parameters else ""
    return Filter(int(number), f"{name}{level}", config)


def _element_type(dataset: Any, label: str) -> tuple[Any, Shape, bool]:
    """Return NumPy's type of elements, the shape of an element, and whether bytes are the same.

    Raises InputError unless h5py reads them as a type of fixed size.
    """
    h5t = library().h5t
    file_type = dataset.get_type()
    type_class = file_type.get_class()
    if type_class == h5t.VLEN or (type_class == h5t.STRING and file_type.is_variable_str()):
        refuse(label, "elements of variable length: expected a type of fixed size")
    if type_class == h5t.REFERENCE:
        refuse(label, "elements are references: expected a type of fixed size")
    try:
        dtype = file_type.dtype
        if dtype.hasobject:
            raise TypeError
        is_native = dtype.itemsize == file_type.get_size() and bool(
            h5t.py_create(dtype, logical=True).equal(file_type)
        )
        element_dtype, inner_shape = dtype.subdtype or (dtype, ())
        try:
            numpytypes.from_numpy(element_dtype)
        except ValueError:  # fields that are not in the order of their offsets
            element_dtype, is_native = _packed(element_dtype), False
            numpytypes.from_numpy(element_dtype)
    except (TypeError, ValueError, DtypeError):
        refuse(label, "elements of a type that NumPy lacks")
    return element_dtype, tuple(map(int, inner_shape)), is_native


def _packed(dtype: Any) -> Any:
    """Return a type of the same fields without gaps between them."""
    import numpy as np

    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return np.dtype((_packed(base), shape))
    if dtype.names is None:
        return dtype
    return np.dtype([(name, _packed(dtype.fields[name][0])) for name in dtype.names])


def memory_type(dataset: Any, stored: StoredDataset) -> Any:
    """Return HDF5's type of values in memory."""
    if stored.is_native:
        return dataset.get_type()
    import numpy as np

    return library().h5t.py_create(np.dtype((stored.dtype, stored.inner_shape)), logical=True)


def stored_type(dtype: Any) -> Any:
    """Return HDF5's type for NumPy's dtype; TypeError if it has none."""
    h5py = library()
    hdf5_dtype = h5py.opaque_dtype(dtype) if dtype.kind in "mM" else dtype
    return h5py.h5t.py_create(hdf5_dtype, logical=True)


def fill_value(dataset: Any, stored: StoredDataset) -> Any:
    """Return the fill value, the value of elements that were never written."""
    import numpy as np

    element = np.zeros((), stored.dtype)
    creation_properties = dataset.get_create_plist()
    if creation_properties.fill_value_defined() == library().h5d.FILL_VALUE_USER_DEFINED:
        creation_properties.get_fill_value(element)
    return element


def attribute_warning(dataset: Any, name: str) -> str | None:
    """Return the warning that NetCDF attributes are not applied, None without such attributes."""
    names = [name for name in NETCDF_ATTRIBUTES if library().h5a.exists(dataset, name.encode())]
    fill = hierarchy.attribute(dataset, b"_FillValue")
    if fill is not None and fill.dtype.kind == "f" and (fill != fill).all():
        names.remove("_FillValue")
    return unapplied_warning(name, dict.fromkeys(names, ""))


def require_filters(stored: StoredDataset, name: str) -> None:
    """Raise UsageError if hdf5plugin may have a missing filter, InputError if it lacks it, too."""
    h5z = library().h5z
    for chunk_filter in stored.filters:
        if h5z.filter_avail(chunk_filter.number) or chunk_filter.is_native:
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
