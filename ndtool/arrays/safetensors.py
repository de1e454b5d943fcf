"""The safetensors format: named tensors behind a header of JSON, mapped where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from ndtool.arrays import safeheader
from ndtool.arrays.safeheader import Header, Tensor
from ndtool.arrays.source import Entry, Facts, Flat
from ndtool.errors import DtypeError, InputError, UsageError, printable

if TYPE_CHECKING:
    from ndtool.arrays.local import File
    from ndtool.arrays.sink import FileSink
    from ndtool.arrays.targets import Target

LISTED = 10  # tensors that an error names
DEFAULT = "output"  # the tensor of a file that is written without naming one

recognises = safeheader.begins
stored = safeheader.stored


def entries(place: File, path: str, member: str | None) -> list[Entry]:
    """Return what the header says of all tensors, or of one; other types have no facts."""
    header = safeheader.of_file(place, path)
    tensors = header.tensors if member is None else [choose(header, path, member)]
    return [entry(place, header, tensor, path) for tensor in tensors]


def entry(place: File, header: Header, tensor: Tensor, path: str) -> Entry:
    """Return what the header says of one tensor; path: of the file that names it."""
    name, position = f"{path}:{tensor.name}", header.data + tensor.start
    try:
        facts = facts_of(header, tensor)
    except DtypeError as exc:
        return Entry(name, tensor.name, None, None, place.size, exc.message, None)
    return Entry(name, tensor.name, facts, position, place.size, "", None)


def facts_of(header: Header, tensor: Tensor) -> Facts:
    """Return what the header says of a tensor as every format says it."""
    notes = {"offset": header.data + tensor.start}
    return Facts(tensor.dtype, tensor.shape, "C", tensor.shape, notes)


def open_source(place: File, name: str, path: str, member: str | None) -> Flat:
    """Return one tensor, the only one where none is named; it closes the place."""
    header = safeheader.of_file(place, path)
    return opened(place, name, header, choose(header, path, member), path)


def opened(place: File, name: str, header: Header, tensor: Tensor, path: str) -> Flat:
    """Return a tensor of a file, which it closes."""
    label = f"{path}:{tensor.name}"
    try:
        facts = facts_of(header, tensor)
    except DtypeError as exc:
        raise InputError(f"{printable(label)}: {exc.message}") from None
    stretch = place.stretch(header.data + tensor.start, facts.nbytes, label)
    return Flat(name, facts, stretch, place)


def choose(header: Header, path: str, name: str | None) -> Tensor:
    """Return the tensor of a name, or the only one; else raise what lists those that are there."""
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
    """Raise what is wrong with the name of a tensor; there: names and what is known of them."""
    lines = [f"{printable(one, 80)}: {what}" for one, what in there[:LISTED]]
    if len(there) > LISTED:
        lines.append(f"and {len(there) - LISTED} more")
    if name is None:
        raise UsageError(
            f"{printable(path)}: the file has {len(there)} tensors: name one of them",
            places=tuple(lines),
            hint=f"for example {printable(path)}:{printable(there[0][0])}",
        )
    raise InputError(
        f"{printable(path)}: {printable(name)} is not a tensor of the file: expected one of these",
        places=tuple(lines),
    )


def check(target: Target) -> tuple[str, ...] | None:
    """Raise what `create` would about the target alone; return the tensors that stay."""
    from ndtool.arrays import safewriter

    return safewriter.check(target, target.member or DEFAULT)


def create(target: Target, facts: Facts) -> FileSink:
    """Return a new file of one tensor, or the old one with that tensor added or replaced."""
    from ndtool.arrays import safewriter

    return safewriter.create(target, target.member or DEFAULT, facts)
