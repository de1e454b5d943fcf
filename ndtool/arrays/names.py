"""What an argument names: a place, a format and a member; one parser for inputs and outputs."""

import os
from importlib import import_module
from typing import Any, NamedTuple

from ndtool.arrays import formats, local, places
from ndtool.arrays.formats import Format
from ndtool.arrays.local import File, Folder
from ndtool.arrays.source import Entry, Facts, KnownModel, OperatorNode, Source
from ndtool.arrays.storage import failure
from ndtool.arrays.streams import Streams
from ndtool.arrays.targets import Storing, Target, existing, require_ours
from ndtool.errors import (
    DtypeError,
    InputError,
    NdtoolError,
    OutputError,
    UsageError,
    printable,
    redacted,
)
from ndtool.rules.dtypes import Dtype
from ndtool.rules.shapes import Shape

DEFAULT = Storing()
NO_MEMBERS = "the file is one array: it has no members"


class Name(NamedTuple):
    """An argument, taken apart."""

    path: str
    member: str | None


def parse(argument: str) -> Name:
    """Take `path[:member]` apart.

    What exists under the whole name comes first, then the longest path that is a file with
    members; where there is neither, the suffix of a format with members tells. Of a URL it tells
    at once, without a request.
    """
    if ":" not in argument or os.path.lexists(argument):
        return Name(argument, None)
    if places.is_url(argument):
        path = places.local_path(argument)
        return parse(path) if path != argument else _of_url(argument)
    at = len(argument)
    while (at := argument.rfind(":", 0, at)) > 0:
        if _has_members(argument[:at]):
            return Name(argument[:at], argument[at + 1 :])
    for known in formats.FORMATS:
        path, colon, member = argument.rpartition(f"{known.suffix}:")
        if known.members and colon:
            return Name(path + known.suffix, member)
    return Name(argument, None)


def _of_url(url: str) -> Name:
    """Take `scheme://…[:member]` apart: a member follows a suffix, or the query after one."""
    for known in formats.FORMATS:
        at = len(url)
        while known.members and (at := url.rfind(known.suffix, 0, at)) > 0:
            end = at + len(known.suffix)
            query = url[end:].partition(":")[0]
            end += len(query)
            member = url[end + 1 :]
            if query[:1] in ("", "?") and url[end:] and not member.startswith((":", "//")):
                return Name(url[:end], member)
    return Name(url, None)


def _has_members(path: str) -> bool:
    if not os.path.isfile(path):
        return local.is_store(path)
    try:
        with local.open_file(path) as place:
            return formats.of_content(place, path).members
    except (NdtoolError, OSError):
        return False


def open_source(argument: str, streams: Streams, *, literals: bool = False) -> Source:
    """Open the array that an argument names: `path[:member]`, a pipe, `-` or `raw:…`.

    literals: whether an array may also be written out, as `[5, 7]`. Raises InputError for what
    is not an array, UsageError where a member must be named, and ResourceError for what is too
    large to be unpacked.
    """
    if written := _written(argument, literals):
        unnamed: Source = written.open_source(argument)
        return unnamed
    if stream := streams.pipe(argument):
        return stream.read()
    place, (path, member) = _opened(argument)
    try:
        known = formats.of_content(place, path)
        label, path = redacted(argument), redacted(path)
        source: Source = known.module.open_source(place, label, path, member)
        return source
    except BaseException as exc:
        place.close()
        if isinstance(exc, OSError) and not isinstance(exc, NdtoolError):
            raise failure(exc, argument) from None
        raise


def _written(argument: str, literals: bool) -> Any:
    """Return the module of an argument that is more than a name; a file of that name is none."""
    name = {"raw:": "raw"}.get(argument[:4])
    if literals and argument.lstrip()[:1] == "[":
        name = "literal"
    if name is None or os.path.lexists(argument):
        return None
    return import_module(f"ndtool.arrays.{name}")


def describe(
    argument: str, streams: Streams | None = None, *, literals: bool = False
) -> list[Entry]:
    """Return what the headers of a file, or of every member of an archive, say.

    The data are not read, so damage in them is not found; but those of a stream are. A member
    that is no array is an entry without facts; a file of no known format raises InputError.
    """
    if written := _written(argument, literals):
        unnamed: list[Entry] = written.entries(argument)
        return unnamed
    if stream := (streams or Streams()).pipe(argument):
        return [stream.entry()]
    place, (path, member) = _opened(argument)
    try:
        known = formats.of_content(place, path)
        entries: list[Entry] = known.module.entries(place, redacted(path), member)
        return entries
    except OSError as exc:
        if isinstance(exc, NdtoolError):
            raise
        raise failure(exc, argument) from None
    finally:
        place.close()


def nodes(argument: str) -> list[OperatorNode]:
    """Return the nodes of our operators in a model; none of what is no model, or one tensor of it.

    Raises what `describe` does about a model that is damaged.
    """
    path, member = parse(argument)
    named = places.is_url(path) and path.partition("?")[0].endswith(".onnx")  # or it is read twice
    if member is not None or not (os.path.isfile(path) or named):
        return []
    place, (path, member) = _opened(argument)
    try:
        find = getattr(formats.of_content(place, path).module, "nodes", None)
        return find(place, redacted(path)) if find and member is None else []
    finally:
        place.close()


def model(argument: str) -> KnownModel:
    """Return the nodes of our operators in a model, and what it takes."""
    place, (path, member) = _opened(argument)
    with place:
        module = formats.of_content(place, path).module
        if member is not None or not hasattr(module, "known"):
            raise InputError(f"{printable(argument)}: it is no ONNX model: expected one")
        found: KnownModel = module.known(place, redacted(path))
        return found


def _opened(argument: str) -> tuple[File | Folder, Name]:
    """Open the file or store at a path; where there is none, say if it was taken for an archive."""
    name = parse(argument)
    path = name.path
    if places.is_url(path):
        return _behind(argument, name)
    try:
        return places.open_place(path), name
    except InputError:
        if folder := places.open_folder(path):
            return folder, name
        if whole := _without_members(argument):
            places.open_place(whole).close()  # or it says why it is no file that we read
            raise InputError(f"{printable(argument)}: {NO_MEMBERS}") from None
        raise


def _without_members(argument: str) -> str:
    """Return the file before the last colon where nothing has the whole name, else nothing."""
    whole, colon, _ = argument.rpartition(":")
    there = bool(colon) and os.path.exists(whole) and not os.path.isdir(whole)
    return whole if there and not os.path.lexists(argument) else ""


def _behind(argument: str, name: Name) -> tuple[File | Folder, Name]:
    """Open what is at a URL; where nothing is, the last colon may be before a member."""
    try:
        return _object_or_store(name.path), name
    except InputError as exc:
        whole, _, last = argument.rpartition(":")
        if name.member is None and "/" not in last and places.is_url(whole):
            try:
                return _object_or_store(whole), Name(whole, last)
            except InputError:
                raise exc from None
        raise


def _object_or_store(url: str) -> File | Folder:
    """Open the object at a URL, or the store under it: what it is likely to be is asked first."""
    path = url.partition("?")[0]
    store_first = path.endswith((".zarr", "/"))
    if store_first and (folder := places.open_folder(url)):
        return folder
    asked = store_first or bool(formats.suffixed(path))
    try:
        file = places.open_place(url)
    except InputError as reason:
        if not asked and (folder := _store(url)):
            return folder
        raise reason from None
    if not asked and not formats.recognised(file, url) and (folder := _store(url)):
        file.close()  # a page about the folder
        return folder
    return file


def _store(url: str) -> Folder | None:
    """Open a store that need not be there: what was said about an object is nearer."""
    try:
        return places.open_folder(url)
    except InputError:
        return None


def create(
    argument: str,
    facts: Facts,
    *,
    clobber: bool = True,
    sync: bool = False,
    only: bool = False,
    storing: Storing = DEFAULT,
) -> Any:
    """Return a Sink for an array: all that can be refused is refused here, before any work.

    argument: `path[:member]`, or `-` for standard output. FIFOs and devices are written to, any
    other path is replaced when the sink is committed. clobber: whether it may be. sync: whether
    the disk must have everything then. only: whether an archive has no other members any more.
    storing: how chunks are.
    Raises OutputError, UsageError for a member's name, ResourceError where room is lacking.
    """
    from ndtool.arrays import npy, sink

    if argument == "-":
        _refuse_chunks(argument, storing)
        return sink.standard_output(facts, npy.encode(facts.dtype, facts.shape))
    known, target = _target(argument, clobber, sync, only, storing)
    _stored(known, target, facts.dtype)
    if target.is_file:
        return known.module.create(target, facts)
    try:
        fd = os.open(target.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as exc:
        raise failure(exc, target.path, OutputError) from None
    header = npy.encode(facts.dtype, facts.shape)
    return sink.StreamSink(fd, target.path, facts, header, owned=True)


def stored(argument: str, dtype: Dtype, storing: Storing = DEFAULT) -> Dtype:
    """Return the element type that an output has for arrays of a type.

    One that the format has no name for is stored as void; DtypeError where it cannot be at all.
    """
    from ndtool.arrays import npy

    if argument == "-":
        return npy.stored(dtype)
    known, target = _target(argument, True, False, True, storing)
    return _stored(known, target, dtype)


def _stored(known: Format, target: Target, dtype: Dtype) -> Dtype:
    from ndtool.arrays import npy

    function = getattr(known.module, "stored", npy.stored) if target.is_file else npy.stored
    try:
        found: Dtype = function(dtype)
    except DtypeError as exc:
        raise DtypeError(f"{printable(target.path)}: {exc.message}", hint=exc.hint) from None
    if known.chunks and found.name != dtype.name and not target.storing.as_void:
        raise DtypeError(
            f"{printable(target.path)}: its format does not know {dtype.name}:"
            " expected one that does, such as .safetensors",
            hint=f"ndtool convert --as-void stores such an array as {found.name}",
        )
    return found


def check(
    argument: str,
    dtype: Dtype | None = None,
    *,
    clobber: bool = True,
    only: bool = False,
    storing: Storing = DEFAULT,
) -> tuple[str, ...] | None:
    """Raise what `create` would about an output, as far as that shows without writing.

    dtype: of the array. Returns the members that stay in its file, None where there are none to
    stay.
    """
    if argument == "-":
        _refuse_chunks(argument, storing)
        return None
    known, target = _target(argument, clobber, False, only, storing)
    if dtype is not None:
        _stored(known, target, dtype)
    if not target.is_file:
        return None
    kept: tuple[str, ...] | None = known.module.check(target)
    if not target.is_store:
        target.require_folder()
    return kept


def absolute(argument: str) -> str:
    """Return a name that means the same array in any directory."""
    if places.is_url(argument):
        return argument
    path, member = parse(argument)
    return os.path.abspath(path) + (f":{member}" if member is not None else "")


def planned(argument: str, facts: Facts, storing: Storing) -> Facts:
    """Return what is known of an output before it is made: the chunks that it will have."""
    if argument == "-":
        return facts
    known, target = _target(argument, True, False, True, storing)
    if not known.chunks or not target.is_file:
        return facts
    grid: Shape = known.module.step(target, facts)
    return facts._replace(grid=grid, notes={"chunks": list(grid)})


def _refuse_chunks(argument: str, storing: Storing) -> None:
    if storing.asked:
        raise UsageError(
            f"{' and '.join(storing.asked)}: {printable(argument)} has no chunks:"
            " expected a Zarr store, such as out.zarr"
        )


def _target(
    argument: str, clobber: bool, sync: bool, only: bool, storing: Storing
) -> tuple[Format, Target]:
    path, member = parse(argument)
    if member == "":
        raise UsageError(f"{printable(argument)}: the member has no name: expected {path}:NAME")
    if _written(argument, False):
        raise UsageError(f"{printable(argument)}: it is read, never written: expected a file")
    url = places.is_url(path)
    if not (url or member or formats.suffixed(path)) and _without_members(path):
        raise OutputError(f"{printable(path)}: {NO_MEMBERS}")
    by_suffix = formats.suffixed(path)
    if not by_suffix and member is None:
        require_ours(path.partition("?")[0] if url else path)
    old = None if url else existing(path)
    known = by_suffix[0] if by_suffix else formats.FORMATS[0]
    if url:
        return known, _remote(
            argument, known, Target(path, member, None, clobber, sync, only, storing)
        )
    target = Target(path, member, old, clobber, sync, only, storing)
    if target.is_store and by_suffix and not known.chunks:
        raise OutputError(f"{printable(path)} is a directory: expected a file")
    if target.is_store or (member is not None and not known.members):
        place, _ = _opened(path)  # an archive or store by another name
        with place:
            known = formats.of_content(place, path)
    if not known.chunks:
        _refuse_chunks(argument, storing)
    return known, target


def _remote(argument: str, known: Format, target: Target) -> Target:
    """Return a target behind a URL, with what is there now."""
    from ndtool.arrays import upload

    if known.chunks:
        return target._replace(url=True)
    _refuse_chunks(argument, target.storing)
    keeps = target.member is not None and not target.only
    version = upload.existing(target.path, matters=keeps or not target.clobber)
    return target._replace(url=True, version=version)
