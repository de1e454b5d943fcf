"""Sharded safetensors models: an index file maps each tensor to the file that contains it."""

from __future__ import annotations

import os
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from ndtool.arrays.source import ArrayMetadata, FlatSource, MemberInfo
from ndtool.errors import InputError, NdtoolError, OutputError, format_value, printable
from ndtool.formats import safetensors
from ndtool.formats.safetensors import headers
from ndtool.formats.safetensors.flatjson import Text
from ndtool.storage import locations

if TYPE_CHECKING:
    from ndtool.publish.targets import Target
    from ndtool.storage.local import File, LocalFile

_MAP = "weight_map"
_BLANK = b" \t\n\r"


def recognises(storage: LocalFile) -> bool:
    """Whether a file begins with a JSON object."""
    head = storage.peek(0, 64).lstrip(_BLANK)
    return head[:1] == b"{" and head[1:].lstrip(_BLANK)[:1] in (b'"', b"")


def entries(storage: LocalFile, path: str, member: str | None) -> list[MemberInfo]:
    """Return the member info of all tensors, or of one, from the headers of their files."""
    weights = _weights(storage, path)
    if member is not None:
        weights = {member: weights[safetensors.choose_name(path, member, weights)]}
    files: dict[str, list[str]] = {}
    for name, file in weights.items():
        files.setdefault(file, []).append(name)
    return [
        entry for file, names in files.items() for entry in _entries_of(storage, path, file, names)
    ]


def _entries_of(storage: File, path: str, file: str, names: list[str]) -> list[MemberInfo]:
    try:
        with closing(_shard(storage, path, file)) as shard:
            header = headers.of_file(shard, file)
            tensors = {tensor.name: tensor for tensor in header.tensors}
            return [
                safetensors.entry(shard, header, tensors[name], path)
                if name in tensors
                else MemberInfo(f"{path}:{name}", name, None, None, shard.size, _missing(file))
                for name in names
            ]
    except NdtoolError as exc:
        return [MemberInfo(f"{path}:{name}", name, None, None, 0, exc.message) for name in names]


def open_source(storage: LocalFile, name: str, path: str, member: str | None) -> FlatSource:
    """Open a tensor in its file, and close the index; closing the source closes the file."""
    weights = _weights(storage, path)
    member = safetensors.choose_name(path, member, weights)
    file = weights[member]
    shard = _shard(storage, path, file)
    try:
        location = os.path.join(os.path.dirname(path), file)
        header = headers.of_file(shard, location)
        tensor = next((one for one in header.tensors if one.name == member), None)
        if tensor is None:
            raise InputError(f"{printable(path)}: {printable(member)}: {_missing(file)}")
        source = safetensors.opened(shard, name, header, tensor, location)
    except BaseException:
        shard.close()
        raise
    storage.close()
    return source


def create(target: Target, metadata: ArrayMetadata) -> NoReturn:
    """Raise OutputError: tensors are written to a model's files, not through its index."""
    raise OutputError(
        f"{printable(target.path)} is the index of a model in several files:"
        " expected one of these to write to"
    )


def _missing(file: str) -> str:
    return f"the index maps it to {format_value(file)}, which has no such tensor"


def _weights(storage: LocalFile, path: str) -> dict[str, str]:
    """Parse the index: return the file of each tensor."""
    if storage.size > headers.LONGEST:
        _refuse(path, f"it has {storage.size} bytes: valid up to {headers.LONGEST}")
    try:
        text = Text(storage.read(0, storage.size, path).decode(), partial(_refuse, path))
    except UnicodeDecodeError:
        _refuse(path, "it is not UTF-8")
    weights: dict[str, str] = {}
    for key in text.keys("field"):
        if key != _MAP:
            text.pass_value()
            continue
        for name in text.keys("tensor"):
            weights[name] = text.word(f"the file of tensor {format_value(name)}")
    text.end()
    if not weights:
        _refuse(path, f"it has no {_MAP}, the map from tensors to files")
    for name, file in weights.items():
        if not _is_inside(file):
            _refuse(
                path,
                f"tensor {format_value(name)} is in {format_value(file)}, not in the index's"
                " folder",
            )
    return weights


def _is_inside(file: str) -> bool:
    """Whether a file name is a relative path that does not leave the folder."""
    parts = file.split("/")
    if locations.is_url(file):
        return False
    return bool(file) and not os.path.isabs(file) and ".." not in parts and "\0" not in file


def _refuse(path: str, text: str) -> NoReturn:
    what = "expected the index of a safetensors model"
    raise InputError(f"{printable(path)}: {printable(text, 300)}: {what}") from None


def _shard(storage: File, path: str, file: str) -> File:
    """Open a file of an index; InputError if a link leads out of the folder of the index."""
    location = locations.sibling(storage, path, file)
    if location is None:
        raise InputError(f"{printable(path)}: {printable(file)} is not in the index's folder")
    real = os.path.realpath(location)
    folders = (os.path.realpath(os.path.dirname(path)), os.path.dirname(os.path.realpath(path)))
    inside = any(os.path.commonpath([real, folder]) == folder for folder in folders)
    if not inside and not locations.is_url(location):
        raise InputError(
            f"{printable(path)}: {printable(location)} is a link that leads out of the folder:"
            " expected a file in it"
        )
    shard = locations.open_storage(location)
    if not headers.begins(shard):
        shard.close()
        raise InputError(f"{printable(location)}: not a safetensors file, as the index says")
    return shard
