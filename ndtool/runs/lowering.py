"""Lowering of an operator to another one: TensorScatter is a scatter with computed indices."""

from __future__ import annotations

from math import prod

import numpy as np

from ndtool.arrays import memory as arrays
from ndtool.arrays.loaded import row_major
from ndtool.arrays.source import Source
from ndtool.errors import BoundsError, ResourceError, UsageError
from ndtool.formats import literal
from ndtool.inmemory import tensorscatter
from ndtool.machine import memory
from ndtool.rules import inference
from ndtool.rules import tensorscatter as rules
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
        indices = _indices(call, lowering)
        if request.on_cluster:
            indices = indices.astype(np.int64)  # as workers parse the literal
        call.require_unchanged()  # before write_indices, which have been read, are closed
        sources = {LOWERED_INPUTS[role]: source for role, source in call.sources.items()}
        if "indices" in sources:
            sources["indices"].close()
        sources["indices"] = arrays.source("the computed indices", indices)
        computed = request._replace(
            operator="scatter", attributes=lowering.attributes, spec="ndtool",
            indices=_literal(indices) if request.on_cluster else sources["indices"].name,
        )  # fmt: skip
        return OpenCall(computed, sources, call.inference)
    except BaseException:
        call.close()
        raise


def _indices(call: OpenCall, lowering: rules.Lowering) -> tensorscatter.Array:
    """Compute the indices of the scatter; BoundsError if an index is out of bounds."""
    info, write_indices = call.inference.inputs.get("write_indices"), None
    if info is not None:
        raw = row_major(call, "write_indices", "<")
        code = f"<{info.dtype.kind}{info.dtype.itemsize}"
        write_indices = np.ndarray(info.shape, code, raw)
    try:
        mode = call.request.attributes.mode
        firsts = tensorscatter.start_positions(lowering, write_indices, mode)
    except BoundsError as error:
        inference.name_inputs(error, call.inference.inputs)
        raise
    _require_memory(prod(lowering.indices), call.request.memory)
    return tensorscatter.scatter_indices(lowering, firsts)


def _require_memory(indices: int, limit: int | None) -> None:
    """Raise ResourceError if the computed indices do not fit in memory."""
    allowed = memory.available() if limit is None else limit
    if 8 * indices > allowed:
        raise ResourceError(
            f"{indices} computed indices are {8 * indices} bytes: they must fit in memory of"
            f" {allowed} bytes"
        )


def _literal(indices: tensorscatter.Array) -> str:
    """Return indices as a literal for workers to parse; UsageError if it is too long."""
    text = str(indices.tolist())
    if len(text) > literal.MAX_CHARACTERS:
        raise UsageError(
            f"{indices.size} computed indices are too many for a cluster: valid up to"
            f" {literal.MAX_CHARACTERS} characters",
            hint="without --scheduler and --workers, there is no limit",
        )
    return text
