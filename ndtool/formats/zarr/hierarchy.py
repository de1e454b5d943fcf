"""The hierarchy of a Zarr store: groups, arrays, and consolidated metadata."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ndtool.errors import InputError, NdtoolError, OutputError, printable, refuse
from ndtool.storage.local import ZARR_METADATA, Folder
from ndtool.storage.localfolder import MAX_METADATA_SIZE, LocalFolder

Read = Callable[[str], bytes | None]  # returns the value of a key, None if the key is missing
Body = bytes | memoryview
WriteKey = Callable[[str, Body], None]  # writes the value of a key of a store

NO_METADATA: Mapping[str, bytes] = {}
_MAX_VALUES = 1 << 20  # per metadata file: a parsed JSON value may take 100 bytes of memory
_NUMBER_PREFIX = os.urandom(16).hex()  # marks strings that were numbers; see _parse_json


def array_paths(storage: Folder) -> list[str]:
    """Return the sorted paths of all arrays of a store; "" if the store itself is an array.

    The consolidated metadata of a remote store are trusted: listing takes a request per group, and
    HTTP servers cannot list.
    """
    if not isinstance(storage, LocalFolder) and (arrays := _consolidated_arrays(storage)):
        return sorted(arrays)
    return _walk_arrays(storage)


def unconsolidated_arrays(storage: Folder) -> set[str]:
    """Return the paths of a group's arrays that its consolidated metadata lack."""
    return set(_walk_arrays(storage)).difference(_consolidated_arrays(storage))


def _walk_arrays(storage: Folder) -> list[str]:
    arrays, pending = [], [""]
    while pending:
        path = pending.pop()
        type_ = node_type(storage, path)
        if type_ == "array":
            arrays.append(path)
        elif type_ == "group":
            if not storage.can_list:
                raise InputError(
                    f"{printable(storage.path)} is a group without consolidated metadata, and its"
                    " server cannot list it: name the array"
                )
            pending += [f"{path}/{name}" if path else name for name in storage.subfolders(path)]
    return sorted(arrays)


def is_consolidated(storage: Folder) -> bool:
    """Whether a group has consolidated metadata."""
    entries = _parse_json(storage, "zarr.json").get("consolidated_metadata")
    return isinstance(entries, dict) or storage.read(".zmetadata") is not None


def consolidate(
    storage: Folder, unpublished: Mapping[str, bytes] = NO_METADATA
) -> tuple[str, bytes]:
    """Consolidate the metadata of a group; return their key and content.

    unpublished: metadata of a new array, by key. Raises OutputError if the result exceeds the limit
    for reading.
    """
    nodes, pending = {key.rpartition("/")[0] for key in unpublished}, [""]
    while pending:
        path = pending.pop()
        if type_ := node_type(storage, path):
            nodes.add(path)
        if type_ == "group":
            pending += [f"{path}/{name}".lstrip("/") for name in storage.subfolders(path)]
    entries: dict[str, Any] = {}
    if storage.read("zarr.json") is None:
        previous = _parse_json(storage, ".zmetadata").get("metadata")
        for path in sorted(nodes):
            for name in (".zarray", ".zgroup", ".zattrs"):
                key = f"{path}/{name}".lstrip("/")
                if key in unpublished or storage.read(key) is not None:
                    entries[key] = _parse_json(storage, key, unpublished)
                    if not entries[key] and isinstance(previous, dict):  # damaged
                        entries[key] = previous.get(key, {})
        return ".zmetadata", _encode_json({"metadata": entries, "zarr_consolidated_format": 1})
    inline: dict[str, Any] = {"kind": "inline", "must_understand": False}
    root = _parse_json(storage, "zarr.json")
    previous_nodes = _consolidated_nodes(root)
    for path in sorted(filter(None, nodes)):
        node = _parse_json(storage, f"{path}/zarr.json", unpublished)
        if "node_type" not in node:  # of version 2, or damaged
            node = previous_nodes.get(path) or {}
        if node.get("node_type") == "group":
            node["consolidated_metadata"] = {**inline, "metadata": {}}
        if node:
            entries[path] = node
    inline["metadata"] = entries
    return "zarr.json", _encode_json({**root, "consolidated_metadata": inline})


def _consolidated_nodes(root: dict[str, Any]) -> dict[str, Any]:
    """Return the nodes in the consolidated metadata of a version 3 group, by path."""
    entries = root.get("consolidated_metadata")
    metadata = entries.get("metadata") if isinstance(entries, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def require_consolidated_size(storage: Folder, unpublished: Mapping[str, bytes]) -> None:
    """Raise OutputError if consolidated metadata with those of a new array would be too large."""
    bodies = (storage.read(name) or b"" for name in ("zarr.json", ".zmetadata"))
    if is_consolidated(storage):
        _require_readable(b"".join((*bodies, *unpublished.values())))


def _require_readable(body: bytes) -> None:
    if len(body) > MAX_METADATA_SIZE or _count_values(body) > _MAX_VALUES:
        raise OutputError(
            f"its consolidated metadata would have {len(body)} bytes and {_count_values(body)}"
            f" values: at most {MAX_METADATA_SIZE} and {_MAX_VALUES} are read"
        )


def _count_values(body: bytes) -> int:
    """Return an upper bound for the number of values in a JSON text."""
    return sum(map(body.count, (b",", b"[", b"{")))


def _encode_json(document: dict[str, Any]) -> bytes:
    text = json.dumps(document, indent=2)
    body = re.sub(f'"{_NUMBER_PREFIX}([^"]*)"', r"\1", text).encode()
    _require_readable(body)
    return body


def _consolidated_arrays(storage: Folder) -> list[str]:
    """Return the paths of the arrays in a store's consolidated metadata."""
    if entries := _consolidated_nodes(_parse_json(storage, "zarr.json")):
        return [
            path for path, node in entries.items()
            if isinstance(node, dict) and node.get("node_type") == "array"
        ]  # fmt: skip
    version_2_entries = _parse_json(storage, ".zmetadata").get("metadata")
    paths = version_2_entries if isinstance(version_2_entries, dict) else ()
    return [path.removesuffix(".zarray").rstrip("/") for path in paths if path.endswith(".zarray")]


def _parse_json(
    storage: Folder, key: str, unpublished: Mapping[str, bytes] = NO_METADATA
) -> dict[str, Any]:
    """Parse metadata, {} if they are damaged; `_encode_json` restores numbers from strings."""
    try:
        raw = (
            unpublished[key]
            if key in unpublished
            else read_metadata(storage.read, key, storage.path)
        )
        document = json.loads(raw or b"{}", parse_float=_prefix_number, parse_int=_prefix_number)
    except (ValueError, RecursionError) as exc:
        if isinstance(exc, InputError):
            raise
        return {}
    return document if isinstance(document, dict) else {}


def _prefix_number(text: str) -> str:
    return _NUMBER_PREFIX + text


def read_metadata(read: Read, key: str, label: str) -> bytes | None:
    """Read the metadata at a key; InputError if they have too many JSON values."""
    raw = read(key)
    if raw and _count_values(raw) > _MAX_VALUES:
        refuse(label, f"{key} has more than {_MAX_VALUES} values")
    return raw


def node_type(storage: Folder, path: str) -> str:
    """Return "array" or "group" for a path in a store, "" if it is neither."""
    version_3_key, array_key, group_key = (
        f"{path}/{name}".lstrip("/") for name in ZARR_METADATA[:3]
    )
    if storage.read(version_3_key) is not None:
        return (
            "group" if _parse_json(storage, version_3_key).get("node_type") == "group" else "array"
        )
    if storage.read(array_key) is not None:
        return "array"
    return "group" if storage.read(group_key) is not None else ""


@contextmanager
def group_errors(group: str) -> Iterator[None]:
    """Add the group's name to OutputErrors about its metadata."""
    try:
        yield
    except OutputError as exc:
        raise OutputError(f"{printable(group)}: {exc.message}") from None


def consolidation_error(path: str, group: str, exc: Exception) -> OutputError:
    """Return the error that an array is missing in the consolidated metadata of a group."""
    reason = exc.message if isinstance(exc, NdtoolError) else getattr(exc, "strerror", exc)
    return OutputError(
        f"{printable(path)} is written, but not in the metadata of {printable(group)}: {reason}"
    )
