"""Shape inference from the headers of files, or from types."""

from collections.abc import Mapping

from ndtool.analysis.typed import type_source
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
    types: Mapping[str, Input] | None = None,
) -> Inference:
    """Infer the output of an operator from files and types such as `float32[8,128,64]`.

    arguments: files and types by the standards' names. A type's sizes may be symbolic, as in
    `float32[N,64]`; the trace lists what is then assumed. dtype: the actual dtype of void-typed
    data. types: inputs of known types, by role. Raises RuleError, with the trace so far, and
    DtypeError; both mention the arguments.
    """
    streams = Streams()
    inputs, types = dict[str, Input](), types or {}
    for role in operator_of(operator).inputs:
        if role in types:
            inputs[role] = types[role]
        if role not in arguments:
            continue
        argument = arguments[role]
        data = next(iter(inputs.values())).dtype if role.startswith("update") else None
        inputs[role] = _read_type(argument, streams, role.endswith("indices"), data)
    return inference.infer(operator, inputs, attributes, spec, dtype)


def _read_type(argument: str, streams: Streams, literals: bool, dtype: Dtype | None) -> Input:
    """Return the dtype and shape of an argument: a type, or a file, whose header is read."""
    if (declared := type_source(argument, allow_symbols=True)) is not None:
        return Input(argument, declared.metadata.dtype, declared.metadata.shape)
    entries = locators.describe(argument, streams, literals=literals, dtype=dtype)
    metadata = entries[0].metadata if len(entries) == 1 else None
    if metadata is None:
        # open_source raises the error that says why.
        source = locators.open_source(argument, streams, literals=literals, dtype=dtype)
        metadata = source.metadata
        source.close()
    return Input(argument, metadata.dtype, metadata.shape)
