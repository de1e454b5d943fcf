"""Parse an argument into a path and a member, open the file, and determine its format."""

import os
import stat
from contextlib import closing
from typing import NamedTuple

from ndtool.arrays.source import MemberInfo, ModelInfo, OperatorNode, Source
from ndtool.errors import InputError, NdtoolError, printable, redact_urls, refuse
from ndtool.formats import table
from ndtool.formats.streams import Streams
from ndtool.formats.table import Format, TextOptions
from ndtool.rules.dtypes import Dtype
from ndtool.storage import descriptors, local, locations
from ndtool.storage.descriptors import os_errors
from ndtool.storage.local import File, Folder

NPY = "npy:"  # prefix of the path of a .npy file with any name
TEXT = "text:"  # prefix of the path of a text file with any name


class Locator(NamedTuple):
    """A parsed argument: the path of a file or store, and the name of a member or None."""

    path: str
    member: str | None


def parse(argument: str) -> Locator:
    """Split `path[:member]` at a colon.

    An existing file with the full name takes precedence, then the longest path to an existing file
    with members, then a path with the suffix of a format with members. Names of existing folders
    may contain colons. A URL is split by suffix, without a request.
    """
    if ":" not in argument or os.path.lexists(argument):
        return Locator(argument, None)
    if argument.startswith(TEXT):
        return _parse_text(argument.removeprefix(TEXT))
    if argument.startswith(NPY):
        return Locator(locations.local_path(argument.removeprefix(NPY)), None)
    if locations.is_url(argument):
        path = locations.local_path(argument)
        return parse(path) if path != argument else _parse_url(argument)
    start, index = _folder_end(argument), len(argument)
    while (index := argument.rfind(":", start, index)) > 0:
        if _has_members(argument[:index]):
            return Locator(argument[:index], argument[index + 1 :])
    for file_format in table.FORMATS:
        path, separator, member = argument[start:].rpartition(f"{file_format.suffix}:")
        if file_format.members and separator:
            return Locator(argument[:start] + path + file_format.suffix, member)
    return Locator(argument, None)


def _parse_text(argument: str) -> Locator:
    """Split `PATH[:COLUMN,...]` at the last colon, a URL at the colon after a format's suffix."""
    if locations.is_url(argument):
        locator = parse(argument)
        return locator if locator.member else Locator(argument, None)
    path, separator, columns = argument.rpartition(":")
    is_path = not separator or os.path.lexists(argument) or "/" in columns
    return Locator(locations.local_path(argument), None) if is_path else Locator(path, columns)


def is_text(argument: str) -> bool:
    """Whether an argument has the prefix `text:`, and is not the name of a file."""
    return argument.startswith(TEXT) and not os.path.lexists(argument)


def as_text(argument: str) -> str:
    """Add the prefix `text:` to an argument, unless the format of its file is recognised."""
    path = parse(argument).path
    if is_declared(argument, True) or is_text(argument) or table.formats_by_suffix(path):
        return argument
    if os.path.isfile(argument):
        with closing(local.open_file(argument)) as storage, os_errors(argument):
            if table.recognised_format(storage, argument):
                return argument
    return TEXT + argument


def _format_of(argument: str, storage: File | Folder, path: str) -> Format:
    if not is_text(argument):
        return table.format_of(storage, path)
    if hasattr(storage, "can_list"):
        raise local.file_type_error(redact_urls(path), stat.S_IFDIR)
    return table.TEXT


def _folder_end(path: str) -> int:
    """Return the index after the longest prefix of a path that is an existing folder."""
    index = len(path)
    while (index := path.rfind("/", 0, index)) > 0 and not os.path.isdir(path[:index]):
        pass
    return index + 1


def _parse_url(url: str) -> Locator:
    """Split `scheme://…[:member]`: a member follows a format's suffix, or the query after it."""
    for file_format in table.FORMATS:
        index = len(url)
        while file_format.members and (index := url.rfind(file_format.suffix, 0, index)) > 0:
            end = index + len(file_format.suffix)
            query = url[end:].partition(":")[0]
            end += len(query)
            member = url[end + 1 :]
            if query[:1] in ("", "?") and url[end:] and not member.startswith((":", "//")):
                return Locator(url[:end], member)
    return Locator(url, None)


def _has_members(path: str) -> bool:
    if not os.path.isfile(path):
        return local.is_zarr_store(path) or bool(local.parquet_files(path))
    try:
        with closing(local.open_file(path)) as storage:
            file_format = table.format_of(storage, path)
            return file_format.members or (
                file_format is table.FORMATS[0] and bool(file_format.module.has_fields(storage))
            )
    except (NdtoolError, OSError):
        return False


def open_source(
    argument: str, streams: Streams, *, literals: bool = False, dtype: Dtype | None = None
) -> Source:
    """Open the array of an argument: `path[:member]`, a FIFO, `-`, `raw:…`, `zeros:…`, `text:…`.

    literals: whether the array are indices, which may be a literal such as `[5, 7]`, and must be
    integers in text. dtype: the element type of numbers in text; None to infer it. Raises
    InputError if the argument is not an array, UsageError if a member must be named, ResourceError
    if the array is too large to decompress.
    """
    if is_declared(argument, literals):
        from ndtool.formats import declared

        return declared.open_source(argument)
    options = TextOptions(literals, dtype, streams.directory)
    path, member = parse(argument) if is_text(argument) else Locator(argument, None)
    if stream := streams.pipe(path):
        if path == argument:
            return stream.read()
        text: Source = table.TEXT.module.read_stream(stream, member, options)
        return text
    storage, (path, member) = open_location(argument)
    try:
        with os_errors(argument):
            file_format = _format_of(argument, storage, path)
            label, path = redact_urls(argument), redact_urls(path)
            extra_arguments = (options,) if file_format.text else ()
            source: Source = file_format.module.open_source(
                storage, label, path, member, *extra_arguments
            )
            return source
    except BaseException:
        storage.close()
        raise


def open_role(role: str, argument: str, streams: Streams, data: Dtype | None) -> Source:
    """Open the array of an operator's role. data: the element type of the operator's data."""
    dtype = data if role in ("updates", "update", "output") else None
    literals = role.endswith("indices")
    try:
        return open_source(argument, streams, literals=literals, dtype=dtype)
    except InputError as error:
        if literals and argument.replace(",", "").isdecimal():
            error.hint = error.hint or f"a literal is in brackets: '[{argument}]'"
        raise


def is_declared(argument: str, literals: bool) -> bool:
    """Whether an argument is `raw:…`, `zeros:…` or a literal, and not the path of a file."""
    is_prefixed = argument.partition(":")[0] in ("raw", "zeros", "ones", "full") and ":" in argument
    is_literal = literals and argument.lstrip()[:1] == "["
    return (is_prefixed or is_literal) and not os.path.lexists(argument)


def describe(
    argument: str,
    streams: Streams | None = None,
    *,
    literals: bool = False,
    dtype: Dtype | None = None,
) -> list[MemberInfo]:
    """Return the member info of a file's array, or of every member of an archive.

    literals, dtype: see `open_source`. Only text and streams are read completely; damaged data of
    other formats are not detected. A member that is not an array has no metadata. Raises InputError
    if the format of the file is unknown.
    """
    streams = streams or Streams()
    options = TextOptions(literals, dtype, streams.directory)
    path, member = parse(argument) if is_text(argument) else Locator(argument, None)
    is_inline = is_declared(argument, literals)
    if is_inline or streams.pipe(path):
        with closing(open_source(argument, streams, literals=literals, dtype=dtype)) as source:
            return [_inline_entry(source, member, is_inline)]
    storage, (path, member) = open_location(argument)
    with closing(storage), os_errors(argument):
        file_format = _format_of(argument, storage, path)
        extra_arguments = (options,) if file_format.text else ()
        entries = file_format.module.entries(storage, redact_urls(path), member, *extra_arguments)
        return list(entries)


def _inline_entry(source: Source, member: str | None, is_inline: bool) -> MemberInfo:
    """Return the member info of an array that an argument declares, or that a stream has."""
    metadata = source.metadata
    if not is_inline:
        return MemberInfo(source.name, member, metadata, None, "a stream")
    position = metadata.notes.get("offset")
    problem = "a literal" if source.name.lstrip()[:1] == "[" else ""
    return MemberInfo(source.name, member, metadata, position, problem, source.warning)


def nodes(argument: str) -> list[OperatorNode]:
    """Return a model's nodes whose operators ndtool implements, an empty list for other files.

    Raises the errors of `describe` if the model is damaged.
    """
    path, member = parse(argument)
    # URLs with other suffixes are not requested, as they are hardly models.
    is_model_url = locations.is_url(path) and path.partition("?")[0].endswith(".onnx")
    if member is not None or not (os.path.isfile(path) or is_model_url):
        return []
    storage, (path, member) = open_location(argument)
    with closing(storage), os_errors(argument):
        list_nodes = getattr(table.format_of(storage, path).module, "nodes", None)
        return list_nodes(storage, redact_urls(path)) if list_nodes and member is None else []


def model(argument: str) -> ModelInfo:
    """Return a model's nodes whose operators ndtool implements, and the model's inputs."""
    storage, (path, member) = open_location(argument)
    with closing(storage), os_errors(argument):
        module = table.format_of(storage, path).module
        if member is not None or not hasattr(module, "model_info"):
            raise InputError(f"{printable(argument)} is not an ONNX model: expected an .onnx file")
        info: ModelInfo = module.model_info(storage, redact_urls(path))
        return info


def open_location(argument: str) -> tuple[File | Folder, Locator]:
    """Open the file or store of an argument; InputError for a member of a file without members."""
    locator = parse(argument)
    path = locator.path
    if locations.is_url(path):
        return _open_remote(argument, locator)
    try:
        return locations.open_storage(path), locator
    except InputError:
        if folder := locations.open_folder(path):
            return folder, locator
        if file_path := path_without_member(argument):
            with closing(locations.open_storage(file_path)) as storage, os_errors(file_path):
                file_format = table.recognised_format(storage, file_path)
            reason = "the file holds one array" if file_format else "the file has no known format"
            hint = "" if file_format else f"a column of text is read as text:{printable(argument)}"
            refuse(argument, f"{reason}, and has no members", hint=hint)
        raise


def path_without_member(argument: str) -> str:
    """Return the path before the last colon if only that file exists, else ""."""
    file_path, index = argument.rpartition(":")[0], _folder_end(argument)
    exists = ":" in argument[index:] and os.path.exists(file_path) and not os.path.isdir(file_path)
    return file_path if exists and not os.path.lexists(argument) else ""


def _open_remote(argument: str, locator: Locator) -> tuple[File | Folder, Locator]:
    """Open a URL; if it does not exist, split a member off at the last colon and try again."""
    try:
        return _open_object_or_store(locator.path), locator
    except InputError as exc:
        file_path, _, member = argument.rpartition(":")
        if locator.member is None and "/" not in member and locations.is_url(file_path):
            try:
                return _open_object_or_store(file_path), Locator(file_path, member)
            except InputError:
                raise exc from None
        raise


def _open_object_or_store(url: str) -> File | Folder:
    """Open the object at a URL, or the Zarr store; a suffix selects the first attempt."""
    path = url.partition("?")[0]
    store_first = path.endswith((".zarr", "/"))
    if store_first and (folder := locations.open_folder(url)):
        return folder
    may_be_store = not store_first and not table.formats_by_suffix(path)
    try:
        file = locations.open_storage(url)
    except InputError as reason:
        if may_be_store and (folder := _try_open_store(url)):
            return folder
        raise reason from None
    may_be_store = may_be_store and not table.recognised_format(file, url)
    if may_be_store and (folder := _try_open_store(url)):
        file.close()  # the server's HTML listing of a folder
        return folder
    return file


def _try_open_store(url: str) -> Folder | None:
    """Open a store; None if that fails, so that the error about the object is reported."""
    try:
        return locations.open_folder(url)
    except InputError:
        return None


def absolute(argument: str) -> str:
    """Return an argument that refers to the same array from any working directory."""
    if locations.is_url(argument):
        return argument
    path, member = parse(argument)
    prefix = TEXT if is_text(argument) else ""
    return prefix + descriptors.absolute(path) + (f":{member}" if member is not None else "")
