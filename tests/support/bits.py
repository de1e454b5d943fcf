"""The result bits of reductions on zeros, infinities and NaNs, as documented.

NumPy's bits depend on the processor and the compiler; on x86 they equal these.
"""

from functools import cache
from typing import Any

import numpy as np
from strategies import COMPLEX, FLOATS, UFUNCS, Array, bits_equal

# Each block: the element type (omitted if all types share it) and the reduction; a header of updates;
# a row per current value. s: a signaling NaN, q: a quiet NaN; the digits are its payload.
TABLES = """\
add
         0   -0    1  inf -inf   s1  -s2   q1  -q2   -q
0        0    0    1  inf -inf   q1  -q2   q1  -q2   -q
-0       0   -0    1  inf -inf   q1  -q2   q1  -q2   -q
1        1    1    2  inf -inf   q1  -q2   q1  -q2   -q
inf    inf  inf  inf  inf   -q   q1  -q2   q1  -q2   -q
-inf  -inf -inf -inf   -q -inf   q1  -q2   q1  -q2   -q
s1      q1   q1   q1   q1   q1   q1   q1   q1   q1   q1
-s2    -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2
q1      q1   q1   q1   q1   q1   q1   q1   q1   q1   q1
-q2    -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2
-q      -q   -q   -q   -q   -q   -q   -q   -q   -q   -q

bfloat16 add
         0   -0    1  inf -inf   s1  -s2   q1  -q2   -q
0        0    0    1  inf -inf    q   -q    q   -q   -q
-0       0   -0    1  inf -inf    q   -q    q   -q   -q
1        1    1    2  inf -inf    q   -q    q   -q   -q
inf    inf  inf  inf  inf   -q    q   -q    q   -q   -q
-inf  -inf -inf -inf   -q -inf    q   -q    q   -q   -q
s1       q    q    q    q    q    q   -q    q   -q   -q
-s2     -q   -q   -q   -q   -q    q   -q    q   -q   -q
q1       q    q    q    q    q    q   -q    q   -q   -q
-q2     -q   -q   -q   -q   -q    q   -q    q   -q   -q
-q      -q   -q   -q   -q   -q    q   -q    q   -q   -q

sub
         0   -0    1  inf -inf   s1  -s2   q1  -q2   -q
0        0    0   -1 -inf  inf   q1  -q2   q1  -q2   -q
-0      -0    0   -1 -inf  inf   q1  -q2   q1  -q2   -q
1        1    1    0 -inf  inf   q1  -q2   q1  -q2   -q
inf    inf  inf  inf   -q  inf   q1  -q2   q1  -q2   -q
-inf  -inf -inf -inf -inf   -q   q1  -q2   q1  -q2   -q
s1      q1   q1   q1   q1   q1   q1   q1   q1   q1   q1
-s2    -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2
q1      q1   q1   q1   q1   q1   q1   q1   q1   q1   q1
-q2    -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2
-q      -q   -q   -q   -q   -q   -q   -q   -q   -q   -q

bfloat16 sub
         0   -0    1  inf -inf   s1  -s2   q1  -q2   -q
0        0    0   -1 -inf  inf    q   -q    q   -q   -q
-0      -0    0   -1 -inf  inf    q   -q    q   -q   -q
1        1    1    0 -inf  inf    q   -q    q   -q   -q
inf    inf  inf  inf   -q  inf    q   -q    q   -q   -q
-inf  -inf -inf -inf -inf   -q    q   -q    q   -q   -q
s1       q    q    q    q    q    q    q    q    q    q
-s2     -q   -q   -q   -q   -q   -q   -q   -q   -q   -q
q1       q    q    q    q    q    q    q    q    q    q
-q2     -q   -q   -q   -q   -q   -q   -q   -q   -q   -q
-q      -q   -q   -q   -q   -q   -q   -q   -q   -q   -q

div
         0   -0    1  inf -inf   s1  -s2   q1  -q2   -q
0       -q   -q    0    0   -0   q1  -q2   q1  -q2   -q
-0      -q   -q   -0   -0    0   q1  -q2   q1  -q2   -q
1      inf -inf    1    0   -0   q1  -q2   q1  -q2   -q
inf    inf -inf  inf   -q   -q   q1  -q2   q1  -q2   -q
-inf  -inf  inf -inf   -q   -q   q1  -q2   q1  -q2   -q
s1      q1   q1   q1   q1   q1   q1   q1   q1   q1   q1
-s2    -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2
q1      q1   q1   q1   q1   q1   q1   q1   q1   q1   q1
-q2    -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2
-q      -q   -q   -q   -q   -q   -q   -q   -q   -q   -q

bfloat16 div
         0   -0    1  inf -inf   s1  -s2   q1  -q2   -q
0       -q   -q    0    0   -0    q   -q    q   -q   -q
-0      -q   -q   -0   -0    0    q   -q    q   -q   -q
1      inf -inf    1    0   -0    q   -q    q   -q   -q
inf    inf -inf  inf   -q   -q    q   -q    q   -q   -q
-inf  -inf  inf -inf   -q   -q    q   -q    q   -q   -q
s1       q    q    q    q    q    q    q    q    q    q
-s2     -q   -q   -q   -q   -q   -q   -q   -q   -q   -q
q1       q    q    q    q    q    q    q    q    q    q
-q2     -q   -q   -q   -q   -q   -q   -q   -q   -q   -q
-q      -q   -q   -q   -q   -q   -q   -q   -q   -q   -q

mul
         0   -0    1  inf -inf   s1  -s2   q1  -q2   -q
0        0   -0    0   -q   -q   q1  -q2   q1  -q2   -q
-0      -0    0   -0   -q   -q   q1  -q2   q1  -q2   -q
1        0   -0    1  inf -inf   q1  -q2   q1  -q2   -q
inf     -q   -q  inf  inf -inf   q1  -q2   q1  -q2   -q
-inf    -q   -q -inf -inf  inf   q1  -q2   q1  -q2   -q
s1      q1   q1   q1   q1   q1   q1   q1   q1   q1   q1
-s2    -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2
q1      q1   q1   q1   q1   q1   q1   q1   q1   q1   q1
-q2    -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2
-q      -q   -q   -q   -q   -q   -q   -q   -q   -q   -q

bfloat16 mul
         0   -0    1  inf -inf   s1  -s2   q1  -q2   -q
0        0   -0    0   -q   -q    q   -q    q   -q   -q
-0      -0    0   -0   -q   -q    q   -q    q   -q   -q
1        0   -0    1  inf -inf    q   -q    q   -q   -q
inf     -q   -q  inf  inf -inf    q   -q    q   -q   -q
-inf    -q   -q -inf -inf  inf    q   -q    q   -q   -q
s1       q    q    q    q    q    q   -q    q   -q   -q
-s2     -q   -q   -q   -q   -q    q   -q    q   -q   -q
q1       q    q    q    q    q    q   -q    q   -q   -q
-q2     -q   -q   -q   -q   -q    q   -q    q   -q   -q
-q      -q   -q   -q   -q   -q    q   -q    q   -q   -q

max
         0   -0    1  inf -inf   s1  -s2   q1  -q2   -q
0        0   -0    1  inf    0   s1  -s2   q1  -q2   -q
-0       0   -0    1  inf   -0   s1  -s2   q1  -q2   -q
1        1    1    1  inf    1   s1  -s2   q1  -q2   -q
inf    inf  inf  inf  inf  inf   s1  -s2   q1  -q2   -q
-inf     0   -0    1  inf -inf   s1  -s2   q1  -q2   -q
s1      s1   s1   s1   s1   s1   s1   s1   s1   s1   s1
-s2    -s2  -s2  -s2  -s2  -s2  -s2  -s2  -s2  -s2  -s2
q1      q1   q1   q1   q1   q1   q1   q1   q1   q1   q1
-q2    -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2
-q      -q   -q   -q   -q   -q   -q   -q   -q   -q   -q

float16 max
         0   -0    1  inf -inf   s1  -s2   q1  -q2   -q
0        0    0    1  inf    0   s1  -s2   q1  -q2   -q
-0      -0   -0    1  inf   -0   s1  -s2   q1  -q2   -q
1        1    1    1  inf    1   s1  -s2   q1  -q2   -q
inf    inf  inf  inf  inf  inf   s1  -s2   q1  -q2   -q
-inf     0   -0    1  inf -inf   s1  -s2   q1  -q2   -q
s1      s1   s1   s1   s1   s1   s1   s1   s1   s1   s1
-s2    -s2  -s2  -s2  -s2  -s2  -s2  -s2  -s2  -s2  -s2
q1      q1   q1   q1   q1   q1   q1   q1   q1   q1   q1
-q2    -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2
-q      -q   -q   -q   -q   -q   -q   -q   -q   -q   -q

min
         0   -0    1  inf -inf   s1  -s2   q1  -q2   -q
0        0   -0    0    0 -inf   s1  -s2   q1  -q2   -q
-0       0   -0   -0   -0 -inf   s1  -s2   q1  -q2   -q
1        0   -0    1    1 -inf   s1  -s2   q1  -q2   -q
inf      0   -0    1  inf -inf   s1  -s2   q1  -q2   -q
-inf  -inf -inf -inf -inf -inf   s1  -s2   q1  -q2   -q
s1      s1   s1   s1   s1   s1   s1   s1   s1   s1   s1
-s2    -s2  -s2  -s2  -s2  -s2  -s2  -s2  -s2  -s2  -s2
q1      q1   q1   q1   q1   q1   q1   q1   q1   q1   q1
-q2    -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2
-q      -q   -q   -q   -q   -q   -q   -q   -q   -q   -q

float16 min
         0   -0    1  inf -inf   s1  -s2   q1  -q2   -q
0        0    0    0    0 -inf   s1  -s2   q1  -q2   -q
-0      -0   -0   -0   -0 -inf   s1  -s2   q1  -q2   -q
1        0   -0    1    1 -inf   s1  -s2   q1  -q2   -q
inf      0   -0    1  inf -inf   s1  -s2   q1  -q2   -q
-inf  -inf -inf -inf -inf -inf   s1  -s2   q1  -q2   -q
s1      s1   s1   s1   s1   s1   s1   s1   s1   s1   s1
-s2    -s2  -s2  -s2  -s2  -s2  -s2  -s2  -s2  -s2  -s2
q1      q1   q1   q1   q1   q1   q1   q1   q1   q1   q1
-q2    -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2  -q2
-q      -q   -q   -q   -q   -q   -q   -q   -q   -q   -q
"""
FRACTION_BITS = {"bfloat16": 7, "float16": 10, "float32": 23, "float64": 52}  # payload bits


def _parse_block(block: str) -> tuple[str, dict[tuple[str, str], str]]:
    title, header, *rows = block.strip().splitlines()
    updates = header.split()
    results = {}
    for row in rows:
        current, *values = row.split()
        results |= {(current, update): value for update, value in zip(updates, values, strict=True)}
    return title, results


BLOCKS = dict(map(_parse_block, TABLES.split("\n\n")))
CURRENT_AND_UPDATE = tuple(BLOCKS["add"])
VALUE_NAMES = tuple(dict.fromkeys(current for current, _ in CURRENT_AND_UPDATE))


def result_table(dtype: np.dtype, reduction: str) -> dict[tuple[str, str], str]:
    """Return the names of the results of a reduction, by the names of current value and update."""
    return BLOCKS.get(f"{dtype.name} {reduction}", BLOCKS[reduction])


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
