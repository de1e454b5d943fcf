"""Guesses at the cause of wrong indices: a lost sign, swapped bytes, NaN, padding.

Errors, warnings and `stats` share them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ndtool.rules.dtypes import Dtype

_WIDTHS = (16, 32, 64)
_LOWEST = (-(2**31), -(2**63))


def likely(values: Sequence[tuple[int, int]], dtype: Dtype) -> list[str]:
    """Return likely causes of indices that are out of bounds, the likeliest first.

    values: some of the indices, each with the size of its axis. dtype: the type of the indices.
    """
    first, _ = values[0]
    guesses = []
    if any(value in _LOWEST for value, _ in values):
        guesses.append("NaN converts to the lowest integer: were the indices floats?")
    for bits in _WIDTHS:
        if all(2**bits - size <= value < 2**bits > 2 * size for value, size in values):
            guesses.append(f"{first} is {first - 2**bits} as uint{bits}: was a sign lost?")
    if dtype.itemsize > 1 and all(-size <= _swapped(value, dtype) < size for value, size in values):
        guesses.append(
            f"{first} is {_swapped(first, dtype)} with its bytes swapped: is the byte order wrong?"
        )
    return guesses


def likeliest(value: int, size: int, dtype: Dtype) -> str:
    """Return the likeliest cause of one index out of bounds, "" if a match may be chance.

    A match counts if at most one of 128 values of the type would match.
    """
    bits = min((n for n in _WIDTHS if abs(value) < 2**n), default=64)
    rare = 2 * size <= 2 ** (min(bits, 8 * dtype.itemsize) - 7)
    if not rare and value not in (*_LOWEST, *(2**n - 1 for n in _WIDTHS)):
        return ""
    return next(iter(likely([(value, size)], dtype)), "")


def padding(count: int, total: int, looked_at: str = "", components: int = 1) -> str:
    """Return the warning that -1 may be padding, "" if it occurs only once.

    count, total: how many indices, or index tuples, are -1 in every component, and of how many. A
    tuple such as [2, -1] is no padding. looked_at: describes the sample, "" for all.
    """
    if count < 2:  # a single -1 means the last element
        return ""
    if components > 1:
        subject = f"index tuples{looked_at} are all -1, and no index is lower"
    else:
        subject = f"indices{looked_at} are -1, and no other is negative"
    return (
        f"{count} of {total} {subject}: -1 selects the last element of an axis; is it padding?"
        " --pad -1 lets it select nothing"
    )


def _swapped(value: int, dtype: Dtype) -> int:
    signed = dtype.kind == "i"
    raw = value.to_bytes(dtype.itemsize, "little", signed=signed)
    return int.from_bytes(raw, "big", signed=signed)
