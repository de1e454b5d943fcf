"""Questions about calls of operators, as the commands of the same names answer them.

Arguments are those of the command: a str, a path, a zarr.Array or an h5py.Dataset is a file, as in
ndtool.files; another array may take its place. Answers have the fields of the command's --json.

>>> explain("gather_nd", [[0, 1], [2, 3]], [[1], [0]], at=(0, 1)).value
3
>>> stats("gather", [10, 20, 30], [2, 0, 2]).duplicated
1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, Unpack

from ndtool.analysis import records
from ndtool.errors import RuleError, UsageError
from ndtool.formats.opened import require_same
from ndtool.inmemory.arguments import integer
from ndtool.literals import CallOptions, OperatorName, Reduction, WriteMode
from ndtool.options import (
    Named,
    Progress,
    ProgressReporter,
    array_source,
    checked,
    checked_attributes,
    engine_names,
    engine_settings,
    file_names,
    operator_name,
)
from ndtool.questions.answers import Explanation, Inferred, Statistics
from ndtool.questions.reports import Verification
from ndtool.rules.inference import Input
from ndtool.rules.operators import LOWERED, LOWERED_INPUTS, Attributes, operator_of
from ndtool.runs.request import Request

if TYPE_CHECKING:
    from ndtool.arrays.source import Source

__all__ = ["explain", "infer", "stats", "verify"]
_Position = int | tuple[int, ...]
_Positions = _Position | Sequence[tuple[int, ...]] | None


class AttributeOptions(CallOptions, total=False):
    """The attributes of an operator, keyword arguments of questions about its calls.

    batch_dims, axis, reduction, mode: those of the operator. out_of_bounds, fill, pad, negatives,
    include_self, duplicates: as in ndtool.gather_nd and ndtool.scatter_nd.
    """

    batch_dims: SupportsIndex
    axis: SupportsIndex | None
    reduction: Reduction
    mode: WriteMode


def infer(
    operator: OperatorName,
    *arguments: Named,
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
    from ndtool import notebook
    from ndtool.analysis import infer as inferring

    roles = _roles(operator, arguments)
    files = file_names(roles)
    known = {
        role: Input(role, source.metadata.dtype, source.metadata.shape)
        for role, one in roles.items()
        if role not in files and (source := array_source(role, one))
    }
    given = checked_attributes(operator, dict(attributes))
    try:
        found = inferring.infer(operator, files, given, spec, dtype, known)
    except RuleError as error:
        notebook.show_trace(error)
        raise
    return Inferred.of(records.inferred_record(found))


def explain(
    operator: OperatorName,
    *arguments: Named,
    at: _Positions = None,
    from_: _Positions = None,
    all: bool = False,  # noqa: A002 - the option's name
    spec: str = "ndtool",
    dtype: str | None = None,
    text: bool = False,
    progress: Progress = False,
    **attributes: Unpack[AttributeOptions],
) -> Explanation:
    """Explain elements of an operator's output: what each was computed from, where it went.

    operator: the name of one of ONNX's, such as "gather_nd". arguments: its inputs in order, each
    an array or a file; those without indices may be types such as "float32[4,3]". at: the position
    of an element of the output, or a list of positions. from_: of elements of data. A position has
    an int for each axis; negative ones count from the end. all: whether to list all updates, or
    destinations, not only the first and last five; the answer then holds them. spec: the standard
    to validate against, such as "onnx:18". dtype: the actual dtype of void data. text: whether
    files of unknown format are text. progress: True for a line on a terminal, or a callback for the
    fraction done. attributes: those of the operator.

    Returns the explanation: index tuples, positions and values, one step for each update.
    Raises UsageError for a position outside the array, BoundsError for any index out of bounds,
    and RuleError, DtypeError or InputError as the operator does.

    >>> explain("scatter_nd", [1, 2], [[0], [0]], [5, 7], at=0, reduction="add").steps[-1].result
    13
    """
    from ndtool.analysis import explain as explaining
    from ndtool.analysis import typed

    outputs, origins = _positions("at", at), _positions("from_", from_)
    if not outputs and not origins:
        raise UsageError("missing element: expected at or from_ with a position")
    roles = _roles(operator, arguments)
    how = {"spec": spec, "dtype": dtype, "text": text}
    request, given = _request(operator, roles, dict(attributes), how, progress)
    with typed.opened(request, given) as call, ProgressReporter("explain", progress) as report:
        require_same(roles, call.sources)
        found = explaining.explain(call, outputs, origins, all, report)
        single = len(outputs) + len(origins) == 1
        answer = Explanation.of(records.explained_record(call, *found, single))
        call.recheck()
    return answer


def stats(
    operator: OperatorName,
    *arguments: Named,
    spec: str = "ndtool",
    dtype: str | None = None,
    text: bool = False,
    progress: Progress = False,
    **attributes: Unpack[AttributeOptions],
) -> Statistics:
    """Return statistics of an operator's indices: ranges, duplicates, indices out of bounds.

    operator, arguments: data and indices of one of ONNX's operators, each an array or a file; data
    may be a type such as "float32[1000,64]". tensor_scatter takes past, update and write_indices.
    Scatters take no updates here. spec: the standard to validate against, such as "onnx:18". dtype:
    the actual dtype of void data. text: whether files of unknown format are text. progress: True
    for a line on a terminal, or a callback for the fraction done. attributes: those of the
    operator.

    Returns the statistics; counts are of index tuples, slices of data and bytes.
    Raises RuleError, DtypeError, InputError or UsageError as the operator does; indices out of
    bounds are counted.

    >>> stats("gather_nd", "float32[4,3]", [[0], [9], [0]]).out_of_bounds
    1
    """
    from ndtool.analysis import stats as statistics

    only = None if operator in LOWERED else ("data", "indices")
    roles = _roles(operator, arguments, only)
    how = {"spec": spec, "dtype": dtype, "text": text}
    request, given = _request(operator, roles, dict(attributes), how, progress)
    with (
        statistics.open_call(request, given) as call,
        ProgressReporter("stats", progress) as report,
    ):
        require_same(roles, call.sources)
        return Statistics.of(records.stats_record(call, statistics.stats(call, report)))


def verify(
    operator: OperatorName,
    *arguments: Named,
    within: SupportsIndex = 0,
    against: str | Sequence[str] | None = None,
    runs: SupportsIndex = 5,
    timeout: SupportsIndex = 600,
    threads: int | None = None,
    dtype: str | None = None,
    text: bool = False,
    progress: Progress = False,
    **attributes: Unpack[AttributeOptions],
) -> Verification:
    """Check an operator's output, and other engines, with a slow reference of ONNX's texts.

    operator, arguments: the inputs in order, then the output, each an array or a file; with
    `against` the output may be left out. within: the accepted distance of elements, in ulp (units
    in the last place). against: the engines to compare: "onnxruntime,torch", "auto" or a list.
    runs, timeout, threads: runs of each engine with several threads, seconds for one, the most
    threads. dtype: the actual dtype of void data. text: whether files of unknown format are text.
    progress: True for a line on a terminal, or a callback for the fraction done. attributes: those
    of the operator.

    Returns the comparison, counted in elements.
    Raises DifferenceError, whose `comparison` has the counts, where the output or an engine
    differs, and BoundsError, RuleError, DtypeError, InputError or UsageError as the operator does.

    >>> verify("gather", [10, 20, 30], [2, 0], [30, 10]).verified
    True
    """
    from ndtool.analysis import engines, verify as verifying  # noqa: I001

    roles = _roles(operator, arguments, (*operator_of(operator_name(operator)).inputs, "output"),
                   optional=against is not None)  # fmt: skip
    how = {"dtype": dtype, "text": text, "threads": threads}
    request, given = _request(operator, roles, dict(attributes), how, progress)
    ulps = integer("within", within, UsageError)
    with ProgressReporter("verify", progress) as report:
        if against is None:
            compared = verifying.verify(request, report, ulps, given)
            return Verification.of(records.verified_record(request.output, compared))
        settings = engine_settings(within, runs, timeout, threads)
        verdict = engines.verify(
            request, engine_names(against), settings, lambda share, _: report(share), given
        )
    if verdict.error is not None:
        verdict.error.more["engines"] = records.engine_records(verdict.reports)
        raise verdict.error
    return Verification.of(
        records.verified_record(request.output, verdict.compared, verdict.reports)
    )


def _roles(
    operator: str,
    arguments: Sequence[Any],
    roles: tuple[str, ...] | None = None,
    optional: bool = False,
) -> dict[str, Any]:
    """Return arguments by role; optional: whether the last one may be left out."""
    known = operator_of(operator_name(operator)).inputs
    roles = known if roles is None else roles
    if "output" not in roles and "write_indices" in roles:
        optional = True
    if len(arguments) not in (len(roles), len(roles) - optional):
        raise UsageError(f"{operator} takes {', '.join(roles)}: {len(arguments)} arguments given")
    return dict(zip(roles, arguments, strict=False))


def _request(
    operator: str,
    roles: dict[str, Any],
    attributes: dict[str, Any],
    how: dict[str, Any],
    progress: Progress,
) -> tuple[Request, dict[str, Source]]:
    """Return the request of a call, and its inputs that are arrays."""
    checked({"progress": progress})
    files = file_names(roles)
    fields: dict[str, Any] = {
        LOWERED_INPUTS.get(role, role): files.get(role, role) for role in roles
    }
    given: Attributes = checked_attributes(operator, attributes)
    request = Request(operator, attributes=given, **{"indices": None, **fields, **how})
    return request, {
        role: array_source(role, one, given.out_of_bounds)
        for role, one in roles.items()
        if role not in files
    }


def _positions(name: str, given: Any) -> list[tuple[int, ...]]:
    """Return positions: one, or a list of several."""
    if given is None:
        return []
    given = given.tolist() if hasattr(given, "tolist") else given  # rows of np.argwhere
    if not isinstance(given, tuple | list):
        return [(integer(name, given, UsageError),)]
    if given and all(isinstance(one, tuple | list) for one in given):
        return [_position(name, one) for one in given]
    return [_position(name, given)]


def _position(name: str, given: Any) -> tuple[int, ...]:
    return tuple(integer(name, one, UsageError) for one in given)
