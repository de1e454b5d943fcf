"""Type stubs of the compiled kernels. Buffers are one-dimensional, of bytes."""

from collections.abc import Callable
from typing import Any, final

from numpy.typing import NDArray

MADVISE_BYTES: int
MAX_BYTE_IDS: int
OUT_OF_BOUNDS: int
BLOCK: int
GROUP: int
LINE: int
MAX_RANK: int
PAGE: int

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
        repeats: int = 1,
    ) -> Addressing: ...

@final
class Layout:
    pieces: int
    @property
    def may_overlap(self) -> bool: ...
    def __new__(cls, sizes: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> Layout: ...

@final
class Grid:
    @property
    def units(self) -> int: ...
    @property
    def unit_bytes(self) -> int: ...
    @property
    def scratch(self) -> int: ...
    @property
    def is_packing_faster(self) -> bool: ...
    @property
    def has_contiguous_rows(self) -> bool: ...
    def __new__(
        cls,
        data: tuple[int, ...],
        indices: tuple[int, ...],
        strides: tuple[int, ...],
        axis: int,
        itemsize: int,
        negatives: bool,
        tile_bytes: int,
        threads: int = 1,
    ) -> Grid: ...
    def divided(self, threads: int) -> Grid: ...

@final
class Indices:
    @property
    def itemsize(self) -> int: ...
    @property
    def out_of_bounds(self) -> str: ...
    @property
    def pad(self) -> int | None: ...
    @property
    def negatives(self) -> bool: ...
    @property
    def skips(self) -> bool: ...
    def __new__(
        cls,
        buffer: Any,
        itemsize: int,
        unsigned: bool,
        swapped: bool,
        out_of_bounds: str = "error",
        fill_bytes: Any = None,
        pad: int | None = None,
        negatives: bool = True,
    ) -> Indices: ...
    def since(self, position: int) -> Indices: ...
    def value(self, position: int) -> int: ...

@final
class WorkItem:
    first: int
    tuples: int
    column: int
    width: int
    def __new__(cls, first: int, tuples: int, column: int, width: int) -> WorkItem: ...
    def byte_range(self, slice_bytes: int) -> slice[int, int, None]: ...

@final
class UpdateCounts:
    tuples: int
    def __new__(
        cls, counts: Any, itemsize: int, table: Any = None, tuples: int = 0, factor: int = 0
    ) -> UpdateCounts: ...

@final
class UpdateSpec:
    pitch: int
    current: str
    is_counted: bool
    def __new__(
        cls,
        updates: Any,
        pitch: int,
        reduction: str,
        name: str,
        neutral: bytes = b"",
        count_itemsize: int = 4,
        current: str = "included",
        counts: UpdateCounts | None = None,
    ) -> UpdateSpec: ...
    def exact(self, threads: int) -> UpdateSpec: ...
    def passes(self, counts: UpdateCounts | None) -> tuple[UpdateSpec, ...]: ...
    def window(self, nbytes: int) -> int: ...

@final
class KernelOptions:
    threads: int
    non_temporal: bool
    def __new__(
        cls, threads: int, non_temporal: bool = False, scratch_memory: Any = None
    ) -> KernelOptions: ...

@final
class RadixPartitions:
    partitions: int
    def __new__(
        cls, rows: int, width: int, shift: int, scratch: Any, ends: Any
    ) -> RadixPartitions: ...
    def byte_range(self, first: int, stop: int) -> slice[int, int, None]: ...

def check(a: Addressing, indices: Indices, first: int, count: int, threads: int) -> int: ...
def sample_locality(a: Addressing, indices: Indices, count: int) -> float: ...
def locate_out_of_bounds(
    a: Addressing, indices: Indices, first: int, count: int
) -> tuple[int, int, int]: ...
def find_duplicate(
    a: Addressing,
    indices: Indices,
    first: int,
    count: int,
    low: int,
    size: int,
    bits: memoryview | None,
    key: int = 0,
) -> tuple[int, int]: ...
def gather(
    a: Addressing,
    data: Any,
    origin: int,
    indices: Indices,
    item: WorkItem,
    out: Any,
    options: KernelOptions,
    layout: Layout | None = None,
) -> int: ...
def scatter(
    a: Addressing,
    indices: Indices,
    item: WorkItem,
    spec: UpdateSpec,
    out: Any,
    by_batches: bool,
    options: KernelOptions,
) -> int: ...
def scatter_batches(
    a: Addressing,
    indices: Indices,
    first: int,
    count: int,
    spec: UpdateSpec,
    data: Any,
    out: Any,
    options: KernelOptions,
) -> int: ...
def partition(
    a: Addressing,
    indices: Indices,
    first: int,
    count: int,
    spec: UpdateSpec,
    partitions: RadixPartitions,
    options: KernelOptions,
) -> int: ...
def apply_partitions(
    partitions: RadixPartitions,
    spec: UpdateSpec,
    data: Any,
    out: Any,
    first: int,
    stop: int,
    options: KernelOptions,
) -> None: ...
def copy_pieces(
    layout: Layout, data: Any, origin: int, out: Any, first: int, stop: int, options: KernelOptions
) -> None: ...
def gather_tiles(
    g: Grid,
    data: Any,
    origin: int,
    indices: Indices,
    unit: int,
    stop: int,
    out: Any,
    options: KernelOptions,
) -> int: ...
def measure_wake() -> int: ...
def divide_means(
    counts: UpdateCounts,
    out: Any,
    width: int,
    name: str,
    include_self: bool,
    options: KernelOptions,
) -> None: ...
def scatter_tiles(
    g: Grid,
    indices: Indices,
    spec: UpdateSpec,
    data: Any,
    out: Any,
    unit: int,
    stop: int,
    options: KernelOptions,
) -> int: ...
def will_need(a: Addressing, data: Any, origin: int, indices: Indices, item: WorkItem) -> int: ...
def copy(data: Any, out: Any, options: KernelOptions) -> None: ...
def swap(buffer: Any, unit: int) -> None: ...
def interleave(planes: Any, out: Any, count: int) -> None: ...

@final
class Boxes:
    partitions: int
    row_bytes: int
    def __new__(cls, sizes: tuple[int, ...], steps: tuple[int, ...]) -> Boxes: ...

def partition_ids(
    a: Addressing,
    indices: Indices,
    origin: int,
    item: WorkItem,
    boxes: Boxes,
    ids: Any,
    local: Any,
    offsets: Any,
) -> int: ...
def permute(ids: Any, offsets: Any, rows: Any, out: Any, count: int, inverse: bool) -> int: ...

@final
class AdmissionLock:
    def __enter__(self) -> AdmissionLock: ...
    def __exit__(self, *failure: object) -> None: ...

def end_process(number: int) -> None: ...
def install_handler(number: int, status: int, fd: int, message: bytes) -> None: ...
def register_file(folder: int, name: bytes) -> int: ...
def unregister_file(slot: int) -> None: ...
def set_published(published: bool) -> None: ...

@final
class TypedCall:
    def __new__(
        cls,
        operator: str,
        attributes: Any,
        threads: int,
        indices: Indices,
        stored: Indices | None,
        spec: UpdateSpec | None,
        itemsize: int,
        data_swap: int,
        updates_swap: int,
    ) -> TypedCall: ...

@final
class Calls:
    def __new__(
        cls,
        array: type,
        functions: Any,
        make: Any,
        limit_threads: Any,
        algorithms: Any,
        fallback: Any,
        tuning: dict[str, Any],
    ) -> Calls: ...
    @property
    def call(self) -> Callable[..., NDArray[Any]]: ...
    def execute(
        self, data: Any, indices: Any, updates: Any, out: Any, /, *call: Any
    ) -> NDArray[Any] | None: ...
