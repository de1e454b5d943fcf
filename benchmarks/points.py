"""Points: calls drawn at random from what people do, each beside the fastest peer.

    python benchmarks/run.py --points 300 --seed 1

Seven operators, ten dtypes, slices of 1 B to 1 MiB, 1 to 10^7 tuples, index dtypes, distributions,
modes, reductions, in place, out=, transposed and reversed inputs, one thread and two. ndtool's bits
are compared with NumPy's sequential loop; every peer is called in alternation with ndtool. A peer
holds its arrays beforehand; only a layout that it cannot read is copied within the call.
"""

import gc
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from statistics import geometric_mean, median
from typing import Any, NamedTuple

import numpy as np
from problems import Array, update
from timing import Call, wait_until_idle

import ndtool

OPERATORS = (
    "gather", "scatter", "gather_nd", "scatter_nd", "gather_elements", "scatter_elements",
    "tensor_scatter",
)  # fmt: skip
DTYPES = ("u1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16", "?")
INDEX_DTYPES = ("i8", "i8", "i8", "i4", "u4", "i2", "u1")
DISTRIBUTIONS = ("uniform", "uniform", "zipf", "sorted", "clustered")
LAYOUTS = ("C", "C", "C", "C", "F", "reversed", "stepped")
MAX_BYTES = 1 << 28  # of an array of a point
SETTLE = 0.006  # seconds after a sample, until the system has counted all threads
MIN_SAMPLE = 0.002  # seconds: shorter calls are repeated within a sample
BUCKETS = (0.03, 0.3, 3.0, 30.0, math.inf)  # upper bounds of the fastest peer's time, in ms


class Point(NamedTuple):
    """One call. target: "new", "out" or "in place". indices: without the last axis of tuples."""

    operator: str
    data: Array
    indices: tuple[Array, ...]  # the components of the tuples
    updates: Array | None
    axis: int
    reduction: str
    mode: str
    target: str
    threads: int
    about: str

    @property
    def scatters(self) -> bool:
        return self.updates is not None

    @property
    def positions(self) -> tuple[Any, ...]:
        """The index of data by which NumPy selects the same elements."""
        bounded = tuple(
            self.bounded(index, self.data.shape[self.axis + k])
            for k, index in enumerate(self.indices)
        )
        if not self.operator.endswith("elements"):
            return (slice(None),) * self.axis + bounded
        grid = list(np.ogrid[tuple(map(slice, self.indices[0].shape))])
        grid[self.axis] = bounded[0]
        return tuple(grid)

    def bounded(self, index: Array, size: int) -> Array:
        """Return indices as their mode does."""
        if self.mode == "wrap":
            return index.astype("i8") % size
        return np.clip(index.astype("i8"), 0, size - 1) if self.mode == "clip" else index


def draw(rng: np.random.Generator) -> Point:
    """Draw a point; memory limits its arrays."""
    while True:
        point = _draw(rng)
        if point is not None:
            return point


def _draw(rng: np.random.Generator) -> Point | None:
    operator, dtype = str(rng.choice(OPERATORS)), np.dtype(str(rng.choice(DTYPES)))
    count = int(10 ** rng.uniform(0, 7))
    width = max(1, int(2 ** rng.uniform(0, 20)) // dtype.itemsize)
    rows = int(10 ** rng.uniform(0.5, 7))
    k = 1
    if operator == "tensor_scatter":
        return _draw_cache(rng, dtype, count, width)
    if operator.endswith("elements"):
        axis, lines = int(rng.integers(0, 2)), max(1, int(2 ** rng.uniform(0, 12)))
        length, rows = max(1, count // lines), max(1, min(rows, 1 << 20))
        shape = (rows, lines) if axis == 0 else (lines, rows)
        selected = (length, lines) if axis == 0 else (lines, length)
    else:
        axis = int(rng.integers(0, 2)) if operator in ("gather", "scatter") else 0
        outer = max(1, int(2 ** rng.uniform(0, 10))) if axis else 1
        k = int(rng.integers(1, 4)) if operator.endswith("_nd") else 1
        sizes = (rows,) if k == 1 else (max(2, round(rows ** (1 / k))),) * k
        slice_shape = () if rng.random() < 0.4 else (width,)
        shape = (*((outer,) if axis else ()), *sizes, *slice_shape)
        selected = (count, *slice_shape) if axis == 0 else (outer, count, *slice_shape)
    if max(math.prod(shape), math.prod(selected)) * max(dtype.itemsize, 8) > MAX_BYTES:
        return None
    scatters = operator.startswith("scatter")
    index_dtype = np.dtype(str(rng.choice(INDEX_DTYPES)))
    mode = str(rng.choice(("error", "error", "error", "clip", "wrap")))
    index_shape = selected if operator.endswith("elements") else (count,)
    distribution = str(rng.choice(DISTRIBUTIONS))
    indices = []
    for d in range(k):
        size = min(shape[axis + d], np.iinfo(index_dtype).max)
        index = _draw_indices(rng, size, index_shape, distribution)
        if mode != "error" and index_dtype.kind == "i":
            index[rng.random(index_shape) < 0.01] += size
        if index.max(initial=0) > np.iinfo(index_dtype).max:
            return None
        indices.append(index.astype(index_dtype))
    layout = str(rng.choice(LAYOUTS))
    names = ("none", "add", "add", "mul", "max", "min")
    reduction = str(rng.choice(names[:4] if dtype.kind == "c" else names)) if scatters else "none"
    if reduction == "none" and scatters and distribution == "zipf":
        reduction = "add"  # peers do not promise which of several updates remains
    updates = _values(rng, dtype, selected) if scatters else None
    data = _in_layout(_values(rng, dtype, shape), layout)
    target = str(rng.choice(("new", "out", "in place" if scatters and layout == "C" else "new")))
    threads = int(rng.integers(1, 3))
    about = f"{operator} {dtype}{list(shape)} {layout}, {index_dtype}{list(index_shape)}x{k}"
    about += f" {distribution} axis {axis}, {mode}, {reduction}, {target}, {threads} threads"
    return Point(
        operator, data, tuple(indices), updates, axis, reduction, mode, target, threads, about
    )


def _draw_cache(rng: np.random.Generator, dtype: np.dtype, count: int, width: int) -> Point | None:
    """Draw a call of tensor_scatter: new keys of a decoder's cache."""
    batches, length = int(2 ** rng.uniform(0, 8)), int(2 ** rng.uniform(3, 12))
    width = min(width, 4096)
    n = int(rng.integers(1, min(length, 1 + count)) if min(length, 1 + count) > 1 else 1)
    shape, new = (batches, length, width), (batches, n, width)
    if math.prod(shape) * dtype.itemsize > MAX_BYTES:
        return None
    first = rng.integers(0, length - n + 1, batches)
    target = str(rng.choice(("new", "in place")))
    threads = int(rng.integers(1, 3))
    about = f"tensor_scatter {dtype}{list(shape)} {n} new, {target}, {threads} threads"
    data, updates = _values(rng, dtype, shape), _values(rng, dtype, new)
    return Point(
        "tensor_scatter", data, (first,), updates, 1, "none", "linear", target, threads, about
    )


def _draw_indices(
    rng: np.random.Generator, size: int, shape: tuple[int, ...], distribution: str
) -> Array:
    if distribution == "zipf":
        return np.minimum(rng.zipf(1.2, shape) - 1, size - 1)
    if distribution == "clustered":
        starts = rng.integers(0, size, -(-math.prod(shape) // 64))
        near = starts[:, None] + rng.integers(0, 64, (len(starts), 64))
        return np.minimum(near.ravel()[: math.prod(shape)], size - 1).reshape(shape)
    index = rng.integers(0, size, shape)
    return np.sort(index, axis=0) if distribution == "sorted" else index


def _values(rng: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...]) -> Array:
    """Return small whole numbers, whose sums most orders round alike."""
    return rng.integers(0, 3, shape, np.int8).astype(dtype)


def _in_layout(array: Array, layout: str) -> Array:
    if layout == "F":
        return np.asfortranarray(array)
    if layout == "reversed":
        return np.ascontiguousarray(array[::-1])[::-1]
    if layout == "stepped":
        double = np.zeros((2 * array.shape[0], *array.shape[1:]), array.dtype)
        double[::2] = array
        return double[::2]
    return array


def expected(p: Point) -> Array:
    """Return the result of the sequential loop, by NumPy."""
    return _scatter(p, np.array(p.data, order="C")) if p.scatters else p.data[p.positions]


def _scatter(p: Point, out: Array) -> Array:
    if p.operator == "tensor_scatter":
        for batch, first in enumerate(p.indices[0]):
            out[batch, first : first + p.updates.shape[1]] = p.updates[batch]
    else:
        update(out, p.positions, p.updates, p.reduction)
    return out


def ndtool_call(p: Point) -> Call:
    """Return ndtool's call of a point."""
    operator = getattr(ndtool, p.operator)
    options: dict[str, Any] = {"threads": p.threads}
    if p.mode in ("clip", "wrap"):
        options["out_of_bounds"] = p.mode
    if p.reduction != "none":
        options["reduction"] = p.reduction
    if p.operator == "tensor_scatter":
        arguments: tuple[Any, ...] = (p.updates, p.indices[0], 1)
    else:
        index = np.stack(p.indices, -1) if p.operator.endswith("_nd") else p.indices[0]
        arguments = (index,) if p.updates is None else (index, p.updates)
        if not p.operator.endswith("_nd"):
            options["axis"] = p.axis
    data = p.data
    if p.target == "in place":
        data = options["out"] = p.data.copy()
    elif p.target == "out":
        shape = p.data.shape if p.scatters else expected(p).shape
        options["out"] = np.empty(shape, data.dtype)
    return lambda: operator(data, *arguments, **options)


def numpy_call(p: Point) -> Call:
    in_place = p.data.copy() if p.target == "in place" else None
    if p.scatters:
        return lambda: _scatter(p, np.array(p.data, order="C") if in_place is None else in_place)
    if p.operator == "gather":
        mode = {"error": "raise"}.get(p.mode, p.mode)
        out = np.empty(expected(p).shape, p.data.dtype) if p.target == "out" else None
        return lambda: np.take(p.data, p.indices[0], p.axis, out=out, mode=mode)
    if p.operator == "gather_elements" and p.mode == "error":
        return lambda: np.take_along_axis(p.data, p.indices[0], p.axis)
    return lambda: p.data[p.positions]


def torch_call(p: Point) -> Call | None:
    import torch

    if p.mode not in ("error", "linear") or p.operator == "tensor_scatter":
        return None
    if min(p.data.strides, default=1) < 0 or p.indices[0].dtype not in ("i8", "i4", "i2", "u1"):
        return None
    torch.set_num_threads(p.threads)
    data = torch.from_numpy(p.data.copy() if p.target == "in place" else p.data)
    index = [torch.from_numpy(i.astype("i8")) for i in p.indices]
    axis, updates = p.axis, None if p.updates is None else torch.from_numpy(p.updates)
    suffix = "_" if p.target == "in place" else ""
    if p.operator == "gather":
        return lambda: torch.index_select(data, axis, index[0])
    if p.operator == "gather_elements":
        return lambda: torch.gather(data, axis, index[0])
    if p.operator == "gather_nd":
        return lambda: data[tuple(index)]
    if p.operator == "scatter_nd":
        if p.reduction not in ("none", "add"):
            return None
        method = getattr(data, f"index_put{suffix}")
        return lambda: method(tuple(index), updates, accumulate=p.reduction == "add")
    name = "index" if p.operator == "scatter" else "scatter"
    reduce = {"mul": "prod", "max": "amax", "min": "amin"}.get(p.reduction)
    if reduce:
        method = getattr(data, f"{name}_reduce{suffix}")
        return lambda: method(axis, index[0], updates, reduce)
    copy = "index_copy" if name == "index" else "scatter"
    method = getattr(data, f"{name}_add{suffix}" if p.reduction == "add" else f"{copy}{suffix}")
    return lambda: method(axis, index[0], updates)


def jax_call(p: Point) -> Call | None:
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)  # else it moves half of the bytes of 64-bit elements
    if p.target == "in place" or p.operator == "tensor_scatter":
        return None
    mode = {"wrap": "wrap"}.get(p.mode, "clip")
    data, index = p.data, [jnp.asarray(i) for i in p.indices]
    if data.flags.c_contiguous:
        data = jnp.asarray(data)
    updates = None if p.updates is None else jnp.asarray(p.updates)
    if p.operator == "gather_elements":
        compiled = jax.jit(lambda d, i, u: jnp.take_along_axis(d, i[0], p.axis, mode=mode))
    elif p.operator == "scatter_elements":
        return None
    else:
        name = {"none": "set", "mul": "multiply"}.get(p.reduction, p.reduction)
        prefix = (slice(None),) * p.axis

        def run(d: Any, i: Any, u: Any) -> Any:
            at = d.at[(*prefix, *i)]
            return at.get(mode=mode) if u is None else getattr(at, name)(u, mode=mode)

        compiled = jax.jit(run)
    return lambda: compiled(data, index, updates).block_until_ready()


def polars_call(p: Point) -> Call | None:
    import polars

    if p.operator != "gather" or p.data.ndim != 1 or p.mode != "error" or p.data.dtype.kind == "c":
        return None
    column, index = polars.Series(p.data), polars.Series(p.indices[0])
    if not p.data.flags.c_contiguous:
        return lambda: polars.Series(p.data).gather(index)
    return lambda: column.gather(index)


def pyarrow_call(p: Point) -> Call | None:
    import pyarrow

    if p.operator != "gather" or p.data.ndim != 1 or p.mode != "error" or p.data.dtype.kind == "c":
        return None
    column, index = pyarrow.array(p.data), pyarrow.array(p.indices[0])
    if not p.data.flags.c_contiguous:
        return lambda: pyarrow.array(p.data).take(index)
    return lambda: column.take(index)


def onnxruntime_call(p: Point) -> Call | None:
    import onnxruntime
    from peers import onnx_session

    if p.mode != "error" or p.target == "in place" or p.operator in ("scatter", "tensor_scatter"):
        return None
    if p.data.dtype.kind == "c" or (p.data.dtype.kind == "b" and p.reduction != "none"):
        return None  # it refuses reductions of bool in its threads, which can end the process
    index = np.stack(p.indices, -1) if p.operator.endswith("_nd") else p.indices[0]
    operands = {"data": np.ascontiguousarray(p.data), "indices": index.astype("i8")}
    if p.updates is not None:
        operands["updates"] = p.updates
    attributes: dict[str, Any] = {} if p.operator.endswith("_nd") else {"axis": p.axis}
    if p.scatters:
        attributes["reduction"] = p.reduction
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = p.threads, 4
    name = "".join(map(str.capitalize, p.operator.split("_"))).replace("Nd", "ND")
    session = onnx_session(options, name, attributes, operands)
    if not p.data.flags.c_contiguous:
        return lambda: session.run(None, operands | {"data": np.ascontiguousarray(p.data)})
    return lambda: session.run(None, operands)


PEERS: dict[str, Callable[[Point], Call | None]] = {
    "numpy": numpy_call, "torch": torch_call, "jax": jax_call, "polars": polars_call,
    "pyarrow": pyarrow_call, "onnxruntime": onnxruntime_call,
}  # fmt: skip


class Times(NamedTuple):
    """The median processor time and the least wall time of a call, in ms.

    Threads are counted when they block or at a tick of the system's clock: SETTLE is longer.
    """

    processor: float
    wall: float


def measure(calls: dict[str, Call], rounds: int = 7) -> dict[str, Times]:
    """Time calls in alternation; slow ones less often."""
    processor: dict[str, list[float]] = {name: [] for name in calls}
    wall: dict[str, list[float]] = {name: [] for name in calls}
    loops, spent = {}, 0.0
    for name, call in calls.items():
        start = time.perf_counter()
        call()
        loops[name] = max(1, min(1000, int(MIN_SAMPLE / (time.perf_counter() - start))))
    for _ in range(rounds):
        for name, call in calls.items():
            call()  # not timed: others have evicted its arrays from the caches
            used, start = time.process_time(), time.perf_counter()
            for _ in range(loops[name]):
                call()
            elapsed = time.perf_counter() - start
            time.sleep(SETTLE)
            processor[name].append((time.process_time() - used) / loops[name] * 1e3)
            wall[name].append(elapsed / loops[name] * 1e3)
            spent += elapsed
            wait_until_idle(SETTLE)  # else threads that spin would be counted in the next sample
        if spent > 4:
            break
    return {name: Times(median(processor[name]), min(wall[name])) for name in calls}


class Result(NamedTuple):
    """A point's times, the fastest peer by each clock, and whether ndtool has the loop's bits."""

    point: str
    ndtool: Times
    peer: str
    fastest: Times
    is_exact: bool

    @property
    def ratio(self) -> float:
        return self.fastest.processor / max(self.ndtool.processor, 1e-9)

    @property
    def wall_ratio(self) -> float:
        return self.fastest.wall / self.ndtool.wall


def limit_processors(cpus: set[int]) -> None:
    """Run all threads on some processors: not every peer has a setting for its threads."""
    for thread in os.listdir("/proc/self/task") if hasattr(os, "sched_setaffinity") else ():
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread), cpus)


def measure_point(p: Point, names: list[str]) -> Result:
    calls: dict[str, Call] = {}
    for name in names:
        try:
            call = PEERS[name](p)
            if call is not None:
                call()
                calls[name] = call
        except Exception:  # a peer lacks the type, or is not installed
            continue
    first = ndtool_call(p)()
    is_exact = np.ascontiguousarray(first).tobytes() == expected(p).tobytes()
    calls["ndtool"] = ndtool_call(p)
    times = measure(calls)
    own = times.pop("ndtool")
    peer = min(times, key=lambda name: times[name].processor)
    fastest = Times(times[peer].processor, min(t.wall for t in times.values()))
    return Result(p.about, own, peer, fastest, is_exact)


def run(seed: int, count: int, names: list[str] | None = None) -> int:
    """Draw and measure points; print their distribution, and the worst twenty."""
    rng, results = np.random.default_rng(seed), []
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    gc.disable()
    for number in range(count):
        point = draw(rng)
        limit_processors(set(cpus[: point.threads]))
        result = measure_point(point, names or list(PEERS))
        results.append(result)
        print(f"{number:4} {_line(result)}", flush=True)
        gc.collect()
    ratios = [r.ratio for r in results]
    walls = [r.wall_ratio for r in results]
    print(
        f"\n{count} points, seed {seed}: geometric mean {geometric_mean(ratios):.2f} of processor"
    )
    print(f"time, {geometric_mean(walls):.2f} of wall time, {sum(r < 1 for r in ratios)} below 1,")
    print(
        f"{sum(r < 0.4 for r in ratios)} below 0.4; by wall time {sum(r < 1 for r in walls)} and"
        f" {sum(r < 0.4 for r in walls)}; {sum(not r.is_exact for r in results)} wrong\n"
    )
    print("| fastest peer | points | processor | wall | below 1 |\n|---|---|---|---|---|")
    lower = 0.0
    for upper in BUCKETS:
        chosen = [r for r in results if lower <= r.fastest.processor < upper]
        if chosen:
            mean = geometric_mean([r.ratio for r in chosen])
            wall = geometric_mean([r.wall_ratio for r in chosen])
            slower = sum(r.ratio < 1 for r in chosen)
            print(f"| to {upper} ms | {len(chosen)} | {mean:.2f} | {wall:.2f} | {slower} |")
        lower = upper
    print("\nthe worst twenty:")
    for result in sorted(results, key=lambda r: r.ratio)[:20]:
        print(_line(result))
    return int(any(not r.is_exact for r in results))


def _line(r: Result) -> str:
    verdict = "" if r.is_exact else "WRONG "
    times = f"{r.ndtool.processor:.4g} ms, {r.peer} {r.fastest.processor:.4g}"
    return f"{verdict}{r.ratio:6.2f} {r.wall_ratio:6.2f} ({times}) {r.point}"
