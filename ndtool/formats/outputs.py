"""The argument of `-o`: its location, format and member, and the sink created for it."""

import errno
import os
from contextlib import closing
from typing import Any, NamedTuple

from ndtool.arrays.sink import Encoding
from ndtool.arrays.source import ArrayMetadata
from ndtool.errors import DtypeError, OutputError, UsageError, argument_name, option, printable
from ndtool.formats import locators, table
from ndtool.formats.table import Format
from ndtool.machine import threads
from ndtool.publish.targets import Target, existing
from ndtool.rules import dtypes
from ndtool.rules.dtypes import Dtype
from ndtool.storage import locations
from ndtool.storage.descriptors import failure, os_errors

DEFAULT = Encoding()


class Output(NamedTuple):
    """The resolved argument of `-o`: the target of an array and its format.

    name: the argument. metadata: the array's metadata, with its chunks. stored_dtype: the element
    type in the file, void if the format lacks the type. encoding: encoding options of chunks.
    concurrency: number of chunks worth writing concurrently. format, target: None for standard
    output.
    """

    name: str
    metadata: ArrayMetadata
    stored_dtype: Dtype
    encoding: Encoding = DEFAULT
    concurrency: int = 1
    format: Format | None = None
    target: Target | None = None

    @property
    def is_remote(self) -> bool:
        """Whether the target is a URL."""
        return self.target is not None and self.target.url

    @property
    def warnings(self) -> list[str]:
        """The warning that the output's format lacks the element type, if it does."""
        dtype = self.metadata.dtype
        if self.stored_dtype.name == dtype.name or self.encoding.as_void:
            return []
        destination = "standard output" if self.target is None else argument_name(self.name)
        stored = self.stored_dtype.name
        reads = option("dtype", dtype.name)
        return [f"{destination}: {dtype.name} is stored as {stored}: {reads} reads it"]


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
    replaced. sync: whether to fsync before replacing it. only: whether to drop an archive's other
    members. encoding: encoding options of chunks.
    Raises OutputError; UsageError for an invalid member name; DtypeError if the format cannot store
    the element type.
    """
    from ndtool.formats import npy

    if argument == "-":
        encoding.require_no_options(argument)
        return Output(argument, metadata, npy.stored_dtype(metadata.dtype), encoding)
    file_format, target = _resolve_target(argument, clobber, sync, only, encoding)
    if not file_format.chunks:
        encoding.require_no_options(argument)
    stored, concurrency = _stored_dtype(file_format, target, metadata.dtype), 1
    if file_format.chunks and target.is_file:
        metadata = file_format.module.planned_metadata(target, metadata)
        concurrency = threads.MAX_WRITERS if target.url and file_format.is_folder else 1
    return Output(argument, metadata, stored, encoding, concurrency, file_format, target)


def create(output: Output, dry_run: bool = False) -> Any:
    """Create the sink of an output, after all checks that need no data.

    dry_run: whether to validate the output without creating any file that other processes can see.
    Raises OutputError, and ResourceError if there is too little disk space.
    """
    from ndtool.formats import npy
    from ndtool.publish import sinks

    file_format, target, metadata = output.format, output.target, output.metadata
    if file_format is None or target is None:
        return sinks.standard_output(metadata, npy.encode(metadata.dtype, metadata.shape))
    target = _with_current_version(target, file_format)
    if dry_run:
        return _create_dry_sink(file_format, target._replace(is_dry_run=True), metadata)
    if target.is_file:
        return file_format.module.create(target, metadata)
    with os_errors(target.path, OutputError):
        fd = os.open(target.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
    header = npy.encode(metadata.dtype, metadata.shape)
    return sinks.StreamSink(fd, target.path, metadata, header, owns_fd=True)


def _create_dry_sink(file_format: Format, target: Target, metadata: ArrayMetadata) -> Any:
    """Create the sink of a dry run."""
    from ndtool.publish import sinks
    from ndtool.storage import objects

    if target.url:
        objects.require_writable(target.path, file_format.is_folder)
        if file_format.is_folder:
            return sinks.DrySink(target.path, metadata, False, file_format.module.check(target))
    if target.is_file:
        return file_format.module.create(target, metadata)
    if not os.access(target.path, os.W_OK):
        denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        raise failure(denied, target.path, OutputError)
    return sinks.DrySink(target.path, metadata, True, None)


def _stored_dtype(file_format: Format, target: Target, dtype: Dtype) -> Dtype:
    from ndtool.formats import npy

    module = file_format.module if target.is_file else npy
    try:
        stored: Dtype = getattr(module, "stored_dtype", npy.stored_dtype)(dtype)
    except DtypeError as exc:
        raise DtypeError(f"{printable(target.path)}: {exc.message}", hint=exc.hint) from None
    if file_format.chunks and stored.name != dtype.name and not target.encoding.as_void:
        raise DtypeError(
            f"{printable(target.path)}: its format does not support {dtype.name}:"
            " expected one that does, such as .safetensors",
            hint=f"ndtool convert --as-void stores such an array as {stored.name}",
        )
    return stored


def format_by_name(argument: str) -> Format | None:
    """Return the output format that an argument selects by prefix or suffix, None if neither."""
    if argument.startswith(locators.NPY) and not os.path.lexists(argument):
        return table.FORMATS[0]
    return next(iter(table.formats_by_suffix(locators.parse(argument).path)), None)


def _resolve_target(
    argument: str, clobber: bool, sync: bool, only: bool, encoding: Encoding
) -> tuple[Format, Target]:
    path, member = locators.parse(argument)
    if member == "":
        raise UsageError(f"{printable(argument)}: the member has no name: expected {path}:NAME")
    if locators.is_declared(argument, False) or locators.is_text(argument):
        raise UsageError(f"{printable(argument)}: it is read, never written: expected a file")
    is_url = locations.is_url(path)
    named_format = format_by_name(argument)
    if not (is_url or member or named_format):
        _require_no_member(path)
    status = None if is_url else existing(path)
    target = Target(path, member, status, clobber, sync, only, encoding)
    target = target._replace(list_arrays=table.array_names, preserves=table.preserves)
    if not named_format and member is None and target.is_file and not target.is_store:
        table.require_supported_suffix(path.partition("?")[0] if is_url else path)
    file_format = named_format or table.FORMATS[0]
    if is_url:
        return file_format, _remote_target(file_format, target)
    if target.is_store and named_format and not file_format.is_folder:
        raise OutputError(f"{printable(path)} is a directory: expected a file")
    if target.is_store or (member is not None and not file_format.members):
        storage, _ = locators.open_location(path)  # an archive or store without its suffix
        with closing(storage):
            file_format = table.format_of(storage, path)
    return file_format, target


def _require_no_member(path: str) -> None:
    """Raise OutputError or UsageError if a path names a member of a file without members."""
    if locators.path_without_member(path):
        raise OutputError(f"{printable(path)}: the file holds one array, and has no members")
    file, colon, member = path.rpartition(":")
    has_no_members = any(not file_format.members for file_format in table.formats_by_suffix(file))
    if colon and has_no_members and "/" not in member and not os.path.lexists(path):
        raise UsageError(f"{printable(path)}: the file holds one array, and has no members")


def _remote_target(file_format: Format, target: Target) -> Target:
    """Return the target at a URL; OutputError or UsageError if it is not writable."""
    from ndtool.storage import objects

    if not file_format.is_folder:
        objects.open_output(target.path)  # raises if it is not writable
    return target._replace(url=True)


def _with_current_version(target: Target, file_format: Format) -> Target:
    """Return a target with the current status or version of its file; OutputError if it changed."""
    if target.url:
        from ndtool.storage import objects

        if file_format.is_folder:
            return target
        preserves = target.member is not None and not target.only
        version = objects.current_version(target.path, required=preserves or not target.clobber)
        return target._replace(version=version)
    current = target._replace(current=existing(target.path))
    if (current.is_file, current.is_store) != (target.is_file, target.is_store):
        raise OutputError(f"{printable(target.path)} changed during the run")
    return current


# Outputs that are no arrays, such as HTML reports


def create_document(path: str, content: bytes, clobber: bool, sync: bool = False) -> Any:
    """Return a sink with the content of a file."""
    from ndtool.publish.sinks import Container, FileSink

    metadata = ArrayMetadata(dtypes.from_name("uint8"), (0,), "C", (0,), {})
    return FileSink(_document_target(path, clobber, sync), metadata, Container(content, 0))


def check_document(path: str, clobber: bool) -> None:
    """Raise the errors of `create_document` that can be detected without writing."""
    _document_target(path, clobber, False).require_folder()


def _document_target(path: str, clobber: bool, sync: bool) -> Target:
    if locations.is_url(path):
        raise OutputError(f"{printable(path)}: expected a file on this machine")
    target = Target(path, None, existing(path), clobber, sync, only=True)
    if target.is_store or not target.is_file:
        raise OutputError(f"{printable(path)} is not a regular file: expected one")
    target.require_replaceable()
    return target
