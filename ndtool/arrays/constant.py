"""Arrays whose elements are all equal, of which only the value is stored."""

from __future__ import annotations

import mmap

from ndtool.arrays.source import ArrayMetadata, ContiguousSource, Storage
from ndtool.engine import layouts
from ndtool.engine.bind import Buffer, Operand
from ndtool.errors import ResourceError, argument_name
from ndtool.rules.plans import Plan

PATTERN_SIZE = 1 << 20  # bytes of equal elements per write


class Constant(ContiguousSource):
    """A source whose elements are all equal; runs use `operand` and `fill` instead of its bytes.

    storage: the file that stores the value, None for an argument such as `zeros:`.
    """

    is_reopenable = True  # any process can open it by its argument

    def __init__(
        self,
        name: str,
        metadata: ArrayMetadata,
        element: bytes,
        storage: Storage | None = None,
        warning: str | None = None,
    ) -> None:
        super().__init__(name, metadata, memoryview(element), storage, warning)
        self.element = element
        self._is_filled = False

    def operand(self, plan: Plan) -> Operand:
        """Return the operand of a gather: a slice, or an element, that all indices select."""
        slice_shape = plan.slice_shape
        itemsize = len(self.element)
        strides = layouts.contiguous_strides(slice_shape, itemsize)
        nbytes = strides[0] * slice_shape[0] if slice_shape else itemsize
        if not 0 < nbytes <= PATTERN_SIZE:
            strides, nbytes = (0,) * len(slice_shape), itemsize
        pattern = memoryview(self.element * (nbytes // itemsize))
        return Operand(pattern, 0, (0,) * (len(self.metadata.shape) - len(slice_shape)) + strides)

    def fill(self, buffer: Buffer) -> None:
        """Fill a buffer with copies of the element."""
        if not any(self.element):
            step, pattern = PATTERN_SIZE, bytes(PATTERN_SIZE)
        else:
            step = PATTERN_SIZE // len(self.element) * len(self.element)
            pattern = self.element * (step // len(self.element))
        for start in range(0, len(buffer), step):
            n = min(step, len(buffer) - start)
            buffer[start : start + n] = memoryview(pattern)[:n]

    def load(self, *_: object, **options: object) -> memoryview:
        """Return all elements, whatever the arguments; zeros occupy no memory."""
        if not self._is_filled:
            self.buffer, self._is_filled = self._allocate(), True
        return self.buffer

    def read_bytes(self, start: int, buffer: memoryview) -> None:
        self.fill(buffer)

    def _allocate(self) -> memoryview:
        nbytes = self.metadata.nbytes
        try:
            if any(self.element) or not nbytes:
                from ndtool.storage import tempfiles

                label = f"temporary copy of {argument_name(self.name)}"
                buffer = tempfiles.allocate(nbytes, label)  # a file if it is large
                self.fill(buffer)
                return buffer.toreadonly()
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            return memoryview(mmap.mmap(-1, nbytes, flags, mmap.PROT_READ))
        except (MemoryError, OSError, OverflowError, ValueError):
            raise ResourceError(
                f"{argument_name(self.name)}: not enough memory for {nbytes} bytes"
            ) from None
