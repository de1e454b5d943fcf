"""Signatures of the compiled kernels; buffers are flat and of bytes."""

from typing import Any, final

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
    strips: int
    def __new__(cls, sizes: tuple[int, ...], strides: tuple[int, ...], item: int) -> Layout: ...

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

def check(a: Addressing, indices: Any, kind: int, count: int, threads: int) -> int: ...
def find(a: Addressing, indices: Any, kind: int, count: int) -> tuple[int, int, int]: ...
def gather(
    a: Addressing,
    data: Any,
    origin: int,
    indices: Any,
    kind: int,
    out: Any,
    first: int,
    count: int,
    column: int,
    width: int,
    threads: int,
    streamed: bool,
) -> int: ...
def scatter(
    a: Addressing,
    out: Any,
    indices: Any,
    kind: int,
    updates: Any,
    first: int,
    count: int,
    column: int,
    width: int,
    pitch: int,
    code: int,
    op: int,
    threads: int,
    by_batches: bool,
    streamed: bool,
) -> int: ...
def scatter_lines(
    a: Addressing,
    data: Any,
    line: int,
    out: Any,
    indices: Any,
    kind: int,
    updates: Any,
    first: int,
    count: int,
    width: int,
    code: int,
    op: int,
    windows: Any,
    threads: int,
    streamed: bool,
) -> int: ...
def partition(
    rows: Addressing,
    indices: Any,
    kind: int,
    updates: Any,
    width: int,
    first: int,
    count: int,
    shift: int,
    scratch: Any,
    ends: Any,
    threads: int,
    streamed: bool,
) -> int: ...
def apply_parts(
    data: Any,
    updates: Any,
    out: Any,
    scratch: Any,
    ends: Any,
    shift: int,
    width: int,
    rows: int,
    part: int,
    stop: int,
    code: int,
    op: int,
    windows: Any,
    threads: int,
    streamed: bool,
) -> None: ...
def gather_strided(
    a: Addressing,
    run: Layout,
    data: Any,
    origin: int,
    indices: Any,
    kind: int,
    out: Any,
    first: int,
    count: int,
    element: int,
    elements: int,
    threads: int,
) -> int: ...
def pack(layout: Layout, data: Any, origin: int, out: Any, first: int, count: int) -> None: ...
def copy_strips(
    layout: Layout, data: Any, origin: int, out: Any, strip: int, stop: int, threads: int
) -> None: ...
def gather_units(
    g: Grid,
    data: Any,
    origin: int,
    indices: Any,
    kind: int,
    out: Any,
    unit: int,
    stop: int,
    scratch: Any,
    threads: int,
    streamed: bool,
) -> int: ...
def scatter_units(
    g: Grid,
    data: Any,
    out: Any,
    indices: Any,
    kind: int,
    updates: Any,
    unit: int,
    stop: int,
    code: int,
    op: int,
    scratch: Any,
    threads: int,
    streamed: bool,
) -> int: ...
def copy(data: Any, out: Any, threads: int, streamed: bool) -> None: ...
def swap(buffer: Any, unit: int) -> None: ...
def will_need(
    a: Addressing,
    data: Any,
    origin: int,
    indices: Any,
    kind: int,
    first: int,
    count: int,
    column: int,
    width: int,
) -> int: ...
def end_on(number: int, status: int, words: bytes) -> None: ...
def remove_at_end(folder: int, name: bytes) -> None: ...
def settle(settled: bool) -> None: ...
def startable(wanted: int) -> int: ...
