"""Run the operators on files of any size, as the command line does.

A str or a path is the name of a file wherever an operator takes an array, as on the command line:
`table.npy`, `archive.npz:member`. So are a zarr.Array and an h5py.Dataset, which are not loaded. An
output file is replaced atomically: it has its previous content or the complete new content.

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
from typing import Any, NamedTuple, SupportsIndex, Unpack

import numpy as np
from numpy.typing import NDArray

from ndtool.analysis.values import as_array
from ndtool.arrays import memory
from ndtool.errors import BoundsError, NdtoolError, ResourceError, UsageError, argument_name
from ndtool.formats.openarrays import require_same_shape
from ndtool.inmemory.arguments import make_attributes, restore_exact_index
from ndtool.literals import Reduction, WriteMode
from ndtool.options import (
    ArrayOrFile,
    Options,
    ProgressReporter,
    array_source,
    file_names,
    path,
    validate_options,
)
from ndtool.rules.operators import COMMON_ATTRIBUTES, LOWERED_INPUTS
from ndtool.runs import steps
from ndtool.runs.request import Request

__all__ = [
    "Options", "Result", "gather", "gather_elements", "gather_nd", "scatter", "scatter_elements",
    "scatter_nd", "tensor_scatter",
]  # fmt: skip
Path = str | os.PathLike[str] | None


class Result(NamedTuple):
    """The result of a run.

    array: the result, None with `out`. output: `out`. dtype: the name of the element type. kept:
    the preserved members of the output archive. warnings: suspicious properties of the inputs that
    are not errors. seconds: the duration. outside: the number of index tuples out of bounds.
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
    data: ArrayOrFile,
    indices: ArrayOrFile,
    batch_dims: SupportsIndex = 0,
    *,
    out: Path = None,
    **options: Unpack[Options],
) -> Result:
    """Gather the slices of data that index tuples select, into a file or array (ONNX GatherND).

    data: shape (d0, .., dr-1), any fixed-size dtype. indices: shape (.., k), any integer dtype;
    each value in -s..s-1 for its axis of size s. Each is an array, or the name of a file.
    batch_dims: the number of leading axes that both share. out: the file to write; without it the
    result is an array. options: those of ndtool.files.Options.

    Returns a Result, whose `array` or `output` has data's dtype and shape indices.shape[:-1] +
    data.shape[batch_dims + k:].
    Raises BoundsError, DtypeError, RuleError, InputError, OutputError, ResourceError or UsageError.

    >>> from ndtool import files
    >>> files.gather_nd([[0, 1], [2, 3]], [[0, 0], [1, 1]]).array
    array([0, 3])
    """
    inputs = {"data": data, "indices": indices}
    return _run("gather_nd", inputs, {"batch_dims": batch_dims}, out, options)


def scatter_nd(
    data: ArrayOrFile,
    indices: ArrayOrFile,
    updates: ArrayOrFile,
    reduction: Reduction = "none",
    *,
    batch_dims: SupportsIndex = 0,
    out: Path = None,
    **options: Unpack[Options],
) -> Result:
    """Copy data, then update slices by index tuples, into a file or array (ONNX ScatterND).

    data: any fixed-size dtype. indices: shape (.., k), any integer dtype; each value in -s..s-1 for
    its axis of size s. updates: data's dtype, shape indices.shape[:-1] + data.shape[batch_dims +
    k:]. Each is an array, or the name of a file. reduction: how an update is combined with the
    current value: "none" (assignment), "add", "sub", "mul", "div" (of floats), "max", "min" or
    "mean", in row-major order of indices. batch_dims: the number of leading axes that data and
    indices share. out: the file to write; without it the result is an array. options: those of
    ndtool.files.Options. `out` may be the file that `data` refers to.

    Returns a Result, whose `array` or `output` has data's dtype and shape.
    Raises BoundsError, DuplicatesError or another RuleError, DtypeError, InputError, OutputError,
    ResourceError or UsageError.

    >>> from ndtool import files
    >>> files.scatter_nd([1, 2, 3, 4], [[1], [1]], [10, 10], "add").array
    array([ 1, 22,  3,  4])
    """
    inputs = {"data": data, "indices": indices, "updates": updates}
    attributes = {"batch_dims": batch_dims, "reduction": reduction}
    return _run("scatter_nd", inputs, attributes, out, options)


def gather_elements(
    data: ArrayOrFile,
    indices: ArrayOrFile,
    axis: SupportsIndex = 0,
    *,
    out: Path = None,
    **options: Unpack[Options],
) -> Result:
    """Gather one element per index along an axis, into a file or array (ONNX GatherElements).

    data: rank r >= 1, any fixed-size dtype. indices: rank r, any integer dtype; on the other axes
    its sizes are at most data's. Each is an array, or the name of a file. axis: -r..r-1. out: the
    file to write; without it the result is an array. options: those of ndtool.files.Options.

    Returns a Result, whose `array` or `output` has data's dtype and indices' shape.
    Raises BoundsError, DtypeError, RuleError, InputError, OutputError, ResourceError or UsageError.

    >>> from ndtool import files
    >>> files.gather_elements([[1, 2], [3, 4]], [[0, 0], [1, 0]], axis=1).array
    array([[1, 1],
           [4, 3]])
    """
    inputs = {"data": data, "indices": indices}
    return _run("gather_elements", inputs, {"axis": axis}, out, options)


def scatter_elements(
    data: ArrayOrFile,
    indices: ArrayOrFile,
    updates: ArrayOrFile,
    axis: SupportsIndex = 0,
    reduction: Reduction = "none",
    *,
    out: Path = None,
    **options: Unpack[Options],
) -> Result:
    """Copy data and update an element per index, into a file or array (ONNX ScatterElements).

    data: rank r >= 1, any fixed-size dtype. indices: rank r, any integer dtype; on the other axes
    its sizes are at most data's. updates: data's dtype, indices' shape. Each is an array, or the
    name of a file. axis: -r..r-1, along which indices select. reduction: how an update is combined
    with the current value: "none" (assignment), "add", "sub", "mul", "div" (of floats), "max",
    "min" or "mean", in row-major order of indices. out: the file to write; without it the result is
    an array. options: those of ndtool.files.Options. `out` may be the file that `data` refers to.

    Returns a Result, whose `array` or `output` has data's dtype and shape.
    Raises BoundsError, DuplicatesError or another RuleError, DtypeError, InputError, OutputError,
    ResourceError or UsageError.

    >>> from ndtool import files
    >>> files.scatter_elements([[1, 2, 3]], [[0, 2]], [[9, 8]], axis=1).array
    array([[9, 2, 8]])
    """
    inputs = {"data": data, "indices": indices, "updates": updates}
    attributes = {"axis": axis, "reduction": reduction}
    return _run("scatter_elements", inputs, attributes, out, options)


def gather(
    data: ArrayOrFile,
    indices: ArrayOrFile,
    axis: SupportsIndex | None = None,
    *,
    batch_dims: SupportsIndex = 0,
    out: Path = None,
    **options: Unpack[Options],
) -> Result:
    """Gather the slices that indices select along an axis, into a file or array (ONNX Gather).

    data: rank r >= 1, any fixed-size dtype. indices: any shape, any integer dtype; each value in
    -s..s-1 for the axis of size s. Each is an array, or the name of a file. axis: -r..r-1, default
    batch_dims. batch_dims: the number of leading axes that both share, at most axis (OpenVINO
    Gather-8). out: the file to write; without it the result is an array. options: those of
    ndtool.files.Options.

    Returns a Result, whose `array` or `output` has data's dtype and shape data.shape[:axis] +
    indices.shape[batch_dims:] + data.shape[axis+1:].
    Raises BoundsError, DtypeError, RuleError, InputError, OutputError, ResourceError or UsageError.

    >>> from ndtool import files
    >>> files.gather([[0, 1], [2, 3], [4, 5]], [2, 0]).array
    array([[4, 5],
           [0, 1]])
    """
    inputs = {"data": data, "indices": indices}
    return _run("gather", inputs, {"axis": axis, "batch_dims": batch_dims}, out, options)


def scatter(
    data: ArrayOrFile,
    indices: ArrayOrFile,
    updates: ArrayOrFile,
    axis: SupportsIndex | None = None,
    reduction: Reduction = "none",
    *,
    batch_dims: SupportsIndex = 0,
    out: Path = None,
    **options: Unpack[Options],
) -> Result:
    """Copy data and update slices along an axis, into a file or array (OpenVINO ScatterUpdate).

    data: rank r >= 1, any fixed-size dtype. indices: any shape, any integer dtype; each value in
    -s..s-1 for the axis of size s. updates: data's dtype, shape data.shape[:axis] +
    indices.shape[batch_dims:] + data.shape[axis+1:]. Each is an array, or the name of a file. axis:
    -r..r-1, default batch_dims. reduction: how an update is combined with the current value: "none"
    (assignment), "add", "sub", "mul", "div" (of floats), "max", "min" or "mean", in row-major order
    of indices. batch_dims: the number of leading axes that data and indices share, at most axis.
    out: the file to write; without it the result is an array. options: those of
    ndtool.files.Options. `out` may be the file that `data` refers to.

    Returns a Result, whose `array` or `output` has data's dtype and shape.
    Raises BoundsError, DuplicatesError or another RuleError, DtypeError, InputError, OutputError,
    ResourceError or UsageError.

    >>> from ndtool import files
    >>> files.scatter([[0, 1], [2, 3]], [1, 1], [[10, 20], [30, 40]], reduction="add").array
    array([[ 0,  1],
           [42, 63]])
    """
    inputs = {"data": data, "indices": indices, "updates": updates}
    attributes = {"axis": axis, "reduction": reduction, "batch_dims": batch_dims}
    return _run("scatter", inputs, attributes, out, options)


def tensor_scatter(
    past: ArrayOrFile,
    update: ArrayOrFile,
    write_indices: ArrayOrFile | None = None,
    axis: SupportsIndex = -2,
    mode: WriteMode = "linear",
    *,
    out: Path = None,
    **options: Unpack[Options],
) -> Result:
    """Copy past and write update into it at an index per batch, into a file (ONNX TensorScatter).

    past: shape (B, .., s, ..), rank r >= 2, any fixed-size dtype. update: past's dtype and shape,
    but for the axis, where it has n <= s. write_indices: shape (B,), any integer dtype; the index
    along the axis at which update begins in each batch; zeros if None. Each is an array, or the
    name of a file. axis: -r..r-1, not the batch axis 0. mode: "linear", where 0 <= write_indices <=
    s - n, or "circular", where every index is taken modulo s. out: the file to write; without it
    the result is an array. options: those of ndtool.files.Options. `out` may be the file that
    `past` refers to.

    Returns a Result, whose `array` or `output` has past's dtype and shape.
    Raises BoundsError, DtypeError, RuleError, InputError, OutputError, ResourceError or UsageError.

    >>> from ndtool import files
    >>> files.tensor_scatter([[[1], [2], [3]]], [[[8], [9]]], [2], mode="circular").array.tolist()
    [[[9], [2], [8]]]
    """
    inputs: dict[str, ArrayOrFile] = {"past": past, "update": update}
    if write_indices is not None:
        inputs["write_indices"] = write_indices
    for name in COMMON_ATTRIBUTES:
        if name in options:
            raise UsageError(f"tensor_scatter has no {name}")
    return _run("tensor_scatter", inputs, {"axis": axis, "mode": mode}, out, options)


def _run(
    operator: str,
    inputs: dict[str, ArrayOrFile],
    attribute_values: dict[str, Any],
    out: Path,
    options: Options,
) -> Result:
    started = time.perf_counter()
    keywords = validate_options(options)
    progress_option = keywords.pop("progress", False)
    file_arguments = file_names(inputs)
    arguments = {role: file_arguments.get(role, role) for role in inputs}
    output = None if out is None else path("out", out)
    common = {name: keywords.pop(name) for name in COMMON_ATTRIBUTES if name in keywords}
    attributes = make_attributes(operator, (attribute_values | common).items())
    names = {LOWERED_INPUTS.get(role, role): name for role, name in arguments.items()}
    fields: dict[str, Any] = {"indices": None, **names, **keywords}
    request = Request(operator, output=output, attributes=attributes, **fields)
    result = None
    try:
        mode = attributes.out_of_bounds
        arrays = {
            role: array_source(role, inputs[role], mode)
            for role in inputs
            if role not in file_arguments
        }
        opened = steps.open_call(request, arrays)
        with opened as call, ProgressReporter(operator, progress_option) as progress:
            require_same_shape(inputs, call.sources)
            inference, target = call.inference, steps.resolve_output(call)
            with steps.prepare(call, target) as prepared:
                sink = None
                if target is None:
                    buffer = np.zeros(inference.nbytes, np.uint8)
                    sink = memory.BufferSink(buffer.data, call.metadata)
                    result = as_array(buffer.data, inference.dtype, inference.plan.output)
                outcome = steps.execute(prepared, progress, sink=sink)
            if outcome.bounds_report is not None:
                restore_exact_index(
                    outcome.bounds_report, inputs["indices"], argument_name(arguments["data"])
                )
            run_warnings = steps.warnings(prepared, outcome.bounds_report)
            warnings = (*call.warnings, *(target.warnings if target else ()), *run_warnings)
    except BoundsError as error:
        restore_exact_index(error, inputs.get("indices"), argument_name(arguments.get("data", "")))
        raise
    except MemoryError as error:
        if isinstance(error, NdtoolError):
            raise
        raise ResourceError(f"{operator}: not enough memory") from error
    return Result(
        result, output, inference.dtype.name, inference.plan.output,
        inference.nbytes, outcome.preserved or (), warnings, prepared.call.threads,
        time.perf_counter() - started,
        outcome.bounds_report.count if outcome.bounds_report else 0, sum(outcome.resumed.values()),
    )  # fmt: skip
