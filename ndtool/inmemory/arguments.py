"""Conversion of callers' arguments to plain arrays, integers and strings.

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

from ndtool.engine import layouts
from ndtool.errors import BoundsError, DtypeError, NdtoolError, RuleError, UsageError, format_value
from ndtool.inmemory import nulls, tensors
from ndtool.machine import threads as _threads
from ndtool.rules import dtypes, shapes
from ndtool.rules.dtypes import Dtype
from ndtool.rules.modes import MODES
from ndtool.rules.operators import Attributes, operator_of
from ndtool.rules.plans import Shape
from ndtool.rules.reductions import ALIASES

Array = NDArray[Any]
_LISTS = {list, tuple}
_SCALARS = {type(None), bool, int, float, complex, str, bytes, *np.sctypeDict.values()}
_PLAIN = {*_LISTS, *_SCALARS, np.ndarray}  # types that NumPy converts without array protocols
_WAYS = ("__array__", "__array_interface__", "__array_struct__")
_NUMBERS = {bool, int, float, complex}
_SIZED = {kind for kind in np.sctypeDict.values() if np.dtype(kind).kind in "biufc"}
_EXACT = 2**53  # float64 represents every integer below it
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1  # of an int64


def array(name: str, value: object) -> Array:
    """Return an argument as an ndarray; a subclass is viewed as its plain memory.

    Refuses nulls, masks, arrays that are not loaded, and lists whose elements NumPy would change.
    """
    if type(value) is np.ndarray:
        return value
    converted, nested_list, classes = _converted(name, value)
    if classes and classes != {float}:
        _require_unchanged(name, nested_list, classes, converted)
    return converted


def _converted(name: str, value: object) -> tuple[Array, object, set[type]]:
    """Return an argument as an ndarray, the nested lists it came from and their element types."""
    kind = type(value)  # not `__class__`, which an object can override
    if issubclass(kind, os.PathLike) or (issubclass(kind, str) and name != "updates"):
        raise UsageError(
            f"{name} is a file name: expected an array",
            hint="the functions of ndtool.files accept file names",
        )
    try:
        if issubclass(kind, np.ndarray):
            return tensors.viewed(name, value), None, set()
        classes = _nested_types(value)
        if not classes <= _PLAIN:
            value = _to_plain(name, value)
            classes = _nested_types(value)
        return np.asarray(value), value, classes - _LISTS if type(value) in _LISTS else set()
    except (MemoryError, NdtoolError):
        raise
    except Exception as error:
        kind = RuleError if isinstance(error, ValueError) else DtypeError
        reason = format_value(error, str, 300)
        raise kind(
            f"{name} is a {type(value).__name__} that NumPy cannot convert to an array: {reason}"
        ) from error


def _to_plain(name: str, value: Any, depth: int = 0) -> Any:
    """Return a value with other libraries' arrays, also in nested lists, as ndarrays."""
    kind = type(value)
    if kind in _SCALARS or kind is np.ndarray or depth > shapes.MOST_RANK:
        return value
    if kind not in _LISTS:
        if not _is_sequence(value):
            return tensors.viewed(name, value)
        tensors.require_loaded(name, value)
    return [_to_plain(name, item, depth + 1) for item in value]


def _is_sequence(value: Any) -> bool:
    """Whether NumPy would convert a value item by item, for lack of a buffer or array protocol."""
    kind = type(value)
    if any(hasattr(value, way) for way in _WAYS) or issubclass(kind, dict | str):
        return False
    if not (hasattr(kind, "__len__") and hasattr(kind, "__getitem__")):
        return False
    try:
        memoryview(value)
    except TypeError:
        return True
    return False


def _require_unchanged(name: str, nested_list: Any, classes: set[type], converted: Array) -> None:
    """Refuse lists whose values NumPy changed to give them one dtype, as integers to floats."""
    if converted.dtype.hasobject or not converted.size:
        return
    if len(classes) == 1 and classes <= _SIZED:
        return
    types = classes if classes <= _NUMBERS else _types(nested_list)
    all_integers = all(np.dtype(original).kind in "biu" for original in types)
    if converted.dtype.kind in "biu" if all_integers else len(types) == 1:
        return
    if not all_integers and types is classes and not (np.abs(converted.real) >= _EXACT).any():
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
            raise _changed(name, exact, result)


def _require_times(name: str, nested_list: Any, converted: Array) -> None:
    """Refuse datetimes or timedeltas of several units that the finest unit cannot represent."""
    at, flat = 0, converted.ravel()
    for element in _leaves(nested_list):
        original = np.asarray(element).ravel()
        result = flat[at : at + original.size]
        at += original.size
        try:
            unchanged = (result.astype(original.dtype) == original) | np.isnat(original)
        except TypeError:  # a timedelta without a unit
            unchanged = result.view(np.int64) == original.view(np.int64)
        if not unchanged.all():
            first = int(np.argmin(unchanged))
            raise _changed(name, original[first], result[first])


def _changed(name: str, original: object, converted: object) -> DtypeError:
    return DtypeError(
        f"{name} is a list with {format_value(original)}, which NumPy would convert to"
        f" {format_value(converted)}: give its elements one type"
    )


def _types(value: Any) -> set[Any]:
    """Return the types of all elements of nested lists: dtypes where they have one, or classes."""
    return {getattr(element, "dtype", type(element)) for element in _leaves(value)}


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the elements of nested lists, in order."""
    if any(type(item) in _LISTS for item in value):
        for item in value:
            if type(item) in _LISTS:
                yield from _leaves(item)
            else:
                yield item
    else:
        yield from value


def index_array(value: object, mode: str = "error") -> Array:
    """Return indices as an ndarray, with integers beyond 64 bits clamped to int64.

    No axis is that long, so they stay out of bounds. `name_exactly` restores the value in errors.
    Raises DtypeError in modes where the result depends on the exact value.
    """
    if type(value) is np.ndarray and value.dtype.kind in "iu":
        return value
    converted = _converted("indices", value)[0]
    exact = None if converted.dtype.name in dtypes.INTEGERS else _whole_numbers(value)
    if exact is None:
        return converted
    if mode in MODES and not MODES[mode].by_side:
        done = MODES[mode].done
        raise DtypeError(
            f"indices of more than 64 bits cannot be {done}: expected smaller integers"
        )
    nearest = [min(max(int(number), _LOWEST), _HIGHEST) for number in exact.flat]
    return np.array(nearest, np.int64).reshape(exact.shape)


def name_exactly(error: BoundsError, value: object, data: str = "data") -> None:
    """Put the caller's exact index into a BoundsError about `index_array(value)`.

    data: the name of data in the message.
    """
    exact = _whole_numbers(value)
    if exact is not None:
        last = () if error.component is None else (error.component,)
        value = int(exact[(*error.position, *last)])
        if value != error.value:
            error.value, error.hint = value, ""  # the hint was about the clamped value
        error.name("indices", data)


def _whole_numbers(value: object) -> Array | None:
    """Return indices as Python integers if all are integers and some exceed 64 bits, else None."""
    may_be_large = type(value) in (list, tuple) or (
        type(value) is np.ndarray and value.dtype.hasobject
    )
    exact = np.asarray(value, object) if may_be_large else np.empty(0, object)
    all_integers = all(isinstance(number, int | np.integer) for number in exact.flat)
    if all_integers and any(not _LOWEST <= number <= _HIGHEST for number in exact.flat):
        return exact
    return None


def _nested_types(value: Any) -> set[type]:
    """Return the types of a value, of the lists nested in it and of their elements."""
    level, classes = [value], {type(value)}
    all_classes = classes
    for _ in range(shapes.MOST_RANK):
        if classes.isdisjoint(_LISTS):
            break
        level = list(chain.from_iterable(item for item in level if type(item) in _LISTS))
        classes = set(map(type, level))
        all_classes = all_classes | classes
    return all_classes


def integer(name: str, value: Any, kind: type[NdtoolError] = RuleError) -> int:
    """Return an integer argument; raise `kind` otherwise, also for a bool, as NumPy does."""
    if type(value) is int and -64 <= value <= 1024:
        return value
    try:
        is_refused = isinstance(value, bool) or nulls.is_masked(type(value))
        index = None if is_refused else int.__index__(operator.index(value))
    except Exception:
        index = None
    if index is None:
        raise kind(f"{name} is {format_value(value)}: it must be an integer")
    if not _LOWEST <= index <= _HIGHEST:
        raise kind(f"{name} is {format_value(index)}: it must fit in 64 bits")
    return index


def number(name: str, value: Any) -> str | None:
    """Return a number as text, an integer in all its digits; None stays None."""
    if value is None:
        return None
    try:
        nulls.require_unmasked(name, value)
        plain = value.item() if hasattr(value, "dtype") else value
        if isinstance(plain, int | float | complex):
            return str(plain).strip("()")
        return _number_text(plain)
    except Exception:
        raise DtypeError(f"{name} is {format_value(value)}: it must be a number") from None


def _number_text(value: Any) -> str:
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
        except TypeError:
            index = 0
        if _HIGHEST < index < 1 << 64:
            return index
    return integer(name, value)


def flag(name: str, value: object) -> bool:
    """Return an argument that is True or False."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise UsageError(f"{name} is {format_value(value)}: it must be True or False")


def word(name: str, value: object) -> str:
    """Return an argument as a plain str."""
    if type(value) is str:
        return value
    if issubclass(type(value), str):
        return str.__str__(value)
    raise UsageError(f"{name} is {format_value(value)}: it must be a str")


def reduction_name(name: str, value: object) -> str:
    """Return the name of a reduction; other libraries' names are accepted."""
    reduction = word(name, value)
    return ALIASES.get(reduction, reduction)


# How each attribute is taken, by its name in Attributes.
CONVERTERS: dict[str, Callable[[str, Any], Any]] = {
    "batch_dims": integer, "axis": optional_integer, "reduction": reduction_name,
    "out_of_bounds": word, "fill": number, "pad": optional_integer, "negatives": flag,
    "include_self": flag, "duplicates": word, "mode": word,
}  # fmt: skip


def attributes_of(operator: str, arguments: Iterable[tuple[str, object]]) -> Attributes:
    """Return attributes of an operator from arguments by their names."""
    has, convert = operator_of(operator).attributes, CONVERTERS
    if "axis" in has and "batch_dims" not in has:  # no default depends on batch_dims
        convert = {**convert, "axis": integer}
    return Attributes(**{name: convert[name](name, value) for name, value in arguments})


def type_of(name: str, dtype: np.dtype[Any]) -> Dtype:
    """Return the element type of an argument."""
    if dtype.type is np.record:  # same layout as a structured dtype
        dtype = np.dtype((np.void, dtype))
    try:
        return dtypes.from_numpy(dtype)
    except DtypeError as error:
        raise DtypeError(f"{name}: {error.message}", hint=error.hint) from None


def team_of(threads: int | None) -> int:
    """Return the number of threads for the argument `threads`; the default for None."""
    if threads is None:
        return _threads.default_threads()
    return _threads.resolve_threads(integer("threads", threads, UsageError))


def output_buffer(out: object, dtype: np.dtype[Any], shape: Shape) -> Array:
    """Return `out` as an ndarray; raise unless it can hold a result of this dtype and shape."""
    if tensors.is_tensor(out):
        tensors.require_plain("out", out)
    elif not issubclass(type(out), np.ndarray):
        raise DtypeError(f"out is a {type(out).__name__}: it must be an ndarray or torch tensor")
    memory = array("out", out)
    if memory.dtype != dtype:
        raise DtypeError(f"out has dtype {memory.dtype}: it must be data's, {dtype}")
    if memory.shape != shape:
        raise RuleError(
            f"out has shape {shapes.written(memory.shape)}: {shapes.written(shape)} is required"
        )
    if not memory.flags.writeable:
        raise RuleError("out is read-only: it must be writeable")
    if not memory.flags.c_contiguous and layouts.may_overlap(shape, memory.strides, dtype.itemsize):
        raise RuleError("out overlaps itself: its elements must not share memory")
    return memory


def require_apart(out: Array, **inputs: Array) -> None:
    """Refuse an `out` that shares memory with an input."""
    for name, operand in inputs.items():
        if _overlap(out, operand):
            raise RuleError(f"out overlaps {name}: only scatter's out may be data itself")


def _overlap(a: Array, b: Array) -> bool:
    try:
        return bool(np.shares_memory(a, b, max_work=1 << 16))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
