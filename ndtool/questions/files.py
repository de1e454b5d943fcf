"""Questions about files and models, and conversion: the commands of these names in Python."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

from ndtool.analysis.inspect import Converted, Inspection
from ndtool.analysis.model import Model
from ndtool.errors import UsageError
from ndtool.inmemory.arguments import array, string
from ndtool.options import (
    ArrayOrFile,
    Progress,
    ProgressReporter,
    array_source,
    engine_names,
    engine_settings,
    file_name,
    path,
    validate_options,
)

__all__ = ["convert", "inspect", "model"]


def inspect(*names: str | os.PathLike[str]) -> Inspection:
    """List the arrays in files, and the gather and scatter nodes of ONNX models, from headers.

    names: files or URLs of any format that ndtool reads.

    Returns the arrays, with dtype, shape, bytes and offset, and the nodes.
    Raises InputError for a file that cannot be read, UsageError without names.

    >>> import numpy as np, os, tempfile
    >>> name = os.path.join(tempfile.mkdtemp(), "x.npy")
    >>> np.save(name, np.zeros((2, 3)))
    >>> inspect(name).arrays[0].shape
    (2, 3)
    """
    from ndtool.analysis.inspect import inspect as inspect_files

    answer = inspect_files([path("names", name) for name in names])
    answer.raise_error()
    return answer


def model(
    model: str | os.PathLike[str],
    inputs: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    *,
    save: str | os.PathLike[str] | None = None,
    within: SupportsIndex = 0,
    against: str | Sequence[str] | None = None,
    runs: SupportsIndex = 5,
    timeout: SupportsIndex = 600,
    threads: int | None = None,
    progress: Progress = False,
) -> Model:
    """Show the gather and scatter nodes of an ONNX model; with inputs, run it.

    model: an .onnx file. inputs: the model's inputs by name, an archive of them, or a folder with
    input_0.pb and so on, as in ONNX's backend tests; ndtool computes these nodes and onnxruntime
    the others, without it the onnx package. save: a folder for the tensors of each node, as files
    for `explain`. within: the accepted distance of elements, in ulp (units in the last place).
    against: other engines to compare, such as "onnxruntime" or "auto". runs, timeout, threads: runs
    of each engine with several threads, seconds for one, the most threads. progress: True for a
    line on a terminal, or a callback for the completed fraction.

    Returns the nodes, with the dtypes and shapes of their inputs and outputs.
    Raises InputError for a file that is no model, the error of a node that fails (BoundsError,
    RuleError, DtypeError), DifferenceError if an engine differs, UsageError or OutputError.

    >>> import onnx.parser, os, tempfile
    >>> made = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 13]> '
    ...     'g (float[3] x, int64[2] i) => (float[2] y) {y = Gather(x, i)}')
    >>> name = os.path.join(tempfile.mkdtemp(), "m.onnx")
    >>> onnx.save(made, name)
    >>> model(name).nodes[0].output.shape
    (2,)
    """
    from ndtool.analysis import model as models

    model_path = path("model", model)
    if inputs is None:
        if against is not None or save is not None:
            name = "save" if against is None else "against"
            raise UsageError(f"{name} requires inputs: it needs the tensors of a run")
        return models.nodes(model_path)
    feeds: Any
    if isinstance(inputs, Mapping):
        names = [string("a name in inputs", name) for name in inputs]
        feeds = {name: array(f"inputs[{name!r}]", inputs[name]) for name in names}
    else:
        feeds = path("inputs", inputs)
    settings = engine_settings(within, runs, timeout, threads)
    folder = None if save is None else path("save", save)
    engines = () if against is None else engine_names(against)
    with ProgressReporter("model", progress) as report:
        answer = models.run(
            model_path, feeds, engines, settings, lambda fraction, _: report(fraction), folder
        )
    answer.raise_error()
    return answer


def convert(
    source: ArrayOrFile,
    output: str | os.PathLike[str],
    *,
    dtype: str | None = None,
    as_void: bool = False,
    clobber: bool = True,
    only: bool = False,
    sync: bool = False,
    chunks: tuple[int, ...] | None = None,
    shards: tuple[int, ...] | None = None,
    codec: str | None = None,
    progress: Progress = False,
) -> Converted:
    """Copy an array to a file of another format: the same values, in row-major order.

    source: an array, or a file of any format that ndtool reads. output: the file to write, whose
    suffix is its format; it appears or is replaced atomically. dtype: the actual dtype of void
    data. as_void: whether a dtype that the format lacks, such as bfloat16, may be stored as void.
    clobber: whether output may replace an existing file. only: whether its archive drops other
    members. sync: whether to flush it to the disk (fsync). chunks, shards, codec: the encoding of a
    Zarr or HDF5 output. progress: True for a line on a terminal, or a callback for the completed
    fraction.

    Returns the source and the output, with dtype, shape and bytes, and the duration in seconds.
    Raises InputError, OutputError, ResourceError, DtypeError or UsageError.

    >>> import os, tempfile
    >>> convert([[1, 2], [3, 4]], os.path.join(tempfile.mkdtemp(), "x.csv")).output.shape
    (2, 2)
    """
    from ndtool.analysis.inspect import converted
    from ndtool.runs import convert as converting

    encoding = {"dtype": dtype, "chunks": chunks, "shards": shards, "codec": codec}
    keywords = validate_options(
        {key: value for key, value in encoding.items() if value is not None}
    )
    name = file_name("source", source)
    array = array_source("source", source) if name is None else None
    request = converting.Request(
        name or "source", path("output", output), as_void=as_void, clobber=clobber, only=only,
        sync=sync, **keywords,
    )  # fmt: skip
    start = time.perf_counter()
    with (
        converting.Conversion(request, array) as conversion,
        ProgressReporter("convert", progress) as report,
    ):
        preserved = conversion.run(report)
        seconds = time.perf_counter() - start
        return converted(conversion, preserved, seconds)
