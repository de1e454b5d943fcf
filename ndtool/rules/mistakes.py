"""Likely causes of invalid indices: a lost sign, swapped bytes, NaN, padding.

Hints of errors, warnings and `stats` report them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ndtool.errors import option, printable
from ndtool.rules.dtypes import Dtype

_BIT_WIDTHS = (16, 32, 64)
_LOWEST_INTEGERS = (-(2**31), -(2**63))
_PLACEHOLDERS = (-100, 2**31 - 1, 2**63 - 1)  # PyTorch's ignore_index, and the largest integers
_INT32_PAIR = "two int32 read as one int64?"


def likely_causes(values: Sequence[tuple[int, int]], dtype: Dtype) -> list[str]:
    """Return likely causes of indices out of bounds, the likeliest first.

    values: some of the indices, each with the size of its axis. dtype: the type of the indices.
    """
    first, _ = values[0]
    guesses = []
    if any(value in _LOWEST_INTEGERS for value, _ in values):
        guesses.append("NaN converts to the lowest integer: were the indices floats?")
    if first in _PLACEHOLDERS and all(value == first for value, _ in values):
        guesses.append(f"{first} is often padding. Then: {option('pad', first)}")
    if dtype.itemsize == 8 and all(
        0 <= value & 0xFFFFFFFF < size and 0 < value >> 32 < size for value, size in values
    ):
        guesses.append(f"{first} is ({first & 0xFFFFFFFF}, {first >> 32}) as int32: {_INT32_PAIR}")
    for bits in _BIT_WIDTHS:
        if all(2**bits - size <= value < 2**bits > 2 * size for value, size in values):
            guesses.append(f"{first} is {first - 2**bits} as uint{bits}: was a sign lost?")
    if (
        dtype.itemsize > 1
        and _swap_bytes(first, dtype) != first
        and all(-size <= _swap_bytes(value, dtype) < size for value, size in values)
    ):
        guesses.append(
            f"{first} is {_swap_bytes(first, dtype)} with its bytes swapped: is the byte order"
            " wrong?"
        )
    return guesses


def likeliest_cause(value: int, size: int, dtype: Dtype) -> str:
    """Return the likeliest cause of an index out of bounds, "" if a match may be chance.

    A match counts if at most one of 128 values of the type would match.
    """
    bits = min((n for n in _BIT_WIDTHS if abs(value) < 2**n), default=64)
    is_significant = 2 * size <= 2 ** (min(bits, 8 * dtype.itemsize) - 7)
    if not is_significant and value not in (
        *_LOWEST_INTEGERS, *_PLACEHOLDERS, *(2**n - 1 for n in _BIT_WIDTHS),
    ):  # fmt: skip
        return ""
    return next(iter(likely_causes([(value, size)], dtype)), "")


def with_pairs(hint: str, name: str) -> str:
    """Return a hint at pairs of int32 with the argument, or the command, that reads them."""
    if _INT32_PAIR not in hint:
        return hint
    if raw := re.fullmatch(r"raw:u?int64\[([0-9, ]*)\](.*)", name):
        return f"{hint} Then: raw:int32[{raw[1]},2]{raw[2]}"
    return then(hint, numpy_command(name, "pairs", "x = np.load({0!r})", "x.view('int32')"))


def then(hint: str, command: str) -> str:
    """Return a hint that ends with a command, if there is one."""
    return f"{hint} Then: {command}" if command else hint


def quote(name: str) -> str:
    """Return an argument quoted for a shell."""
    is_safe = re.fullmatch(r"[\w./:@%+=,-]+", name, re.ASCII)
    return name if is_safe else "'" + printable(name).replace("'", "'\\''") + "'"


def python_command(program: str, *names: str) -> str:
    """Return the command of a program; names: for its places {0!r}, "" if it cannot open one."""
    if any(name != printable(name) or "://" in name for name in names):
        return ""
    return f"python -c {quote(program.format(*names) if names else program)}"


def numpy_command(name: str, suffix: str, load: str, expression: str) -> str:
    """Return a command that saves an expression of an array in a .npy file, "" for other files.

    load: the statements that load the array, of a file {0!r}.
    """
    if not name.endswith(".npy"):
        return ""
    program = f"import numpy as np; {load}; np.save({{1!r}}, {expression})"
    return python_command(program, name, f"{name.removesuffix('.npy')}-{suffix}.npy")


def padding_warning(count: int, total: int, sample: str = "", components: int = 1) -> str:
    """Return the warning that -1 may be padding, "" if it occurs only once.

    count: the number of indices, or of index tuples, that are -1 in every component; a tuple such
    as [2, -1] is no padding. total: the number of all. sample: describes a sample, "" for all.
    """
    if count < 2:  # a single -1 means the last element
        return ""
    if components > 1:
        subject = f"index tuples{sample} are all -1, and no index is lower"
    else:
        subject = f"indices{sample} are -1, and no other is negative"
    return (
        f"{count} of {total} {subject}: -1 selects the last element of an axis; is it padding?"
        f" {option('pad', -1)} lets it select nothing"
    )


def _swap_bytes(value: int, dtype: Dtype) -> int:
    signed = dtype.kind == "i"
    raw = value.to_bytes(dtype.itemsize, "little", signed=signed)
    return int.from_bytes(raw, "big", signed=signed)
