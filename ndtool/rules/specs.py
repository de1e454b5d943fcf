"""The standards' versions of the operators as a table, and the check of a call against it."""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from ndtool.errors import DtypeError, RuleError, UsageError, format_value, option
from ndtool.rules import dtypes
from ndtool.rules.dtypes import INTEGERS, Dtype
from ndtool.rules.operators import (
    ALL_OPERATORS,
    EXTENSIONS,
    LOWERED,
    MODES,
    OPERATORS,
    Attributes,
    Operator,
    mode_names,
    operator_of,
)
from ndtool.rules.plans import Shape
from ndtool.rules.reductions import DUPLICATES, REDUCTIONS
from ndtool.rules.trace import Sizes, Trace, Tracer

_INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64")
_ONNX_11 = ("bool", "string", *_INTS, *_FLOATS, "complex64", "complex128")
_ONNX_13 = (*_ONNX_11, "bfloat16")
_ONNX_24 = (
    *_ONNX_13, "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float8_e8m0fnu", "uint4", "int4", "float4_e2m1fn",
)  # fmt: skip
_OPENVINO = ("bool", *_INTS, *_FLOATS, "bfloat16", "float8_e4m3fn", "float8_e5m2")
_OV_NUMBERS = _OPENVINO[1:]
_WEBNN = ("float32", "float16", "int32", "uint32", "int64", "uint64", "int8", "uint8")
_WEB_IDS = ("int32", "uint32", "int64")
_ERROR, _CLIP, _FILL = ("error",), ("error", "clip"), ("error", "fill")
_ANY_DTYPE = ("any fixed-size dtype",)
UNVERSIONED = ("ndtool", "webnn")  # standards without versions


class OperatorVersion(NamedTuple):
    """A version of an operator in a standard.

    standard: "onnx", "openvino", "webnn" or "ndtool". operator: ndtool's name. title: the
    standard's name. version: the first version with these rules. indices, data: dtype names.
    negatives: whether negative indices count from the end. out_of_bounds: the names of the modes.
    limits: keys of LIMITS, the rules of the standard for sizes and axes beyond ndtool's.
    """

    standard: str
    operator: str
    title: str
    version: int
    attributes: tuple[str, ...]
    reductions: tuple[str, ...]
    indices: tuple[str, ...]
    data: tuple[str, ...]
    negatives: bool
    out_of_bounds: tuple[str, ...] = ("error",)
    limits: tuple[str, ...] = ()

    @property
    def spec(self) -> str:
        """The standard and its version, if it has versions."""
        return self.standard if self.standard in UNVERSIONED else f"{self.standard}:{self.version}"


_NONE, _ADD_MUL, _ALL = ("none",), ("none", "add", "mul"), ("none", "add", "mul", "max", "min")
_MEAN = (*_ALL, "mean")
_BATCH, _AXIS, _REDUCE, _SELF = ("batch_dims",), ("axis",), ("reduction",), ("include_self",)
_I64, _I32 = ("int64",), ("int32", "int64")
_GATHER_ND, _SCATTER_ND, _GATHER_ELS, _SCATTER_ELS = (
    "gather_nd",
    "scatter_nd",
    "gather_elements",
    "scatter_elements",
)
_GATHER, _SCATTER, _TENSOR_SCATTER = "gather", "scatter", "tensor_scatter"
_EQUAL, _SHORT, _FULL = ("equal off axis",), ("short axis",), ("no empty",)
_FULL_FRONT, _FULL_EQUAL = (*_FULL, "axis >= 0"), (*_FULL, "axis >= 0", *_EQUAL)

# fmt: off
_ROWS: tuple[tuple[Any, ...], ...] = (
    # standard, name, version, attributes, reductions, indices, data, negatives, out_of_bounds,
    # limits; _TITLES has the titles that differ from ONNX's
    ("onnx", _GATHER_ND, 11, (), _NONE, _I64, _ONNX_11, True),
    ("onnx", _GATHER_ND, 12, _BATCH, _NONE, _I64, _ONNX_11, True),
    ("onnx", _GATHER_ND, 13, _BATCH, _NONE, _I64, _ONNX_13, True),
    ("onnx", _SCATTER_ND, 11, (), _NONE, _I64, _ONNX_11, True),
    ("onnx", _SCATTER_ND, 13, (), _NONE, _I64, _ONNX_13, True),
    ("onnx", _SCATTER_ND, 16, _REDUCE, _ADD_MUL, _I64, _ONNX_13, True),
    ("onnx", _SCATTER_ND, 18, _REDUCE, _ALL, _I64, _ONNX_13, True),
    ("onnx", _GATHER_ELS, 11, _AXIS, _NONE, _I32, _ONNX_11, True),
    ("onnx", _GATHER_ELS, 13, _AXIS, _NONE, _I32, _ONNX_13, True),
    ("onnx", _SCATTER_ELS, 9, _AXIS, _NONE, _I32, _ONNX_11, False),
    ("onnx", _SCATTER_ELS, 11, _AXIS, _NONE, _I32, _ONNX_11, True),
    ("onnx", _SCATTER_ELS, 13, _AXIS, _NONE, _I32, _ONNX_13, True),
    ("onnx", _SCATTER_ELS, 16, _AXIS + _REDUCE, _ADD_MUL, _I32, _ONNX_13, True),
    ("onnx", _SCATTER_ELS, 18, _AXIS + _REDUCE, _ALL, _I32, _ONNX_13, True),
    ("onnx", _GATHER, 1, _AXIS, _NONE, _I32, _ONNX_11, False),
    ("onnx", _GATHER, 11, _AXIS, _NONE, _I32, _ONNX_11, True),
    ("onnx", _GATHER, 13, _AXIS, _NONE, _I32, _ONNX_13, True),
    ("onnx", _TENSOR_SCATTER, 24, ("axis", "mode"), _NONE, _I64, _ONNX_24, False),
    ("openvino", _GATHER_ND, 5, _BATCH, _NONE, _INTS, _OPENVINO, False),
    ("openvino", _GATHER_ND, 8, _BATCH, _NONE, _I32, _OPENVINO, False),
    ("openvino", _SCATTER_ND, 3, (), _NONE, _I32, _OV_NUMBERS, False),
    ("openvino", _SCATTER_ND, 15, _REDUCE, (*_ALL, "sub"), _I32, _OPENVINO, True),
    ("openvino", _GATHER_ELS, 6, _AXIS, _NONE, _I32, _OPENVINO, False, _ERROR, _EQUAL),
    ("openvino", _SCATTER_ELS, 3, _AXIS, _NONE, _INTS, _OV_NUMBERS, False, _ERROR, _SHORT),
    ("openvino", _SCATTER_ELS, 12, _AXIS + _REDUCE + _SELF, _MEAN, _INTS, _OPENVINO, True),
    ("openvino", _GATHER, 1, _AXIS, _NONE, _INTS, _OPENVINO, False),
    ("openvino", _GATHER, 7, _AXIS + _BATCH, _NONE, _INTS, _OPENVINO, False),
    ("openvino", _GATHER, 8, _AXIS + _BATCH, _NONE, _INTS, _OPENVINO, True, _FILL),
    ("openvino", _SCATTER, 3, _AXIS, _NONE, _INTS, _OV_NUMBERS, False),
    ("webnn", _GATHER_ND, 1, (), _NONE, _WEB_IDS, _WEBNN, True, _CLIP, _FULL),
    ("webnn", _SCATTER_ND, 1, (), _NONE, _WEB_IDS, _WEBNN, True, _CLIP, _FULL),
    ("webnn", _GATHER_ELS, 1, _AXIS, _NONE, _WEB_IDS, _WEBNN, True, _CLIP, _FULL_EQUAL),
    ("webnn", _SCATTER_ELS, 1, _AXIS, _NONE, _WEB_IDS, _WEBNN, True, _CLIP, _FULL_EQUAL),
    ("webnn", _GATHER, 1, _AXIS, _NONE, _WEB_IDS, _WEBNN, True, _CLIP, _FULL_FRONT),
)
# fmt: on
_TITLES: dict[tuple[Any, ...], str] = {
    ("onnx", _SCATTER_ELS, 9): "Scatter",  # the title in versions 9 and 10
    ("openvino", _SCATTER_ND): "ScatterNDUpdate",
    ("openvino", _SCATTER_ELS): "ScatterElementsUpdate",
    ("webnn", _GATHER_ND): "gatherND",
    ("webnn", _SCATTER_ND): "scatterND",
    ("webnn", _GATHER): "gather",
    ("webnn", _GATHER_ELS): "gatherElements",
    ("webnn", _SCATTER_ELS): "scatterElements",
}  # fmt: skip
_MAX_BATCH_DIMS = {("openvino", _GATHER_ND, 5): 1}  # it fuses further batch axes in the output


_Checked = Iterator[tuple[bool | None, str, str]]  # whether it holds, its numbers, what is refused


class Limit(NamedTuple):
    """A rule for sizes or the axis. check: yields a result for each size of a call's shapes."""

    rule: str
    check: Callable[[dict[str, Shape], Attributes, Sizes], _Checked]


def _check_off_axis(shapes: dict[str, Shape], attributes: Attributes, sizes: Sizes) -> _Checked:
    data, indices = shapes["data"], shapes["indices"]
    for d in range(len(data)):
        if d != attributes.resolved_axis % len(data):
            problem = f"indices of size {indices[d]} along axis {d}: it must be data's {data[d]}"
            yield sizes.equal(indices[d], data[d]), f"{indices[d]} = {data[d]}", problem


def _check_on_axis(shapes: dict[str, Shape], attributes: Attributes, sizes: Sizes) -> _Checked:
    data, indices, a = shapes["data"], shapes["indices"], attributes.resolved_axis
    problem = f"indices of size {indices[a]} along axis {a}: it must be at most data's {data[a]}"
    yield sizes.at_most(indices[a], data[a]), f"{indices[a]} <= {data[a]}", problem


def _check_not_empty(shapes: dict[str, Shape], _: Attributes, sizes: Sizes) -> _Checked:
    for role, shape in shapes.items():
        for d, size in enumerate(shape):
            holds = sizes.at_most(1, size)
            yield holds, f"{size} >= 1", f"{role} without elements: axis {d} has size 0"


def _check_axis(_: dict[str, Shape], attributes: Attributes, __: Sizes) -> _Checked:
    axis = attributes.resolved_axis
    yield axis >= 0, f"{axis} >= 0", f"axis {axis}: it must not be negative"


LIMITS = {
    "equal off axis": Limit("indices.shape[d] = data.shape[d] off the axis", _check_off_axis),
    "short axis": Limit("indices.shape[axis] <= data.shape[axis]", _check_on_axis),
    "no empty": Limit("sizes >= 1", _check_not_empty),
    "axis >= 0": Limit("axis >= 0", _check_axis),
}


def _title(standard: str, operator: str, version: int) -> str:
    title = _TITLES.get((standard, operator, version), _TITLES.get((standard, operator)))
    return title or operator_of(operator).title


def _ndtool_row(operator: Operator) -> OperatorVersion:
    """Return the row of the spec "ndtool", which has all features of an operator."""
    row = OperatorVersion(
        "ndtool", operator.name, operator.title, 1, operator.attributes, _NONE, INTEGERS,
        _ANY_DTYPE, False,
    )  # fmt: skip
    if operator.name in LOWERED:
        return row
    return row._replace(
        attributes=operator.attributes + _SELF * operator.scatters,
        reductions=tuple(REDUCTIONS) if operator.scatters else _NONE,
        negatives=True,
        out_of_bounds=mode_names(operator.scatters),
    )


@lru_cache(maxsize=1)
def table() -> tuple[OperatorVersion, ...]:
    """Return all versions of all operators."""
    versions = [OperatorVersion(row[0], row[1], _title(*row[:3]), *row[2:]) for row in _ROWS]
    return (*versions, *map(_ndtool_row, ALL_OPERATORS.values()))


def rows(standard: str, operator: str) -> list[OperatorVersion]:
    """Return the versions of an operator in a standard, oldest first."""
    if standard == "ndtool":
        return [_ndtool_row(operator_of(operator))]  # without the table: most calls need no more
    return [row for row in table() if (row.standard, row.operator) == (standard, operator)]


def require_valid(spec: str) -> str:
    """Return a spec; UsageError if it is malformed, for any operator."""
    standard, _, digits = spec.partition(":")
    has_versions = standard in ("onnx", "openvino")
    if spec not in UNVERSIONED and not (has_versions and re.fullmatch("[0-9]{1,9}", digits)):
        raise UsageError(
            f"spec is {format_value(spec)}: expected ndtool, onnx:N, openvino:N or webnn"
        )
    return spec


@lru_cache(maxsize=64)
def resolve(spec: str, operator: str) -> OperatorVersion:
    """Return the row of a spec: for "onnx:13", the newest version <= 13.

    Raises UsageError for a malformed spec, RuleError if the standard has no such operator, or not
    in this version.
    """
    standard, _, digits = require_valid(spec).partition(":")
    versions = rows(standard, operator)
    if not versions:
        raise RuleError(f"{standard} has no {operator} in ndtool's table (see `ndtool spec`)")
    if spec in UNVERSIONED:
        return versions[0]
    allowed = [row for row in versions if row.version <= int(digits)]
    if not allowed:
        first = versions[0]
        raise RuleError(f"{spec} has no {first.title}: it was added in {standard}:{first.version}")
    return allowed[-1]


def standard_name(dtype: Dtype) -> str:
    """Return the name that the standards use for an element type."""
    return "string" if dtype.kind in "US" else dtype.name


def accept(
    spec: str,
    operator: str,
    types: dict[str, Dtype],
    attributes: Attributes = Attributes(),  # noqa: B008 - immutable
) -> OperatorVersion:
    """Check the inputs' types and the attributes against a spec; return its row.

    Raises DtypeError or RuleError, which name the first version that accepts the call, and
    UsageError for an unknown reduction or spec.
    """
    data, reduction = types["data"], attributes.reduction
    if reduction not in REDUCTIONS:
        allowed = ", ".join(REDUCTIONS)
        raise UsageError(f"reduction is {format_value(reduction)}: expected one of {allowed}")
    row = resolve(spec, operator)
    check_mode(spec, row, attributes)
    if not attributes.negatives:
        row = row._replace(negatives=False)
    _check_index_dtype(spec, row, types["indices"])
    if "any" not in row.data[0] and standard_name(data) not in row.data:
        raise _unsupported_error(
            DtypeError, spec, row, "data", standard_name(data), f"data of {data.name}"
        )
    if "updates" in types and not is_same_type(data, types["updates"]):
        pair = (data, types["updates"])
        data_name, updates_name = (
            dtype.descr if dtype.name == "struct" else dtype.name for dtype in pair
        )
        raise DtypeError(
            f"updates has dtype {updates_name}: it must be data's, {data_name} (no silent cast)"
        )
    if reduction not in row.reductions:
        raise _unsupported_error(
            RuleError, spec, row, "reductions", reduction, f"reduction {reduction}"
        )
    if not REDUCTIONS[reduction].supports(data):
        raise _undefined_reduction_error(data, reduction)
    if not attributes.include_self:
        _check_include_self(spec, row, reduction)
    if attributes.duplicates != "last":
        _check_duplicates(spec, row, attributes.duplicates, reduction)
    if attributes.batch_dims and "batch_dims" not in row.attributes:
        raise _unsupported_error(RuleError, spec, row, "attributes", "batch_dims", "batch_dims")
    limit = _MAX_BATCH_DIMS.get((row.standard, operator, row.version))
    if limit is not None and attributes.batch_dims > limit:
        raise RuleError(
            f"{spec} ({_versioned_title(row)}) takes batch_dims up to {limit}:"
            " it fuses more batch axes into one"
        )
    return row


def check_sizes(
    spec: str, row: OperatorVersion, shapes: dict[str, Shape], attributes: Attributes, trace: Trace
) -> Trace:
    """Check sizes and axis against the limits of a standard; return the trace with these rules."""
    tracer = Tracer(trace.operator, trace)
    for limit in row.limits:
        for holds, numbers, problem in LIMITS[limit].check(shapes, attributes, tracer.sizes):
            accepting = [r for r in rows(row.standard, row.operator) if limit not in r.limits]
            reason = f"; {accepting[0].spec} is the first that accepts it" if accepting else ""
            message = f"{spec} ({_versioned_title(row)}) does not accept {problem}{reason}"
            tracer.require(holds, LIMITS[limit].rule, numbers, message, f"{spec}: {numbers}")
    return tracer.trace()


def check_mode(spec: str, row: OperatorVersion, attributes: Attributes) -> None:
    """Check the out-of-bounds mode and the fill value."""
    mode = attributes.out_of_bounds
    if mode not in MODES:
        raise UsageError(
            f"{option('out_of_bounds')} is {format_value(mode)}: expected one of {', '.join(MODES)}"
        )
    scatters = operator_of(row.operator).scatters
    if mode not in mode_names(scatters):
        kind, others = "scatter" if scatters else "gather", ", ".join(mode_names(scatters))
        raise UsageError(
            f"a {kind} has no {option('out_of_bounds', mode)}: expected one of {others}"
        )
    if attributes.fill is not None and scatters:
        raise UsageError(
            f"a scatter has no {option('fill')}: it skips indices out of bounds and padding"
        )
    if attributes.fill is not None and mode != "fill" and attributes.pad is None:
        raise UsageError(
            f"{option('fill')} requires {option('out_of_bounds', 'fill')} or {option('pad')}"
        )
    for name in EXTENSIONS:
        value = getattr(attributes, name)
        if row.standard != "ndtool" and value != Attributes._field_defaults[name]:
            raise RuleError(
                f"{spec} ({_versioned_title(row)}) does not accept {option(name, value)}:"
                f" it requires {option('spec', 'ndtool')}"
            )
    if mode not in row.out_of_bounds:
        given = option("out_of_bounds", mode)
        raise _unsupported_error(RuleError, spec, row, "out_of_bounds", mode, given)
    if row.standard != "ndtool" and attributes.fill not in (None, "0"):
        raise RuleError(f"{spec} ({_versioned_title(row)}) fills with 0, not {attributes.fill}")


def _check_include_self(spec: str, row: OperatorVersion, reduction: str) -> None:
    if not OPERATORS[row.operator].scatters:
        raise UsageError(f"a gather has no {option('include_self', False)}: it reduces nothing")
    if row.standard != "ndtool" and "include_self" not in row.attributes:
        given = option("include_self", False)
        raise _unsupported_error(RuleError, spec, row, "attributes", "include_self", given)
    if REDUCTIONS[reduction].requires_self:
        others = ", ".join(
            name for name, candidate in REDUCTIONS.items() if not candidate.requires_self
        )
        raise RuleError(
            f"reduction {reduction} always includes the current value: without it only {others}"
        )


def _check_duplicates(spec: str, row: OperatorVersion, duplicates: str, reduction: str) -> None:
    if duplicates not in DUPLICATES:
        raise UsageError(
            f"{option('duplicates')} is {format_value(duplicates)}: expected one of"
            f" {', '.join(DUPLICATES)}"
        )
    if not OPERATORS[row.operator].scatters:
        raise UsageError(
            f"a gather has no {option('duplicates')}: it may select an element several times"
        )
    if duplicates == "first" and row.standard != "ndtool":
        given = option("duplicates", duplicates)
        raise _unsupported_error(RuleError, spec, row, "attributes", "duplicates", given)
    if duplicates == "first" and reduction != "none":
        given = option("duplicates", duplicates)
        raise RuleError(f"{given} is for reduction none: the reduction is {reduction}")


def _check_index_dtype(spec: str, row: OperatorVersion, indices: Dtype) -> None:
    require_integers("indices", indices)
    if indices.name not in row.indices:
        call = f"indices of {indices.name}"
        raise _unsupported_error(DtypeError, spec, row, "indices", indices.name, call)


def require_integers(name: str, dtype: Dtype) -> None:
    """Raise DtypeError for indices of another type than integers of at most 64 bits."""
    if dtype.name not in INTEGERS:
        mask = "it looks like a mask: np.nonzero or np.argwhere gives indices"
        raise DtypeError(
            f"{name} has dtype {dtype.name}: expected an integer dtype of 8 to 64 bits",
            hint=mask if dtype.name == "bool" else "",
        )


def is_same_type(a: Dtype, b: Dtype) -> bool:
    """Whether two types are equal except for the byte order; records must be identical."""
    if a.name == b.name == "struct":
        return bool(a.descr == b.descr)
    return (a.name, a.itemsize) == (b.name, b.itemsize)


def _undefined_reduction_error(data: Dtype, reduction: str) -> DtypeError:
    allowed = ", ".join(row.name for row in REDUCTIONS.values() if row.supports(data))
    is_void = data.name == f"V{dtypes.EXTENSION_DTYPES['bfloat16']}"
    return DtypeError(
        f"reduction {reduction} is not defined for data of {data.name}: only {allowed}",
        hint="a bfloat16 array is stored as V2: read it with " + option("dtype", "bfloat16")
        if is_void
        else "",
    )


def _unsupported_error(
    error: type[RuleError] | type[DtypeError],
    spec: str,
    row: OperatorVersion,
    column: str,
    key: str,
    call: str,
) -> RuleError | DtypeError:
    """Return the error that names the spec and the first version whose `column` has `key`."""
    accepting = [r for r in rows(row.standard, row.operator) if key in getattr(r, column)]
    if accepting:
        reason = f"{row.standard}:{accepting[0].version} is the first that accepts it"
    else:
        valid = ", ".join(getattr(row, column)) or "none"
        reason = f"no version of {row.standard} accepts it; valid {column}: {valid}"
    return error(f"{spec} ({_versioned_title(row)}) does not accept {call}: {reason}")


def _versioned_title(row: OperatorVersion) -> str:
    """Return the title of an operator, with its version if the standard has versions."""
    return row.title if row.standard in UNVERSIONED else f"{row.title}-{row.version}"
