"""Run the operators on files of any size, as the command line does.

A str or a path is the name of a file wherever an operator takes an array, as on the command line:
`table.npy`, `archive.npz:member`. An output file is replaced atomically: it has its previous
content or the complete new content.

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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool.analysis.values import as_array
from ndtool.arrays import memory
from ndtool.errors import BoundsError, NdtoolError, ResourceError, argument_name
from ndtool.inmemory.arguments import make_attributes, restore_exact_index
from ndtool.options import RUN_OPTIONS, ArrayOrFile, ProgressReporter, file_name, path, request_of
from ndtool.rules.operators import LOWERED_INPUTS, Attributes, operator_of
from ndtool.runs import steps
from ndtool.runs.calls import OpenCall
from ndtool.signatures import Operators, bind

__all__ = [
    "Result", "gather", "gather_elements", "gather_nd", "scatter", "scatter_elements",
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


def _run(
    data: ArrayOrFile,
    indices: ArrayOrFile,
    updates: ArrayOrFile,
    out: Path,
    options: dict[str, Any],
    operator: str,
    threads: Any,
    spec: Any,
    *values: Any,
) -> Result:
    """Run an operator; values: its attributes."""
    started = time.perf_counter()
    arrays_or_files = {"data": data, "indices": indices, "updates": updates}
    inputs = {
        role: arrays_or_files[LOWERED_INPUTS.get(role, role)]
        for role in operator_of(operator).inputs
    }
    if inputs.get("write_indices", ()) is None:
        del inputs["write_indices"]
    settings = {**options, "threads": threads, "spec": spec}
    progress_option = settings.pop("progress")
    data_name = argument_name(file_name("data", data) or "data")
    output = None if out is None else path("out", out)
    attributes = make_attributes(operator, zip(Attributes._fields, values, strict=True))
    result = None
    try:
        request, arrays = request_of(operator, inputs, attributes, output=output, **settings)
        opened = OpenCall(request, arrays)
        with opened as call, ProgressReporter(operator, progress_option) as progress:
            inference, target = call.inference, steps.resolve_output(call)
            with steps.prepare(call, target) as prepared:
                sink = None
                if target is None:
                    buffer = np.zeros(inference.nbytes, np.uint8)
                    sink = memory.BufferSink(buffer.data, call.metadata)
                    result = as_array(buffer.data, inference.dtype, inference.plan.output)
                outcome = steps.execute(prepared, progress, sink=sink)
            if outcome.bounds_report is not None:
                restore_exact_index(outcome.bounds_report, inputs["indices"], data_name)
            warnings = steps.warnings(prepared, outcome.bounds_report)
    except BoundsError as error:
        restore_exact_index(error, inputs.get("indices"), data_name)
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


_operators: Operators[ArrayOrFile, ArrayOrFile, Result, str | os.PathLike[str], Any] = bind(
    _run,
    __name__,
    {
        "Data": "ArrayOrFile",
        "Indices": "ArrayOrFile",
        "Result": "Result",
        "Out": "str | os.PathLike[str]",
    },
    "Each input is an array, or the name of a file. out: the file to write, which may be an input;"
    " without it the result is an array: a Result has `array` or `output`. dtype: the actual dtype"
    ' of void-typed data, such as "bfloat16". memory: the limit, in bytes or as "500MB" or "2GiB",'
    " mapped files included. spill: the directory for temporary files, or a sequence of"
    " directories; with a cluster one directory or URL. scheduler: the client of a dask cluster,"
    " or the address of its scheduler. workers: the number of processes to start as a cluster."
    " resume: whether to reuse what a killed run wrote to `spill`. clobber: whether `out` may"
    " replace an existing file. only: whether other members of the output archive are removed."
    " sync: whether to fsync the output. chunks, shards, codec: the encoding of a Zarr output; HDF5"
    " outputs have no shards. text: whether indices and updates of unknown format are read as text."
    " progress: True for a progress line on a terminal, or a callback that receives the completed"
    " fraction. Raises InputError, OutputError, ResourceError and UsageError, too.",
    options=RUN_OPTIONS,
)
gather_nd, scatter_nd = _operators.gather_nd, _operators.scatter_nd
gather_elements, scatter_elements = _operators.gather_elements, _operators.scatter_elements
gather, scatter = _operators.gather, _operators.scatter
tensor_scatter = _operators.tensor_scatter
