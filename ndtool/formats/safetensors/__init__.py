"""The safetensors format: a JSON header, then the named tensors, which are memory-mapped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndtool.arrays.source import ArrayMetadata, ContiguousSource, MemberInfo
from ndtool.errors import DtypeError, refuse
from ndtool.formats import members
from ndtool.formats.decoding import open_range
from ndtool.formats.safetensors import headers
from ndtool.formats.safetensors.headers import Header, Tensor

if TYPE_CHECKING:
    from ndtool.publish.sinks import FileSink
    from ndtool.publish.targets import Target
    from ndtool.storage.local import File


recognises = headers.has_header
stored_dtype = headers.stored_dtype


def entries(storage: File, path: str, member: str | None) -> list[MemberInfo]:
    """Return the member info of all tensors, or of one; an unsupported tensor has no metadata."""
    header = headers.read_file_header(storage, path)
    tensors = header.tensors if member is None else [choose(header, path, member)]
    return [entry(header, tensor, path) for tensor in tensors]


def entry(header: Header, tensor: Tensor, path: str) -> MemberInfo:
    """Return the member info of a tensor. path: of the file or index in the argument."""
    name, position = f"{path}:{tensor.name}", header.data_offset + tensor.start
    try:
        metadata = ArrayMetadata(
            tensor.dtype, tensor.shape, "C", tensor.shape, {"offset": position}
        )
    except DtypeError as exc:
        return MemberInfo.invalid(name, tensor.name, exc)
    if tensor.bits % 8:
        problem = f"{tensor.bits} bits per element"
        return MemberInfo(name, tensor.name, metadata, None, problem)
    return MemberInfo(name, tensor.name, metadata, position)


def open_source(storage: File, name: str, path: str, member: str | None) -> ContiguousSource:
    """Open a tensor, the only one if none is named; closing the source closes the file."""
    header = headers.read_file_header(storage, path)
    return open_tensor(storage, name, header, choose(header, path, member), path)


def open_tensor(
    storage: File, name: str, header: Header, tensor: Tensor, path: str
) -> ContiguousSource:
    """Open a tensor of a file; closing the source closes the file."""
    info = entry(header, tensor, path)
    if info.metadata is None:
        refuse(info.name, info.problem)
    position = header.data_offset + tensor.start
    return open_range(storage, name, info.name, info.metadata, position, tensor.bits)


def choose(header: Header, path: str, name: str | None) -> Tensor:
    """Return the tensor with a name, or the only tensor; else the error lists the tensors."""
    tensors = {tensor.name: tensor for tensor in header.tensors}
    return members.choose(
        path, name, tensors, "the file", "tensor", lambda t: f"{t.code}{list(t.shape)}"
    )


def create(target: Target, metadata: ArrayMetadata) -> FileSink:
    """Return a sink for one tensor of a new file, or of the current one with its other tensors."""
    from ndtool.formats.safetensors import writer

    return writer.create(target, target.array_name, metadata)
