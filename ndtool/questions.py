"""The inspection commands, and convert, as Python functions: questions with answers.

Arguments are those of the command of the same name: a str or a path is a file, an array is also
accepted. Answers have the fields of the command's --json, that of `verify` those of a comparison in
`comparison`.

>>> explain("gather_nd", [[0, 1], [2, 3]], [[1], [0]], at=(0, 1)).value
3
>>> stats("gather", [10, 20, 30], [2, 0, 2]).duplicated
1
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsIndex, Unpack

from ndtool.analysis import engines, typed
from ndtool.analysis import explain as explaining
from ndtool.analysis import infer as inferring
from ndtool.analysis import inspect as inspecting
from ndtool.analysis import model as models
from ndtool.analysis import stats as statistics
from ndtool.analysis import verify as verifying
from ndtool.analysis.explain import Explanation
from ndtool.analysis.infer import Inferred
from ndtool.analysis.inspect import Converted, Inspection
from ndtool.analysis.model import Model
from ndtool.analysis.stats import Stats
from ndtool.analysis.verify import Verification
from ndtool.arrays.source import Source
from ndtool.errors import UsageError
from ndtool.inmemory.arguments import array, integer, string
from ndtool.options import (
    ArrayOrFile,
    Progress,
    ProgressReporter,
    arguments_by_role,
    array_source,
    engine_names,
    engine_settings,
    file_name,
    file_names,
    operator_name,
    path,
    request_of,
    validate_attributes,
    validate_options,
)
from ndtool.rules.inference import Input
from ndtool.rules.operators import LOWERED, operator_of
from ndtool.runs import convert as converting
from ndtool.runs.calls import OpenCall, Request
from ndtool.signatures import AttributeOptions, OperatorName

__all__ = ["convert", "explain", "infer", "inspect", "model", "stats", "verify"]
_Position = int | tuple[int, ...]
_Positions = _Position | Sequence[tuple[int, ...]] | None


def infer(
    operator: OperatorName,
    *arguments: ArrayOrFile,
    spec: str = "ndtool",
    dtype: str | None = None,
    **attributes: Unpack[AttributeOptions],
) -> Inferred:
    """Infer the dtype and shape of an operator's output without reading an element.

    operator: its name, such as "gather_nd". arguments: its inputs in order, each an array, a file,
    or a type such as "float32[N,64]", whose sizes may be symbols. spec: the standard to validate
    against, such as "onnx:18" (ONNX operator sets) or "openvino:8". dtype: the actual dtype of void
    data. attributes: those of the operator.

    Returns the inferred output, with the trace of every shape rule; sizes count elements.
    Raises RuleError, with the trace up to the broken rule, DtypeError, InputError or UsageError.

    >>> infer("gather_nd", "float32[8,128,64]", "int64[8,5,1]", batch_dims=1).output.shape
    (8, 5, 64)
    """
    inputs = arguments_by_role(operator, arguments)
    files = file_names(inputs)
    types = {
        role: Input(role, source.metadata.dtype, source.metadata.shape)
        for role, value in inputs.items()
        if role not in files and (source := array_source(role, value))
    }
    checked = validate_attributes(operator, attributes)
    return inferring.infer(operator, files, checked, spec, dtype, types)


def explain(
    operator: OperatorName,
    *arguments: ArrayOrFile,
    at: _Positions = None,
    from_: _Positions = None,
    all: bool = False,  # noqa: A002 - the option's name
    spec: str = "ndtool",
    dtype: str | None = None,
    text: bool = False,
    memory: int | str | None = None,
    progress: Progress = False,
    **attributes: Unpack[AttributeOptions],
) -> Explanation:
    """Explain elements: the inputs of an output's element, the destinations of one of data.

    operator: the name of one of ONNX's, such as "gather_nd". arguments: its inputs in order, each
    an array or a file; those without indices may be types such as "float32[4,3]". at: the position
    of an element of the output, or a list of positions. from_: of elements of data. A position has
    an int for each axis; negative ones count from the end. all: whether to list up to 10,000
    updates, or destinations, not only the first and last five. spec: the standard to validate
    against, such as "onnx:18". dtype: the actual dtype of void data. text: whether files of unknown
    format are text. memory: the limit, in bytes or as "500MB". progress: True for a line on a
    terminal, or a callback for the completed fraction. attributes: those of the operator.

    Returns the explanation: index tuples, positions and values, one step for each update.
    Raises UsageError for a position outside the array, BoundsError for any index out of bounds,
    and RuleError, DtypeError or InputError as the operator does.

    >>> explain("scatter_nd", [1, 2], [[0], [0]], [5, 7], at=0, reduction="add").steps[-1].result
    13
    """
    outputs, origins = _positions("at", at), _positions("from_", from_)
    if not outputs and not origins:
        raise UsageError("missing element: expected at or from_ with a position")
    inputs = arguments_by_role(operator, arguments)
    options = {"spec": spec, "dtype": dtype, "text": text, "memory": memory}
    with (
        _open(typed.open_typed_call, operator, inputs, attributes, options) as call,
        ProgressReporter("explain", progress) as report,
    ):
        return explaining.explain(call, outputs, origins, all, report)


def stats(
    operator: OperatorName,
    *arguments: ArrayOrFile,
    spec: str = "ndtool",
    dtype: str | None = None,
    text: bool = False,
    memory: int | str | None = None,
    progress: Progress = False,
    **attributes: Unpack[AttributeOptions],
) -> Stats:
    """Return statistics of an operator's indices: ranges, duplicates, indices out of bounds.

    operator, arguments: data and indices of one of ONNX's operators, each an array or a file; data
    may be a type such as "float32[1000,64]". tensor_scatter takes past, update and write_indices.
    Scatters take no updates here. spec: the standard to validate against, such as "onnx:18". dtype:
    the actual dtype of void data. text: whether files of unknown format are text. memory: the
    limit, in bytes or as "500MB". progress: True for a line on a terminal, or a callback for the
    completed fraction. attributes: those of the operator.

    Returns the statistics; counts are of index tuples, slices of data and bytes.
    Raises RuleError, DtypeError, InputError or UsageError as the operator does; indices out of
    bounds are counted.

    >>> stats("gather_nd", "float32[4,3]", [[0], [9], [0]]).out_of_bounds
    1
    """
    roles = None if operator_name(operator) in LOWERED else ("data", "indices")
    inputs = arguments_by_role(operator, arguments, roles)
    options = {"spec": spec, "dtype": dtype, "text": text, "memory": memory}
    with (
        _open(statistics.open_call, operator, inputs, attributes, options) as call,
        ProgressReporter("stats", progress) as report,
    ):
        return statistics.stats(call, report)


def verify(
    operator: OperatorName,
    *arguments: ArrayOrFile,
    within: SupportsIndex = 0,
    against: str | Sequence[str] | None = None,
    runs: SupportsIndex = 5,
    timeout: SupportsIndex = 600,
    threads: int | None = None,
    memory: int | str | None = None,
    dtype: str | None = None,
    text: bool = False,
    progress: Progress = False,
    **attributes: Unpack[AttributeOptions],
) -> Verification:
    """Compare an operator's output, and other engines, with a slow reference of the ONNX text.

    operator, arguments: the inputs in order, then the output, each an array or a file; with
    `against` the output is optional. within: the accepted distance of elements, in ulp (units in
    the last place). against: the engines to compare: "onnxruntime,torch", "auto" or a list. runs:
    how often each engine runs with several threads. timeout: seconds after which a run is killed.
    threads: the maximum number of threads. memory: the limit, in bytes or as "500MB", of all but
    the engines. dtype: the actual dtype of void data. text: whether files of unknown format are
    text. progress: True for a line on a terminal, or a callback for the completed fraction.
    attributes: those of the operator.

    Returns the comparison, with counts of elements.
    Raises DifferenceError, whose `comparison` has the counts, where the output or an engine
    differs, and BoundsError, RuleError, DtypeError, InputError or UsageError as the operator does.

    >>> verify("gather", [10, 20, 30], [2, 0], [30, 10]).verified
    True
    """
    roles = (*operator_of(operator_name(operator)).inputs, "output")
    inputs = arguments_by_role(operator, arguments, roles, optional=against is not None)
    options = {"dtype": dtype, "text": text, "threads": threads, "memory": memory}
    settings = engine_settings(within, runs, timeout, threads)
    with (
        _open(verifying.open_call, operator, inputs, attributes, options) as call,
        ProgressReporter("verify", progress) as report,
    ):
        names = None if against is None else engine_names(against)
        answer = engines.verify(call, names, settings, lambda fraction, _: report(fraction))
    answer.raise_error()
    return answer


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
    answer = inspecting.inspect([path("names", name) for name in names])
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
    feeds: Any = inputs
    if isinstance(inputs, Mapping):
        inputs = {string("a name in inputs", name): inputs[name] for name in inputs}
        feeds = {name: array(f"inputs[{name!r}]", value) for name, value in inputs.items()}
    elif inputs is not None:
        feeds = path("inputs", inputs)
    model_path, folder = path("model", model), None if save is None else path("save", save)
    settings = engine_settings(within, runs, timeout, threads)
    names = None if against is None else engine_names(against)
    with ProgressReporter("model", progress) as report:
        answer = models.show(
            model_path, feeds, names, settings, lambda fraction, _: report(fraction), folder
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
    encoding = {"dtype": dtype, "chunks": chunks, "shards": shards, "codec": codec}
    keywords = validate_options(
        {key: value for key, value in encoding.items() if value is not None}
    )
    name = file_name("source", source)
    given = array_source("source", source) if name is None else None
    converted = converting.Conversion(
        name or "source", path("output", output), given, as_void=as_void, clobber=clobber,
        only=only, sync=sync, **keywords,
    )  # fmt: skip
    with converted as conversion, ProgressReporter("convert", progress) as report:
        return inspecting.converted(conversion, conversion.run(report))


def _open(
    open_request: Callable[[Request, dict[str, Source]], OpenCall],
    operator: str,
    inputs: dict[str, Any],
    attributes: AttributeOptions,
    options: dict[str, Any],
) -> OpenCall:
    """Open the call of a question; options: unchecked, without progress."""
    checked = validate_attributes(operator, attributes)
    return open_request(*request_of(operator, inputs, checked, **options))


def _positions(name: str, value: Any) -> list[tuple[int, ...]]:
    """Return the positions in an argument, which may be a single one."""
    if value is None:
        return []
    value = value.tolist() if hasattr(value, "tolist") else value  # rows of np.argwhere
    if not isinstance(value, tuple | list):
        return [(integer(name, value, UsageError),)]
    if value and all(isinstance(item, tuple | list) for item in value):
        return [_position(name, item) for item in value]
    return [_position(name, value)]


def _position(name: str, coordinates: Any) -> tuple[int, ...]:
    return tuple(integer(name, coordinate, UsageError) for coordinate in coordinates)
