"""The HDF5 format, and NetCDF-4 as an input: named datasets in groups.

h5py parses the metadata, and reads them through ndtool's file object. Contiguous datasets are
memory-mapped; chunked datasets are read by complete chunks.
"""

from __future__ import annotations

from contextlib import ExitStack, closing

from ndtool.arrays.assembly import library_errors
from ndtool.arrays.source import Constant, ContiguousSource, MemberInfo, Source
from ndtool.errors import DtypeError, InputError, NdtoolError, printable
from ndtool.formats import members, numpytypes
from ndtool.formats.hdf5 import datasets, hierarchy, writer
from ndtool.formats.hdf5.chunks import DatasetSource
from ndtool.formats.hdf5.hierarchy import Dataset, OpenFile
from ndtool.formats.hdf5.library import library, signature_offset
from ndtool.rules.dtypes import Dtype
from ndtool.storage.local import File

CODECS, create, planned_metadata = datasets.CODECS, writer.create, writer.planned_metadata


def recognises(storage: File) -> bool:
    """Whether a file has HDF5's signature."""
    return signature_offset(storage) is not None


def entries(storage: File, path: str, member: str | None) -> list[MemberInfo]:
    """Return the member info of all datasets, or of one; an unsupported dataset has no metadata."""
    with library_errors(path), closing(OpenFile(storage, path)) as file:
        selected = file.datasets() if member is None else [_choose(file, member)]
        return [_entry(file, dataset) for dataset in selected]


def array_names(storage: File, path: str) -> list[str]:
    """Return the names of all datasets."""
    with library_errors(path), closing(OpenFile(storage, path)) as file:
        return [dataset.name for dataset in file.datasets()]


def open_source(storage: File, name: str, path: str, member: str | None) -> Source:
    """Open a dataset, the only one if none is named; closing the source closes the file."""
    with library_errors(path), ExitStack() as stack:
        file = stack.enter_context(closing(OpenFile(storage, path)))
        dataset = _choose(file, member)
        with library_errors(f"{path}:{dataset.name}"):
            source = _open_dataset(file, name, dataset)
        if isinstance(source, DatasetSource):
            stack.pop_all()
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


def _open_dataset(file: OpenFile, name: str, dataset: Dataset) -> Source:
    node, storage, label = dataset.node, file.storage, f"{file.path}:{dataset.name}"
    stored = datasets.describe(file, node, dataset.name)
    metadata = stored.metadata
    datasets.require_filters(stored, label)
    warning = datasets.attribute_warning(node, label)
    if not metadata.nbytes:
        return ContiguousSource(name, metadata, memoryview(b""), storage, warning)
    if stored.kind != "contiguous" or stored.unmapped_reason == "of a type to convert":
        return DatasetSource(name, file, node, stored)
    if stored.position is None:
        element = datasets.fill_value(node, stored).tobytes()
        return Constant(name, metadata, element, storage, warning)
    return ContiguousSource.in_file(name, metadata, storage, stored.position, label, warning)


def _choose(file: OpenFile, member: str | None) -> Dataset:
    name = None if member is None else hierarchy.normalize_name(member)
    if name is not None:
        node = file.find(name)
        if isinstance(node, library().h5d.DatasetID):
            return Dataset(name, node)
    found = {dataset.name: dataset for dataset in file.datasets()}
    dataset = members.choose(
        file.path, name, found, "the file", "dataset",
        lambda dataset: printable(_entry(file, dataset).label, 80),
    )  # fmt: skip
    if dataset.node is None:
        raise InputError(f"{printable(file.path)}:{printable(dataset.name)}: {dataset.problem}")
    return dataset


def _entry(file: OpenFile, dataset: Dataset) -> MemberInfo:
    label = f"{file.path}:{dataset.name}"
    if dataset.node is None:
        return MemberInfo(label, dataset.name, None, None, printable(dataset.problem))
    try:
        with library_errors(label):
            stored = datasets.describe(file, dataset.node, dataset.name)
            warning = datasets.attribute_warning(dataset.node, label)
    except NdtoolError as exc:
        return MemberInfo.invalid(label, dataset.name, exc)
    problem, metadata = stored.unmapped_reason, stored.metadata
    position = None if problem else stored.position
    return MemberInfo(label, dataset.name, metadata, position, problem, warning)
