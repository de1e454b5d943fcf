"""The operators on files of any size: as the command line runs them, from Python.

Wherever an operator takes an array, a str or a path names one, as on the command line:
`table.npy`, `archive.npz:member`.

>>> import numpy as np, tempfile, os
>>> folder = tempfile.mkdtemp()
>>> name = os.path.join(folder, "table.npy")
>>> np.save(name, np.arange(6).reshape(3, 2))
>>> gather(name, [2, 0]).array
array([[4, 5],
       [0, 1]])
>>> gather(name, [2, 0], out=os.path.join(folder, "rows.npy")).shape
(2, 2)
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ndtool.analysis.values import as_array
from ndtool.arguments import array, index_array, integer, name_exactly, number, word
from ndtool.arrays import memory, targets
from ndtool.arrays.source import Source
from ndtool.engine import tuning
from ndtool.engine.gathers import Tick, silent
from ndtool.errors import BoundsError, NdtoolError, ResourceError, UsageError, called, shown
from ndtool.rules.inference import Inference
from ndtool.rules.operators import OPERATORS, Attributes
from ndtool.runs.jobs import Job, Request

if TYPE_CHECKING:
    from ndtool.analysis.verify import Comparison

Named = os.PathLike[str] | ArrayLike  # the name of a file, which may be a str, or an array
Path = str | os.PathLike[str] | None
Progress = bool | Callable[[float], object]


class Result(NamedTuple):
    """What a run gave.

    array: the result where no `out` was named, else None. output: what `out` named. dtype: the
    name of the element type. kept: the members that stay in the archive it went to. warnings:
    what is odd about the inputs without being wrong. seconds: how long it took. outside: how many
    index tuples were out of bounds, where that was no error. resumed: how many tasks of another
    run were taken up.
    """

    array: NDArray[Any] | None
    output: str | None
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    kept: tuple[str, ...]
    warnings: tuple[str, ...]
    threads: int
    seconds: float
    outside: int = 0
    resumed: int = 0


class Options(TypedDict, total=False):
    """How a run is done; all are keywords of every function here.

    dtype: what elements stored as void are, such as "bfloat16". threads: 1..1024. spec: what must
    be satisfied. out_of_bounds, fill: what becomes of indices out of bounds, as in ndtool.gather_nd
    and ndtool.scatter_nd. memory: bytes that it may take, pages of files included. spill: the
    directory of its temporary files, or with a cluster a URL. scheduler: a client of a dask cluster
    that does the work, or the address of its scheduler; workers: how many processes to start for
    it; resume: whether it takes up what a run that was killed left in `spill`. clobber: whether an
    existing `out` may be replaced. only: whether the archive it goes to loses its other members.
    sync: whether the disk must have everything then. chunks, shards, codec: how a Zarr store that
    it goes to has it. progress: True for a line on a terminal's stderr, or what is called with the
    share that is done.
    """

    dtype: str | None
    threads: int | None
    spec: str
    out_of_bounds: str
    fill: object
    memory: int | None
    spill: str | None
    scheduler: Any
    workers: int | None
    resume: bool
    clobber: bool
    only: bool
    sync: bool
    chunks: tuple[int, ...]
    shards: tuple[int, ...]
    codec: str
    progress: Progress


def gather_nd(
    data: Named,
    indices: Named,
    batch_dims: SupportsIndex = 0,
    *,
    out: Path = None,
    **options: Unpack[Options],
) -> Result:
    """Gather slices of data named by index tuples, into the file `out` or an array.

    Shapes, types and errors: see ndtool.gather_nd; what is wrong with files raises InputError,
    OutputError or ResourceError. An `out` is the old file or the complete new one, never a part.
    """
    attributes = Attributes(batch_dims=integer("batch_dims", batch_dims))
    return _run("gather_nd", {"data": data, "indices": indices}, attributes, out, options)


def scatter_nd(
    data: Named,
    indices: Named,
    updates: Named,
    reduction: str = "none",
    *,
    out: Path = None,
    **options: Unpack[Options],
) -> Result:
    """Copy data, update slices named by index tuples, into the file `out` or an array.

    See ndtool.scatter_nd and gather_nd; `out` may name the file that `data` names.
    """
    inputs = {"data": data, "indices": indices, "updates": updates}
    attributes = Attributes(reduction=word("reduction", reduction))
    return _run("scatter_nd", inputs, attributes, out, options)


def gather_elements(
    data: Named,
    indices: Named,
    axis: SupportsIndex = 0,
    *,
    out: Path = None,
    **options: Unpack[Options],
) -> Result:
    """Gather one element for each index along an axis, into the file `out` or an array.

    See ndtool.gather_elements and gather_nd.
    """
    attributes = Attributes(axis=integer("axis", axis))
    return _run("gather_elements", {"data": data, "indices": indices}, attributes, out, options)


def scatter_elements(
    data: Named,
    indices: Named,
    updates: Named,
    axis: SupportsIndex = 0,
    reduction: str = "none",
    *,
    out: Path = None,
    **options: Unpack[Options],
) -> Result:
    """Copy data, update one element for each index, into the file `out` or an array.

    See ndtool.scatter_elements and gather_nd.
    """
    inputs = {"data": data, "indices": indices, "updates": updates}
    attributes = Attributes(axis=integer("axis", axis), reduction=word("reduction", reduction))
    return _run("scatter_elements", inputs, attributes, out, options)


def gather(
    data: Named,
    indices: Named,
    axis: SupportsIndex = 0,
    *,
    out: Path = None,
    **options: Unpack[Options],
) -> Result:
    """Gather slices of data named by plain numbers along an axis, into a file or an array.

    See ndtool.gather and gather_nd.
    """
    attributes = Attributes(axis=integer("axis", axis))
    return _run("gather", {"data": data, "indices": indices}, attributes, out, options)


def infer(
    operator: str,
    *arguments: str | os.PathLike[str],
    spec: str = "ndtool",
    dtype: str | None = None,
    **attributes: Any,
) -> Inference:
    """Infer the output of an operator, such as "gather_nd", without reading any element.

    arguments: its inputs in order, each a file or a type such as "float32[N,64]", whose sizes may
    have names. attributes: batch_dims, axis, reduction, out_of_bounds, fill. Returns what is known,
    which notebooks show as a table; `.plan.output` is the shape. Raises RuleError, with the trace
    up to the broken rule, DtypeError, InputError and UsageError.

    >>> infer("gather_nd", "float32[8,128,64]", "int64[8,5,1]", batch_dims=1).plan.output
    (8, 5, 64)
    """
    from ndtool.analysis import infer as inferring

    inputs = _inputs(operator, arguments, OPERATORS[_operator(operator)].inputs)
    return inferring.infer(operator, inputs, _attributes(operator, attributes), spec, dtype)


def verify(
    operator: str,
    *arguments: str | os.PathLike[str],
    within: SupportsIndex = 0,
    dtype: str | None = None,
    **attributes: Any,
) -> Comparison:
    """Check that a file is what an operator gives: recompute it, slowly, and compare every bit.

    arguments: files: the operator's inputs in order, then its output. within: how many units in the
    last place elements may be apart. Returns what was found, which notebooks show as a table.
    Raises DifferenceError, whose `comparison` is the same; otherwise see infer and gather_nd.
    """
    from ndtool.analysis import verify as verifying

    roles = (*OPERATORS[_operator(operator)].inputs, "output")
    given: dict[str, Any] = _inputs(operator, arguments, roles)
    request = Request(operator, attributes=_attributes(operator, attributes), dtype=dtype, **given)
    return verifying.verify(request, within=integer("within", within, UsageError))


def _operator(name: str) -> str:
    if word("operator", name) not in OPERATORS:
        raise UsageError(f"{shown(name)} is no operator: expected one of {', '.join(OPERATORS)}")
    return name


def _inputs(operator: str, arguments: Sequence[Any], roles: tuple[str, ...]) -> dict[str, str]:
    if len(arguments) != len(roles):
        raise UsageError(f"{operator} takes {', '.join(roles)}: {len(arguments)} arguments given")
    return {role: _path(role, given) for role, given in zip(roles, arguments, strict=True)}


def _attributes(operator: str, given: dict[str, Any]) -> Attributes:
    """Return attributes that an operator has."""
    has_all = (*OPERATORS[operator].attributes, "out_of_bounds", "fill")
    for name in given:
        if name not in has_all:
            has = ", ".join(has_all)
            raise UsageError(f"{operator} has no {shown(name)}: expected {has}")
    kinds: dict[str, Any] = {"reduction": word, "out_of_bounds": word, "fill": number}
    return Attributes(
        **{name: kinds.get(name, integer)(name, value) for name, value in given.items()}
    )


def _run(
    operator: str, inputs: dict[str, Named], attributes: Attributes, out: Path, options: Options
) -> Result:
    started = time.perf_counter()
    how, progress = _checked(options)
    named = {
        role: _path(role, value)
        for role, value in inputs.items()
        if isinstance(value, str | os.PathLike)
    }
    arguments = {role: named.get(role, role) for role in inputs}
    output = None if out is None else _path("out", out)
    attributes = attributes._replace(
        out_of_bounds=word("out_of_bounds", how.pop("out_of_bounds", "error")),
        fill=number("fill", how.pop("fill", None)),
    )
    given: dict[str, Any] = {**arguments, **how}
    request = Request(operator, output=output, attributes=attributes, **given)
    result, kept = None, None
    try:
        rule = attributes.out_of_bounds
        arrays = {role: _source(role, inputs[role], rule) for role in inputs if role not in named}
        with _Told(operator, progress) as tick, Job(request, arrays) as job:
            operands = job.check()
            if output is None:
                room = np.zeros(job.inference.nbytes, np.uint8)
                job.fill(memory.RoomSink(room.data, job.facts), operands, tick)
                result = as_array(room.data, job.inference.dtype, job.inference.plan.output)
            else:
                kept = job.run(operands, tick)
            if job.outside is not None:
                name_exactly(job.outside, inputs["indices"], called(arguments["data"]))
            warnings = tuple(job.warnings)
    except BoundsError as error:
        name_exactly(error, inputs["indices"], called(arguments["data"]))
        raise
    except MemoryError as error:
        if isinstance(error, NdtoolError):
            raise
        raise ResourceError(f"{operator}: not enough memory") from error
    return Result(
        result, output, job.inference.dtype.name, job.inference.plan.output,
        job.inference.nbytes, kept or (), warnings, job.threads, time.perf_counter() - started,
        job.outside.count if job.outside else 0, sum(job.resumed.values()),
    )  # fmt: skip


def _source(role: str, value: Any, rule: str) -> Source:
    taken = index_array(value, rule) if role == "indices" else array(role, value)
    return memory.source(role, taken)


def _checked(options: Options) -> tuple[dict[str, Any], Progress]:
    """Return the options as a run takes them, and whom to tell how much is done."""
    how: dict[str, Any] = {**options}
    progress = how.pop("progress", False)
    if not isinstance(progress, bool) and not callable(progress):
        raise UsageError(f"progress is {shown(progress)}: it must be a bool or a function")
    for name, value in how.items():
        if value is None and name != "spec":
            continue
        if name in ("spec", "dtype", "codec"):
            how[name] = word(name, value)
        elif name in ("threads", "workers"):
            how[name] = integer(name, value, UsageError)
        elif name in ("chunks", "shards"):
            how[name] = _sizes(name, value)
        elif name == "memory":
            how[name] = integer(name, value, UsageError)
            if how[name] < tuning.LEAST_MEMORY:
                raise UsageError(f"memory is {how[name]}: at least {tuning.LEAST_MEMORY} bytes")
        elif name == "spill":
            how[name] = _path(name, value)
        if name == "codec":
            targets.codec(how[name])
    return how, progress


def _sizes(name: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, tuple | list):
        raise UsageError(f"{name} is {shown(value)}: it must be a tuple of sizes")
    sizes = tuple(integer(name, size, UsageError) for size in value)
    if min(sizes, default=1) < 1:
        raise UsageError(f"{name} is {shown(sizes)}: sizes must be at least 1")
    return sizes


def _path(name: str, value: Any) -> str:
    try:
        return os.fsdecode(value)
    except Exception:
        raise UsageError(f"{name} is {shown(value)}: it must be a str or a path") from None


class _Told:
    """Who is told how much is done: a function of the caller's, or a line on stderr until the end.

    Threads tell when they are done with a piece, which need not be in order.
    """

    def __init__(self, operator: str, progress: Progress) -> None:
        self._operator, self._progress, self._shown = operator, progress, 0

    def __enter__(self) -> Tick:
        if not isinstance(self._progress, bool):
            return self._progress
        return self._show if self._progress and sys.stderr.isatty() else silent

    def __exit__(self, *_: object) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def _show(self, share: float) -> None:
        percent = int(100 * share)
        if percent > self._shown or not share:
            self._shown = percent
            sys.stderr.write(f"\r{self._operator} {percent:3d} %")
            sys.stderr.flush()
