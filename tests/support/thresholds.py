"""Thresholds that choose an algorithm, and values at which tiny arrays take all of them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from ndtool.arrays import sink
from ndtool.engine import tuning
from ndtool.formats import decoding, npz, streams
from ndtool.machine import threads
from ndtool.storage import descriptors, local, tempfiles

Table = Mapping[tuple[Any, str], int]  # the value of a module's constant
# Of the kernels: work items, partitions, tiles and threads.
KERNELS: Table = {
    (tuning, "WORK_ITEM"): 192, (tuning, "NON_TEMPORAL"): 100, (tuning, "CACHE_SIZE"): 128,
    (tuning, "SORTED_OUTPUT"): 1, (tuning, "LOCAL_FRACTION"): 2, (tuning, "MIN_SORTED"): 2, (tuning, "COMPILED_CALL"): 0,
    (threads, "MIN_WORK"): 1,
}  # fmt: skip
# The same for arrays of some kilobytes.
TEAMS: Table = {
    (tuning, "WORK_ITEM"): 1 << 15, (tuning, "NON_TEMPORAL"): 1 << 12, (tuning, "CACHE_SIZE"): 1 << 11,
    (tuning, "TILE"): 1 << 12, (tuning, "TEMPORARY_OUTPUT"): 0, (tuning, "MIN_SORTED"): 256, (tuning, "LONG_BATCH"): 32,
    (tuning, "SORTED_OUTPUT"): 0, (tuning, "LOCAL_FRACTION"): 2, (threads, "MIN_WORK"): 1,
}  # fmt: skip
# Of files and streams: what is mapped, read at once, and spooled.
STORAGE: Table = {
    (local, "MAP_THRESHOLD"): 16, (descriptors, "BLOCK_SIZE"): 48, (streams, "BLOCK_SIZE"): 48,
    (tempfiles, "MAX_IN_MEMORY"): 64, (sink, "BLOCK_SIZE"): 48, (decoding, "BLOCK_SIZE"): 48, (npz, "BLOCK_SIZE"): 48,
    (tuning, "WRITE_SIZE"): 96, (tuning, "FILE_SCRATCH"): 256,
}  # fmt: skip


@contextmanager
def patched_thresholds(*tables: Table) -> Iterator[None]:
    """Patch the thresholds in the tables."""
    with pytest.MonkeyPatch.context() as patch:
        for table in tables:
            for (module, name), value in table.items():
                patch.setattr(module, name, value)
        yield
