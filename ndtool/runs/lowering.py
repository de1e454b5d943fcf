"""Lowering of an operator to another one: TensorScatter is a scatter with computed indices."""

from __future__ import annotations

from math import prod

import numpy as np

from ndtool.arrays.loaded import load
from ndtool.arrays.source import Source, load_bytes
from ndtool.errors import BoundsError, UsageError
from ndtool.formats import literal
from ndtool.formats.computed import ComputedSource
from ndtool.inmemory import tensorscatter
from ndtool.rules import inference
from ndtool.rules import tensorscatter as rules
from ndtool.rules.grid import Box
from ndtool.rules.operators import LOWERED_INPUTS
from ndtool.runs.calls import OpenCall
from ndtool.runs.request import Request


def open_lowered(request: Request, open_sources: dict[str, Source] | None = None) -> OpenCall:
    """Open a call of a lowered operator as a call of the operator that computes it."""
    call = OpenCall(request, open_sources)
    try:
        lowering = rules.infer(
            {role: info.shape for role, info in call.inference.inputs.items()},
            request.attributes.axis,
        )[1]
        sources = {LOWERED_INPUTS[role]: source for role, source in call.sources.items()}
        indices = _computed_indices(call, lowering, sources.get("indices"))
        sources["indices"] = indices
        if request.on_cluster:
            sources["indices"] = literal.open_source(_literal(indices))  # as workers parse it
            indices.require_unchanged()
            indices.close()
        computed = request._replace(
            operator="scatter", attributes=lowering.attributes, spec="ndtool",
            indices=sources["indices"].name,
        )  # fmt: skip
        return OpenCall(computed, sources, call.inference)
    except BaseException:
        call.close()
        raise


def _computed_indices(
    call: OpenCall, lowering: rules.Lowering, origin: Source | None
) -> ComputedSource:
    """Return the indices of the scatter; BoundsError if a write index is out of bounds.

    origin: the source of write_indices, None if they are absent.
    """
    info, mode = call.inference.inputs.get("write_indices"), call.request.attributes.mode
    write_indices: tensorscatter.Array = np.broadcast_to(np.int64(0), lowering.batch)
    if info is not None:
        raw = load(call, "write_indices").normalized("<", False)
        write_indices = np.ndarray(info.shape, f"<{info.dtype.kind}{info.dtype.itemsize}", raw)
        try:
            tensorscatter.require_bounds(lowering, write_indices, mode)
        except BoundsError as error:
            inference.name_inputs(error, call.inference.inputs)
            raise

    def compute(_: int, box: Box) -> tensorscatter.Array:
        (first, stop), columns = box
        return tensorscatter.scatter_indices(lowering, write_indices[first:stop], mode, columns)

    dtype = tensorscatter.index_type(lowering)
    return ComputedSource("the computed indices", dtype, lowering.indices, compute, origin)


def _literal(indices: ComputedSource) -> str:
    """Return indices as a literal for workers to parse; UsageError if it is too long."""
    shape = indices.metadata.shape
    if 3 * prod(shape) <= literal.MAX_CHARACTERS:
        buffer = load_bytes(indices).buffer
        text = str(np.ndarray(shape, indices.metadata.dtype.name, buffer).tolist())
        if len(text) <= literal.MAX_CHARACTERS:
            return text
    raise UsageError(
        f"{prod(shape)} computed indices are too many for a cluster: valid up to"
        f" {literal.MAX_CHARACTERS} characters",
        hint="without --scheduler and --workers, there is no limit",
    )
