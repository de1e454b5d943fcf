"""Sharded safetensors models: an index file maps each tensor to the file that contains it."""

from __future__ import annotations

import os
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from ndtool.arrays.source import ArrayMetadata, ContiguousSource, MemberInfo
from ndtool.errors import NdtoolError, OutputError, format_value, printable, refuse
from ndtool.formats import members, safetensors
from ndtool.formats.safetensors import headers
from ndtool.storage import locations

if TYPE_CHECKING:
    from ndtool.publish.targets import Target
    from ndtool.storage.local import File, LocalFile

_MAP_KEY = "weight_map"
_PROBE_SIZE = 1 << 14  # bytes in which the key of the map is looked for


def recognises(storage: LocalFile) -> bool:
    """Whether a file is a JSON object whose beginning or end has the map of tensors."""
    head = storage.peek(0, _PROBE_SIZE)
    tail = storage.peek(max(0, storage.size - _PROBE_SIZE), _PROBE_SIZE)
    return head.lstrip(b" \t\n\r")[:1] == b"{" and f'"{_MAP_KEY}"'.encode() in head + tail


def entries(storage: LocalFile, path: str, member: str | None) -> list[MemberInfo]:
    """Return the member info of all tensors, or of one, from the headers of their files."""
    weights = _weight_map(storage, path)
    if member is not None:
        weights = {member: _choose(weights, path, member)[1]}
    files: dict[str, list[str]] = {}
    for name, file in weights.items():
        files.setdefault(file, []).append(name)
    return [
        entry
        for file, names in files.items()
        for entry in _shard_entries(storage, path, file, names)
    ]


def _shard_entries(storage: File, path: str, file: str, names: list[str]) -> list[MemberInfo]:
    try:
        with closing(_open_shard(storage, path, file)) as shard:
            header = headers.read_file_header(shard, file)
            tensors = {tensor.name: tensor for tensor in header.tensors}
            return [
                safetensors.entry(header, tensors[name], path)
                if name in tensors
                else MemberInfo(f"{path}:{name}", name, None, None, _missing_reason(file))
                for name in names
            ]
    except NdtoolError as exc:
        return [MemberInfo(f"{path}:{name}", name, None, None, exc.message) for name in names]


def open_source(storage: LocalFile, name: str, path: str, member: str | None) -> ContiguousSource:
    """Open a tensor in its file, and close the index; closing the source closes the file."""
    weights = _weight_map(storage, path)
    member, file = _choose(weights, path, member)
    shard = _open_shard(storage, path, file)
    try:
        location = os.path.join(os.path.dirname(path), file)
        header = headers.read_file_header(shard, location)
        tensor = next((tensor for tensor in header.tensors if tensor.name == member), None)
        if tensor is None:
            refuse(path, f"{printable(member)}: {_missing_reason(file)}")
        source = safetensors.open_tensor(shard, name, header, tensor, location)
    except BaseException:
        shard.close()
        raise
    storage.close()
    return source


def _choose(weights: dict[str, str], path: str, member: str | None) -> tuple[str, str]:
    """Return the name of a tensor, and its file."""
    items = {item[0]: item for item in weights.items()}
    return members.choose(path, member, items, "the file", "tensor", lambda item: item[1])


def create(target: Target, metadata: ArrayMetadata) -> NoReturn:
    """Raise OutputError: tensors are written to the files of a model, not to its index."""
    raise OutputError(
        f"{printable(target.path)} is the index of a model in several files:"
        " expected one of these to write to"
    )


def _missing_reason(file: str) -> str:
    return f"the index maps it to {format_value(file)}, which has no such tensor"


def _weight_map(storage: LocalFile, path: str) -> dict[str, str]:
    """Parse the index: return the file of each tensor."""
    if storage.size > headers.MAX_HEADER_BYTES:
        _refuse(path, f"it has {storage.size} bytes: valid up to {headers.MAX_HEADER_BYTES}")
    raw = storage.read(0, storage.size, path)
    weights = headers.parse_object(raw, partial(_refuse, path)).get(_MAP_KEY)
    if not weights or not isinstance(weights, dict):
        _refuse(path, f"it has no {_MAP_KEY}, the map from tensors to files")
    for name, file in weights.items():
        if not isinstance(file, str):
            _refuse(path, f"expected the file of tensor {format_value(name)}")
    return weights


def _refuse(path: str, text: str) -> NoReturn:
    expected = "expected the index of a safetensors model"
    refuse(path, f"{printable(text, 300)}: {expected}")


def _open_shard(storage: File, path: str, file: str) -> File:
    """Open a file of an index."""
    location = locations.companion(storage, path, file, path, "a file of tensors")
    shard = locations.open_storage(location)
    if not headers.has_header(shard):
        shard.close()
        refuse(location, "not a safetensors file, as the index says")
    return shard
