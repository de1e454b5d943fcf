"""Conversion of callers' arguments to NumPy arrays, integers and strings.

An argument that cannot be converted without changing values is refused by its name.
"""

import math
import operator
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndtool._kernels import Layout
from ndtool.errors import BoundsError, DtypeError, NdtoolError, RuleError, UsageError, format_value
from ndtool.inmemory import nulls, tensors
from ndtool.machine import threads as _threads
from ndtool.rules import dtypes, shapes
from ndtool.rules.dtypes import Dtype
from ndtool.rules.operators import MODES, PADDING, Attributes, operator_of
from ndtool.rules.plans import Plan
from ndtool.rules.reductions import ALIASES

Array = NDArray[Any]
_LIST_TYPES = {list, tuple}
_SCALAR_TYPES = {type(None), bool, int, float, complex, str, bytes, *np.sctypeDict.values()}
# Types that NumPy converts without array protocols.
_NATIVE_TYPES = {*_LIST_TYPES, *_SCALAR_TYPES, np.ndarray}
_ARRAY_PROTOCOLS = ("__array__", "__array_interface__", "__array_struct__")
_NUMBER_TYPES = {bool, int, float, complex}
_FIXED_SIZE_TYPES = {kind for kind in np.sctypeDict.values() if np.dtype(kind).kind in "biufc"}
_MAX_EXACT_FLOAT = 2**53  # float64 represents every integer below it
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1  # of an int64


def array(name: str, value: object) -> Array:
    """Return an argument as an ndarray; an instance of a subclass is viewed as an ndarray.

    Refuses nulls, masks, arrays that are not loaded, and lists whose elements NumPy would change.
    """
    if type(value) is np.ndarray:
        return value
    converted, nested_list, classes = _convert(name, value)
    if classes and classes != {float}:
        _require_unchanged(name, nested_list, classes, converted)
    return converted


def _convert(name: str, value: object) -> tuple[Array, object, set[type]]:
    """Return an argument as an ndarray, with its nested lists and their element types."""
    kind = type(value)  # not `__class__`, which an object can override
    if issubclass(kind, os.PathLike) or (issubclass(kind, str) and name != "updates"):
        raise UsageError(
            f"{name} is a file name: expected an array",
            hint="the functions of ndtool.files accept file names",
        )
    try:
        if issubclass(kind, np.ndarray):
            return tensors.as_ndarray(name, value), None, set()
        classes = _nested_types(value)
        if not classes <= _NATIVE_TYPES:
            value = _to_plain(name, value)
            classes = _nested_types(value)
        return (
            np.asarray(value),
            value,
            classes - _LIST_TYPES if type(value) in _LIST_TYPES else set(),
        )
    except (MemoryError, NdtoolError):
        raise
    except Exception as error:
        kind = RuleError if isinstance(error, ValueError) else DtypeError
        reason = format_value(error, str, 300)
        raise kind(
            f"{name} is a {type(value).__name__} that NumPy cannot convert to an array: {reason}"
        ) from error


def _to_plain(name: str, value: Any, depth: int = 0) -> Any:
    """Return a value whose arrays of other libraries, also in nested lists, are ndarrays."""
    kind = type(value)
    if kind in _SCALAR_TYPES or kind is np.ndarray or depth > shapes.MAX_RANK:
        return value
    if kind not in _LIST_TYPES:
        if not _is_sequence(value):
            return tensors.as_ndarray(name, value)
        tensors.require_loaded(name, value)
    return [_to_plain(name, item, depth + 1) for item in value]


def _is_sequence(value: Any) -> bool:
    """Whether NumPy would convert a value item by item, for lack of a buffer or array protocol."""
    kind = type(value)
    if any(hasattr(value, protocol) for protocol in _ARRAY_PROTOCOLS) or issubclass(
        kind, dict | str
    ):
        return False
    if not (hasattr(kind, "__len__") and hasattr(kind, "__getitem__")):
        return False
    try:
        memoryview(value)
    except TypeError:
        return True
    return False


def _require_unchanged(name: str, nested_list: Any, classes: set[type], converted: Array) -> None:
    """Refuse lists whose values NumPy changed for a common dtype, such as integers to floats."""
    if converted.dtype.hasobject or not converted.size:
        return
    if len(classes) == 1 and classes <= _FIXED_SIZE_TYPES:
        return
    types = classes if classes <= _NUMBER_TYPES else _element_types(nested_list)
    all_integers = all(np.dtype(original).kind in "biu" for original in types)
    if converted.dtype.kind in "biu" if all_integers else len(types) == 1:
        return
    if (
        not all_integers
        and types is classes
        and not (np.abs(converted.real) >= _MAX_EXACT_FLOAT).any()
    ):
        return  # fast path: floats below 2**53 are exact
    kind = converted.dtype.kind
    if kind in "mM" and all(np.dtype(cls).kind == kind for cls in types):
        _require_times(name, nested_list, converted)
        return
    for original, result in zip(
        np.asarray(nested_list, object).flat, converted.astype(object).flat, strict=True
    ):
        exact = original.item() if isinstance(original, np.generic | np.ndarray) else original
        if all_integers or not (exact == result or (exact != exact and result != result)):
            raise _changed_value_error(name, exact, result)


def _require_times(name: str, nested_list: Any, converted: Array) -> None:
    """Refuse datetimes or timedeltas of several units that the finest unit cannot represent."""
    start, flat = 0, converted.ravel()
    for element in _leaves(nested_list):
        original = np.asarray(element).ravel()
        result = flat[start : start + original.size]
        start += original.size
        try:
            unchanged = (result.astype(original.dtype) == original) | np.isnat(original)
        except TypeError:  # a timedelta without a unit
            unchanged = result.view(np.int64) == original.view(np.int64)
        if not unchanged.all():
            first = int(np.argmin(unchanged))
            raise _changed_value_error(name, original[first], result[first])


def _changed_value_error(name: str, original: object, converted: object) -> DtypeError:
    return DtypeError(
        f"{name} is a list with {format_value(original)}, which NumPy would convert to"
        f" {format_value(converted)}: give its elements one type"
    )


def _element_types(value: Any) -> set[Any]:
    """Return the dtypes of the elements of nested lists, or their classes if they have none."""
    return {getattr(element, "dtype", type(element)) for element in _leaves(value)}


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the elements of nested lists, in order."""
    if any(type(item) in _LIST_TYPES for item in value):
        for item in value:
            if type(item) in _LIST_TYPES:
                yield from _leaves(item)
            else:
                yield item
    else:
        yield from value


def index_array(value: object, mode: str = "error", name: str = "indices") -> Array:
    """Return indices as an ndarray, with integers beyond 64 bits clamped to int64.

    No axis is that long, so they stay out of bounds. `restore_exact_index` restores the value in
    errors. Lists without elements are int64, as no element has another type. Raises DtypeError in
    modes where the result depends on the exact value.
    """
    if type(value) is np.ndarray and value.dtype.kind in "iu":
        return value
    converted, nested_list, classes = _convert(name, value)
    if type(nested_list) in _LIST_TYPES and not classes:
        return converted.astype(np.int64)
    if converted.dtype.kind in "iu" or converted.dtype.name in dtypes.INTEGERS:
        return converted
    exact = _large_integers(value)
    if exact is None:
        return converted
    if mode in MODES and not MODES[mode].ignores_distance:
        participle = MODES[mode].participle
        raise DtypeError(
            f"indices of more than 64 bits cannot be {participle}: expected smaller integers"
        )
    clamped = [min(max(int(number), _INT64_MIN), _INT64_MAX) for number in exact.flat]
    return np.array(clamped, np.int64).reshape(exact.shape)


def restore_exact_index(error: BoundsError, value: object, data: str = "data") -> None:
    """Replace a clamped index in a BoundsError by the caller's.

    value: the caller's indices, which `index_array` or `rebase` clamped. data: the name of data in
    the message.
    """
    is_integers = type(value) is np.ndarray and value.dtype.kind in "iu"
    exact: Any = value if is_integers else _large_integers(value)
    if exact is not None:
        component = () if error.component is None else (error.component,)
        value = int(exact[(*error.position, *component)])
        if value != error.value:
            error.value, error.hint = value, ""  # the hint was about the clamped value
            error.name("indices", data)


def _large_integers(value: object) -> Array | None:
    """Return indices as Python integers if all are integers and some exceed 64 bits, else None."""
    may_be_large = type(value) in (list, tuple) or (
        type(value) is np.ndarray and value.dtype.hasobject
    )
    exact = np.asarray(value, object) if may_be_large else np.empty(0, object)
    all_integers = all(isinstance(number, int | np.integer) for number in exact.flat)
    if all_integers and any(not _INT64_MIN <= number <= _INT64_MAX for number in exact.flat):
        return exact
    return None


def _nested_types(value: Any) -> set[type]:
    """Return the types of a value, of the lists nested in it and of their elements."""
    level, classes = [value], {type(value)}
    all_classes = classes
    for _ in range(shapes.MAX_RANK):
        if classes.isdisjoint(_LIST_TYPES):
            break
        level = list(chain.from_iterable(item for item in level if type(item) in _LIST_TYPES))
        classes = set(map(type, level))
        all_classes = all_classes | classes
    return all_classes


def integer(name: str, value: Any, kind: type[NdtoolError] = RuleError) -> int:
    """Return an integer argument; raise `kind` otherwise, also for a bool, as NumPy does."""
    if type(value) is int and -64 <= value <= 1024:
        return value
    try:
        is_invalid = isinstance(value, bool) or nulls.is_masked(type(value))
        index = None if is_invalid else int.__index__(operator.index(value))
    except Exception:
        index = None
    if index is None:
        raise kind(f"{name} is {format_value(value)}: it must be an integer")
    if not _INT64_MIN <= index <= _INT64_MAX:
        raise kind(f"{name} is {format_value(index)}: it must fit in 64 bits")
    return index


def number_text(name: str, value: Any) -> str | None:
    """Return a number as text, with all digits of an integer; None for None."""
    if value is None:
        return None
    try:
        nulls.require_unmasked(name, value)
        python_number = value.item() if hasattr(value, "dtype") else value
        if isinstance(python_number, int | float | complex):
            return str(python_number).strip("()")
        return _foreign_number_text(python_number)
    except Exception:
        raise DtypeError(f"{name} is {format_value(value)}: it must be a number") from None


def _foreign_number_text(value: Any) -> str:
    """Return a number of another package's type as text in Python's notation."""
    if isinstance(value, str | bytes):
        raise TypeError
    if hasattr(type(value), "__index__"):
        return str(operator.index(value))
    rounded = float(value)
    if math.isinf(rounded) and value != rounded:
        raise TypeError
    if rounded and rounded.is_integer() and hasattr(type(value), "__int__"):
        exact = int(value)  # may have more digits than a float
        return str(exact) if exact == value else str(rounded)
    return str(rounded)


def optional_integer(name: str, value: Any) -> int | None:
    """Return an integer argument, or None for its default; a pad may also be a uint64."""
    if value is None:
        return None
    if name == "pad" and type(value) is not bool:
        try:
            index = operator.index(value)
        except Exception:  # of any kind, from __index__: `integer` raises the error
            index = 0
        if _INT64_MAX < index < 1 << 64:
            return index
    return integer(name, value)


def boolean(name: str, value: object) -> bool:
    """Return a bool argument; UsageError for any other type."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise UsageError(f"{name} is {format_value(value)}: it must be True or False")


def string(name: str, value: object) -> str:
    """Return an argument as a plain str."""
    if type(value) is str:
        return value
    if issubclass(type(value), str):
        return str.__str__(value)
    raise UsageError(f"{name} is {format_value(value)}: it must be a str")


def reduction_name(name: str, value: object) -> str:
    """Return the name of a reduction; other libraries' names are accepted."""
    reduction = string(name, value)
    return ALIASES.get(reduction, reduction)


def index_base(name: str, value: object) -> int:
    """Return the index of the first element of an axis: 0 or 1."""
    base = integer(name, value, UsageError)
    if base not in (0, 1):
        raise UsageError(f"{name} is {base}: it must be 0 or 1")
    return base


def rebase(indices: Array, attributes: Attributes) -> Array:
    """Return indices that count from 0, as int64, if they count from `index_base`, else themselves.

    Padding becomes PADDING, as in `Attributes.rebased`. int64 lacks results for other indices at
    the ends of the range: these stay out of bounds.
    """
    base, lowest, highest = attributes.index_base, -_INT64_MAX, _INT64_MAX
    if not base or indices.dtype.kind not in "iu":
        return indices
    is_padding = np.zeros(indices.shape, bool)
    if attributes.pad is not None:
        is_padding = np.equal(indices, attributes.pad)
    given = indices
    if indices.dtype.itemsize == 8:
        is_extreme = ((indices > highest) | (indices <= lowest)) & ~is_padding
        if attributes.out_of_bounds == "wrap" and is_extreme.any():
            value = int(given[is_extreme][0])
            raise UsageError(f"index {value} cannot wrap with index_base {base}: expected 63 bits")
        if indices.dtype.kind == "u":
            given = np.minimum(indices, indices.dtype.type(highest))
    rebased = np.maximum(given.astype(np.int64), lowest + 1) - base
    return np.where(is_padding, np.int64(PADDING), rebased)


# The function that converts each attribute, by its name in Attributes.
CONVERTERS: dict[str, Callable[[str, Any], Any]] = {
    "batch_dims": integer, "axis": optional_integer, "reduction": reduction_name,
    "out_of_bounds": string, "fill": number_text, "pad": optional_integer, "negatives": boolean,
    "include_self": boolean, "duplicates": string, "index_base": index_base, "mode": string,
}  # fmt: skip


def make_attributes(operator: str, arguments: Iterable[tuple[str, object]]) -> Attributes:
    """Return the attributes of an operator from (name, value) pairs of arguments."""
    attribute_names, convert = operator_of(operator).attributes, CONVERTERS
    # Without batch_dims, the default axis is an integer, and None is invalid.
    if "axis" in attribute_names and "batch_dims" not in attribute_names:
        convert = {**convert, "axis": integer}
    return Attributes(**{name: convert[name](name, value) for name, value in arguments})


def element_type(name: str, dtype: np.dtype[Any]) -> Dtype:
    """Return the element type of an array argument; DtypeError with its name if unsupported."""
    if dtype.type is np.record:  # same layout as a structured dtype
        dtype = np.dtype((np.void, dtype))
    try:
        return dtypes.from_numpy(dtype)
    except DtypeError as error:
        raise DtypeError(f"{name}: {error.message}", hint=error.hint) from None


def thread_count(threads: int | None) -> int:
    """Return the number of threads for the argument `threads`; the default for None."""
    if threads is None:
        return _threads.default_threads()
    return _threads.resolve_threads(integer("threads", threads, UsageError))


def output_buffer(out: object, plan: Plan, dtype: np.dtype[Any]) -> Array:
    """Return `out` as an ndarray; raise unless it can hold the result of a plan."""
    shape = plan.output
    if tensors.is_tensor(out):
        tensors.require_resolved("out", out)
    elif not issubclass(type(out), np.ndarray):
        raise DtypeError(f"out is a {type(out).__name__}: it must be an ndarray or torch tensor")
    buffer = array("out", out)
    if buffer.dtype != dtype:
        raise DtypeError(f"out has dtype {buffer.dtype}: it must be data's, {dtype}")
    if buffer.shape != shape:
        raise RuleError(
            f"out has shape {shapes.format_shape(buffer.shape)}: {shapes.format_shape(shape)} is"
            " required"
        )
    if not buffer.flags.writeable:
        raise RuleError("out is read-only: it must be writeable")
    if not buffer.flags.c_contiguous and Layout(shape, buffer.strides, dtype.itemsize).may_overlap:
        raise RuleError("out overlaps itself: its elements must not share memory")
    return buffer


def require_no_overlap(out: Array, **inputs: Array) -> None:
    """Refuse an `out` that shares memory with an input."""
    for name, operand in inputs.items():
        if _may_overlap(out, operand):
            raise RuleError(f"out overlaps {name}: only scatter's out may be data itself")


def _may_overlap(a: Array, b: Array) -> bool:
    try:
        return bool(np.shares_memory(a, b, max_work=1 << 16))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
