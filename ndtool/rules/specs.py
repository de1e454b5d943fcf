"""The standards' operator versions as a table, and the check of a call against it."""

import re
from functools import lru_cache
from typing import Any, NamedTuple

from ndtool.errors import DtypeError, RuleError, UsageError, format_value
from ndtool.rules import dtypes, modes, reductions
from ndtool.rules.dtypes import INTEGERS, Dtype
from ndtool.rules.modes import MODES
from ndtool.rules.operators import LOWERED, OPERATORS, Attributes, Operator, operator_of
from ndtool.rules.reductions import DUPLICATES, REDUCTIONS

_WHOLE = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64")
_ONNX_11 = ("bool", "string", *_WHOLE, *_FLOATS, "complex64", "complex128")
_ONNX_13 = (*_ONNX_11, "bfloat16")
_ONNX_24 = (
    *_ONNX_13, "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float8_e8m0fnu", "uint4", "int4", "float4_e2m1fn",
)  # fmt: skip
_OPENVINO = ("bool", *_WHOLE, *_FLOATS, "bfloat16", "float8_e4m3fn", "float8_e5m2")
_OV_NUMBERS = _OPENVINO[1:]
_WEBNN = ("float32", "float16", "int32", "uint32", "int64", "uint64", "int8", "uint8")
_WEB_IDS = ("int32", "uint32", "int64")
_CLAMPED = ("error", "clip")
_ANY = ("any fixed-size dtype",)
UNNUMBERED = ("ndtool", "webnn")  # standards without versions


class Row(NamedTuple):
    """One version of one operator in one standard.

    standard: "onnx", "openvino", "webnn" or "ndtool". operator: ndtool's name. title: the
    standard's name. version: the first one with these rules. indices, data: dtype names. negatives:
    whether negative indices count from the end. out_of_bounds: the names of the modes.
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

    @property
    def spec(self) -> str:
        """The standard and its version, if it has versions."""
        return self.standard if self.standard in UNNUMBERED else f"{self.standard}:{self.version}"


_NONE, _ADD_MUL, _ALL = ("none",), ("none", "add", "mul"), ("none", "add", "mul", "max", "min")
_BATCH, _AXIS, _REDUCE, _SELF = ("batch_dims",), ("axis",), ("reduction",), ("include_self",)
_I64, _I32 = ("int64",), ("int32", "int64")
_GND, _SND, _GEL, _SEL = "gather_nd", "scatter_nd", "gather_elements", "scatter_elements"
_GAT, _SCA, _TEN = "gather", "scatter", "tensor_scatter"

_ROWS: tuple[tuple[Any, ...], ...] = (
    # standard, name, version, attributes, reductions, indices, data, negatives, out_of_bounds;
    # a standard's own title for its operator, if it has another, follows in _TITLES
    ("onnx", _GND, 11, (), _NONE, _I64, _ONNX_11, True),
    ("onnx", _GND, 12, _BATCH, _NONE, _I64, _ONNX_11, True),
    ("onnx", _GND, 13, _BATCH, _NONE, _I64, _ONNX_13, True),
    ("onnx", _SND, 11, (), _NONE, _I64, _ONNX_11, True),
    ("onnx", _SND, 13, (), _NONE, _I64, _ONNX_13, True),
    ("onnx", _SND, 16, _REDUCE, _ADD_MUL, _I64, _ONNX_13, True),
    ("onnx", _SND, 18, _REDUCE, _ALL, _I64, _ONNX_13, True),
    ("onnx", _GEL, 11, _AXIS, _NONE, _I32, _ONNX_11, True),
    ("onnx", _GEL, 13, _AXIS, _NONE, _I32, _ONNX_13, True),
    ("onnx", _SEL, 9, _AXIS, _NONE, _I32, _ONNX_11, False),
    ("onnx", _SEL, 11, _AXIS, _NONE, _I32, _ONNX_11, True),
    ("onnx", _SEL, 13, _AXIS, _NONE, _I32, _ONNX_13, True),
    ("onnx", _SEL, 16, _AXIS + _REDUCE, _ADD_MUL, _I32, _ONNX_13, True),
    ("onnx", _SEL, 18, _AXIS + _REDUCE, _ALL, _I32, _ONNX_13, True),
    ("onnx", _GAT, 1, _AXIS, _NONE, _I32, _ONNX_11, False),
    ("onnx", _GAT, 11, _AXIS, _NONE, _I32, _ONNX_11, True),
    ("onnx", _GAT, 13, _AXIS, _NONE, _I32, _ONNX_13, True),
    ("onnx", _TEN, 24, ("axis", "mode"), _NONE, _I64, _ONNX_24, False),
    ("openvino", _GND, 5, _BATCH, _NONE, _WHOLE, _OPENVINO, False),
    ("openvino", _GND, 8, _BATCH, _NONE, _I32, _OPENVINO, False),
    ("openvino", _SND, 3, (), _NONE, _I32, _OV_NUMBERS, False),
    ("openvino", _SND, 15, _REDUCE, (*_ALL, "sub"), _I32, _OPENVINO, True),
    ("openvino", _GEL, 6, _AXIS, _NONE, _I32, _OPENVINO, False),
    ("openvino", _SEL, 3, _AXIS, _NONE, _WHOLE, _OV_NUMBERS, False),
    ("openvino", _SEL, 12, _AXIS + _REDUCE + _SELF, (*_ALL, "mean"), _WHOLE, _OPENVINO, True),
    ("openvino", _GAT, 1, _AXIS, _NONE, _WHOLE, _OPENVINO, False),
    ("openvino", _GAT, 7, _AXIS + _BATCH, _NONE, _WHOLE, _OPENVINO, False),
    ("openvino", _GAT, 8, _AXIS + _BATCH, _NONE, _WHOLE, _OPENVINO, True, ("error", "fill")),
    ("openvino", _SCA, 3, _AXIS, _NONE, _WHOLE, _OV_NUMBERS, False),
    ("webnn", _GND, 1, (), _NONE, _WEB_IDS, _WEBNN, True, _CLAMPED),
    ("webnn", _SND, 1, (), _NONE, _WEB_IDS, _WEBNN, True, _CLAMPED),
    ("webnn", _GEL, 1, _AXIS, _NONE, _WEB_IDS, _WEBNN, True, _CLAMPED),
    ("webnn", _SEL, 1, _AXIS, _NONE, _WEB_IDS, _WEBNN, True, _CLAMPED),
    ("webnn", _GAT, 1, _AXIS, _NONE, _WEB_IDS, _WEBNN, True, _CLAMPED),
)
_TITLES: dict[tuple[Any, ...], str] = {
    ("onnx", _SEL, 9): "Scatter",  # where a standard calls an operator otherwise than ONNX does
    ("openvino", _SND): "ScatterNDUpdate", ("openvino", _SEL): "ScatterElementsUpdate",
    ("webnn", _GND): "gatherND", ("webnn", _SND): "scatterND", ("webnn", _GAT): "gather",
    ("webnn", _GEL): "gatherElements", ("webnn", _SEL): "scatterElements",
}  # fmt: skip
_FUSES = {("openvino", _GND, 5): 1}  # batch_dims, at most: more axes are fused in the output


def _title(standard: str, operator: str, version: int) -> str:
    title = _TITLES.get((standard, operator, version), _TITLES.get((standard, operator)))
    return title or operator_of(operator).title


def _own(operator: Operator) -> Row:
    """Return the row of ndtool's own spec: everything that an operator can do."""
    return Row(
        "ndtool", operator.name, operator.title, 1, operator.attributes + _SELF * operator.scatters,
        tuple(REDUCTIONS) if operator.scatters else _NONE, INTEGERS, _ANY, True,
        modes.of_operator(operator.scatters),
    )  # fmt: skip


TABLE = (
    *(Row(row[0], row[1], _title(*row[:3]), *row[2:]) for row in _ROWS),
    *map(_own, OPERATORS.values()),
    *(
        _own(operator)._replace(reductions=_NONE, negatives=False, out_of_bounds=("error",))
        for operator in LOWERED.values()
    ),
)


def rows(standard: str, operator: str) -> list[Row]:
    """Return the versions of an operator in a standard, oldest first."""
    return [row for row in TABLE if (row.standard, row.operator) == (standard, operator)]


def require(spec: str) -> None:
    """Raise UsageError for a malformed spec, whatever the operator."""
    standard, _, digits = spec.partition(":")
    known = standard in ("onnx", "openvino")
    if spec not in UNNUMBERED and not (known and re.fullmatch("[0-9]{1,9}", digits)):
        raise UsageError(
            f"spec is {format_value(spec)}: expected ndtool, onnx:N, openvino:N or webnn"
        )


@lru_cache(maxsize=64)
def resolve(spec: str, operator: str) -> Row:
    """Return the row of a spec: for "onnx:13", the newest version <= 13.

    Raises UsageError for a malformed spec, RuleError if the standard has no such operator, or had
    none at that version.
    """
    require(spec)
    standard, _, digits = spec.partition(":")
    versions = rows(standard, operator)
    if not versions:
        raise RuleError(f"{standard} has no {operator} in ndtool's table (see `ndtool spec`)")
    if spec in UNNUMBERED:
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
    attributes: Attributes = Attributes(),  # noqa: B008 - a value that never changes
) -> Row:
    """Check the inputs' types and the attributes against a spec; return its row.

    Raises DtypeError or RuleError, which name the first version that allows the call, and
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
        raise _refused(DtypeError, spec, row, "data", standard_name(data), f"data of {data.name}")
    if "updates" in types and not same_type(data, types["updates"]):
        pair = (data, types["updates"])
        mine, other = (one.descr if one.name == "struct" else one.name for one in pair)
        raise DtypeError(f"updates has dtype {other}: it must be data's, {mine} (no silent cast)")
    if reduction not in row.reductions:
        raise _refused(RuleError, spec, row, "reductions", reduction, f"reduction {reduction}")
    if not REDUCTIONS[reduction].takes(data):
        raise _no_arithmetic(data, reduction)
    if not attributes.include_self:
        _check_without_self(spec, row, reduction)
    if attributes.duplicates != "last":
        _check_duplicates(spec, row, attributes.duplicates, reduction)
    if attributes.batch_dims and "batch_dims" not in row.attributes:
        raise _refused(RuleError, spec, row, "attributes", "batch_dims", "batch_dims")
    limit = _FUSES.get((row.standard, operator, row.version))
    if limit is not None and attributes.batch_dims > limit:
        raise RuleError(
            f"{spec} ({_called(row)}) takes batch_dims up to {limit}:"
            " it fuses more batch axes into one"
        )
    return row


def check_mode(spec: str, row: Row, attributes: Attributes) -> None:
    """Check the out-of-bounds mode and the fill value."""
    mode = attributes.out_of_bounds
    if mode not in MODES:
        raise UsageError(
            f"out_of_bounds is {format_value(mode)}: expected one of {', '.join(MODES)}"
        )
    scatters = operator_of(row.operator).scatters
    if not MODES[mode].suits(scatters):
        kind, others = "scatter" if scatters else "gather", ", ".join(modes.of_operator(scatters))
        raise UsageError(f"a {kind} has no out_of_bounds {mode}: expected one of {others}")
    if attributes.fill is not None and scatters:
        raise UsageError("a scatter has no fill: it skips indices out of bounds and padding")
    if attributes.fill is not None and mode != "fill" and attributes.pad is None:
        raise UsageError(f"fill requires out_of_bounds fill or pad, not out_of_bounds {mode}")
    own = "pad" if attributes.pad is not None else "" if attributes.negatives else "no negatives"
    if own and row.standard != "ndtool":
        raise RuleError(f"{spec} ({_called(row)}) does not accept {own}: it requires spec ndtool")
    if mode not in row.out_of_bounds:
        raise _refused(RuleError, spec, row, "out_of_bounds", mode, f"out_of_bounds {mode}")
    if row.standard != "ndtool" and attributes.fill not in (None, "0"):
        raise RuleError(f"{spec} ({_called(row)}) fills with 0: fill is {attributes.fill}")


def _check_without_self(spec: str, row: Row, reduction: str) -> None:
    if not OPERATORS[row.operator].scatters:
        raise UsageError("a gather has no include_self: it reduces nothing")
    if row.standard != "ndtool" and "include_self" not in row.attributes:
        raise _refused(RuleError, spec, row, "attributes", "include_self", "no include_self")
    if REDUCTIONS[reduction].requires_self:
        others = ", ".join(one.name for one in REDUCTIONS.values() if not one.requires_self)
        raise RuleError(
            f"reduction {reduction} always includes the current value: without it only {others}"
        )


def _check_duplicates(spec: str, row: Row, duplicates: str, reduction: str) -> None:
    if duplicates not in DUPLICATES:
        raise UsageError(
            f"duplicates is {format_value(duplicates)}: expected one of {', '.join(DUPLICATES)}"
        )
    if not OPERATORS[row.operator].scatters:
        raise UsageError("a gather has no duplicates: it may select an element several times")
    if duplicates == "first" and row.standard != "ndtool":
        raise _refused(RuleError, spec, row, "attributes", "duplicates", "duplicates first")
    if duplicates == "first" and reduction != "none":
        raise RuleError(f"duplicates first is for reduction none: the reduction is {reduction}")


def _check_index_dtype(spec: str, row: Row, indices: Dtype) -> None:
    if indices.name not in INTEGERS:
        mask = "it looks like a mask: np.nonzero or np.argwhere gives indices"
        raise DtypeError(
            f"indices has dtype {indices.name}: expected an integer dtype of 8 to 64 bits",
            hint=mask if indices.name == "bool" else "",
        )
    if indices.name not in row.indices:
        call = f"indices of {indices.name}"
        raise _refused(DtypeError, spec, row, "indices", indices.name, call)


def same_type(a: Dtype, b: Dtype) -> bool:
    """Whether two types are equal but for the byte order; records must be identical."""
    if a.name == b.name == "struct":
        return bool(a.descr == b.descr)
    return (a.name, a.itemsize) == (b.name, b.itemsize)


def _no_arithmetic(data: Dtype, reduction: str) -> DtypeError:
    allowed = ", ".join(reductions.of_dtype(data))
    is_void = data.name == f"V{dtypes.EXTENDED['bfloat16']}"
    return DtypeError(
        f"reduction {reduction} is not defined for data of {data.name}: only {allowed}",
        hint="a bfloat16 array is stored as V2: read it with --dtype bfloat16" if is_void else "",
    )


def _refused(
    error: type[RuleError] | type[DtypeError], spec: str, row: Row, column: str, key: str, call: str
) -> RuleError | DtypeError:
    """Return the error that names the spec and the first version whose `column` has `key`."""
    accepting = [r for r in rows(row.standard, row.operator) if key in getattr(r, column)]
    if accepting:
        reason = f"{row.standard}:{accepting[0].version} is the first that accepts it"
    else:
        valid = ", ".join(getattr(row, column)) or "none"
        reason = f"no version of {row.standard} accepts it; valid {column}: {valid}"
    return error(f"{spec} ({_called(row)}) does not accept {call}: {reason}")


def _called(row: Row) -> str:
    """Return an operator's title with its version, if the standard has versions."""
    return row.title if row.standard in UNNUMBERED else f"{row.title}-{row.version}"
