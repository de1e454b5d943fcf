"""Files of the inputs and outputs of a model's nodes, which the command `explain` can read."""

import os
import re
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndtool.arrays.sink import Sink, write_array
from ndtool.arrays.source import ArrayMetadata
from ndtool.errors import OutputError, UsageError, option, printable
from ndtool.formats import outputs
from ndtool.inmemory.buffers import as_bytes
from ndtool.publish import sinks
from ndtool.rules import dtypes
from ndtool.storage import locations
from ndtool.storage.descriptors import failure

_MAX_NAME = 60  # characters of a node's name in a file name


def prepare(folder: str) -> str:
    """Create a folder for tensors, unless it exists; return its path."""
    directory = locations.local_path(folder)
    if locations.is_url(directory):
        raise UsageError(f"{printable(folder)} is a URL: expected a directory for tensors")
    if not directory:
        raise UsageError(f"{option('save')} is empty: expected a directory for tensors")
    try:
        os.makedirs(directory, exist_ok=True)
    except FileExistsError:
        raise OutputError(f"{printable(folder)} is not a directory") from None
    except OSError as exc:
        raise failure(exc, folder, OutputError) from None
    except ValueError as exc:
        raise OutputError(f"{printable(folder)} is not a valid file name: {exc}") from None
    return directory


def save(
    folder: str, node_index: int, node: str, tensors: dict[str, NDArray[Any]]
) -> dict[str, str]:
    """Write the tensors of a node, all or none, and return their files by role.

    A file's name is the node's number, its name with other characters than letters and digits
    replaced, and the role.
    """
    file_stem = re.sub(r"[^A-Za-z0-9_-]+", "_", node)[:_MAX_NAME].strip("_-") or "node"
    files = {
        role: os.path.join(folder, f"{node_index + 1}-{file_stem}.{role}.npy") for role in tensors
    }
    with ExitStack() as stack:
        open_sinks: list[Sink] = []
        for role, array in tensors.items():
            contiguous = np.ascontiguousarray(_as_fixed_strings(array)).reshape(array.shape)
            dtype = dtypes.from_numpy(contiguous.dtype)
            metadata = ArrayMetadata(dtype, contiguous.shape, "C", contiguous.shape, {})
            sink: Sink = outputs.create(outputs.resolve(f"npy:{files[role]}", metadata))
            stack.callback(sink.abort)
            write_array(as_bytes(contiguous).data, sink)
            open_sinks.append(sink)
        sinks.commit(*open_sinks)
    return files


def _as_fixed_strings(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array of Python strings as fixed-length strings, which files can store."""
    if not array.dtype.hasobject:
        return array
    texts = [
        value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        for value in array.flat
    ]
    return np.array(texts, np.str_).reshape(array.shape)
