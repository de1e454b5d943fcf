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
from ndtool.errors import BoundsError, DtypeError, NdtoolError, RuleError, UsageError, shown
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
    made, listed, kinds = _made(name, value)
    if kinds and kinds != {float}:
        _require_unchanged(name, listed, kinds, made)
    return made


def _made(name: str, value: object) -> tuple[Array, object, set[type]]:
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
        kinds = _kinds(value)
        if not kinds <= _PLAIN:
            value = _plain(name, value)
            kinds = _kinds(value)
        return np.asarray(value), value, kinds - _LISTS if type(value) in _LISTS else set()
    except (MemoryError, NdtoolError):
        raise
    except Exception as error:
        kind = RuleError if isinstance(error, ValueError) else DtypeError
        reason = shown(error, str, 300)
        raise kind(
            f"{name} is a {type(value).__name__} that NumPy cannot convert to an array: {reason}"
        ) from error


def _plain(name: str, value: Any, depth: int = 0) -> Any:
    """Return a value with other libraries' arrays, also in nested lists, as ndarrays."""
    kind = type(value)
    if kind in _SCALARS or kind is np.ndarray or depth > shapes.MOST_RANK:
        return value
    if kind not in _LISTS:
        if not _is_sequence(value):
            return tensors.viewed(name, value)
        tensors.require_loaded(name, value)
    return [_plain(name, part, depth + 1) for part in value]


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


def _require_unchanged(name: str, listed: Any, kinds: set[type], made: Array) -> None:
    """Refuse lists whose values NumPy changed to give them one dtype.

    NumPy makes integers floats beside floats, and where no integer dtype holds all of them.
    """
    if made.dtype.hasobject or not made.size:
        return
    if len(kinds) == 1 and kinds <= _SIZED:
        return
    types = kinds if kinds <= _NUMBERS else _types(listed)
    whole = all(np.dtype(one).kind in "biu" for one in types)
    if made.dtype.kind in "biu" if whole else len(types) == 1:
        return
    if not whole and types is kinds and not (np.abs(made.real) >= _EXACT).any():
        return  # fast path: floats below 2**53 are exact
    if made.dtype.kind in "mM" and {np.dtype(one).kind for one in types} == {made.dtype.kind}:
        _require_times(name, listed, made)
        return
    for one, other in zip(np.asarray(listed, object).flat, made.astype(object).flat, strict=True):
        exact = one.item() if isinstance(one, np.generic | np.ndarray) else one
        if whole or not (exact == other or (exact != exact and other != other)):
            raise _changed(name, exact, other)


def _require_times(name: str, listed: Any, made: Array) -> None:
    """Refuse datetimes or timedeltas of several units that the finest unit cannot represent."""
    at, flat = 0, made.ravel()
    for leaf in _leaves(listed):
        given = np.asarray(leaf).ravel()
        found = flat[at : at + given.size]
        at += given.size
        try:
            unchanged = (found.astype(given.dtype) == given) | np.isnat(given)
        except TypeError:  # a timedelta without a unit
            unchanged = found.view(np.int64) == given.view(np.int64)
        if not unchanged.all():
            first = int(np.argmin(unchanged))
            raise _changed(name, given[first], found[first])


def _changed(name: str, given: object, made: object) -> DtypeError:
    return DtypeError(
        f"{name} is a list with {shown(given)}, which NumPy would convert to {shown(made)}:"
        " give its elements one type"
    )


def _types(value: Any) -> set[Any]:
    """Return the types of all elements of nested lists: dtypes where they have one, or classes."""
    return {getattr(leaf, "dtype", type(leaf)) for leaf in _leaves(value)}


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the elements of nested lists, in order."""
    if any(type(part) in _LISTS for part in value):
        for part in value:
            if type(part) in _LISTS:
                yield from _leaves(part)
            else:
                yield part
    else:
        yield from value


def index_array(value: object, mode: str = "error") -> Array:
    """Return indices as an ndarray, with integers beyond 64 bits clamped to int64.

    No axis is that long, so they stay out of bounds. `name_exactly` restores the value in errors.
    Raises DtypeError in modes where the result depends on the exact value.
    """
    if type(value) is np.ndarray and value.dtype.kind in "iu":
        return value
    taken = _made("indices", value)[0]
    exact = None if taken.dtype.name in dtypes.INTEGERS else _whole_numbers(value)
    if exact is None:
        return taken
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
    """Return indices as Python integers in an object array, if some do not fit in 64 bits.

    None if all fit, or if not all are integers.
    """
    listed = type(value) in (list, tuple) or (type(value) is np.ndarray and value.dtype.hasobject)
    exact = np.asarray(value, object) if listed else np.empty(0, object)
    whole = all(isinstance(number, int | np.integer) for number in exact.flat)
    if whole and any(not _LOWEST <= number <= _HIGHEST for number in exact.flat):
        return exact
    return None


def _kinds(value: Any) -> set[type]:
    """Return the types of a value, of the lists nested in it and of their elements."""
    level, kinds = [value], {type(value)}
    found = kinds
    for _ in range(shapes.MOST_RANK):
        if kinds.isdisjoint(_LISTS):
            break
        level = list(chain.from_iterable(part for part in level if type(part) in _LISTS))
        kinds = set(map(type, level))
        found = found | kinds
    return found


def integer(name: str, value: Any, kind: type[NdtoolError] = RuleError) -> int:
    """Return an integer argument; raise `kind` otherwise, also for a bool, as NumPy does."""
    if type(value) is int and -64 <= value <= 1024:
        return value
    try:
        lost = isinstance(value, bool) or nulls.is_masked(type(value))
        whole = None if lost else int.__index__(operator.index(value))
    except Exception:
        whole = None
    if whole is None:
        raise kind(f"{name} is {shown(value)}: it must be an integer")
    if not _LOWEST <= whole <= _HIGHEST:
        raise kind(f"{name} is {shown(whole)}: it must fit in 64 bits")
    return whole


def number(name: str, value: Any) -> str | None:
    """Return a number as text, an integer in all its digits; None stays None."""
    if value is None:
        return None
    try:
        nulls.require_unmasked(name, value)
        plain = value.item() if hasattr(value, "dtype") else value
        if isinstance(plain, int | float | complex):
            return str(plain).strip("()")
        return _written(plain)
    except Exception:
        raise DtypeError(f"{name} is {shown(value)}: it must be a number") from None


def _written(value: Any) -> str:
    """Return a number of another package's type as text in Python's notation."""
    if isinstance(value, str | bytes):
        raise TypeError
    if hasattr(type(value), "__index__"):
        return str(operator.index(value))
    found = float(value)
    if math.isinf(found) and value != found:
        raise TypeError
    if found and found.is_integer() and hasattr(type(value), "__int__"):
        whole = int(value)  # may have more digits than a float
        return str(whole) if whole == value else str(found)
    return str(found)


def optional_integer(name: str, value: Any) -> int | None:
    """Return an integer argument, or None for its default; a pad may also be a uint64."""
    if value is None:
        return None
    if name == "pad" and type(value) is not bool:
        try:
            whole = operator.index(value)
        except TypeError:
            whole = 0
        if _HIGHEST < whole < 1 << 64:
            return whole
    return integer(name, value)


def flag(name: str, value: object) -> bool:
    """Return an argument that is True or False."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise UsageError(f"{name} is {shown(value)}: it must be True or False")


def word(name: str, value: object) -> str:
    """Return an argument as a plain str."""
    if type(value) is str:
        return value
    if issubclass(type(value), str):
        return str.__str__(value)
    raise UsageError(f"{name} is {shown(value)}: it must be a str")


def reduction_name(name: str, value: object) -> str:
    """Return the name of a reduction; other libraries' names are accepted."""
    given = word(name, value)
    return ALIASES.get(given, given)


# How each attribute is taken, by its name in Attributes.
TAKEN: dict[str, Callable[[str, Any], Any]] = {
    "batch_dims": integer, "axis": optional_integer, "reduction": reduction_name,
    "out_of_bounds": word, "fill": number, "pad": optional_integer, "negatives": flag,
    "include_self": flag, "duplicates": word, "mode": word,
}  # fmt: skip


def attributes_of(operator: str, given: Iterable[tuple[str, object]]) -> Attributes:
    """Return attributes of an operator from arguments by their names."""
    has, take = operator_of(operator).attributes, TAKEN
    if "axis" in has and "batch_dims" not in has:  # no default depends on batch_dims
        take = {**take, "axis": integer}
    return Attributes(**{name: take[name](name, value) for name, value in given})


def type_of(name: str, dtype: np.dtype[Any]) -> Dtype:
    """Return the element type of an argument."""
    if dtype.type is np.record:  # same layout as a structured dtype
        dtype = np.dtype((np.void, dtype))
    try:
        return dtypes.from_numpy(dtype)
    except DtypeError as error:
        raise DtypeError(f"{name}: {error.message}", hint=error.hint) from None


def team_of(threads: int | None) -> int:
    """Return the number of threads that an argument means, or the default for None."""
    if threads is None:
        return _threads.default()
    return _threads.resolve(integer("threads", threads, UsageError))


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
    if not memory.flags.c_contiguous and layouts.may_fold(shape, memory.strides, dtype.itemsize):
        raise RuleError("out overlaps itself: its elements must not share memory")
    return memory


def require_apart(out: Array, **inputs: Array) -> None:
    """Refuse an `out` that shares memory with an input."""
    for name, given in inputs.items():
        if _overlap(out, given):
            raise RuleError(f"out overlaps {name}: only scatter's out may be data itself")


def _overlap(a: Array, b: Array) -> bool:
    try:
        return bool(np.shares_memory(a, b, max_work=1 << 16))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
