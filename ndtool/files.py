"""Run the operators on files of any size, as the command line does.

A str or a path is the name of a file wherever an operator takes an array, as on the command line:
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
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ndtool.analysis.values import as_array
from ndtool.arguments import array, attributes_of, index_array, integer, name_exactly, word
from ndtool.arrays import memory
from ndtool.arrays.source import Source
from ndtool.errors import (
    BoundsError,
    NdtoolError,
    ResourceError,
    RuleError,
    UsageError,
    called,
    shown,
)
from ndtool.literals import OperatorName, Reduction, WriteMode
from ndtool.options import Options, ProgressReporter, checked, path
from ndtool.rules.inference import Inference
from ndtool.rules.operators import COMMON, EVERY, LOWERED, LOWERED_INPUTS, Attributes, operator_of
from ndtool.runs import steps
from ndtool.runs.request import Request

if TYPE_CHECKING:
    from ndtool.analysis.verify import Comparison

Named = os.PathLike[str] | ArrayLike  # an array, or a file name, which may be a str
Path = str | os.PathLike[str] | None


class Result(NamedTuple):
    """The result of a run.

    array: the result, None with `out`. output: `out`. dtype: the name of the element type. kept:
    the preserved members of the output archive. warnings: suspicious properties of the inputs that
    are no errors. seconds: the duration. outside: the number of index tuples out of bounds.
    resumed: the number of tasks resumed from a run that was killed.
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


def gather_nd(
    data: Named,
    indices: Named,
    batch_dims: SupportsIndex = 0,
    *,
    out: Path = None,
    **options: Unpack[Options],
) -> Result:
    """Gather the slices of data that index tuples select, into the file `out` or an array.

    Shapes, dtypes and errors are those of ndtool.gather_nd; problems with files raise InputError,
    OutputError or ResourceError. `out` is the old file or the complete new one at any time.
    """
    inputs = {"data": data, "indices": indices}
    return _run("gather_nd", inputs, {"batch_dims": batch_dims}, out, options)


def scatter_nd(
    data: Named,
    indices: Named,
    updates: Named,
    reduction: Reduction = "none",
    *,
    batch_dims: SupportsIndex = 0,
    out: Path = None,
    **options: Unpack[Options],
) -> Result:
    """Copy data, update the slices that index tuples select, into the file `out` or an array.

    See ndtool.scatter_nd and gather_nd. `out` may be the file that `data` refers to.
    """
    inputs = {"data": data, "indices": indices, "updates": updates}
    attributes = {"batch_dims": batch_dims, "reduction": reduction}
    return _run("scatter_nd", inputs, attributes, out, options)


def gather_elements(
    data: Named,
    indices: Named,
    axis: SupportsIndex = 0,
    *,
    out: Path = None,
    **options: Unpack[Options],
) -> Result:
    """Gather one element per index along an axis, into the file `out` or an array.

    See ndtool.gather_elements and gather_nd.
    """
    inputs = {"data": data, "indices": indices}
    return _run("gather_elements", inputs, {"axis": axis}, out, options)


def scatter_elements(
    data: Named,
    indices: Named,
    updates: Named,
    axis: SupportsIndex = 0,
    reduction: Reduction = "none",
    *,
    out: Path = None,
    **options: Unpack[Options],
) -> Result:
    """Copy data and update one element per index along an axis, into the file `out` or an array.

    See ndtool.scatter_elements and gather_nd.
    """
    inputs = {"data": data, "indices": indices, "updates": updates}
    attributes = {"axis": axis, "reduction": reduction}
    return _run("scatter_elements", inputs, attributes, out, options)


def gather(
    data: Named,
    indices: Named,
    axis: SupportsIndex | None = None,
    *,
    batch_dims: SupportsIndex = 0,
    out: Path = None,
    **options: Unpack[Options],
) -> Result:
    """Gather the slices of data that indices select along an axis, into a file or an array.

    See ndtool.gather and gather_nd.
    """
    inputs = {"data": data, "indices": indices}
    return _run("gather", inputs, {"axis": axis, "batch_dims": batch_dims}, out, options)


def scatter(
    data: Named,
    indices: Named,
    updates: Named,
    axis: SupportsIndex | None = None,
    reduction: Reduction = "none",
    *,
    batch_dims: SupportsIndex = 0,
    out: Path = None,
    **options: Unpack[Options],
) -> Result:
    """Copy data and update the slices that indices select along an axis, into a file or an array.

    See ndtool.scatter and gather_nd.
    """
    inputs = {"data": data, "indices": indices, "updates": updates}
    attributes = {"axis": axis, "reduction": reduction, "batch_dims": batch_dims}
    return _run("scatter", inputs, attributes, out, options)


def tensor_scatter(
    past: Named,
    update: Named,
    write_indices: Named | None = None,
    axis: SupportsIndex = -2,
    mode: WriteMode = "linear",
    *,
    out: Path = None,
    **options: Unpack[Options],
) -> Result:
    """Copy past, and write update along an axis from an index of each batch, into a file or array.

    See ndtool.tensor_scatter and gather_nd. `out` may be the file that `past` refers to.
    """
    inputs: dict[str, Named] = {"past": past, "update": update}
    if write_indices is not None:
        inputs["write_indices"] = write_indices
    for name in COMMON:
        if name in options:
            raise UsageError(f"tensor_scatter has no {name}")
    return _run("tensor_scatter", inputs, {"axis": axis, "mode": mode}, out, options)


def infer(
    operator: OperatorName,
    *arguments: str | os.PathLike[str],
    spec: str = "ndtool",
    dtype: str | None = None,
    **attributes: Any,
) -> Inference:
    """Infer the output of an operator, such as "gather_nd", without reading any element.

    arguments: the inputs in order, each a file or a type such as "float32[N,64]", whose sizes may
    be symbolic. attributes: batch_dims, axis, reduction, out_of_bounds, fill. Returns an Inference,
    which notebooks show as a table; its `.plan.output` is the shape. Raises RuleError, with the
    trace up to the broken rule, DtypeError, InputError and UsageError.

    >>> infer("gather_nd", "float32[8,128,64]", "int64[8,5,1]", batch_dims=1).plan.output
    (8, 5, 64)
    """
    from ndtool import notebook
    from ndtool.analysis import infer as inferring

    roles = operator_of(_operator(operator)).inputs
    if "write_indices" in roles:  # an optional input
        roles = roles[: max(len(arguments), len(roles) - 1)]
    inputs = _inputs(operator, arguments, roles)
    try:
        found = inferring.infer(operator, inputs, _attributes(operator, attributes), spec, dtype)
    except RuleError as error:
        notebook.show_trace(error)
        raise
    return notebook.ShownInference(*found)


def verify(
    operator: OperatorName,
    *arguments: str | os.PathLike[str],
    within: SupportsIndex = 0,
    dtype: str | None = None,
    **attributes: Any,
) -> Comparison:
    """Check that a file is an operator's output: recompute it, slowly, and compare every bit.

    arguments: the files of the operator's inputs in order, then of its output. within: the largest
    accepted distance of two elements, in units in the last place. Returns a Comparison; notebooks
    show it as a table. Raises DifferenceError, which has the same as `comparison`; see also infer.
    """
    from ndtool.analysis import verify as verifying

    roles = (*operator_of(_operator(operator)).inputs, "output")
    inputs = _inputs(operator, arguments, roles)
    given: dict[str, Any] = {LOWERED_INPUTS.get(role, role): name for role, name in inputs.items()}
    request = Request(operator, attributes=_attributes(operator, attributes), dtype=dtype, **given)
    return verifying.verify(request, within=integer("within", within, UsageError))


def _operator(name: str) -> str:
    if word("operator", name) not in EVERY:
        raise UsageError(f"{shown(name)} is not an operator: expected one of {', '.join(EVERY)}")
    return name


def _inputs(operator: str, arguments: Sequence[Any], roles: tuple[str, ...]) -> dict[str, str]:
    if len(arguments) != len(roles):
        raise UsageError(f"{operator} takes {', '.join(roles)}: {len(arguments)} arguments given")
    return {role: path(role, given) for role, given in zip(roles, arguments, strict=True)}


def _attributes(operator: str, given: dict[str, Any]) -> Attributes:
    """Return the attributes of an operator; raise UsageError for one that it does not have."""
    has_all = operator_of(operator).attributes + (() if operator in LOWERED else COMMON)
    for name in given:
        if name not in has_all:
            has = ", ".join(has_all)
            raise UsageError(f"{operator} has no attribute {shown(name)}: expected {has}")
    return attributes_of(operator, given.items())


def _run(
    operator: str, inputs: dict[str, Named], given: dict[str, Any], out: Path, options: Options
) -> Result:
    started = time.perf_counter()
    chosen, bar = checked(options)
    named = {
        role: path(role, value)
        for role, value in inputs.items()
        if isinstance(value, str | os.PathLike)
    }
    arguments = {role: named.get(role, role) for role in inputs}
    output = None if out is None else path("out", out)
    given = given | {name: chosen.pop(name) for name in COMMON if name in chosen}
    attributes = attributes_of(operator, given.items())
    fields = {LOWERED_INPUTS.get(role, role): name for role, name in arguments.items()}
    arguments_given: dict[str, Any] = {"indices": None, **fields, **chosen}
    request = Request(operator, output=output, attributes=attributes, **arguments_given)
    result = None
    try:
        rule = attributes.out_of_bounds
        arrays = {role: _source(role, inputs[role], rule) for role in inputs if role not in named}
        opened = steps.open_call(request, arrays)
        with opened as call, ProgressReporter(operator, bar) as progress:
            found, to = call.inference, steps.resolved(call)
            with steps.prepared(call, to) as ready:
                sink = None
                if to is None:
                    buffer = np.zeros(found.nbytes, np.uint8)
                    sink = memory.BufferSink(buffer.data, call.metadata)
                    result = as_array(buffer.data, found.dtype, found.plan.output)
                outcome = steps.execute(ready, progress, sink=sink)
            if outcome.outside is not None:
                name_exactly(outcome.outside, inputs["indices"], called(arguments["data"]))
            known = steps.warnings(ready, outcome.outside)  # with that name
            warnings = (*call.warnings, *(to.warnings if to else ()), *known)
    except BoundsError as error:
        name_exactly(error, inputs.get("indices"), called(arguments.get("data", "")))
        raise
    except MemoryError as error:
        if isinstance(error, NdtoolError):
            raise
        raise ResourceError(f"{operator}: not enough memory") from error
    return Result(
        result, output, found.dtype.name, found.plan.output,
        found.nbytes, outcome.preserved or (), warnings, call.threads,
        time.perf_counter() - started,
        outcome.outside.count if outcome.outside else 0, sum(outcome.resumed.values()),
    )  # fmt: skip


def _source(role: str, value: Any, rule: str) -> Source:
    taken = index_array(value, rule) if role == "indices" else array(role, value)
    return memory.source(role, taken)
