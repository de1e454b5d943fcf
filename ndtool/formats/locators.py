"""Parse an argument into a location and a member, open it, and determine its format."""

import os
from contextlib import closing
from importlib import import_module
from typing import Any, NamedTuple

from ndtool.arrays.source import MemberInfo, ModelInfo, OperatorNode, Source
from ndtool.errors import InputError, NdtoolError, printable, redact_urls
from ndtool.formats import table
from ndtool.formats.streams import Streams
from ndtool.formats.table import Format, TextOptions
from ndtool.rules.dtypes import Dtype
from ndtool.storage import descriptors, local, locations
from ndtool.storage.descriptors import os_errors
from ndtool.storage.local import File, Folder

NPY = "npy:"  # prefix of the path of a .npy file with any name
TEXT = "text:"  # the same of text


class Name(NamedTuple):
    """A parsed argument: a path and perhaps a member."""

    path: str
    member: str | None


def parse(argument: str) -> Name:
    """Split `path[:member]` at a colon.

    An existing file with the full name takes precedence, then the longest path to an existing file
    with members, then a path with the suffix of a format with members. Names of existing folders
    may contain colons. A URL is split by suffix, without a request.
    """
    if ":" not in argument or os.path.lexists(argument):
        return Name(argument, None)
    if argument.startswith(TEXT):
        return _parse_text(argument.removeprefix(TEXT))
    if argument.startswith(NPY):
        return Name(locations.local_path(argument.removeprefix(NPY)), None)
    if locations.is_url(argument):
        path = locations.local_path(argument)
        return parse(path) if path != argument else _parse_url(argument)
    start, index = _after_folder(argument), len(argument)
    while (index := argument.rfind(":", start, index)) > 0:
        if _has_members(argument[:index]):
            return Name(argument[:index], argument[index + 1 :])
    for file_format in table.FORMATS:
        path, separator, member = argument[start:].rpartition(f"{file_format.suffix}:")
        if file_format.members and separator:
            return Name(argument[:start] + path + file_format.suffix, member)
    return Name(argument, None)


def _parse_text(argument: str) -> Name:
    """Split `PATH[:COLUMN,...]`: at the last colon, in a URL at that after a suffix."""
    if locations.is_url(argument):
        name = parse(argument)
        return name if name.member else Name(argument, None)
    path, separator, columns = argument.rpartition(":")
    is_path = not separator or os.path.lexists(argument) or "/" in columns
    return Name(locations.local_path(argument), None) if is_path else Name(path, columns)


def is_text(argument: str) -> bool:
    """Whether a prefix says that the content is text."""
    return argument.startswith(TEXT) and not os.path.lexists(argument)


def as_text(argument: str) -> str:
    """Return an argument that reads a file, or a stream, as text unless its format is known."""
    path = parse(argument).path
    if inline_module(argument, True) or is_text(argument) or table.suffixed(path):
        return argument
    if os.path.isfile(argument):
        with closing(local.open_file(argument)) as storage:
            if table.recognised(storage, argument):
                return argument
    return TEXT + argument


def _format(argument: str, storage: File | Folder, path: str) -> Format:
    return table.TEXT if is_text(argument) else table.of_content(storage, path)


def _after_folder(path: str) -> int:
    """Return the index after the longest prefix of a path that is an existing folder."""
    index = len(path)
    while (index := path.rfind("/", 0, index)) > 0 and not os.path.isdir(path[:index]):
        pass
    return index + 1


def _parse_url(url: str) -> Name:
    """Split `scheme://…[:member]`: a member follows a format's suffix, or the query after it."""
    for file_format in table.FORMATS:
        index = len(url)
        while file_format.members and (index := url.rfind(file_format.suffix, 0, index)) > 0:
            end = index + len(file_format.suffix)
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
        with closing(local.open_file(path)) as storage:
            return table.of_content(storage, path).members
    except (NdtoolError, OSError):
        return False


def open_source(
    argument: str, streams: Streams, *, literals: bool = False, dtype: Dtype | None = None
) -> Source:
    """Open the array of an argument: `path[:member]`, a FIFO, `-`, `raw:…`, `zeros:…`, `text:…`.

    literals: whether the array are indices: a literal such as `[5, 7]` is valid, too, and text has
    integers. dtype: the element type of numbers in text; None for one that holds them. Raises
    InputError if the argument is not an array, UsageError if a member must be named, ResourceError
    if the array is too large to decompress.
    """
    if module := inline_module(argument, literals):
        inline: Source = module.open_source(argument)
        return inline
    options = TextOptions(literals, dtype, streams.directory)
    path, member = parse(argument) if is_text(argument) else Name(argument, None)
    if stream := streams.pipe(path):
        return text().read_stream(stream, member, options) if path != argument else stream.read()
    storage, (path, member) = opened(argument)
    try:
        with os_errors(argument):
            file_format = _format(argument, storage, path)
            label, path = redact_urls(argument), redact_urls(path)
            more = (options,) if file_format.text else ()
            source: Source = file_format.module.open_source(storage, label, path, member, *more)
            return source
    except BaseException:
        storage.close()
        raise


def open_role(role: str, argument: str, streams: Streams, data: Dtype | None) -> Source:
    """Open an input of an operator, or its output. data: the element type of its data."""
    dtype = data if role in ("updates", "update", "output") else None
    return open_source(argument, streams, literals=role.endswith("indices"), dtype=dtype)


def text() -> Any:
    """Return the module of the text format, imported at first use."""
    return table.TEXT.module


# Modules of arguments that are more than a name, by the prefix before the first colon.
_INLINE = {"raw": "raw", "zeros": "constant", "ones": "constant", "full": "constant"}


def inline_module(argument: str, literals: bool) -> Any:
    """Return the module for `raw:…`, `zeros:…` or a literal, None for names and existing files."""
    name = _INLINE.get(argument.partition(":")[0]) if ":" in argument else None
    if literals and argument.lstrip()[:1] == "[":
        name = "literal"
    if name is None or os.path.lexists(argument):
        return None
    return import_module(f"ndtool.formats.{name}")


def describe(
    argument: str,
    streams: Streams | None = None,
    *,
    literals: bool = False,
    dtype: Dtype | None = None,
) -> list[MemberInfo]:
    """Return the member info of a file's array, or of every member of an archive.

    literals, dtype: see `open_source`. Data are not read, so damage in them is not detected; only
    text and streams are read. A member that is no array has no metadata. Raises InputError if the
    format of the file is unknown.
    """
    if module := inline_module(argument, literals):
        return list(module.entries(argument))
    streams = streams or Streams()
    options = TextOptions(literals, dtype, streams.directory)
    path, member = parse(argument) if is_text(argument) else Name(argument, None)
    if stream := streams.pipe(path):
        if path != argument:
            return [text().stream_entry(stream, member, options)]
        return [stream.entry()]
    storage, (path, member) = opened(argument)
    with closing(storage), os_errors(argument):
        file_format = _format(argument, storage, path)
        more = (options,) if file_format.text else ()
        entries = file_format.module.entries(storage, redact_urls(path), member, *more)
        return list(entries)


def nodes(argument: str) -> list[OperatorNode]:
    """Return a model's nodes whose operators ndtool implements; none for a tensor or other file.

    Raises the errors of `describe` if the model is damaged.
    """
    path, member = parse(argument)
    # Other URLs are not opened just to find no model.
    is_model_url = locations.is_url(path) and path.partition("?")[0].endswith(".onnx")
    if member is not None or not (os.path.isfile(path) or is_model_url):
        return []
    storage, (path, member) = opened(argument)
    with closing(storage):
        nodes_of = getattr(table.of_content(storage, path).module, "nodes", None)
        return nodes_of(storage, redact_urls(path)) if nodes_of and member is None else []


def model(argument: str) -> ModelInfo:
    """Return a model's nodes whose operators ndtool implements, and the model's inputs."""
    storage, (path, member) = opened(argument)
    with closing(storage):
        module = table.of_content(storage, path).module
        if member is not None or not hasattr(module, "model_info"):
            raise InputError(f"{printable(argument)}: not an ONNX model: expected one")
        info: ModelInfo = module.model_info(storage, redact_urls(path))
        return info


def opened(argument: str) -> tuple[File | Folder, Name]:
    """Open the file or store of an argument; InputError also for a member of a non-archive."""
    name = parse(argument)
    path = name.path
    if locations.is_url(path):
        return _open_remote(argument, name)
    try:
        return locations.open_storage(path), name
    except InputError:
        if folder := locations.open_folder(path):
            return folder, name
        if file_path := without_members(argument):
            with closing(locations.open_storage(file_path)) as storage:
                file_format = table.recognised(storage, file_path)
            what = "the file is one array" if file_format else "not a file that ndtool reads"
            raise InputError(f"{printable(argument)}: {what}: it has no members") from None
        raise


def without_members(argument: str) -> str:
    """Return the existing file before the last colon if none has the full name, else ""."""
    file_path, index = argument.rpartition(":")[0], _after_folder(argument)
    exists = ":" in argument[index:] and os.path.exists(file_path) and not os.path.isdir(file_path)
    return file_path if exists and not os.path.lexists(argument) else ""


def _open_remote(argument: str, name: Name) -> tuple[File | Folder, Name]:
    """Open a URL; if it does not exist, retry with the text after the last colon as a member."""
    try:
        return _object_or_store(name.path), name
    except InputError as exc:
        file_path, _, last = argument.rpartition(":")
        if name.member is None and "/" not in last and locations.is_url(file_path):
            try:
                return _object_or_store(file_path), Name(file_path, last)
            except InputError:
                raise exc from None
        raise


def _object_or_store(url: str) -> File | Folder:
    """Open the object at a URL, or the Zarr store; the suffix decides which is tried first."""
    path = url.partition("?")[0]
    store_first = path.endswith((".zarr", "/"))
    if store_first and (folder := locations.open_folder(url)):
        return folder
    is_first_choice = store_first or bool(table.suffixed(path))
    try:
        file = locations.open_storage(url)
    except InputError as reason:
        if not is_first_choice and (folder := _store(url)):
            return folder
        raise reason from None
    if not is_first_choice and not table.recognised(file, url) and (folder := _store(url)):
        file.close()  # the server's HTML listing of a folder
        return folder
    return file


def _store(url: str) -> Folder | None:
    """Open a store, None if that fails: the error about the object is the one to report."""
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
