"""Inputs of a call loaded as bytes, in their stored layout or normalized for kernels."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from ndtool.arrays import source
from ndtool.arrays.source import AccessedElements, Source
from ndtool.engine import copies, layouts
from ndtool.engine.bind import Operand
from ndtool.errors import argument_name
from ndtool.rules.inference import Inference, Input
from ndtool.storage.local import ByteRange


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


class LoadedInput(NamedTuple):
    """The bytes of an input, in its stored layout.

    info: its name, element type and shape. fortran: whether it is in Fortran order. spill: the
    directory for copies that do not fit in memory. dry: whether to reserve the space for copies
    without copying.
    """

    info: Input
    byte_range: ByteRange
    fortran: bool
    threads: int
    spill: str | None
    dry: bool
    constant: Operand | None = None  # with strides of 0, if all elements are equal

    @property
    def operand(self) -> Operand:
        """The input as a strided operand of kernels."""
        if self.constant is not None:
            return self.constant
        _, dtype, shape = self.info
        strides = layouts.contiguous_strides(shape, dtype.itemsize, self.fortran)
        return Operand(self.byte_range.buffer, 0, strides)

    def normalized(self, order: str, aligned: bool) -> memoryview:
        """Return the bytes in row-major order and byte order `order`; copy only if necessary.

        aligned: whether addresses of elements must be multiples of their size.
        """
        name, dtype, shape = self.info
        data, size = self.operand, len(self.byte_range.buffer)
        unaligned = aligned and (self.byte_range.position or 0) % dtype.itemsize != 0
        if copies.is_normalized(shape, data.strides, dtype, order) and not unaligned:
            return self.byte_range.buffer
        from ndtool.storage import tempfiles

        label = f"temporary copy of {argument_name(name)}"
        if self.dry:
            return tempfiles.allocate(size, label, directory=self.spill).toreadonly()
        return tempfiles.filled_buffer(
            size,
            label,
            lambda write: copies.write_normalized(data, shape, dtype, order, write, self.threads),
            self.spill,
        )


def load(
    call: Inputs, role: str, touched: AccessedElements | None = None, dry: bool = False
) -> LoadedInput:
    """Load an input.

    touched: the blocks or byte ranges to read, None for all. dry: whether to reserve the space
    without reading.
    """
    byte_range = source.load_bytes(call.sources[role], touched, call.threads, call.spill, dry)
    fortran = call.sources[role].metadata.order == "F"
    return LoadedInput(
        call.inference.inputs[role], byte_range, fortran, call.threads, call.spill, dry
    )
