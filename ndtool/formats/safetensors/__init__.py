"""The safetensors format: a JSON header, then the named tensors, which are memory-mapped."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from ndtool.arrays.source import ArrayMetadata, Flat, MemberInfo
from ndtool.errors import DtypeError, InputError, printable
from ndtool.formats import members
from ndtool.formats.decoding import blocks_of, joined
from ndtool.formats.safetensors import headers
from ndtool.formats.safetensors.headers import Header, Tensor

if TYPE_CHECKING:
    from ndtool.publish.sinks import FileSink
    from ndtool.publish.targets import Target
    from ndtool.storage.local import File

DEFAULT = "output"  # name of a written tensor if none is given

recognises = headers.begins
stored = headers.stored


def entries(storage: File, path: str, member: str | None) -> list[MemberInfo]:
    """Return the member info of all tensors, or of one; an unsupported one has no metadata."""
    header = headers.of_file(storage, path)
    tensors = header.tensors if member is None else [choose(header, path, member)]
    return [entry(storage, header, tensor, path) for tensor in tensors]


def entry(storage: File, header: Header, tensor: Tensor, path: str) -> MemberInfo:
    """Return the member info of one tensor; path: of the file or index in the argument."""
    name, position = f"{path}:{tensor.name}", header.data + tensor.start
    try:
        metadata = metadata_of(header, tensor)
    except DtypeError as exc:
        return MemberInfo(name, tensor.name, None, None, storage.size, exc.message, None)
    if tensor.bits % 8:
        why = f"{tensor.bits} bits per element"
        return MemberInfo(name, tensor.name, metadata, None, storage.size, why, None)
    return MemberInfo(name, tensor.name, metadata, position, storage.size, "", None)


def metadata_of(header: Header, tensor: Tensor) -> ArrayMetadata:
    """Return the array metadata of a tensor; DtypeError if its type is not supported."""
    notes = {"offset": header.data + tensor.start}
    return ArrayMetadata(tensor.dtype, tensor.shape, "C", tensor.shape, notes)


def open_source(storage: File, name: str, path: str, member: str | None) -> Flat:
    """Open a tensor, the only one if none is named; closing the source closes the file."""
    header = headers.of_file(storage, path)
    return opened(storage, name, header, choose(header, path, member), path)


def opened(storage: File, name: str, header: Header, tensor: Tensor, path: str) -> Flat:
    """Open a tensor of a file; closing the source closes the file."""
    label = f"{path}:{tensor.name}"
    try:
        metadata = metadata_of(header, tensor)
    except DtypeError as exc:
        raise InputError(f"{printable(label)}: {exc.message}") from None
    byte_range = storage.byte_range(header.data + tensor.start, tensor.stop - tensor.start, label)
    if tensor.bits % 8:
        from ndtool.engine import packing

        elements = packing.unpacked(blocks_of(byte_range.all()), tensor.bits)
        byte_range = joined(elements, metadata.nbytes, label)
    return Flat(name, metadata, byte_range, storage)


def choose(header: Header, path: str, name: str | None) -> Tensor:
    """Return the tensor of a name, or the only one; the error otherwise lists the tensors."""
    tensors = header.tensors
    if not tensors:
        raise InputError(f"{printable(path)}: the file has no tensors")
    if name is None and len(tensors) == 1:
        return tensors[0]
    found = next((tensor for tensor in tensors if tensor.name == name), None)
    if found is None:
        refuse_member(path, name, [(t.name, f"{t.code}{list(t.shape)}") for t in tensors])
    return found


def refuse_member(path: str, name: str | None, there: list[tuple[str, str]]) -> NoReturn:
    """Raise the error for a missing or unknown name; there: (name, description) of each tensor."""
    listing = members.listed(there, len(there))
    if name is None:
        raise members.unnamed(path, f"the file has {len(there)} tensors", there[0][0], listing)
    raise InputError(
        f"{printable(path)}: {printable(name)} is not a tensor of the file: expected one of these",
        places=listing,
    )


def create(target: Target, metadata: ArrayMetadata) -> FileSink:
    """Return a sink for one tensor of a new file, or of the old one with preserved tensors."""
    from ndtool.formats.safetensors import writer

    return writer.create(target, target.member or DEFAULT, metadata)
