"""The table of reductions, from none to mean, which all other modules use.

A reduction defines how an update is combined with the current value of an element. The kernels and
the slow reference each implement the arithmetic.
"""

import sys
from collections.abc import Callable
from typing import Literal, NamedTuple

from ndtool.rules.dtypes import ARITHMETIC, Dtype

Kind = Literal["assignment", "sum", "difference", "product", "quotient", "extreme"]
ADD, MUL = "add", "mul"
_REAL = tuple(name for name in ARITHMETIC if not name.startswith("complex"))
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_NUMBERS = tuple(name for name in ARITHMETIC if name != "bool")
_INFINITY_BITS = {
    "float16": 0x7C00,
    "bfloat16": 0x7F80,
    "float32": 0x7F800000,
    "float64": 0x7FF << 52,
}
_ONE_BITS = {"float16": 0x3C00, "bfloat16": 0x3F80, "float32": 0x3F800000, "float64": 0x3FF << 52}
_COMPONENT_TYPES = {"complex64": "float32", "complex128": "float64"}


def _identity_of_add(dtype: Dtype) -> int | None:
    """Return the bits of 0, of -0 for floats: adding +0 would change -0 to +0."""
    if dtype.name in _COMPONENT_TYPES:
        component_bits = 4 * dtype.itemsize  # bits
        return (1 << component_bits | 1) << (component_bits - 1)
    if dtype.name in _ONE_BITS:
        return 1 << (8 * dtype.itemsize - 1)
    return 0 if dtype.kind in "iu" else None


def _identity_of_mul(dtype: Dtype) -> int | None:
    """Return the bits of 1; None for complex: multiplying by 1 may change infinities and -0."""
    return _ONE_BITS.get(dtype.name, 1 if dtype.kind in "iu" else None)


def _identity_of_max(dtype: Dtype) -> int | None:
    """Return the bits of the lowest integer, or of minus infinity."""
    sign = 1 << (8 * dtype.itemsize - 1)
    if dtype.kind in "iu":
        return sign if dtype.kind == "i" else 0
    return _INFINITY_BITS[dtype.name] | sign if dtype.name in _INFINITY_BITS else None


def _identity_of_min(dtype: Dtype) -> int | None:
    """Return the bits of the highest integer, or of infinity."""
    bits = 8 * dtype.itemsize
    if dtype.kind in "iu":
        return (1 << (bits - (dtype.kind == "i"))) - 1
    return _INFINITY_BITS.get(dtype.name)


def _no_identity(dtype: Dtype) -> None:
    """Return None: the reduction has no neutral element."""


class Reduction(NamedTuple):
    """How an update is combined with the current value.

    name: ONNX's name. kind: the function of several updates, for gradients and for the diagnosis
    of wrong outputs. symbol: the operator sign in explanations. types: the element types that
    have the reduction; empty for all. aliases: the names in other libraries. idempotent: whether
    applying an update twice has the same result as once. neutral_bits: a function that returns the
    bits of the neutral element, which preserves the bits of an update that is combined with it
    (unless it is a NaN); None if there is none. needs_counts: whether the result depends on the
    number of updates. requires_self: whether the current value is always included.
    """

    name: str
    kind: Kind
    symbol: str
    types: tuple[str, ...]
    aliases: tuple[str, ...]
    idempotent: bool
    neutral_bits: Callable[[Dtype], int | None]
    needs_counts: bool = False
    requires_self: bool = False

    def supports(self, dtype: Dtype) -> bool:
        """Whether elements of a type have this reduction."""
        return not self.types or dtype.name in self.types

    def is_rounded(self, dtype: Dtype) -> bool:
        """Whether each step is rounded, so that the result depends on the order of updates."""
        return not self.idempotent and dtype.kind not in "biu"


# fmt: off
REDUCTIONS = {
    row.name: row
    for row in (
        Reduction("none", "assignment", "=", (), ("update", "assign"), True, _no_identity),
        Reduction(ADD, "sum", "+", ARITHMETIC, ("sum",), False, _identity_of_add),
        Reduction(
            "sub", "difference", "-", ARITHMETIC, ("subtract",), False, _no_identity,
            requires_self=True,
        ),
        Reduction(MUL, "product", "*", ARITHMETIC, ("prod", "multiply"), False, _identity_of_mul),
        Reduction(
            "div", "quotient", "/", _FLOATS, ("divide",), False, _no_identity, requires_self=True
        ),
        Reduction("max", "extreme", "max", _REAL, ("amax", "maximum"), True, _identity_of_max),
        Reduction("min", "extreme", "min", _REAL, ("amin", "minimum"), True, _identity_of_min),
        Reduction("mean", "sum", "+", _NUMBERS, (), False, _identity_of_add, needs_counts=True),
    )
}
# fmt: on
# The update that "none" assigns if an element has several; "error" refuses duplicates.
DUPLICATES = ("last", "first", "error")
ALIASES = {alias: row.name for row in REDUCTIONS.values() for alias in row.aliases}


def names_for(dtype: Dtype) -> tuple[str, ...]:
    """Return the names of the reductions that an element type has."""
    return tuple(row.name for row in REDUCTIONS.values() if row.supports(dtype))


def neutral_element(dtype: Dtype, reduction: str) -> bytes:
    """Return the bytes of a reduction's neutral element, b"" if it has none.

    Bool has none: combining normalizes bytes other than 0 and 1 to 1.
    """
    bits = REDUCTIONS[reduction].neutral_bits(dtype)
    return b"" if bits is None else bits.to_bytes(dtype.itemsize, sys.byteorder)
