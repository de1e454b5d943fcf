"""Inference from files, of which only the headers are read, or from types that stand for them."""

from ndtool.analysis.typed import typed
from ndtool.arrays import names
from ndtool.arrays.streams import Streams
from ndtool.rules import inference
from ndtool.rules.inference import Given, Inference
from ndtool.rules.operators import Attributes


def infer(
    operator: str,
    arguments: dict[str, str],
    attributes: Attributes = Attributes(),  # noqa: B008 - a value that never changes
    spec: str = "ndtool",
    dtype: str | None = None,
) -> Inference:
    """Infer the output of an operator from files and types such as `float32[8,128,64]`.

    arguments: by the standards' names. A type's sizes may be names, as in `float32[N,64]`: what
    must be true of them then is assumed. dtype: what elements stored as void are. Raises
    RuleError, with the trace so far, and DtypeError; both name what was given.
    """
    streams = Streams()
    inputs = {
        role: _given(argument, streams, role == "indices") for role, argument in arguments.items()
    }
    return inference.infer(operator, inputs, attributes, spec, dtype)


def _given(argument: str, streams: Streams, literals: bool) -> Given:
    """Read a type, or the header of a file."""
    if (found := typed(argument, named=True)) is not None:
        return Given(argument, found.facts.dtype, found.facts.shape)
    entries = names.describe(argument, streams, literals=literals)
    facts = entries[0].facts if len(entries) == 1 else None
    if facts is None:
        source = names.open_source(argument, streams, literals=literals)  # which says what is wrong
        facts = source.facts
        source.close()
    return Given(argument, facts.dtype, facts.shape)
