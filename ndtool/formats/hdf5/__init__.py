"""The HDF5 format, and NetCDF-4 as an input: named datasets in groups.

h5py parses the metadata, through ndtool's own file. Contiguous datasets are memory-mapped where
they are; chunked ones are read by complete chunks.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ndtool.arrays.constant import Constant
from ndtool.arrays.source import ArrayMetadata, Flat, MemberInfo, Source
from ndtool.errors import DtypeError, InputError, NdtoolError, printable
from ndtool.formats import members, numpytypes
from ndtool.formats.hdf5 import chunks, datasets, hierarchy
from ndtool.formats.hdf5.hierarchy import Found
from ndtool.formats.hdf5.library import converted_errors, library, opened, signature_at
from ndtool.rules.dtypes import Dtype
from ndtool.storage.local import ByteRange, File

if TYPE_CHECKING:
    from ndtool.publish.sinks import FileSink
    from ndtool.publish.targets import Target


CODECS = datasets.CODECS


def recognises(storage: File) -> bool:
    """Whether a file has HDF5's signature."""
    return signature_at(storage) is not None


def entries(storage: File, path: str, member: str | None) -> list[MemberInfo]:
    """Return the member info of all datasets, or of one; an unsupported one has no metadata."""
    file, start = opened(storage, path)
    with converted_errors(path), file:
        found = hierarchy.datasets(file) if member is None else [_choose(file, path, member)]
        return [_entry(storage, path, start, one) for one in found]


def arrays(storage: File, path: str) -> list[str]:
    """Return the names of all datasets."""
    file, _ = opened(storage, path)
    with converted_errors(path), file:
        return [found.name for found in hierarchy.datasets(file)]


def open_source(storage: File, name: str, path: str, member: str | None) -> Source:
    """Open a dataset, the only one if none is named; closing the source closes the file."""
    file, start = opened(storage, path)
    with ExitStack() as stack:
        stack.enter_context(file)
        with converted_errors(path):
            found = _choose(file, path, member)
        source = _source(storage, name, hierarchy.label(path, found.name), start, found.dataset)
        if isinstance(source, chunks.ChunkedSource):
            stack.pop_all()
            source.file = file
    return source


def stored(dtype: Dtype) -> Dtype:
    """Return the element type as stored: void if NumPy lacks it; DtypeError if HDF5 does."""
    from ndtool.formats import npy

    found = npy.stored(dtype)
    try:
        datasets.stored_type(numpytypes.numpy_dtype(found))
    except TypeError:
        raise DtypeError(f"HDF5 cannot store elements of type {dtype.name}") from None
    return found


def planned(target: Target, metadata: ArrayMetadata) -> ArrayMetadata:
    """Return the metadata of a dataset, with its chunks if it has any; write nothing."""
    from ndtool.formats.hdf5 import planning

    return planning.planned(target, metadata)


def create(target: Target, metadata: ArrayMetadata) -> FileSink:
    """Return a sink for one dataset of a new file, or of the old one with preserved datasets."""
    from ndtool.formats.hdf5 import writer

    return writer.create(target, metadata)


def _source(storage: File, name: str, label: str, start: int, dataset: Any) -> Source:
    with converted_errors(label):
        storing = datasets.storing_of(dataset, label, start)
        metadata = datasets.metadata_of(dataset, label, storing)
        datasets.require_filters(storing, label)
        warning = datasets.not_applied(dataset, label)
        if storing.chunks is not None:
            return chunks.ChunkedSource(name, metadata, dataset, storing, storage, start, warning)
        if storing.is_compact or not metadata.nbytes:
            byte_range = ByteRange(memoryview(_in_header(dataset, metadata)))
        elif storing.position is None:
            element = datasets.fill_element(dataset, metadata.dtype)
            return Constant(name, metadata, element, storage, warning)
        else:
            _require_within(storage, dataset, metadata, label, storing.position)
            byte_range = storage.byte_range(storing.position, metadata.nbytes, label)
        return Flat(name, metadata, byte_range, storage, warning)


def _in_header(dataset: Any, metadata: ArrayMetadata) -> bytes:
    """Return the values of a compact dataset, at most 64 KiB, or of an empty one."""
    import numpy as np

    values = np.zeros(metadata.shape, numpytypes.numpy_dtype(metadata.dtype))
    if values.nbytes:
        every = library().h5s.ALL
        dataset.read(every, every, values, dataset.get_type())
    return values.tobytes()


def _require_within(
    storage: File, dataset: Any, metadata: ArrayMetadata, label: str, position: int
) -> None:
    """Raise InputError if contiguous values are not within the file."""
    size = min(dataset.get_storage_size(), max(0, storage.size - position))
    if size < metadata.nbytes:
        raise InputError(
            f"{printable(label)}: {metadata.nbytes} bytes at byte {position}:"
            f" the file has {size} there"
        )


def _choose(file: Any, path: str, member: str | None) -> Found:
    h5d, h5g = library().h5d, library().h5g
    if member is not None:
        name = hierarchy.name_of(member)
        node = hierarchy.find(file, path, name)
        if isinstance(node, h5d.DatasetID):
            return Found(name, node)
        known = list(hierarchy.datasets(file))
        inside = [one for one in known if one.name.startswith(f"{name}/")]
        if isinstance(node, h5g.GroupID) and inside and name != "/":
            what = f"{printable(member)} is a group of"
            raise members.unnamed(path, _count(what, inside), inside[0].name, _listing(inside))
        raise InputError(
            f"{printable(path)}: {printable(member)} is not a dataset of the file",
            places=_listing(known),
        )
    known = list(hierarchy.datasets(file))
    if not known:
        raise InputError(f"{printable(path)}: the file has no datasets")
    if len(known) > 1:
        what = _count("the file has", known)
        raise members.unnamed(path, what, known[0].name, _listing(known))
    if known[0].dataset is None:
        raise InputError(f"{printable(path)}:{printable(known[0].name)}: {known[0].problem}")
    return known[0]


def _count(what: str, known: list[Found]) -> str:
    return f"{what} {len(known)} datasets" if len(known) > 1 else f"{what} a dataset"


def _listing(known: list[Found]) -> tuple[str, ...]:
    return members.listed(((one.name, _described(one)) for one in known), len(known))


def _described(found: Found) -> str:
    try:
        if found.dataset is None:
            return printable(found.problem, 80)
        with converted_errors(""):
            storing = datasets.storing_of(found.dataset, "", 0)
            return datasets.metadata_of(found.dataset, "", storing).described
    except NdtoolError as exc:
        return exc.message.removeprefix(": ")


def _entry(storage: File, path: str, start: int, found: Found) -> MemberInfo:
    label = hierarchy.label(path, found.name)
    metadata, position, problem, warning = None, None, printable(found.problem), None
    if found.dataset is not None:
        try:
            with converted_errors(label):
                storing = datasets.storing_of(found.dataset, label, start)
                metadata = datasets.metadata_of(found.dataset, label, storing)
                warning = datasets.not_applied(found.dataset, label)
                position, problem = storing.position, storing.unmapped
                if position is not None:
                    _require_within(storage, found.dataset, metadata, label, position)
        except NdtoolError as exc:
            metadata, problem = None, exc.message.removeprefix(f"{printable(label)}: ")
    return MemberInfo(label, found.name, metadata, position, storage.size, problem, warning)
