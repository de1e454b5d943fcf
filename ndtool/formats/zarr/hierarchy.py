"""The hierarchy of a Zarr store: groups, arrays, and consolidated metadata."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ndtool.errors import InputError, OutputError, printable, refuse
from ndtool.storage.local import ZARR_METADATA, Folder
from ndtool.storage.localfolder import MAX_METADATA_SIZE, LocalFolder

Read = Callable[[str], bytes | None]  # returns the value of a key, None if the key is missing
Body = bytes | memoryview
WriteKey = Callable[[str, Body], None]  # writes the value of a key of a store

_MAX_VALUES = 1 << 20  # per metadata file: a parsed JSON value may take 100 bytes of memory


def array_paths(storage: Folder) -> list[str]:
    """Return the sorted paths of all arrays of a store; "" if the store itself is an array.

    The consolidated metadata of a remote store are trusted: listing takes a request per group, and
    HTTP servers cannot list.
    """
    if not isinstance(storage, LocalFolder) and (arrays := _consolidated_arrays(storage)):
        return sorted(arrays)
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


def consolidated_key(version: int) -> str:
    """Return the key of a group's consolidated metadata in a version of the format."""
    return "zarr.json" if version == 3 else ".zmetadata"


def read_consolidated(storage: Folder, version: int) -> dict[str, Any] | None:
    """Return the document with a group's consolidated metadata, None if it has none."""
    key = consolidated_key(version)
    root = parse_json(storage, key)
    entries = _consolidated_entries(root)
    if entries is None and (root or storage.read(key) is None):
        return None
    if not isinstance(entries, dict):
        raise OutputError(f"{printable(storage.path)}: its consolidated metadata are damaged")
    return root


def update_consolidated(
    storage: Folder, version: int, documents: Mapping[str, dict[str, Any] | None]
) -> bytes | None:
    """Return a group's consolidated metadata with other metadata, None if there is no difference.

    documents: the metadata by key, None to remove them. Raises OutputError if the consolidated
    metadata are damaged, or would exceed the limits for reading.
    """
    if (root := read_consolidated(storage, version)) is None:
        return None
    entries = _consolidated_entries(root)
    before = dict(entries)
    for key, document in documents.items():
        entry = key if version == 2 else key.rpartition("/")[0]
        entries.pop(entry, None)
        if document is not None and document.get("node_type") == "group":
            inline = {"kind": "inline", "must_understand": False, "metadata": {}}
            document = {**document, "consolidated_metadata": inline}
        if document is not None:
            entries[entry] = document
    is_changed = entries != before
    ordered = sorted(entries.items())  # zarr loses members of a group that are not in a row
    entries.clear()
    entries.update(ordered)
    body = json.dumps(root, indent=2).encode()
    if len(body) > MAX_METADATA_SIZE or _count_values(body) > _MAX_VALUES:
        raise OutputError(
            f"{printable(storage.path)}: its consolidated metadata would have {len(body)} bytes"
            f" and {_count_values(body)} values: at most {MAX_METADATA_SIZE} and {_MAX_VALUES}"
            " are read"
        )
    return body if is_changed else None


def _consolidated_entries(root: dict[str, Any]) -> Any:
    """Return the nodes by path of version 3, or the documents by key of version 2."""
    inline = root.get("consolidated_metadata") if "node_type" in root else root
    return inline.get("metadata") if isinstance(inline, dict) else None


def _count_values(body: bytes) -> int:
    """Return an upper bound for the number of values in a JSON text."""
    return sum(map(body.count, (b",", b"[", b"{")))


def _consolidated_arrays(storage: Folder) -> list[str]:
    """Return the paths of the arrays in a store's consolidated metadata."""
    if isinstance(nodes := _consolidated_entries(parse_json(storage, "zarr.json")), dict):
        return [
            path for path, node in nodes.items()
            if isinstance(node, dict) and node.get("node_type") == "array"
        ]  # fmt: skip
    documents = _consolidated_entries(parse_json(storage, ".zmetadata"))
    paths = documents if isinstance(documents, dict) else ()
    return [path.removesuffix(".zarray").rstrip("/") for path in paths if path.endswith(".zarray")]


def parse_json(storage: Folder, key: str) -> dict[str, Any]:
    """Parse metadata, {} if they are missing or damaged."""
    try:
        document = json.loads(read_metadata(storage.read, key, storage.path) or b"{}")
    except (ValueError, RecursionError) as exc:
        if isinstance(exc, InputError):
            raise
        return {}
    return document if isinstance(document, dict) else {}


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
            "group" if parse_json(storage, version_3_key).get("node_type") == "group" else "array"
        )
    if storage.read(array_key) is not None:
        return "array"
    return "group" if storage.read(group_key) is not None else ""
