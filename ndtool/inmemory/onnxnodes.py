"""Nodes of ONNX models: ndtool's operators under ONNX's names and in its versions, with strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndtool.errors import RuleError
from ndtool.inmemory import ops

Array = NDArray[Any]
_STRING_KINDS = "OSU"  # dtype kinds that hold ONNX's strings


def compute(
    operator: str, title: str, spec: str, inputs: Sequence[Array | None], attributes: dict[str, Any]
) -> Array:
    """Return the output of a node.

    operator, title: ndtool's name, and ONNX's. spec: its standard, such as "onnx:13". inputs: None
    for an omitted one. attributes: those of the node; None for an omitted one.
    """
    keywords = {name: value for name, value in attributes.items() if value is not None}
    keywords["spec"] = row_spec(title, spec)
    data, *operands = inputs
    if operator == "tensor_scatter":
        update, write_indices = operands[0], operands[1] if len(operands) > 1 else None
        return _apply_to_strings(
            lambda past, update: ops.tensor_scatter(past, update, write_indices, **keywords),
            data,
            update,
        )
    indices, *updates = operands
    function: Callable[..., Array] = getattr(ops, operator)
    if keywords.get("reduction", "none") != "none":
        return function(data, indices, *updates, **keywords)
    return _apply_to_strings(
        lambda data, *updates: function(data, indices, *updates, **keywords), data, *updates
    )


def row_spec(title: str, spec: str) -> str:
    """Return the standard whose rules a node follows: Scatter-9 those of ScatterElements-11."""
    if title != "Scatter":
        return spec
    if spec not in ("onnx:9", "onnx:10"):
        raise RuleError(f"{spec} has no Scatter: onnx:9 and onnx:10 have it")
    return "onnx:11"


def _apply_to_strings(function: Callable[..., Array], data: Any, *updates: Any) -> Array:
    """Compute an operator without arithmetic; strings are replaced by their linear indices."""
    if data.dtype.kind not in _STRING_KINDS:
        return function(data, *updates)
    strings = np.concatenate([array.reshape(-1) for array in (data, *updates)])
    linear_indices = np.arange(strings.size)
    result_indices = function(
        linear_indices[: data.size].reshape(data.shape),
        *(linear_indices[data.size :].reshape(array.shape) for array in updates),
    )
    return np.asarray(strings[result_indices.reshape(-1)].reshape(result_indices.shape))
