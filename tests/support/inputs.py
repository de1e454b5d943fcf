"""Inputs, opened as a run opens them: read completely, or refused with an error."""

import os
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ndtool.arrays.source import ContiguousSource, Source
from ndtool.errors import InputError, NdtoolError
from ndtool.formats import locators
from ndtool.formats.streams import Streams

MAX_REFUSAL_MEMORY = 64 << 20  # bytes


@contextmanager
def open_input(argument: str, stdin: Streams | None = None, **options: Any) -> Iterator[Source]:
    """Open an input, and close it at the end."""
    with closing(locators.open_source(argument, stdin or Streams(), **options)) as source:
        yield source


@contextmanager
def feeding(content: bytes, sink: int | str, step: int = 1 << 16) -> Iterator[None]:
    """Write to a descriptor, or to a FIFO as soon as it is read, some bytes at once in a thread."""

    def write() -> None:
        with suppress(BrokenPipeError), open(sink, "wb", 0) as file:
            for start in range(0, len(content), step):
                file.write(content[start : start + step])

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@contextmanager
def piped(content: bytes, step: int = 1 << 16) -> Iterator[int]:
    """Yield the end of a pipe from which content is read."""
    read_end, write_end = os.pipe()
    with feeding(content, write_end, step):
        try:
            yield read_end
        finally:
            os.close(read_end)


def read_array(source: Source) -> Any:
    """Return a copy of the array of an open input."""
    metadata, buffer = source.metadata, source.load()
    assert buffer.readonly or not isinstance(source, ContiguousSource)  # else a copy
    extended = getattr(ml_dtypes, metadata.dtype.name, None)
    dtype = np.lib.format.descr_to_dtype(metadata.dtype.descr)
    flat = np.frombuffer(bytes(buffer), extended or dtype)
    return flat.reshape(metadata.shape, order=metadata.order)


def load(argument: str, stdin: Streams | None = None, **options: Any) -> Any:
    """Return the array of an input."""
    with open_input(argument, stdin, **options) as source:
        source.require_unchanged()
        return read_array(source)


def scalars_to_update(rng: np.random.Generator) -> dict[str, Any]:
    """Return data of 4 MiB, random tuples that select scalars, some of them twice, and updates."""
    return {
        "data": rng.random((1 << 10, 1 << 10), np.float32),
        "idx": rng.integers(-(1 << 10), 1 << 10, (50, 1000, 2)),
        "upd": rng.random((50, 1000), np.float32),
    }


def assert_refused(
    argument: str,
    reason: str,
    error_type: type[NdtoolError] = InputError,
    stdin: Streams | None = None,
) -> NdtoolError:
    """Check that an input is refused in little memory, by an error of one line; return the error."""
    tracemalloc.start()
    with pytest.raises(error_type, match=reason) as excinfo:
        locators.open_source(argument, stdin or Streams())
    assert tracemalloc.get_traced_memory()[1] < MAX_REFUSAL_MEMORY
    tracemalloc.stop()
    assert "\n" not in excinfo.value.message
    return excinfo.value
