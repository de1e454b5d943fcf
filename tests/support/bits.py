"""The result bits of reductions on zeros, infinities and NaNs, as documented.

NumPy's bits depend on the processor and the compiler; on x86 they equal these.
"""

from functools import cache
from itertools import product
from typing import Any

import numpy as np
from strategies import COMPLEX, FLOATS, UFUNCS, Array, bits_equal

# s: a signaling NaN, q: a quiet NaN; the digits are its payload.
VALUE_NAMES = ("0", "-0", "1", "inf", "-inf", "s1", "-s2", "q1", "-q2", "-q")
CURRENT_AND_UPDATE = tuple(product(VALUE_NAMES, repeat=2))
FRACTION_BITS = {"bfloat16": 7, "float16": 10, "float32": 23, "float64": 52}  # payload bits


def result_table(dtype: np.dtype, reduction: str) -> dict[tuple[str, str], str]:
    """Return the names of the results of a reduction, by the names of current value and update."""
    return {pair: _result(dtype, reduction, *pair) for pair in CURRENT_AND_UPDATE}


def _result(dtype: np.dtype, reduction: str, current: str, update: str) -> str:
    nans = [name for name in (current, update) if name.strip("-")[0] in "sq"]
    if nans and reduction in ("max", "min"):
        return nans[0]  # copied
    if nans and dtype.name == "bfloat16":
        # computed in float32, whose sum and product have the update's NaN, and lose its payload
        nan = nans[-1] if reduction in ("add", "mul") else nans[0]
        return "-q" if nan.startswith("-") else "q"
    if nans:
        return nans[0].replace("s", "q")
    if reduction in ("max", "min"):
        first, second = float(current), float(update)
        if first == second and dtype.name != "float16":
            return update  # of two zeros
        return {"max": max, "min": min}[reduction](current, update, key=float)
    with np.errstate(all="ignore"):
        result = UFUNCS[reduction](np.float64(current), np.float64(update))
    return "-q" if np.isnan(result) else f"{result:g}"


def values_by_name(names: Any, dtype: np.dtype) -> Array:
    """Return the values of an element type that have these names."""
    return np.array([_bit_pattern(name, dtype) for name in names], f"u{dtype.itemsize}").view(dtype)


def _bit_pattern(name: str, dtype: np.dtype) -> int:
    bits, fraction = 8 * dtype.itemsize, FRACTION_BITS[dtype.name]
    sign, digits = name.startswith("-") << (bits - 1), name.lstrip("-")
    infinity, quiet = (1 << (bits - 1)) - (1 << fraction), 1 << (fraction - 1)
    if digits[0] == "q":
        return sign | infinity | quiet | int(digits[1:] or 0)
    if digits[0] == "s":
        return sign | infinity | int(digits[1:])
    return sign | int(np.array(float(digits), dtype).view(f"u{dtype.itemsize}"))


@cache
def numpy_matches(dtype: np.dtype, reduction: str) -> bool:
    """Whether NumPy's ufunc.at gives the documented bits on this machine.

    It never does for complex numbers, for which NumPy's own loops differ.
    """
    if reduction == "none" or dtype not in FLOATS:
        return dtype not in COMPLEX
    current, updates = (
        values_by_name(names, dtype) for names in zip(*CURRENT_AND_UPDATE * 20, strict=True)
    )
    with np.errstate(all="ignore"):
        UFUNCS[reduction].at(current, np.arange(current.size), updates)
    return bits_equal(
        current, values_by_name([*result_table(dtype, reduction).values()] * 20, dtype)
    )


def results_match(actual: Array, expected: Array, reduction: str) -> bool:
    """Whether a result equals that of ufunc.at.

    Where NumPy's bits differ from the documented ones, any NaN equals any other and, for max and min,
    0 equals -0.
    """
    if bits_equal(actual, expected) or numpy_matches(actual.dtype, reduction):
        return bits_equal(actual, expected)
    size = actual.dtype.itemsize // (2 if actual.dtype in COMPLEX else 1)
    real_type = actual.dtype if actual.dtype in FLOATS else np.dtype(f"f{size}")
    actual_values, expected_values = (
        np.ascontiguousarray(a).reshape(-1).view(real_type) for a in (actual, expected)
    )
    is_equal = actual_values.view(f"u{size}") == expected_values.view(f"u{size}")
    # Processors differ in when they set the invalid-operation flag.
    with np.errstate(invalid="ignore"):
        is_equal |= np.isnan(actual_values) & np.isnan(expected_values)
        if reduction in ("max", "min"):
            is_equal |= actual_values == expected_values
    return actual.shape == expected.shape and bool(is_equal.all())
