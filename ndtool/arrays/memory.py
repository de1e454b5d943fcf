"""Arrays in memory as sources and sinks, for runs that mix them with files."""

from typing import Any

from ndtool.arrays.sink import Sink
from ndtool.arrays.source import ArrayMetadata, ContiguousSource
from ndtool.errors import DtypeError
from ndtool.rules import dtypes
from ndtool.rules.dtypes import Dtype


def source(name: str, array: Any) -> ContiguousSource:
    """Return an ndarray as a source.

    It is copied only if it is not contiguous and aligned, or if its dtype is another package's in
    non-native byte order, which void elements would lose.
    """
    import numpy as np

    if array.dtype.isbuiltin == 2 and not array.dtype.isnative:
        array = array.byteswap().view(array.dtype.newbyteorder("="))
    dtype = _dtype(name, array.dtype)
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    if not (array.flags.aligned and array.flags.forc):
        array = np.array(array, order="C")
    flat = (array.T if order == "F" else array).reshape(-1)
    metadata = ArrayMetadata(dtype, array.shape, order, array.shape, {})
    return ContiguousSource(name, metadata, memoryview(flat.view(np.uint8)).toreadonly())


def _dtype(name: str, dtype: Any) -> Dtype:
    """Return NumPy's dtype as an ndtool Dtype, a structured one with its fields."""
    from numpy.lib.format import dtype_to_descr

    try:
        element = dtypes.from_numpy(dtype)  # raises for Python objects
        return element if dtype.names is None else dtypes.from_descr(dtype_to_descr(dtype))
    except DtypeError as exc:
        raise DtypeError(f"{name}: {exc.message}", hint=exc.hint) from None
    except ValueError:
        raise DtypeError(
            f"{name}: its fields overlap or are not in the order of their offsets"
        ) from None


class BufferSink(Sink):
    """A sink that writes to a buffer of the caller."""

    def __init__(self, buffer: memoryview, metadata: ArrayMetadata) -> None:
        self.name, self.metadata, self.buffer = "the result", metadata, buffer

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        assert self.buffer is not None
        self.buffer[start : start + len(view)] = view
