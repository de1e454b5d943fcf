"""Arrays whose elements all have one value: nothing is stored."""

from __future__ import annotations

import mmap

from ndtool.arrays.source import ArrayMetadata, Flat, Storage, Touched
from ndtool.engine import layouts
from ndtool.engine.bind import Buffer, Operand
from ndtool.errors import ResourceError, argument_name
from ndtool.rules.plans import ElementsPlan, Plan
from ndtool.storage.local import ByteRange

PATTERN = 1 << 20  # bytes of equal elements that are written at a time


class Constant(Flat):
    """A source whose elements are all equal; runs use `operand` and `fill` instead of its bytes.

    storage: the file that has only the value, None for an argument such as `zeros:`.
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
        super().__init__(name, metadata, ByteRange(memoryview(element)), storage, warning)
        self.element = element
        self._all: ByteRange | None = None

    def operand(self, plan: Plan) -> Operand:
        """Return the array for a gather: one slice, or element, that all indices select."""
        tail = () if isinstance(plan, ElementsPlan) else plan.slice_shape
        itemsize = len(self.element)
        strides = layouts.contiguous_strides(tail, itemsize)
        nbytes = strides[0] * tail[0] if tail else itemsize
        if not 0 < nbytes <= PATTERN:
            strides, nbytes = (0,) * len(tail), itemsize
        pattern = memoryview(self.element * (nbytes // itemsize))
        return Operand(pattern, 0, (0,) * (len(self.metadata.shape) - len(tail)) + strides)

    def fill(self, buffer: Buffer) -> None:
        """Fill a buffer with copies of the element."""
        if not any(self.element):
            step, pattern = PATTERN, bytes(PATTERN)
        else:
            step = PATTERN // len(self.element) * len(self.element)
            pattern = self.element * (step // len(self.element))
        for start in range(0, len(buffer), step):
            n = min(step, len(buffer) - start)
            buffer[start : start + n] = memoryview(pattern)[:n]

    def reserved(self, touched: Touched | None = None) -> ByteRange:
        return self.whole()

    def whole(self, touched: Touched | None = None) -> ByteRange:
        """Return all elements in memory: zeros take none, others do."""
        if self._all is None:
            self._all = ByteRange(self._stored())
        return self._all

    def _stored(self) -> memoryview:
        nbytes = self.metadata.nbytes
        try:
            if any(self.element) or not nbytes:
                buffer = memoryview(bytearray(nbytes))
                self.fill(buffer)
                return buffer.toreadonly()
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            return memoryview(mmap.mmap(-1, nbytes, flags, mmap.PROT_READ))
        except (MemoryError, OSError, OverflowError, ValueError):
            raise ResourceError(
                f"{argument_name(self.name)}: not enough memory for {nbytes} bytes"
            ) from None

    def close(self) -> None:
        if self._all is not None:
            self._all.release()
        super().close()
