"""Inference from files, of which only the headers are read, or from types that stand for them."""

import os
import re

from ndtool.arrays import names
from ndtool.arrays.streams import Streams
from ndtool.errors import UsageError, printable
from ndtool.rules import dtypes, inference, shapes
from ndtool.rules.inference import Given, Inference
from ndtool.rules.operators import Attributes
from ndtool.rules.shapes import Shape

# A dtype, which may have a unit in brackets, then a shape; no path or member looks like it.
_TYPE = re.compile(r"([^:/.\[\]]+(?:\[[0-9]*[A-Za-z]+\])?)\[(.*)\]")
_SIZES = re.compile(r"(?:[0-9]{1,19}(?:, ?[0-9]{1,19})*)?")


def infer(
    operator: str,
    arguments: dict[str, str],
    attributes: Attributes = Attributes(),  # noqa: B008 - a value that never changes
    spec: str = "ndtool",
    dtype: str | None = None,
) -> Inference:
    """Infer the output of an operator from files and types such as `float32[8,128,64]`.

    arguments: by the standards' names. dtype: what elements stored as void are. Raises
    RuleError, with the trace so far, and DtypeError; both name what was given.
    """
    streams = Streams()
    inputs = {
        role: _given(argument, streams, role == "indices") for role, argument in arguments.items()
    }
    return inference.infer(operator, inputs, attributes, spec, dtype)


def _given(argument: str, streams: Streams, literals: bool) -> Given:
    """Read `dtype[d0,d1,...]`, or the header of a file; a file of that name wins."""
    match = _TYPE.fullmatch(argument)
    if match and not os.path.lexists(argument):
        return Given(argument, dtypes.from_name(match[1]), _shape(argument, match[2]))
    entries = names.describe(argument, streams, literals=literals)
    facts = entries[0].facts if len(entries) == 1 else None
    if facts is None:
        source = names.open_source(argument, streams, literals=literals)  # which says what is wrong
        facts = source.facts
        source.close()
    return Given(argument, facts.dtype, facts.shape)


def _shape(argument: str, sizes: str) -> Shape:
    shape = tuple(map(int, sizes.split(","))) if _SIZES.fullmatch(sizes) and sizes else ()
    if not _SIZES.fullmatch(sizes) or any(size > shapes.MOST for size in shape):
        raise UsageError(f"{printable(argument)}: expected a file or dtype[d0,d1,...]")
    if len(shape) > shapes.MOST_RANK:
        raise UsageError(f"{printable(argument)}: rank {len(shape)}: valid 0..{shapes.MOST_RANK}")
    return shape
