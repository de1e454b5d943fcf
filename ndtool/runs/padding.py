"""Warnings about indices of -1, which select the last element but may be meant as padding."""

import array
from typing import Any

from ndtool.errors import argument_name
from ndtool.rules import mistakes
from ndtool.rules.inference import Input, is_literal
from ndtool.rules.operators import Attributes
from ndtool.rules.plans import Plan

SAMPLE_SIZE = 1 << 14  # maximum indices to inspect: a fraction of a millisecond
_CODES = {"int8": "b", "int16": "h", "int32": "i", "int64": "q"}


def padding_warnings(
    info: Input,
    indices: memoryview,
    plan: Plan | None = None,
    attributes: Attributes = Attributes(),  # noqa: B008 - a value that never changes
) -> list[str]:
    """Return the warning that -1 may be padding, as a list of at most one.

    info: the name and type of the indices. indices: their bytes; large ones are sampled. plan: the
    plan of the call, from which the number of components of a tuple follows. For unsigned types,
    the warning says as which large number -1 is stored.
    """
    name, dtype, _ = info
    if attributes.pad is not None or not attributes.negatives:
        return _unsigned_warnings(info, attributes)
    code = _CODES.get(dtype.name)
    if code is None or not len(indices) or is_literal(name):
        return []
    k = 1 if plan is None else plan.k
    total = len(indices) // dtype.itemsize
    step = -(-total // SAMPLE_SIZE) | 1  # odd, since every second index may be padding
    raw: Any = indices.cast("B")
    elements = raw.cast(code)
    columns = [array.array(code, elements[j :: k * step].tobytes()) for j in range(k)]
    for column in columns:
        if dtype.is_swapped:
            column.byteswap()
        if min(column) != -1:
            return []
    sample = "" if step == 1 else " in a sample"
    count = columns[0].count(-1) if k == 1 else list(zip(*columns, strict=True)).count((-1,) * k)
    warning = mistakes.padding_warning(count, len(columns[0]), sample, k)
    return [f"{argument_name(name)}: {warning}"] if warning else []


def _unsigned_warnings(info: Input, attributes: Attributes) -> list[str]:
    """Return the warning that no index of an unsigned type equals a negative pad."""
    pad = attributes.pad
    if pad is None or pad >= 0 or info.dtype.kind != "u":
        return []
    bits = 8 * info.dtype.itemsize
    stored = f"as {info.dtype.name} it is {2**bits + pad}" if pad >= -(1 << bits - 1) else "never"
    return [f"{argument_name(info.name)}: pad {pad} equals no index of {info.dtype.name}: {stored}"]
