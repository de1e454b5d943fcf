"""The hierarchy of a Zarr store: groups, arrays, and consolidated metadata."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from ndtool.errors import InputError, OutputError, printable
from ndtool.storage.local import ZARR_METADATA, Folder
from ndtool.storage.localfolder import LONGEST, LocalFolder

Read = Callable[[str], bytes | None]  # returns the value of a key, None if absent

NOTHING: Mapping[str, bytes] = {}
_VALUES = 1 << 20  # maximum per metadata file: a value may take 100 bytes of memory
_NUMBER = os.urandom(16).hex()  # prefix of numbers in parsed documents; see _json


def arrays_in(storage: Folder) -> list[str]:
    """Return the paths of all arrays of a store, sorted; "" is the store itself.

    For a remote store, consolidated metadata are trusted: a listing takes a request per group, and
    HTTP servers have none.
    """
    if not isinstance(storage, LocalFolder) and (known := _consolidated(storage)):
        return sorted(known)
    return _listed(storage)


def unconsolidated(storage: Folder) -> set[str]:
    """Return the paths of a group's arrays that are missing in its consolidated metadata."""
    return set(_listed(storage)).difference(_consolidated(storage))


def _listed(storage: Folder) -> list[str]:
    found, waiting = [], [""]
    while waiting:
        path = waiting.pop()
        here = kind(storage, path)
        if here == "array":
            found.append(path)
        elif here == "group":
            if not storage.can_list:
                raise InputError(
                    f"{printable(storage.path)} is a group without consolidated metadata, and its"
                    " server lists nothing: name the array"
                )
            waiting += [f"{path}/{name}" if path else name for name in storage.subfolders(path)]
    return sorted(found)


def is_consolidated(storage: Folder) -> bool:
    """Whether a group has consolidated metadata."""
    new = _json(storage, "zarr.json").get("consolidated_metadata")
    return isinstance(new, dict) or storage.read(".zmetadata") is not None


def consolidated(storage: Folder, new: Mapping[str, bytes] = NOTHING) -> tuple[str, bytes]:
    """Return the key and the content of a group's consolidated metadata, updated.

    new: unpublished metadata, by key. Raises OutputError if the result is too large to be read.
    """
    nodes, waiting = {key.rpartition("/")[0] for key in new}, [""]
    while waiting:
        path = waiting.pop()
        if here := kind(storage, path):
            nodes.add(path)
        if here == "group":
            waiting += [f"{path}/{name}".lstrip("/") for name in storage.subfolders(path)]
    found: dict[str, Any] = {}
    if storage.read("zarr.json") is None:
        old = _json(storage, ".zmetadata").get("metadata")
        for path in sorted(nodes):
            for name in (".zarray", ".zgroup", ".zattrs"):
                key = f"{path}/{name}".lstrip("/")
                if key in new or storage.read(key) is not None:
                    found[key] = _json(storage, key, new)
                    if not found[key] and isinstance(old, dict):  # damaged: the old entry
                        found[key] = old.get(key, {})
        return ".zmetadata", _bytes({"metadata": found, "zarr_consolidated_format": 1})
    shell = {"kind": "inline", "must_understand": False}
    root = _json(storage, "zarr.json")
    before = _inline(root)
    for path in sorted(filter(None, nodes)):
        node = _json(storage, f"{path}/zarr.json", new)
        if "node_type" not in node:  # of version 2, or damaged: the old entry, if any
            node = before.get(path) or {}
        if node.get("node_type") == "group":
            node["consolidated_metadata"] = {**shell, "metadata": {}}
        if node:
            found[path] = node
    return "zarr.json", _bytes({**root, "consolidated_metadata": {**shell, "metadata": found}})


def _inline(root: dict[str, Any]) -> dict[str, Any]:
    """Return the consolidated metadata of a version 3 group, by path."""
    entries = root.get("consolidated_metadata")
    found = entries.get("metadata") if isinstance(entries, dict) else None
    return found if isinstance(found, dict) else {}


def require_growth(storage: Folder, new: Mapping[str, bytes]) -> None:
    """Raise OutputError if consolidated metadata that include `new` would be too large."""
    old = (storage.read(name) or b"" for name in ("zarr.json", ".zmetadata"))
    if is_consolidated(storage):
        _require_readable(b"".join((*old, *new.values())))


def _require_readable(body: bytes) -> None:
    if len(body) > LONGEST or _values(body) > _VALUES:
        raise OutputError(
            f"its consolidated metadata would have {len(body)} bytes and {_values(body)} values:"
            f" at most {LONGEST} and {_VALUES} are read"
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


def _json(storage: Folder, key: str, new: Mapping[str, bytes] = NOTHING) -> dict[str, Any]:
    """Parse metadata; {} if they are damaged, as `array_of` reports the error.

    Numbers become strings with the prefix _NUMBER, which `_bytes` writes as the same digits.
    """
    try:
        raw = new[key] if key in new else metadata(storage.read, key, storage.path)
        found = json.loads(raw or b"{}", parse_float=_number, parse_int=_number)
    except (ValueError, RecursionError) as exc:
        if isinstance(exc, InputError):
            raise
        return {}
    return found if isinstance(found, dict) else {}


def _number(text: str) -> str:
    return _NUMBER + text


def metadata(read: Read, key: str, called: str) -> bytes | None:
    """Read metadata; InputError if they have too many values for memory."""
    raw = read(key)
    if raw and _values(raw) > _VALUES:
        raise InputError(f"{printable(called)}: {key} has more than {_VALUES} values")
    return raw


def kind(storage: Folder, path: str) -> str:
    """Return "array" or "group" for a path in a store, "" if it is neither."""
    new, old_array, old_group = (f"{path}/{name}".lstrip("/") for name in ZARR_METADATA[:3])
    if storage.read(new) is not None:
        return "group" if _json(storage, new).get("node_type") == "group" else "array"
    if storage.read(old_array) is not None:
        return "array"
    return "group" if storage.read(old_group) is not None else ""
