"""The table of formats, and the format of a file by its content or suffix.

A format is one module and one row of FORMATS. Its functions, of which the last five are optional,
take an open file or store as `storage`:

    recognises(storage)                     whether the content is of this format
    entries(storage, path, member)          the member info of one member or all
    open_source(storage, name, path, member)
                                            a Source; closing it closes the storage
    create(target, metadata)                a Sink
    stored_dtype(dtype)                     the element type as stored, DtypeError if unsupported;
                                            without it, that of .npy
    nodes(storage, path)                    of a model: the nodes whose operators ndtool implements
    planned_metadata(target, metadata)      of a chunked format: the metadata of an output
    check(target)                           of a chunked format: validate a target without writing;
                                            return the preserved members
    array_names(storage, path)              the names of the arrays, if cheaper than `entries`

The `entries` and `open_source` of text take a `TextOptions`, too.
"""

import os
from contextlib import closing
from importlib import import_module
from typing import Any, NamedTuple

from ndtool.errors import UsageError, printable
from ndtool.rules.dtypes import Dtype
from ndtool.storage import locations
from ndtool.storage.local import File, Folder


class TextOptions(NamedTuple):
    """Options for reading numbers in text.

    integers: whether numbers that are not integers are errors. dtype: the element type; None to
    infer int64, uint64 if a value requires it, or float64 if a number is not an integer. directory:
    of temporary files, None for TMPDIR.
    """

    integers: bool = False
    dtype: Dtype | None = None
    directory: str | None = None


DEFAULT_OPTIONS = TextOptions()


class Format(NamedTuple):
    """A file format.

    suffix: of file names. members: whether a file has named arrays, as `archive.npz:member`.
    module_name: the module that implements the format. self_identifying: whether the content alone
    identifies the format; if not, an unrecognised file with the suffix is assumed to be a damaged
    file of the format. chunks: whether arrays can be chunked. preserves: whether the other members
    are preserved when one is written. is_folder: whether a store is a folder of files. text:
    whether the file is text, for which the caller selects the element type. reads_folders: whether
    a folder of files is read as one.
    """

    suffix: str
    members: bool
    module_name: str
    self_identifying: bool = True
    chunks: bool = False
    preserves: bool = False
    is_folder: bool = False
    text: bool = False
    reads_folders: bool = False

    @property
    def module(self) -> Any:
        """The module, imported at first use."""
        return import_module(self.module_name)


# The first row is the default: for unrecognised files, and for outputs without a known suffix.
FORMATS = (
    Format(".npy", False, "ndtool.formats.npy"),
    Format(".safetensors", True, "ndtool.formats.safetensors", preserves=True),
    Format(".npz", True, "ndtool.formats.npz", preserves=True),
    Format(".zarr", True, "ndtool.formats.zarr", chunks=True, preserves=True, is_folder=True),
    Format(".h5", True, "ndtool.formats.hdf5", self_identifying=False, chunks=True, preserves=True),
    Format(
        ".hdf5", True, "ndtool.formats.hdf5", self_identifying=False, chunks=True, preserves=True
    ),
    Format(".nc", True, "ndtool.formats.hdf5", self_identifying=False),
    Format(
        ".safetensors.index.json", True, "ndtool.formats.safetensors.shards", self_identifying=False
    ),
    Format(".parquet", True, "ndtool.formats.arrow", reads_folders=True),
    Format(".arrow", True, "ndtool.formats.arrow"),
    Format(".feather", True, "ndtool.formats.arrow"),
    Format(".pb", True, "ndtool.formats.onnx.pb", self_identifying=False),
    Format(".onnx", True, "ndtool.formats.onnx", self_identifying=False),
    *(
        Format(suffix, True, "ndtool.formats.text", self_identifying=False, text=True)
        for suffix in (".txt", ".csv", ".tsv", ".json", ".jsonl", ".ndjson")
        for suffix in (suffix, f"{suffix}.gz")
    ),
)
TEXT = FORMATS[-1]


def format_of(storage: File | Folder, path: str) -> Format:
    """Return the format of a file or store, by content, else by suffix, else .npy."""
    suffix_format = next(iter(formats_by_suffix(path)), FORMATS[0])
    return recognised_format(storage, path) or (
        FORMATS[0] if suffix_format.self_identifying else suffix_format
    )


def formats_by_suffix(path: str) -> list[Format]:
    """Return the formats whose suffix a path or URL ends in."""
    name = path.partition("?")[0] if locations.is_url(path) else path
    return [file_format for file_format in FORMATS if name.endswith(file_format.suffix)]


def array_names(path: str) -> list[str]:
    """Return the names of the arrays in a file or store, none if its format has no members."""
    with closing(_open(path)) as storage:
        file_format = recognised_format(storage, path)
        if file_format is None or not file_format.members:
            return []
        if hasattr(file_format.module, "array_names"):
            return list(file_format.module.array_names(storage, path))
        return [entry.member or "" for entry in file_format.module.entries(storage, path, None)]


def preserves(path: str) -> bool:
    """Whether writing a member of a file preserves the file's other arrays."""
    if formats := [file_format for file_format in formats_by_suffix(path) if file_format.members]:
        return formats[0].preserves
    with closing(_open(path)) as storage:
        file_format = recognised_format(storage, path)
    return file_format is not None and file_format.preserves


def _open(path: str) -> File | Folder:
    folder = locations.open_folder(path) if os.path.isdir(path) else None
    return folder or locations.open_storage(path)


def recognised_format(storage: File | Folder, path: str) -> Format | None:
    """Return the format that recognises a file, None if none does; formats of its suffix are first.

    A file with the suffix of text is of another format only if that format is self-identifying.
    """
    suffix_formats = formats_by_suffix(path)
    for file_format in dict.fromkeys((*suffix_formats, *FORMATS)):
        has_storage = (
            file_format.is_folder or file_format.reads_folders
            if hasattr(storage, "can_list")
            else not file_format.is_folder
        )
        is_candidate = has_storage and (
            file_format.self_identifying
            or file_format in suffix_formats
            or not (suffix_formats and suffix_formats[0].text)
        )
        if is_candidate and not file_format.text and file_format.module.recognises(storage):
            return file_format
    return None


def require_supported_suffix(path: str) -> None:
    """Raise UsageError if a path or URL has the suffix of an unsupported output format.

    A colon separates a member name, unless a file of the complete name exists. A suffix without
    letters is ignored, as it may be part of a number.
    """
    name = os.path.basename(path)
    for file_name in (name if os.path.lexists(path) else name.partition(":")[0], name):
        suffix = os.path.splitext(file_name)[1]
        if any(map(str.isalpha, suffix)) and ":" not in suffix:
            raise UsageError(
                f"{printable(path)}: ndtool does not write {printable(suffix)}: expected .npy,"
                " .npz, .safetensors, .pb, .zarr, .h5, .parquet, .arrow, .csv or .txt"
                + ("" if suffix == suffix.lower() else ", in lower case"),
                hint=f"npy:{printable(path)} writes a .npy file of this name",
            )
