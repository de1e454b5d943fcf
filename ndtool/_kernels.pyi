"""Signatures of the compiled kernels; buffers are flat and of bytes."""

from typing import Any, final

Bytes = Any

@final
class Addressing:
    def __new__(
        cls,
        sizes: tuple[int, ...],
        strides: tuple[int, ...],
        per_batch: int,
        batch_sizes: tuple[int, ...],
        batch_strides: tuple[int, ...],
        negatives: bool,
    ) -> Addressing: ...

@final
class Layout:
    def __new__(
        cls, sizes: tuple[int, ...], strides: tuple[int, ...], item: int
    ) -> Layout: ...

@final
class Grid:
    units: int
    def __new__(
        cls,
        sizes: tuple[int, ...],
        index_strides: tuple[int, ...],
        data_strides: tuple[int, ...],
        along: tuple[int, int, int, int],
        across: tuple[int, int, int],
        item: int,
        negatives: bool,
    ) -> Grid: ...

def check(
    a: Addressing,
    indices: Bytes,
    kind: int,
    count: int,
    threads: int,
) -> int: ...
def find(
    a: Addressing,
    indices: Bytes,
    kind: int,
    count: int,
) -> tuple[int, int, int]: ...
def gather(
    a: Addressing,
    data: Bytes,
    origin: int,
    indices: Bytes,
    kind: int,
    out: Bytes,
    first: int,
    count: int,
    column: int,
    width: int,
    threads: int,
    streamed: bool,
) -> int: ...
def scatter(
    a: Addressing,
    out: Bytes,
    indices: Bytes,
    kind: int,
    updates: Bytes,
    first: int,
    count: int,
    column: int,
    width: int,
    pitch: int,
    code: int,
    op: int,
    threads: int,
    by_batches: bool,
) -> int: ...
def partition(
    rows: Addressing,
    indices: Bytes,
    kind: int,
    updates: Bytes,
    width: int,
    first: int,
    count: int,
    shift: int,
    scratch: Bytes,
    ends: Bytes,
    threads: int,
) -> int: ...
def apply_parts(
    data: Bytes,
    updates: Bytes,
    out: Bytes,
    scratch: Bytes,
    ends: Bytes,
    shift: int,
    width: int,
    rows: int,
    part: int,
    stop: int,
    code: int,
    op: int,
    windows: Bytes,
    threads: int,
    streamed: bool,
) -> None: ...
def gather_strided(
    a: Addressing,
    run: Layout,
    data: Bytes,
    origin: int,
    indices: Bytes,
    kind: int,
    out: Bytes,
    first: int,
    count: int,
    element: int,
    elements: int,
    threads: int,
) -> int: ...
def pack(
    layout: Layout,
    data: Bytes,
    origin: int,
    out: Bytes,
    first: int,
    count: int,
) -> None: ...
def gather_units(
    g: Grid,
    data: Bytes,
    origin: int,
    indices: Bytes,
    kind: int,
    out: Bytes,
    unit: int,
    stop: int,
    scratch: Bytes,
    threads: int,
) -> int: ...
def scatter_units(
    g: Grid,
    data: Bytes,
    out: Bytes,
    indices: Bytes,
    kind: int,
    updates: Bytes,
    unit: int,
    stop: int,
    code: int,
    op: int,
    scratch: Bytes,
    threads: int,
) -> int: ...
def copy(
    data: Bytes,
    out: Bytes,
    threads: int,
    streamed: bool,
) -> None: ...
def swap(
    buffer: Bytes,
    unit: int,
) -> None: ...
