"""Inputs of a call in memory, as operands of kernels."""

from __future__ import annotations

from typing import Protocol

from ndtool.arrays.source import AccessedElements, ContiguousSource, Source
from ndtool.engine import copies
from ndtool.engine.bind import Operand
from ndtool.errors import argument_name
from ndtool.rules.inference import Inference


class Inputs(Protocol):
    """The open inputs of a call; spill: the directory for copies that do not fit in memory."""

    @property
    def inference(self) -> Inference: ...
    @property
    def sources(self) -> dict[str, Source]: ...
    @property
    def threads(self) -> int: ...
    @property
    def spill(self) -> str | None: ...


def load(
    call: Inputs, role: str, touched: AccessedElements | None = None, dry: bool = False
) -> Operand:
    """Load an input in its stored layout.

    touched: the elements to read, None for all. dry: whether to reserve the space without reading.
    """
    source = call.sources[role]
    buffer = source.load(touched, call.threads, call.spill, dry)
    return Operand(buffer, 0, source.metadata.strides)


def row_major(
    call: Inputs,
    role: str,
    order: str,
    aligned: bool = False,
    dry: bool = False,
    operand: Operand | None = None,
) -> memoryview:
    """Return the bytes of an input in row-major order and byte order `order`; copy if necessary.

    aligned: whether addresses of elements must be multiples of their size. operand: the input, if
    it is loaded. dry: whether to reserve the space for the input and its copy without reading.
    """
    operand, source = operand or load(call, role, dry=dry), call.sources[role]
    name, dtype, shape = call.inference.inputs[role]
    buffer: memoryview = operand.buffer
    position = source.position if isinstance(source, ContiguousSource) else None
    is_aligned = not aligned or (position or 0) % dtype.itemsize == 0
    if is_aligned and copies.is_normalized(shape, operand.strides, dtype, order):
        return buffer
    from ndtool.storage import tempfiles

    label, size = f"temporary copy of {argument_name(name)}", len(buffer)
    if dry:
        return tempfiles.allocate(size, label, directory=call.spill).toreadonly()
    return tempfiles.filled_buffer(
        size,
        label,
        lambda write: copies.write_normalized(operand, shape, dtype, order, write, call.threads),
        call.spill,
    )
