"""Models in several safetensors files, under one index that says which file has which tensor."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from ndtool.arrays import places, safeheader, safetensors
from ndtool.arrays.flatjson import Text
from ndtool.arrays.source import Entry, Facts, Flat
from ndtool.errors import InputError, NdtoolError, OutputError, printable, shown

if TYPE_CHECKING:
    from ndtool.arrays.local import File, LocalFile
    from ndtool.arrays.targets import Target

_MAP = "weight_map"
_BLANK = b" \t\n\r"


def recognises(place: LocalFile) -> bool:
    """Tell whether a file begins as a JSON object does."""
    head = place.look(0, 64).lstrip(_BLANK)
    return head[:1] == b"{" and head[1:].lstrip(_BLANK)[:1] in (b'"', b"")


def entries(place: LocalFile, path: str, member: str | None) -> list[Entry]:
    """Return what the headers of the files say of all tensors, or of one."""
    weights = _weights(place, path)
    if member is not None:
        weights = {member: _file_of(weights, path, member)}
    held: dict[str, list[str]] = {}
    for name, file in weights.items():
        held.setdefault(file, []).append(name)
    return [
        entry for file, names in held.items() for entry in _entries_of(place, path, file, names)
    ]


def _entries_of(place: File, path: str, file: str, names: list[str]) -> list[Entry]:
    try:
        with _shard(place, path, file) as shard:
            header = safeheader.of_file(shard, file)
            tensors = {tensor.name: tensor for tensor in header.tensors}
            return [
                safetensors.entry(shard, header, tensors[name], path)
                if name in tensors
                else Entry(f"{path}:{name}", name, None, None, shard.size, _missing(file), None)
                for name in names
            ]
    except NdtoolError as exc:
        return [Entry(f"{path}:{name}", name, None, None, 0, exc.message, None) for name in names]


def open_source(place: LocalFile, name: str, path: str, member: str | None) -> Flat:
    """Return one tensor from the file that has it; it closes the place."""
    weights = _weights(place, path)
    if member is None and len(weights) == 1:
        (member,) = weights
    if member is None:
        safetensors.refuse_member(path, None, list(weights.items()))
    file = _file_of(weights, path, member)
    shard = _shard(place, path, file)
    try:
        header = safeheader.of_file(shard, _beside(path, file))
        tensor = next((one for one in header.tensors if one.name == member), None)
        if tensor is None:
            raise InputError(f"{printable(path)}: {printable(member)}: {_missing(file)}")
        source = safetensors.opened(shard, name, header, tensor, _beside(path, file))
    except BaseException:
        shard.close()
        raise
    place.close()
    return source


def check(target: Target) -> NoReturn:
    """Refuse: what is written goes to one file."""
    raise OutputError(
        f"{printable(target.path)} is the index of a model in several files:"
        " expected one of these to write to"
    )


def create(target: Target, facts: Facts) -> NoReturn:
    """Refuse, as `check` does."""
    check(target)


def _missing(file: str) -> str:
    return f"the index says that it is in {shown(file)}, which has no such tensor"


def _file_of(weights: dict[str, str], path: str, member: str) -> str:
    if member not in weights:
        safetensors.refuse_member(path, member, list(weights.items()))
    return weights[member]


def _weights(place: LocalFile, path: str) -> dict[str, str]:
    """Return which file has which tensor, as the index says."""
    if place.size > safeheader.LONGEST:
        _refuse(path, f"it has {place.size} bytes: valid up to {safeheader.LONGEST}")
    try:
        text = Text(place.read(0, place.size, path).decode(), partial(_refuse, path))
    except UnicodeDecodeError:
        _refuse(path, "it is not UTF-8")
    weights: dict[str, str] = {}
    for key in text.keys("part"):
        if key != _MAP:
            text.pass_value()
            continue
        for name in text.keys("tensor"):
            weights[name] = text.word(f"the file of tensor {shown(name)}")
    text.end()
    if not weights:
        _refuse(path, f"it has no {_MAP}, which says which file has which tensor")
    for name, file in weights.items():
        if not _is_inside(file):
            _refuse(
                path, f"tensor {shown(name)} is in {shown(file)}: expected a file of its own folder"
            )
    return weights


def _is_inside(file: str) -> bool:
    """Whether a name is relative and leads to no folder above, nor elsewhere."""
    parts = file.split("/")
    if places.is_url(file):
        return False
    return bool(file) and not os.path.isabs(file) and ".." not in parts and "\0" not in file


def _refuse(path: str, text: str) -> NoReturn:
    what = "expected the index of a safetensors model"
    raise InputError(f"{printable(path)}: {printable(text, 300)}: {what}") from None


def _beside(path: str, file: str) -> str:
    return os.path.join(os.path.dirname(path), file)


def _shard(place: File, path: str, file: str) -> File:
    """Open a file that an index names, unless a link leads out of its folder.

    Where the index itself is a link, as in the cache of a hub, its files may be beside it there.
    """
    beside = places.beside(place, path, file)
    if beside is None:
        raise InputError(f"{printable(path)}: {printable(file)} is no file of its own folder")
    real = os.path.realpath(beside)
    folders = (os.path.realpath(os.path.dirname(path)), os.path.dirname(os.path.realpath(path)))
    inside = any(os.path.commonpath([real, folder]) == folder for folder in folders)
    if not inside and not places.is_url(beside):
        raise InputError(
            f"{printable(path)}: {printable(beside)} is a link that leads out of the folder:"
            " expected a file in it"
        )
    shard = places.open_place(beside)
    if not safeheader.begins(shard):
        shard.close()
        raise InputError(f"{printable(beside)}: not a safetensors file, as the index says")
    return shard
