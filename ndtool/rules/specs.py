"""What each standard and version allows, as a table, and the one check against it."""

from functools import lru_cache
from typing import Any, NamedTuple

from ndtool.errors import DtypeError, RuleError, UsageError, shown
from ndtool.rules import dtypes
from ndtool.rules.dtypes import Dtype
from ndtool.rules.operators import OPERATORS, REDUCTIONS, RULES, Attributes

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64")
_ONNX_11 = ("bool", "string", *_INTEGERS, *_FLOATS, "complex64", "complex128")
_ONNX_13 = (*_ONNX_11, "bfloat16")
_OPENVINO = ("bool", *_INTEGERS, *_FLOATS, "bfloat16", "float8_e4m3fn", "float8_e5m2")
_ANY = ("any fixed-size dtype",)


class Row(NamedTuple):
    """One version of one operator in one standard, and what it takes.

    standard: "onnx", "openvino" or "ndtool". operator: ndtool's name. title: the standard's.
    version: the first one with these rules. indices, data: dtype names. negatives: whether
    indices count from the end. out_of_bounds: what may become of those out of bounds.
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


_NONE, _ADD_MUL, _ALL = ("none",), ("none", "add", "mul"), REDUCTIONS
_BATCH, _AXIS, _REDUCE = ("batch_dims",), ("axis",), ("reduction",)
_I64, _I32 = ("int64",), ("int32", "int64")
_GND, _SND, _GEL, _SEL = "gather_nd", "scatter_nd", "gather_elements", "scatter_elements"
_GAT = "gather"
_FILL, _DROP = RULES[:4], (*RULES[:3], "drop")

_ROWS: tuple[tuple[Any, ...], ...] = (
    # standard, name, version, attributes, reductions, indices, data, negatives, out of bounds
    ("onnx", _GND, 11, (), _NONE, _I64, _ONNX_11, True),
    ("onnx", _GND, 12, _BATCH, _NONE, _I64, _ONNX_11, True),
    ("onnx", _GND, 13, _BATCH, _NONE, _I64, _ONNX_13, True),
    ("onnx", _SND, 11, (), _NONE, _I64, _ONNX_11, True),
    ("onnx", _SND, 13, (), _NONE, _I64, _ONNX_13, True),
    ("onnx", _SND, 16, _REDUCE, _ADD_MUL, _I64, _ONNX_13, True),
    ("onnx", _SND, 18, _REDUCE, _ALL, _I64, _ONNX_13, True),
    ("onnx", _GEL, 11, _AXIS, _NONE, _I32, _ONNX_11, True),
    ("onnx", _GEL, 13, _AXIS, _NONE, _I32, _ONNX_13, True),
    ("onnx", _SEL, 11, _AXIS, _NONE, _I32, _ONNX_11, True),
    ("onnx", _SEL, 13, _AXIS, _NONE, _I32, _ONNX_13, True),
    ("onnx", _SEL, 16, _AXIS + _REDUCE, _ADD_MUL, _I32, _ONNX_13, True),
    ("onnx", _SEL, 18, _AXIS + _REDUCE, _ALL, _I32, _ONNX_13, True),
    ("onnx", _GAT, 1, _AXIS, _NONE, _I32, _ONNX_11, False),
    ("onnx", _GAT, 11, _AXIS, _NONE, _I32, _ONNX_11, True),
    ("onnx", _GAT, 13, _AXIS, _NONE, _I32, _ONNX_13, True),
    ("openvino", _GND, 8, _BATCH, _NONE, _I32, _OPENVINO, False),
    ("ndtool", _GND, 1, _BATCH, _NONE, _INTEGERS, _ANY, True, _FILL),
    ("ndtool", _SND, 1, _REDUCE, _ALL, _INTEGERS, _ANY, True, _DROP),
    ("ndtool", _GEL, 1, _AXIS, _NONE, _INTEGERS, _ANY, True, _FILL),
    ("ndtool", _SEL, 1, _AXIS + _REDUCE, _ALL, _INTEGERS, _ANY, True, _DROP),
    ("ndtool", _GAT, 1, _AXIS, _NONE, _INTEGERS, _ANY, True, _FILL),
)
TABLE = tuple(Row(row[0], row[1], OPERATORS[row[1]].title, *row[2:]) for row in _ROWS)


def rows(standard: str, operator: str) -> list[Row]:
    """Return the versions of an operator in a standard, oldest first."""
    return [row for row in TABLE if (row.standard, row.operator) == (standard, operator)]


@lru_cache(maxsize=64)
def resolve(spec: str, operator: str) -> Row:
    """Return the row that a spec such as "onnx:13" means: the newest version <= 13.

    Raises UsageError for a malformed spec, RuleError where the standard has no such operator
    or had none yet.
    """
    if spec == "ndtool":
        return rows("ndtool", operator)[0]
    standard, colon, digits = spec.partition(":")
    known = standard in ("onnx", "openvino")
    if not (known and colon and digits.isascii() and digits.isdecimal() and len(digits) < 10):
        raise UsageError(f"spec is {shown(spec)}: expected ndtool, onnx:N or openvino:N")
    versions = rows(standard, operator)
    if not versions:
        raise RuleError(f"{standard} has no {operator} in ndtool's table (see `ndtool spec`)")
    allowed = [row for row in versions if row.version <= int(digits)]
    if not allowed:
        first = versions[0]
        raise RuleError(f"{spec} has no {first.title}: it exists since {standard}:{first.version}")
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
    """Check types (by the inputs' names) and attributes against a spec; return the row it means.

    Raises DtypeError or RuleError, which name the spec and the first version that allows it,
    and UsageError for a reduction or spec that does not exist.
    """
    data, reduction = types["data"], attributes.reduction
    if reduction not in REDUCTIONS:
        allowed = ", ".join(REDUCTIONS)
        raise UsageError(f"reduction is {shown(reduction)}: expected one of {allowed}")
    row = resolve(spec, operator)
    check_rule(spec, row, attributes)
    _check_index_dtype(spec, row, types["indices"])
    if "any" not in row.data[0] and standard_name(data) not in row.data:
        raise _refused(DtypeError, spec, row, "data", standard_name(data), f"data of {data.name}")
    if "updates" in types and not _same_type(data, types["updates"]):
        mine, theirs = (d.descr if d.name == "struct" else d.name for d in (data, types["updates"]))
        raise DtypeError(f"updates has dtype {theirs}: it must be data's, {mine} (no silent cast)")
    if reduction not in row.reductions:
        raise _refused(RuleError, spec, row, "reductions", reduction, f"reduction {reduction}")
    if reduction not in data.reductions:
        raise _no_arithmetic(data, reduction)
    if attributes.batch_dims and "batch_dims" not in row.attributes:
        raise _refused(RuleError, spec, row, "attributes", "batch_dims", "batch_dims")
    return row


def check_rule(spec: str, row: Row, attributes: Attributes) -> None:
    """Check what is to become of indices out of bounds."""
    rule = attributes.out_of_bounds
    if rule not in RULES:
        raise UsageError(f"out_of_bounds is {shown(rule)}: expected one of {', '.join(RULES)}")
    scatters = "updates" in OPERATORS[row.operator].inputs
    if rule == ("fill" if scatters else "drop"):
        what, instead = ("scatter", "drop") if scatters else ("gather", "fill")
        raise UsageError(f"a {what} has no out_of_bounds {rule}: expected {instead}, clip or wrap")
    if attributes.fill is not None and rule != "fill":
        raise UsageError(f"fill is given, and out_of_bounds is {rule}: expected out_of_bounds fill")
    if rule not in row.out_of_bounds:
        raise _refused(RuleError, spec, row, "out_of_bounds", rule, f"out_of_bounds {rule}")


def _check_index_dtype(spec: str, row: Row, indices: Dtype) -> None:
    if indices.name not in _INTEGERS:
        mask = "it looks like a mask: np.nonzero or np.argwhere gives indices"
        raise DtypeError(
            f"indices has dtype {indices.name}: any integer dtype of 8 to 64 bits is accepted",
            hint=mask if indices.name == "bool" else "",
        )
    if indices.name not in row.indices:
        what = f"indices of {indices.name}"
        raise _refused(DtypeError, spec, row, "indices", indices.name, what)


def _same_type(a: Dtype, b: Dtype) -> bool:
    """Whether two types hold the same values; byte order may differ, a record's may not."""
    if a.name == b.name == "struct":
        return bool(a.descr == b.descr)
    return (a.name, a.itemsize) == (b.name, b.itemsize)


def _no_arithmetic(data: Dtype, reduction: str) -> DtypeError:
    allowed = ", ".join(data.reductions)
    untyped = [n for n, size in dtypes.EXTENDED.items() if data.name == f"V{size}"]
    hint = ""
    if "bfloat16" in untyped:
        hint = "a bfloat16 array is stored as V2: say so with --dtype bfloat16"
    return DtypeError(
        f"reduction {reduction} has no meaning for data of {data.name}: only {allowed}", hint=hint
    )


def _refused(
    kind: type[RuleError] | type[DtypeError], spec: str, row: Row, column: str, key: str, what: str
) -> RuleError | DtypeError:
    """Return the error that names the spec and the first version that has `key`."""
    since = [r for r in rows(row.standard, row.operator) if key in getattr(r, column)]
    if since:
        where = f"{row.standard}:{since[0].version} is the first that does"
    else:
        listed = ", ".join(getattr(row, column)) or "nothing"
        where = f"no version of {row.standard} does; it has {column} {listed}"
    title = f"{spec} ({row.title}-{row.version})"
    return kind(f"{title} does not take {what}: {where}")
