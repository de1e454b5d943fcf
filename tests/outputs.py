"""Outputs as a run creates them: written in several ways, published or dropped."""

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
PROGRAM = """
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


def opened(target: str, array: Any = ARRAY, dry: bool = False, **options: Any) -> Any:
    """Return a sink for an array."""
    return outputs.create(outputs.resolve(target, metadata_of(array), **options), dry_run=dry)


@contextmanager
def written(target: str, array: Any = ARRAY, **options: Any) -> Iterator[Any]:
    """Yield a sink for an array; drop it unless committed."""
    out = opened(target, array, **options)
    try:
        yield out
    finally:
        out.abort()


def checked(target: str, array: Any = ARRAY, **options: Any) -> Any:
    """Create a sink as a dry run does, and drop it; return the members to preserve."""
    with written(target, array, dry=True, **options) as out:
        return out.preserved


def work_items(raw: Any) -> list[tuple[int, Any]]:
    """Split bytes into work items of odd sizes, the same number for large arrays."""
    step = 7 if len(raw) < 1000 else 70_001
    return [(at, raw[at : at + step]) for at in range(0, len(raw), step)]


def fill(out: Any, array: Any, mode: str = "write") -> None:
    """Write an array to a sink: at once, in work items, or through output_buffer."""
    raw = memoryview(array.tobytes())
    if mode == "map":
        with direct.output_buffer(out) as (buffer, _):
            buffer[:] = raw
    elif mode == "items":
        for at, item in work_items(raw):
            out.write(at, item)
    else:
        assert mode == "write"
        out.write(0, raw)


def save(target: str, array: Any = ARRAY, mode: str = "write", **options: Any) -> Any:
    """Write an array as a run does; return the preserved members."""
    with written(target, array, **options) as out:
        assert out.metadata.nbytes == array.nbytes
        fill(out, array, mode)
        sinks.commit(out)
        return out.preserved
