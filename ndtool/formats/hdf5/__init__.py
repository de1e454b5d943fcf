"""The HDF5 format, and NetCDF-4 as an input: named datasets in groups.

h5py parses the metadata, and reads them through ndtool's file object. Contiguous datasets are
memory-mapped; chunked datasets are read by complete chunks.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ndtool.arrays.assembly import library_errors
from ndtool.arrays.source import ArrayMetadata, Constant, ContiguousSource, MemberInfo, Source
from ndtool.errors import DtypeError, InputError, NdtoolError, printable
from ndtool.formats import members, numpytypes
from ndtool.formats.hdf5 import datasets, hierarchy
from ndtool.formats.hdf5.chunks import DatasetSource
from ndtool.formats.hdf5.hierarchy import Dataset, Lengths
from ndtool.formats.hdf5.library import library, open_file, signature_offset
from ndtool.publish.targets import Target
from ndtool.rules.dtypes import Dtype
from ndtool.storage.local import File

if TYPE_CHECKING:
    from ndtool.publish.sinks import FileSink

CODECS = datasets.CODECS


def recognises(storage: File) -> bool:
    """Whether a file has HDF5's signature."""
    return signature_offset(storage) is not None


def entries(storage: File, path: str, member: str | None) -> list[MemberInfo]:
    """Return the member info of all datasets, or of one; an unsupported dataset has no metadata."""
    file, start = open_file(storage, path)
    with library_errors(path), file:
        selected = hierarchy.datasets(file)
        if member is not None:
            selected = iter([_choose(storage, file, path, start, member)])
        lengths = Lengths(file)
        return [_entry(storage, path, start, dataset, lengths) for dataset in selected]


def array_names(storage: File, path: str) -> list[str]:
    """Return the names of all datasets."""
    file, _ = open_file(storage, path)
    with library_errors(path), file:
        return [dataset.name for dataset in hierarchy.datasets(file)]


def open_source(storage: File, name: str, path: str, member: str | None) -> Source:
    """Open a dataset, the only one if none is named; closing the source closes the file."""
    file, start = open_file(storage, path)
    with ExitStack() as stack:
        stack.enter_context(file)
        with library_errors(path):
            dataset = _choose(storage, file, path, start, member)
        source = _open_dataset(
            storage, name, f"{path}:{dataset.name}", start, dataset.node, Lengths(file)
        )
        if isinstance(source, DatasetSource):
            stack.pop_all()
            source.file = file
    return source


def stored_dtype(dtype: Dtype) -> Dtype:
    """Return the element type as stored: void if NumPy lacks it; DtypeError if HDF5 does."""
    from ndtool.formats import npy

    stored_dtype = npy.stored_dtype(dtype)
    try:
        datasets.stored_type(numpytypes.numpy_dtype(stored_dtype))
    except TypeError:
        raise DtypeError(f"HDF5 cannot store elements of type {dtype.name}") from None
    return stored_dtype


def planned_metadata(target: Target, metadata: ArrayMetadata) -> ArrayMetadata:
    """Return the metadata of a dataset, with chunks if it has any, without writing."""
    from ndtool.formats.hdf5 import writer

    return writer.planned_metadata(target, metadata)


def create(target: Target, metadata: ArrayMetadata) -> FileSink:
    """Return a sink for one dataset of a new file, or of the current one with its datasets."""
    from ndtool.formats.hdf5 import writer

    return writer.create(target, metadata)


def _open_dataset(
    storage: File, name: str, label: str, start: int, dataset: Any, lengths: Lengths
) -> Source:
    with library_errors(label):
        stored = datasets.describe(dataset, label, start, storage.size, lengths)
        metadata = stored.metadata
        datasets.require_filters(stored, label)
        warning = datasets.attribute_warning(dataset, label)
        if not metadata.nbytes:
            return ContiguousSource(name, metadata, memoryview(b""), storage, warning)
        if stored.kind != "contiguous" or stored.unmapped_reason == "of a type to convert":
            return DatasetSource(name, dataset, stored, storage, start)
        if stored.position is None:
            element = datasets.fill_value(dataset, stored).tobytes()
            return Constant(name, metadata, element, storage, warning)
        position = stored.position
        return ContiguousSource.in_file(name, metadata, storage, position, label, warning)


def _choose(storage: File, file: Any, path: str, start: int, member: str | None) -> Dataset:
    name = None if member is None else hierarchy.normalize_name(member)
    if name is not None:
        node = hierarchy.find_object(file, path, name)
        if isinstance(node, library().h5d.DatasetID):
            return Dataset(name, node)
    found = {dataset.name: dataset for dataset in hierarchy.datasets(file)}
    lengths = Lengths(file)
    dataset = members.choose(
        path, name, found, "the file", "dataset",
        lambda dataset: printable(_entry(storage, path, start, dataset, lengths).label, 80),
    )  # fmt: skip
    if dataset.node is None:
        raise InputError(f"{printable(path)}:{printable(dataset.name)}: {dataset.problem}")
    return dataset


def _entry(storage: File, path: str, start: int, dataset: Dataset, lengths: Lengths) -> MemberInfo:
    label = f"{path}:{dataset.name}"
    if dataset.node is None:
        problem = printable(dataset.problem)
        return MemberInfo(label, dataset.name, None, None, storage.size, problem)
    try:
        with library_errors(label):
            stored = datasets.describe(dataset.node, label, start, storage.size, lengths)
            warning = datasets.attribute_warning(dataset.node, label)
            position = None if stored.unmapped_reason else stored.position
    except NdtoolError as exc:
        return MemberInfo.invalid(label, dataset.name, storage.size, exc)
    problem, metadata = stored.unmapped_reason, stored.metadata
    return MemberInfo(label, dataset.name, metadata, position, storage.size, problem, warning)
