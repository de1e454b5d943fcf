"""The result bits of reductions on zeros, infinities and NaNs, as documented.

NumPy's bits depend on the processor and the compiler; on x86 they equal these.
"""

from functools import cache
from typing import Any

import numpy as np
from strategies import COMPLEX, FLOATS, UFUNCS, Array, bits_equal

# A block: element type (if not all), reduction; the updates; a row per current value.
# s: a signaling NaN, q: a quiet one, with its payload.
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
Words = tuple[str, ...]


def _parse_block(block: str) -> tuple[str, dict[tuple[str, str], str]]:
    title, header, *rows = block.strip().splitlines()
    updates = header.split()
    results = {}
    for row in rows:
        old, *values = row.split()
        results |= {(old, new): value for new, value in zip(updates, values, strict=True)}
    return title, results


BLOCKS = dict(map(_parse_block, TABLES.split("\n\n")))
PAIRS = tuple(BLOCKS["add"])
VALUE_NAMES = tuple(dict.fromkeys(old for old, _ in PAIRS))


def result_table(dtype: np.dtype, reduction: str) -> dict[tuple[str, str], str]:
    """Return the result of a reduction on a current value and an update, by their names."""
    return BLOCKS.get(f"{dtype.name} {reduction}", BLOCKS[reduction])


def values_by_name(names: Any, dtype: np.dtype) -> Array:
    """Return the values of a type by their names."""
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
    """Whether NumPy's ufunc.at gives the bits of the table here; for complex numbers it never does.

    NumPy's own loops differ for them.
    """
    if reduction == "none" or dtype not in FLOATS:
        return dtype not in COMPLEX
    old, new = (values_by_name(names, dtype) for names in zip(*PAIRS * 20, strict=True))
    with np.errstate(all="ignore"):
        UFUNCS[reduction].at(old, np.arange(old.size), new)
    return bits_equal(old, values_by_name([*result_table(dtype, reduction).values()] * 20, dtype))


def results_match(actual: Array, expected: Array, reduction: str) -> bool:
    """Whether a result equals ufunc.at's; any NaN where NumPy's bits differ, and any zero.

    Only max and min may choose among zeros.
    """
    if bits_equal(actual, expected) or numpy_matches(actual.dtype, reduction):
        return bits_equal(actual, expected)
    size = actual.dtype.itemsize // (2 if actual.dtype in COMPLEX else 1)
    part = actual.dtype if actual.dtype in FLOATS else np.dtype(f"f{size}")
    left, right = (np.ascontiguousarray(a).reshape(-1).view(part) for a in (actual, expected))
    alike = left.view(f"u{size}") == right.view(f"u{size}")
    with np.errstate(invalid="ignore"):  # processors also differ in when they raise the flag
        alike |= np.isnan(left) & np.isnan(right)
        if reduction in ("max", "min"):
            alike |= left == right
    return actual.shape == expected.shape and bool(alike.all())
