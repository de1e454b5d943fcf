"""The argument of `-o`: its location, format and member, and the sink created for it."""

import errno
import os
from contextlib import closing
from typing import Any, NamedTuple

from ndtool.arrays.source import ArrayMetadata
from ndtool.errors import DtypeError, OutputError, UsageError, argument_name, printable
from ndtool.formats import locators, table
from ndtool.formats.table import Format
from ndtool.machine import pool
from ndtool.publish.targets import Encoding, Target, existing, require_supported
from ndtool.rules.dtypes import Dtype
from ndtool.storage import locations
from ndtool.storage.descriptors import failure, os_errors

DEFAULT = Encoding()


class Output(NamedTuple):
    """The resolved argument of `-o`: the target of an array and its format.

    name: the argument. metadata: the array's metadata, with its chunks. stored: the element type as
    stored, void if the format lacks the type. encoding: encoding options of chunks. at_once: number
    of chunks worth writing concurrently. format, target: None for standard output.
    """

    name: str
    metadata: ArrayMetadata
    stored: Dtype
    encoding: Encoding = DEFAULT
    at_once: int = 1
    format: Format | None = None
    target: Target | None = None

    @property
    def warnings(self) -> list[str]:
        """The warning that the output's format lacks the element type, if it does."""
        dtype = self.metadata.dtype
        if self.stored.name == dtype.name or self.encoding.as_void:
            return []
        destination = "standard output" if self.target is None else argument_name(self.name)
        stored = self.stored.name
        return [f"{destination}: {dtype.name} is stored as {stored}: --dtype {dtype.name} reads it"]


def resolve(
    argument: str,
    metadata: ArrayMetadata,
    *,
    clobber: bool = True,
    sync: bool = False,
    only: bool = False,
    encoding: Encoding = DEFAULT,
) -> Output:
    """Resolve the argument of an output: its location, format, member and chunks.

    argument: `path[:member]`, or `-` for standard output. FIFOs and devices are written in place,
    any other path is replaced when the sink is committed. clobber: whether an existing file may be
    replaced. sync: whether to fsync before that. only: whether an archive's other members are
    dropped. encoding: encoding options of chunks.
    Raises OutputError; UsageError for an invalid member name; DtypeError if the format cannot store
    the element type.
    """
    from ndtool.formats import npy

    if argument == "-":
        encoding.refuse(argument)
        return Output(argument, metadata, npy.stored(metadata.dtype), encoding)
    file_format, target = _target(argument, clobber, sync, only, encoding)
    stored, at_once = _stored(file_format, target, metadata.dtype), 1
    if file_format.chunks and target.is_file:
        metadata = file_format.module.planned(target, metadata)
        at_once = pool.MAX_THREADS if target.url and file_format.is_folder else 1
    return Output(argument, metadata, stored, encoding, at_once, file_format, target)


def create(output: Output, dry: bool = False) -> Any:
    """Return a Sink for an output; every check that needs no data is made here.

    dry: whether the sink is for a dry run, which writes nothing: then nothing that other processes
    can see is created, only validated as far as possible.
    Raises OutputError, and ResourceError if there is too little disk space.
    """
    from ndtool.formats import npy
    from ndtool.publish import sinks

    file_format, target, metadata = output.format, output.target, output.metadata
    if file_format is None or target is None:
        return sinks.standard_output(metadata, npy.encode(metadata.dtype, metadata.shape))
    target = _current(target, file_format)
    if dry:
        return _dry(file_format, target._replace(dry=True), metadata)
    if target.is_file:
        return file_format.module.create(target, metadata)
    with os_errors(target.path, OutputError):
        fd = os.open(target.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
    header = npy.encode(metadata.dtype, metadata.shape)
    return sinks.StreamSink(fd, target.path, metadata, header, owned=True)


def _dry(file_format: Format, target: Target, metadata: ArrayMetadata) -> Any:
    """Return the sink of a dry run."""
    from ndtool.publish import sinks
    from ndtool.storage import upload

    if target.url:
        upload.require_writable(target.path, file_format.is_folder)
        if file_format.is_folder:
            return sinks.DrySink(target.path, metadata, False, file_format.module.check(target))
    if target.is_file:
        return file_format.module.create(target, metadata)
    if not os.access(target.path, os.W_OK):
        denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        raise failure(denied, target.path, OutputError)
    return sinks.DrySink(target.path, metadata, True, None)


def _stored(file_format: Format, target: Target, dtype: Dtype) -> Dtype:
    from ndtool.formats import npy

    function = getattr(file_format.module, "stored", npy.stored) if target.is_file else npy.stored
    try:
        stored: Dtype = function(dtype)
    except DtypeError as exc:
        raise DtypeError(f"{printable(target.path)}: {exc.message}", hint=exc.hint) from None
    if file_format.chunks and stored.name != dtype.name and not target.encoding.as_void:
        raise DtypeError(
            f"{printable(target.path)}: its format does not know {dtype.name}:"
            " expected one that does, such as .safetensors",
            hint=f"ndtool convert --as-void stores such an array as {stored.name}",
        )
    return stored


def by_name(argument: str) -> Format | None:
    """Return the output format that an argument selects by prefix or suffix, None if neither."""
    if argument.startswith(locators.NPY) and not os.path.lexists(argument):
        return table.FORMATS[0]
    return next(iter(table.suffixed(locators.parse(argument).path)), None)


def _target(
    argument: str, clobber: bool, sync: bool, only: bool, encoding: Encoding
) -> tuple[Format, Target]:
    path, member = locators.parse(argument)
    if member == "":
        raise UsageError(f"{printable(argument)}: the member has no name: expected {path}:NAME")
    if locators.inline_module(argument, False) or locators.is_text(argument):
        raise UsageError(f"{printable(argument)}: it is read, never written: expected a file")
    url = locations.is_url(path)
    named = by_name(argument)
    if not (url or member or named):
        _require_no_member(path)
    old = None if url else existing(path)
    target = Target(path, member, old, clobber, sync, only, encoding)
    target = target._replace(names_in=table.names_in, preserves=table.preserves)
    if not named and member is None and target.is_file and not target.is_store:
        require_supported(path.partition("?")[0] if url else path)
    file_format = named or table.FORMATS[0]
    if url:
        return file_format, _remote(argument, file_format, target)
    if target.is_store and named and not file_format.is_folder:
        raise OutputError(f"{printable(path)} is a directory: expected a file")
    if target.is_store or (member is not None and not file_format.members):
        storage, _ = locators.opened(path)  # an archive or store without its suffix
        with closing(storage):
            file_format = table.of_content(storage, path)
    if not file_format.chunks:
        encoding.refuse(argument)
    return file_format, target


def _require_no_member(path: str) -> None:
    """Raise OutputError or UsageError if a path names a member of a file without members."""
    if locators.without_members(path):
        raise OutputError(f"{printable(path)}: the file is no archive: it has no members")
    file, colon, member = path.rpartition(":")
    has_no_members = any(not file_format.members for file_format in table.suffixed(file))
    if colon and has_no_members and "/" not in member and not os.path.lexists(path):
        raise UsageError(f"{printable(path)}: the file is one array: it has no members")


def _remote(argument: str, file_format: Format, target: Target) -> Target:
    """Return the target at a URL; OutputError or UsageError if it is not writable."""
    from ndtool.storage import upload

    if not file_format.chunks:
        target.encoding.refuse(argument)
    if not file_format.is_folder:
        upload.writer(target.path)  # raises if it is not writable
    return target._replace(url=True)


def _current(target: Target, file_format: Format) -> Target:
    """Return a target with the current status or version of its file; OutputError if it changed."""
    if target.url:
        from ndtool.storage import upload

        if file_format.is_folder:
            return target
        preserves = target.member is not None and not target.only
        version = upload.existing(target.path, required=preserves or not target.clobber)
        return target._replace(version=version)
    now = target._replace(old=existing(target.path))
    if (now.is_file, now.is_store) != (target.is_file, target.is_store):
        raise OutputError(f"{printable(target.path)} changed during the run")
    return now
