"""The hierarchy of a Zarr store: groups, arrays, and consolidated metadata."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from ndtool.errors import InputError, OutputError, printable
from ndtool.storage.local import ZARR_METADATA, Folder
from ndtool.storage.localfolder import MAX_METADATA_SIZE, LocalFolder

Read = Callable[[str], bytes | None]  # returns the value of a key, None if absent

NO_METADATA: Mapping[str, bytes] = {}
_VALUES = 1 << 20  # maximum per metadata file: a value may take 100 bytes of memory
_NUMBER = os.urandom(16).hex()  # prefix of numbers in parsed documents; see _json


def arrays_in(storage: Folder) -> list[str]:
    """Return the paths of all arrays of a store, sorted; "" is the store itself.

    For a remote store, consolidated metadata are trusted: a listing takes a request per group, and
    HTTP servers have none.
    """
    if not isinstance(storage, LocalFolder) and (arrays := _consolidated(storage)):
        return sorted(arrays)
    return _listed(storage)


def unconsolidated(storage: Folder) -> set[str]:
    """Return the paths of a group's arrays that are missing in its consolidated metadata."""
    return set(_listed(storage)).difference(_consolidated(storage))


def _listed(storage: Folder) -> list[str]:
    arrays, pending = [], [""]
    while pending:
        path = pending.pop()
        node = kind(storage, path)
        if node == "array":
            arrays.append(path)
        elif node == "group":
            if not storage.can_list:
                raise InputError(
                    f"{printable(storage.path)} is a group without consolidated metadata, and its"
                    " server cannot list it: name the array"
                )
            pending += [f"{path}/{name}" if path else name for name in storage.subfolders(path)]
    return sorted(arrays)


def is_consolidated(storage: Folder) -> bool:
    """Whether a group has consolidated metadata."""
    new = _json(storage, "zarr.json").get("consolidated_metadata")
    return isinstance(new, dict) or storage.read(".zmetadata") is not None


def consolidated(storage: Folder, new: Mapping[str, bytes] = NO_METADATA) -> tuple[str, bytes]:
    """Return the key and the content of a group's consolidated metadata, updated.

    new: unpublished metadata, by key. Raises OutputError if the result is too large to be read.
    """
    nodes, pending = {key.rpartition("/")[0] for key in new}, [""]
    while pending:
        path = pending.pop()
        if node_kind := kind(storage, path):
            nodes.add(path)
        if node_kind == "group":
            pending += [f"{path}/{name}".lstrip("/") for name in storage.subfolders(path)]
    entries: dict[str, Any] = {}
    if storage.read("zarr.json") is None:
        old = _json(storage, ".zmetadata").get("metadata")
        for path in sorted(nodes):
            for name in (".zarray", ".zgroup", ".zattrs"):
                key = f"{path}/{name}".lstrip("/")
                if key in new or storage.read(key) is not None:
                    entries[key] = _json(storage, key, new)
                    if not entries[key] and isinstance(old, dict):  # damaged: the old entry
                        entries[key] = old.get(key, {})
        return ".zmetadata", _bytes({"metadata": entries, "zarr_consolidated_format": 1})
    inline: dict[str, Any] = {"kind": "inline", "must_understand": False}
    root = _json(storage, "zarr.json")
    old_entries = _inline(root)
    for path in sorted(filter(None, nodes)):
        node = _json(storage, f"{path}/zarr.json", new)
        if "node_type" not in node:  # of version 2, or damaged: the old entry, if any
            node = old_entries.get(path) or {}
        if node.get("node_type") == "group":
            node["consolidated_metadata"] = {**inline, "metadata": {}}
        if node:
            entries[path] = node
    inline["metadata"] = entries
    return "zarr.json", _bytes({**root, "consolidated_metadata": inline})


def _inline(root: dict[str, Any]) -> dict[str, Any]:
    """Return the consolidated metadata of a version 3 group, by path."""
    entries = root.get("consolidated_metadata")
    metadata = entries.get("metadata") if isinstance(entries, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def require_growth(storage: Folder, new: Mapping[str, bytes]) -> None:
    """Raise OutputError if consolidated metadata that include `new` would be too large."""
    old = (storage.read(name) or b"" for name in ("zarr.json", ".zmetadata"))
    if is_consolidated(storage):
        _require_readable(b"".join((*old, *new.values())))


def _require_readable(body: bytes) -> None:
    if len(body) > MAX_METADATA_SIZE or _values(body) > _VALUES:
        raise OutputError(
            f"its consolidated metadata would have {len(body)} bytes and {_values(body)} values:"
            f" at most {MAX_METADATA_SIZE} and {_VALUES} are read"
        )


def _values(body: bytes) -> int:
    """Return an upper bound of the number of values in a JSON text."""
    return sum(map(body.count, (b",", b"[", b"{")))


def _bytes(document: dict[str, Any]) -> bytes:
    text = json.dumps(document, indent=2)
    body = re.sub(f'"{_NUMBER}([^"]*)"', r"\1", text).encode()
    _require_readable(body)
    return body


def _consolidated(storage: Folder) -> list[str]:
    """Return the paths of the arrays in a store's consolidated metadata."""
    if entries := _inline(_json(storage, "zarr.json")):
        return [
            path for path, one in entries.items()
            if isinstance(one, dict) and one.get("node_type") == "array"
        ]  # fmt: skip
    old = _json(storage, ".zmetadata").get("metadata")
    paths = old if isinstance(old, dict) else ()
    return [path.removesuffix(".zarray").rstrip("/") for path in paths if path.endswith(".zarray")]


def _json(storage: Folder, key: str, new: Mapping[str, bytes] = NO_METADATA) -> dict[str, Any]:
    """Parse metadata, {} if they are damaged; numbers become strings that `_bytes` restores."""
    try:
        raw = new[key] if key in new else metadata(storage.read, key, storage.path)
        document = json.loads(raw or b"{}", parse_float=_number, parse_int=_number)
    except (ValueError, RecursionError) as exc:
        if isinstance(exc, InputError):
            raise
        return {}
    return document if isinstance(document, dict) else {}


def _number(text: str) -> str:
    return _NUMBER + text


def metadata(read: Read, key: str, label: str) -> bytes | None:
    """Read metadata; InputError if they have too many values for memory."""
    raw = read(key)
    if raw and _values(raw) > _VALUES:
        raise InputError(f"{printable(label)}: {key} has more than {_VALUES} values")
    return raw


def kind(storage: Folder, path: str) -> str:
    """Return "array" or "group" for a path in a store, "" if it is neither."""
    new, old_array, old_group = (f"{path}/{name}".lstrip("/") for name in ZARR_METADATA[:3])
    if storage.read(new) is not None:
        return "group" if _json(storage, new).get("node_type") == "group" else "array"
    if storage.read(old_array) is not None:
        return "array"
    return "group" if storage.read(old_group) is not None else ""
