"""Arrays in memory as sources and sinks, for runs whose inputs or output are not all files."""

from typing import Any

from ndtool.arrays.local import Stretch
from ndtool.arrays.source import Facts, Flat
from ndtool.errors import DtypeError
from ndtool.rules import dtypes
from ndtool.rules.dtypes import Dtype


def source(name: str, array: Any) -> Flat:
    """Return an ndarray as a source; it is copied only where its elements lie apart.

    So it is where its type is another package's and not in this machine's byte order, of which
    files of void would say nothing.
    """
    import numpy as np

    if array.dtype.isbuiltin == 2 and not array.dtype.isnative:
        array = array.byteswap().view(array.dtype.newbyteorder("="))
    dtype = _dtype(name, array.dtype)
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    if not (array.flags.aligned and array.flags.forc):
        array = np.array(array, order="C")
    flat = (array.T if order == "F" else array).reshape(-1)
    facts = Facts(dtype, array.shape, order, array.shape, {})
    return Flat(name, facts, Stretch(memoryview(flat.view(np.uint8)).toreadonly()))


def _dtype(name: str, dtype: Any) -> Dtype:
    """Return an element type as files say it, records by their fields."""
    from numpy.lib.format import dtype_to_descr

    try:
        found = dtypes.from_numpy(dtype)
        return found if dtype.names is None else dtypes.from_descr(dtype_to_descr(dtype))
    except DtypeError as exc:
        raise DtypeError(f"{name}: {exc.message}", hint=exc.hint) from None
    except ValueError:
        raise DtypeError(f"{name}: its fields overlap, or stand in another order") from None


class RoomSink:
    """A sink that fills bytes which the caller has."""

    streamed = False
    at_once = 1
    kept: tuple[str, ...] | None = None

    def __init__(self, room: memoryview, facts: Facts) -> None:
        self.name, self.facts = "the result", facts
        self._room = room

    def map(self) -> memoryview:
        return self._room

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        self._room[start : start + len(view)] = view

    def finish(self) -> None:
        """Every byte is where it belongs."""

    def abort(self) -> None:
        """There is nothing to drop."""
