"""Arrays in memory as sources and sinks, for runs whose inputs or output are not all files."""

from typing import Any

from ndtool.arrays.local import Stretch
from ndtool.arrays.source import Facts, Flat
from ndtool.rules import dtypes


def source(name: str, array: Any) -> Flat:
    """Return an ndarray as a source; it is copied only where its elements lie apart."""
    import numpy as np

    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    if not (array.flags.aligned and array.flags.forc):
        array = np.array(array, order="C")
    flat = (array.T if order == "F" else array).reshape(-1)
    facts = Facts(dtypes.from_numpy(array.dtype), array.shape, order, array.shape, {})
    return Flat(name, facts, Stretch(memoryview(flat.view(np.uint8)).toreadonly()))


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
