"""What an argument names: a place, a format and a member; one parser for inputs and outputs.

A format is one module and one row of FORMATS. Its functions:

    recognises(place)                       whether the content of a file is of this format
    entries(place, path, member)            what `inspect` tells of one member or all: facts alone
    open_source(place, name, path, member)  a Source, which closes the place
    check(target)                           what is wrong with a target, and the members that stay
    create(target, facts)                   a Sink
"""

import os
from importlib import import_module
from typing import Any, NamedTuple

from ndtool.arrays import local
from ndtool.arrays.local import LocalFile
from ndtool.arrays.source import Entry, Facts, Source
from ndtool.arrays.storage import failure
from ndtool.arrays.streams import Streams
from ndtool.arrays.targets import Target, existing
from ndtool.errors import InputError, NdtoolError, OutputError, UsageError, printable


class Format(NamedTuple):
    """One kind of file.

    suffix: of the names of outputs that are written so. members: whether a file of it holds
    arrays by name, as `archive.npz:member`. functions: the module that has them.
    """

    suffix: str
    members: bool
    functions: str

    @property
    def module(self) -> Any:
        """The functions, loaded at their first use."""
        return import_module(self.functions)


# The first row takes what no other recognises, and is written where no other suffix says so.
FORMATS = (Format(".npy", False, "ndtool.arrays.npy"), Format(".npz", True, "ndtool.arrays.npz"))


class Name(NamedTuple):
    """An argument, taken apart."""

    path: str
    member: str | None


def parse(argument: str) -> Name:
    """Take `path[:member]` apart.

    What exists under the whole name comes first, then the longest path that is a file with
    members; where there is neither, the suffix of a format with members tells.
    """
    if ":" not in argument or os.path.lexists(argument):
        return Name(argument, None)
    at = len(argument)
    while (at := argument.rfind(":", 0, at)) > 0:
        if _has_members(argument[:at]):
            return Name(argument[:at], argument[at + 1 :])
    for known in FORMATS:
        path, colon, member = argument.rpartition(f"{known.suffix}:")
        if known.members and colon:
            return Name(path + known.suffix, member)
    return Name(argument, None)


def _has_members(path: str) -> bool:
    if not os.path.isfile(path):
        return False
    try:
        with local.open_file(path) as place:
            return _of_content(place).members
    except (NdtoolError, OSError):
        return False


def _of_content(place: LocalFile) -> Format:
    return next((known for known in FORMATS if known.module.recognises(place)), FORMATS[0])


def open_source(argument: str, streams: Streams) -> Source:
    """Open the array that an argument names: `path[:member]`, a pipe or `-`.

    Raises InputError for what is not an array, UsageError where a member must be named, and
    ResourceError for what is too large to be unpacked.
    """
    if stream := streams.pipe(argument):
        return stream.read()
    path, member = parse(argument)
    place = _opened(argument, path)
    try:
        source: Source = _of_content(place).module.open_source(place, argument, path, member)
        return source
    except BaseException as exc:
        place.close()
        if isinstance(exc, OSError) and not isinstance(exc, NdtoolError):
            raise failure(exc, argument) from None
        raise


def describe(argument: str, streams: Streams | None = None) -> list[Entry]:
    """Return what the headers of a file, or of every member of an archive, say.

    The data are not read, so damage in them is not found; but those of a stream are. A member
    that is no array is an entry without facts; a file of no known format raises InputError.
    """
    if stream := (streams or Streams()).pipe(argument):
        return [stream.entry()]
    path, member = parse(argument)
    with _opened(argument, path) as place:
        try:
            entries: list[Entry] = _of_content(place).module.entries(place, path, member)
            return entries
        except OSError as exc:
            if isinstance(exc, NdtoolError):
                raise
            raise failure(exc, argument) from None


def _opened(argument: str, path: str) -> LocalFile:
    """Open the file at a path; where there is none, say if it was taken for an archive."""
    try:
        return local.open_file(path)
    except InputError:
        whole, colon, _ = argument.rpartition(":")
        there = os.path.exists(whole) and not os.path.isdir(whole)
        if colon and there and not os.path.lexists(argument):
            what = "the file is one array: it has no members"
            raise InputError(f"{printable(argument)}: {what}") from None
        raise


def create(
    argument: str, facts: Facts, *, clobber: bool = True, sync: bool = False, only: bool = False
) -> Any:
    """Return a Sink for an array: all that can be refused is refused here, before any work.

    argument: `path[:member]`, or `-` for standard output. FIFOs and devices are written to, any
    other path is replaced when the sink is committed. clobber: whether it may be. sync: whether
    the disk must have everything then. only: whether an archive has no other members any more.
    Raises OutputError, UsageError for a member's name, ResourceError where room is lacking.
    """
    from ndtool.arrays import npy, sink

    if argument == "-":
        return sink.standard_output(facts, npy.encode(facts.dtype, facts.shape))
    known, target = _target(argument, clobber, sync, only)
    if target.is_file:
        return known.module.create(target, facts)
    try:
        fd = os.open(target.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as exc:
        raise failure(exc, target.path, OutputError) from None
    header = npy.encode(facts.dtype, facts.shape)
    return sink.StreamSink(fd, target.path, facts, header, owned=True)


def check(argument: str, *, clobber: bool = True, only: bool = False) -> tuple[str, ...] | None:
    """Raise what `create` would about an output, as far as that shows without writing.

    Returns the members that stay in its file, None where there are none to stay.
    """
    if argument == "-":
        return None
    known, target = _target(argument, clobber, False, only)
    if not target.is_file:
        return None
    kept: tuple[str, ...] | None = known.module.check(target)
    target.require_folder()
    return kept


def _target(argument: str, clobber: bool, sync: bool, only: bool) -> tuple[Format, Target]:
    path, member = parse(argument)
    if member == "":
        raise UsageError(f"{printable(argument)}: the member has no name: expected {path}:NAME")
    old = existing(path)
    by_suffix = [known for known in FORMATS if path.endswith(known.suffix)]
    known = by_suffix[0] if by_suffix else FORMATS[0]
    if member is not None and not known.members:
        with local.open_file(path) as place:  # an archive by another name
            known = _of_content(place)
    return known, Target(path, member, old, clobber, sync, only)
