"""Shape inference from files, reading only their headers, or from types in their place."""

from collections.abc import Mapping

from ndtool.analysis.typed import typed
from ndtool.formats import locators
from ndtool.formats.streams import Streams
from ndtool.rules import inference
from ndtool.rules.dtypes import Dtype
from ndtool.rules.inference import Inference, Input
from ndtool.rules.operators import Attributes, operator_of


def infer(
    operator: str,
    arguments: dict[str, str],
    attributes: Attributes = Attributes(),  # noqa: B008 - a value that never changes
    spec: str = "ndtool",
    dtype: str | None = None,
    known: Mapping[str, Input] | None = None,
) -> Inference:
    """Infer the output of an operator from files and types such as `float32[8,128,64]`.

    arguments: files and types by the standards' names. A type's sizes may be symbolic, as in
    `float32[N,64]`; the trace lists what is then assumed. dtype: the actual dtype of void-typed
    data. known: inputs of known types, by role. Raises RuleError, with the trace so far, and
    DtypeError; both mention the arguments.
    """
    streams = Streams()
    inputs, known = dict[str, Input](), known or {}
    for role in operator_of(operator).inputs:
        if role in known:
            inputs[role] = known[role]
        if role not in arguments:
            continue
        argument = arguments[role]
        data = next(iter(inputs.values())).dtype if role.startswith("update") else None
        inputs[role] = _given(argument, streams, role.endswith("indices"), data)
    return inference.infer(operator, inputs, attributes, spec, dtype)


def _given(argument: str, streams: Streams, literals: bool, dtype: Dtype | None) -> Input:
    """Read a type, or the header of a file."""
    if (found := typed(argument, named=True)) is not None:
        return Input(argument, found.metadata.dtype, found.metadata.shape)
    entries = locators.describe(argument, streams, literals=literals, dtype=dtype)
    metadata = entries[0].metadata if len(entries) == 1 else None
    if metadata is None:
        # Opening raises the reason.
        source = locators.open_source(argument, streams, literals=literals, dtype=dtype)
        metadata = source.metadata
        source.close()
    return Input(argument, metadata.dtype, metadata.shape)
