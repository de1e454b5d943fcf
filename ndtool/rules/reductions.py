"""The table of reductions, from none to mean, which all other modules use.

A reduction defines how an update is combined with the current value of an element. The kernels and
the slow reference each implement the arithmetic.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from ndtool.rules.dtypes import ARITHMETIC, NATIVE, Dtype, integer_range

Kind = Literal["assignment", "sum", "difference", "product", "quotient", "extreme"]
ADD, MUL = "add", "mul"
_REAL = tuple(name for name in ARITHMETIC if not name.startswith("complex"))
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_NUMBERS = tuple(name for name in ARITHMETIC if name != "bool")


class Reduction(NamedTuple):
    """How an update is combined with the current value.

    name: ONNX's name. kind: the function of several updates, for gradients and for the diagnosis
    of wrong outputs. symbol: the operator sign in explanations. types: the element types that
    have the reduction; empty for all. aliases: the names in other libraries. idempotent: whether
    applying an update twice has the same result as once. neutral: by the kind of a type, the
    neutral element as text, which preserves the bits of an update that is combined with it (unless
    it is a NaN). needs_counts: whether the result depends on the number of updates. requires_self:
    whether the current value is always included.
    """

    name: str
    kind: Kind
    symbol: str
    types: tuple[str, ...]
    aliases: tuple[str, ...]
    idempotent: bool
    neutral: Mapping[str, str]
    needs_counts: bool = False
    requires_self: bool = False

    def supports(self, dtype: Dtype) -> bool:
        """Whether elements of a type have this reduction."""
        return not self.types or dtype.name in self.types

    def is_rounded(self, dtype: Dtype) -> bool:
        """Whether each step is rounded, so that the result depends on the order of updates."""
        return not self.idempotent and dtype.kind not in "biu"


# Adding +0 would change -0 to +0; multiplying by a complex 1 may change infinities and -0.
_ZERO = {"i": "0", "u": "0", "f": "-0.0", "c": "-0.0-0.0j"}
_ONE = {"i": "1", "u": "1", "f": "1.0"}
_LOWEST = {"i": "lowest", "u": "lowest", "f": "-inf"}
_HIGHEST = {"i": "highest", "u": "highest", "f": "inf"}
# fmt: off
REDUCTIONS = {
    row.name: row
    for row in (
        Reduction("none", "assignment", "=", (), ("update", "assign"), True, {}),
        Reduction(ADD, "sum", "+", ARITHMETIC, ("sum",), False, _ZERO),
        Reduction(
            "sub", "difference", "-", ARITHMETIC, ("subtract",), False, {},
            requires_self=True,
        ),
        Reduction(MUL, "product", "*", ARITHMETIC, ("prod", "multiply"), False, _ONE),
        Reduction(
            "div", "quotient", "/", _FLOATS, ("divide",), False, {}, requires_self=True
        ),
        Reduction("max", "extreme", "max", _REAL, ("amax", "maximum"), True, _LOWEST),
        Reduction("min", "extreme", "min", _REAL, ("amin", "minimum"), True, _HIGHEST),
        Reduction("mean", "sum", "+", _NUMBERS, (), False, _ZERO, needs_counts=True),
    )
}
# fmt: on
# The update that "none" assigns if an element has several; "error" refuses duplicates.
DUPLICATES = ("last", "first", "error")
ALIASES = {alias: row.name for row in REDUCTIONS.values() for alias in row.aliases}


def neutral_element(dtype: Dtype, reduction: str) -> bytes:
    """Return the bytes of a reduction's neutral element, b"" if it has none.

    Bool has none: combining normalizes bytes other than 0 and 1 to 1.
    """
    kind = "f" if dtype.name == "bfloat16" else dtype.kind
    text = REDUCTIONS[reduction].neutral.get(kind)
    if text is None:
        return b""
    from ndtool.rules import numbers

    lowest, highest = integer_range(dtype.bits, kind == "i")
    text = {"lowest": str(lowest), "highest": str(highest)}.get(text, text)
    return numbers.encode(text, dtype._replace(order=NATIVE))
