"""What callers pass, as plain arrays, integers and words; anything else is refused by name."""

import math
import operator
import os
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndtool import tensors
from ndtool.engine import layouts
from ndtool.engine import threads as _threads
from ndtool.errors import BoundsError, DtypeError, NdtoolError, RuleError, UsageError, shown
from ndtool.rules import dtypes, shapes
from ndtool.rules.dtypes import Dtype
from ndtool.rules.shapes import Shape

Array = NDArray[Any]
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1  # of an int64


def array(name: str, value: object) -> Array:
    """Return an argument as an ndarray; a subclass's memory is taken as it is."""
    if type(value) is np.ndarray:
        return value
    if _is_masked(value):
        values = "" if name == "out" else f" {name}.filled(...), or"
        raise DtypeError(
            f"{name} is a masked array, and ndtool has no masks: pass{values} {name}.data"
        )
    kind = type(value)  # which, unlike a value's class, is no matter of opinion
    if issubclass(kind, os.PathLike) or (issubclass(kind, str) and name != "updates"):
        raise UsageError(
            f"{name} is the name of a file: an array is required",
            hint="the functions of ndtool.files take names",
        )
    try:
        view = tensors.viewed(name, value)
        return np.asarray(value) if view is None else view
    except (MemoryError, NdtoolError):
        raise
    except Exception as error:
        kind = RuleError if isinstance(error, ValueError) else DtypeError
        reason = shown(error, str, 300)
        raise kind(
            f"{name} is a {type(value).__name__} of which NumPy makes no array: {reason}"
        ) from error


def index_array(value: object, rule: str = "error") -> Array:
    """Return indices as an ndarray; integers beyond 64 bits as the end of int64 next to them.

    No axis has so many elements: they stay out of bounds. `name_exactly` puts the error right; only
    where the rule for them is "wrap", they are refused.
    """
    if type(value) is np.ndarray and value.dtype.kind in "iu":
        return value
    taken = array("indices", value)
    exact = None if taken.dtype.kind in "iu" else _whole_numbers(value)
    if exact is None:
        return taken
    if rule == "wrap":
        raise DtypeError("indices beyond 64 bits cannot be wrapped: expected integers that fit")
    nearest = [min(max(int(number), _LOWEST), _HIGHEST) for number in exact.flat]
    return np.array(nearest, np.int64).reshape(exact.shape)


def name_exactly(error: BoundsError, value: object, data: str = "data") -> None:
    """Put the caller's own index into an error that was found in `index_array(value)`.

    data: what data is called.
    """
    exact = _whole_numbers(value)
    if exact is not None:
        last = () if error.component is None else (error.component,)
        error.value = int(exact[(*error.position, *last)])
        error.name("indices", data)


def _whole_numbers(value: object) -> Array | None:
    """Return what NumPy made floats or objects of as Python's integers, if they are too large.

    None if there are other numbers, or all fit in 64 bits.
    """
    listed = type(value) in (list, tuple) or (type(value) is np.ndarray and value.dtype.hasobject)
    exact = np.asarray(value, object) if listed else np.empty(0, object)
    whole = all(isinstance(number, int | np.integer) for number in exact.flat)
    if whole and any(not _LOWEST <= number <= _HIGHEST for number in exact.flat):
        return exact
    return None


def _is_masked(value: Any) -> bool:
    """Whether a value, or one in its lists, has a mask, which NumPy would drop."""
    masks = sys.modules.get("numpy.ma")  # there as soon as a masked array is
    return masks is not None and any(issubclass(k, masks.MaskedArray) for k in _kinds(value))


def _kinds(value: Any) -> set[type]:
    """Return the types of a value and of all that stands in its lists."""
    level, found, lists = [value], set[type](), {list, tuple}
    for _ in range(shapes.MOST_RANK + 1):
        kinds = set(map(type, level))
        found |= kinds
        if not kinds & lists:
            break
        level = [one for part in level if type(part) in lists for one in part]
    return found


def integer(name: str, value: Any, kind: type[NdtoolError] = RuleError) -> int:
    """Return an integer argument; a bool is none, as in NumPy. Raises `kind`."""
    if type(value) is int and -64 <= value <= 1024:
        return value
    try:
        whole = None if isinstance(value, bool) else int.__index__(operator.index(value))
    except Exception:
        whole = None
    if whole is None:
        raise kind(f"{name} is {shown(value)}: it must be an integer")
    if not _LOWEST <= whole <= _HIGHEST:
        raise kind(f"{name} is {shown(whole)}: it must fit in 64 bits")
    return whole


def number(name: str, value: Any) -> str | None:
    """Return a number as it is written; None is none."""
    if value is None:
        return None
    try:
        plain = value.item() if hasattr(value, "dtype") else value
        if isinstance(plain, int | float | complex):
            return str(plain).strip("()")
        found = float(plain)  # of other packages' types
        if isinstance(plain, str | bytes) or (math.isinf(found) and plain != found):
            raise TypeError
        return str(found)
    except Exception:
        raise DtypeError(f"{name} is {shown(value)}: it must be a number") from None


def word(name: str, value: object) -> str:
    """Return an argument that is one of some words."""
    if type(value) is str:
        return value
    if issubclass(type(value), str):
        return str.__str__(value)
    raise UsageError(f"{name} is {shown(value)}: it must be a str")


def type_of(name: str, dtype: np.dtype[Any]) -> Dtype:
    """Return the element type of an argument."""
    if dtype.type is np.record:  # a record array's elements, which are records like others
        dtype = np.dtype((np.void, dtype))
    try:
        return dtypes.from_numpy(dtype)
    except DtypeError as error:
        raise DtypeError(f"{name}: {error.message}", hint=error.hint) from None


def team_of(threads: int | None) -> int:
    """Return how many threads an argument allows."""
    if threads is None:
        return _threads.default()
    return _threads.resolve(integer("threads", threads, UsageError))


def room_of(out: object, dtype: np.dtype[Any], shape: Shape) -> Array:
    """Return the memory of an `out` as an ndarray that a result of this type and shape fits."""
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
        raise RuleError("out overlaps itself: each of its elements must have memory of its own")
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
