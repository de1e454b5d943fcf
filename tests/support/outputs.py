"""Outputs, created as a run creates them: written in several ways, then committed or aborted."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from npyfile import ARRAY

from ndtool.arrays.source import ArrayMetadata
from ndtool.formats import outputs
from ndtool.publish import sinks
from ndtool.rules import dtypes
from ndtool.runs import direct

# The first lines of a program for another Python process.
CREATE_OUTPUT_SCRIPT = """
import os, sys
from ndtool.formats import table, locators, outputs
from ndtool.publish import sinks
from ndtool.arrays.source import ArrayMetadata
from ndtool.rules import dtypes
def created(name, count):
    metadata = ArrayMetadata(dtypes.from_code("|u1"), (count,), "C", (count,), {})
    return outputs.create(outputs.resolve(name, metadata))
"""


def metadata_of(array: Any) -> ArrayMetadata:
    """Return the metadata of an output for an array."""
    return ArrayMetadata(dtypes.from_numpy(array.dtype), array.shape, "C", array.shape, {})


def open_sink(target: str, array: Any = ARRAY, dry: bool = False, **options: Any) -> Any:
    """Return a sink for an array."""
    return outputs.create(outputs.resolve(target, metadata_of(array), **options), dry_run=dry)


@contextmanager
def temporary_sink(target: str, array: Any = ARRAY, **options: Any) -> Iterator[Any]:
    """Yield a sink for an array; abort it unless committed."""
    out = open_sink(target, array, **options)
    try:
        yield out
    finally:
        out.abort()


def list_preserved_members(target: str, array: Any = ARRAY, **options: Any) -> Any:
    """Create a sink as a dry run does, and abort it; return the members that it preserves."""
    with temporary_sink(target, array, dry=True, **options) as out:
        return out.preserved


def work_items(raw: Any) -> list[tuple[int, Any]]:
    """Split bytes into work items of 7 bytes, or 70,001 bytes for large arrays."""
    step = 7 if len(raw) < 1000 else 70_001
    return [(offset, raw[offset : offset + step]) for offset in range(0, len(raw), step)]


def fill(out: Any, array: Any, mode: str = "write") -> None:
    """Write an array to a sink: at once, in work items, or through output_buffer."""
    raw = memoryview(array.tobytes())
    if mode == "map":
        with direct.output_buffer(out) as (buffer, _):
            buffer[:] = raw
    elif mode == "items":
        for offset, item in work_items(raw):
            out.write(offset, item)
    else:
        assert mode == "write"
        out.write(0, raw)


def save(target: str, array: Any = ARRAY, mode: str = "write", **options: Any) -> Any:
    """Write an array as a run does; return the preserved members."""
    with temporary_sink(target, array, **options) as out:
        assert out.metadata.nbytes == array.nbytes
        fill(out, array, mode)
        sinks.commit(out)
        return out.preserved
