"""The reductions, from none to mean, a row for each, which every other module reads.

A reduction says how an update is combined with the current value of an element. The kernels and the
slow reference each implement the arithmetic themselves.
"""

import sys
from collections.abc import Callable
from typing import NamedTuple

from ndtool.rules.dtypes import ARITHMETIC, Dtype

_REAL = tuple(name for name in ARITHMETIC if not name.startswith("complex"))
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_NUMBERS = tuple(name for name in ARITHMETIC if name != "bool")
_INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF << 52}
_ONE = {"float16": 0x3C00, "bfloat16": 0x3F80, "float32": 0x3F800000, "float64": 0x3FF << 52}
_PARTS = {"complex64": "float32", "complex128": "float64"}


def _zero(dtype: Dtype) -> int | None:
    """Return the bits of 0; of -0 for floats, since +0 would not preserve it."""
    if dtype.name in _PARTS:
        component_bits = 4 * dtype.itemsize  # bits
        return (1 << component_bits | 1) << (component_bits - 1)
    if dtype.name in _ONE:
        return 1 << (8 * dtype.itemsize - 1)
    return 0 if dtype.kind in "iu" else None


def _one(dtype: Dtype) -> int | None:
    """Return the bits of 1; a complex product with it may alter infinities and -0."""
    return _ONE.get(dtype.name, 1 if dtype.kind in "iu" else None)


def _lowest(dtype: Dtype) -> int | None:
    """Return the bits of the lowest integer, or of minus infinity."""
    sign = 1 << (8 * dtype.itemsize - 1)
    if dtype.kind in "iu":
        return sign if dtype.kind == "i" else 0
    return _INFINITY[dtype.name] | sign if dtype.name in _INFINITY else None


def _highest(dtype: Dtype) -> int | None:
    """Return the bits of the highest integer, or of infinity."""
    bits = 8 * dtype.itemsize
    if dtype.kind in "iu":
        return (1 << (bits - (dtype.kind == "i"))) - 1
    return _INFINITY.get(dtype.name)


def _none(dtype: Dtype) -> None:
    """Return None: updates cannot be combined before they are applied."""


class Reduction(NamedTuple):
    """How an update is combined with the current value.

    name: ONNX's name. symbol: the operator sign in explanations. types: the element types that have
    the reduction; empty for all. aliases: the names that other libraries use. idempotent: whether
    applying an update twice has the same result as once. neutral: a function that returns the bits
    of the element that, combined with an update, leaves its bits (unless it is a NaN); None if no
    such element exists. counts: whether the result depends on the number of updates. requires_self:
    whether the current value always takes part.
    """

    name: str
    symbol: str
    types: tuple[str, ...]
    aliases: tuple[str, ...]
    idempotent: bool
    neutral: Callable[[Dtype], int | None]
    counts: bool = False
    requires_self: bool = False

    def takes(self, dtype: Dtype) -> bool:
        """Whether elements of a type have this reduction."""
        return not self.types or dtype.name in self.types

    def is_rounded(self, dtype: Dtype) -> bool:
        """Whether each step is rounded, so that the result depends on the order of updates."""
        return not self.idempotent and dtype.kind not in "biu"


REDUCTIONS = {
    row.name: row
    for row in (
        Reduction("none", "=", (), ("update", "assign"), True, _none),
        Reduction("add", "+", ARITHMETIC, ("sum",), False, _zero),
        Reduction("sub", "-", ARITHMETIC, ("subtract",), False, _none, requires_self=True),
        Reduction("mul", "*", ARITHMETIC, ("prod", "multiply"), False, _one),
        Reduction("div", "/", _FLOATS, ("divide",), False, _none, requires_self=True),
        Reduction("max", "max", _REAL, ("amax", "maximum"), True, _lowest),
        Reduction("min", "min", _REAL, ("amin", "minimum"), True, _highest),
        Reduction("mean", "+", _NUMBERS, (), False, _zero, counts=True),
    )
}
# Which of several updates of an element "none" assigns; "error": no element has several.
DUPLICATES = ("last", "first", "error")
ALIASES = {alias: row.name for row in REDUCTIONS.values() for alias in row.aliases}


def of_dtype(dtype: Dtype) -> tuple[str, ...]:
    """Return the names of the reductions that an element type has."""
    return tuple(row.name for row in REDUCTIONS.values() if row.takes(dtype))


def neutral(dtype: Dtype, reduction: str) -> bytes:
    """Return the bytes of a reduction's neutral element, b"" if it has none.

    Bool has none: combining normalizes bytes other than 0 and 1 to 1.
    """
    bits = REDUCTIONS[reduction].neutral(dtype)
    return b"" if bits is None else bits.to_bytes(dtype.itemsize, sys.byteorder)


def identity(dtype: Dtype, reduction: str) -> bytes:
    """Return the neutral element of a reduction whose updates may be combined first, else b"".

    Sums and products of floats may not: they are rounded, so their order matters. For max and min
    the order still decides which NaN, and which of equal values, is the result.
    """
    row = REDUCTIONS[reduction]
    return b"" if row.counts or row.is_rounded(dtype) else neutral(dtype, reduction)
