"""A format of blocks, as small as one can be: what a new format must bring, and no more.

A line `TOY dtype|shape|grid`, then the blocks in row-major order of the grid, each in row-major
order of its elements.
"""

from math import prod
from typing import Any

from ndtool.arrays import grid
from ndtool.arrays.newfile import NewFile
from ndtool.arrays.source import Entry, Facts
from ndtool.arrays.storage import failure, reserve, write_at
from ndtool.arrays.targets import Target
from ndtool.errors import DtypeError, InputError, NdtoolError, OutputError, called, printable
from ndtool.rules import dtypes

MAGIC = b"TOY "
_BLOCKS = 8  # of outputs along an axis, about, and each of three elements if there are so many


def recognises(place: Any) -> bool:
    return bool(place.look(0, len(MAGIC)) == MAGIC)


def entries(place: Any, path: str, member: str | None) -> list[Entry]:
    facts, start = _facts(place, path)
    return [Entry(path, member, facts, None, place.size, f"blocks from byte {start} on", None)]


def open_source(place: Any, name: str, path: str, member: str | None) -> "Blocks":
    return Blocks(place, name, *_facts(place, name))


def check(target: Target) -> None:
    target.require_replaceable()


def create(target: Target, facts: Facts) -> "BlockSink":
    check(target)
    return BlockSink(target, facts)


def _facts(place: Any, name: str) -> tuple[Facts, int]:
    line, newline, _ = place.look(0, 1000).partition(b"\n")
    try:
        code, *sizes = line.removeprefix(MAGIC).decode("ascii").rsplit("|", 2)
        shape, step = (tuple(map(int, text.split(",") if text else ())) for text in sizes)
        dtype = dtypes.from_code(code)
        least = (min(size, 1) for size in shape)  # a block has elements where the array has some
        if not newline or min(shape, default=0) < 0 or len(shape) != len(step):
            raise ValueError("sizes")
        if any(one < needed for one, needed in zip(step, least, strict=True)):
            raise ValueError("sizes")
    except (ValueError, DtypeError):
        raise InputError(f"{printable(name)}: no line `TOY dtype|shape|grid`") from None
    facts = Facts(dtype, shape, "C", step, {"toy_header": len(line) + 1})
    if len(line) + 1 + facts.nbytes != place.size:
        raise InputError(f"{printable(name)}: {place.size} bytes do not fit the header")
    return facts, len(line) + 1


class Blocks:
    """A source of several blocks."""

    warning = None
    at_once = 1
    tick = None

    def __init__(self, place: Any, name: str, facts: Facts, start: int) -> None:
        self.name, self.facts = name, facts
        self._place, self._start = place, start

    def whole(self, touched: Any = None) -> None:
        return None

    def block(self, number: int) -> memoryview:
        at = self._start + sum(_nbytes(self.facts, n) for n in range(number))
        return memoryview(self._place.read(at, _nbytes(self.facts, number), self.name))

    def recheck(self) -> None:
        if change := self._place.change():
            raise OutputError(f"{called(self.name)} {change}")

    def is_open_as(self, fd: int) -> bool:
        return bool(self._place.is_open_as(fd))

    def close(self) -> None:
        self._place.close()


class BlockSink:
    """A sink of several blocks."""

    streamed = False
    at_once = 1
    kept = None

    def __init__(self, target: Target, facts: Facts) -> None:
        self.name = target.path
        self.facts = facts._replace(
            grid=tuple(min(max(3, size // _BLOCKS), size) for size in facts.shape)
        )
        text = "|".join(
            [facts.dtype.descr, *(",".join(map(str, s)) for s in (facts.shape, self.facts.grid))]
        )
        header = MAGIC + text.encode() + b"\n"
        self._start = len(header)
        try:
            self._file = NewFile(target.path, target.old, target.clobber, target.sync)
            try:
                reserve(self._file.descriptor, self._start + facts.nbytes, self.name)
                write_at(self._file.descriptor, 0, header)
            except BaseException:
                self._file.drop()
                raise
        except OSError as exc:
            raise self._failed(exc) from None

    def map(self) -> None:
        return None

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        at = self._start + sum(_nbytes(self.facts, n) for n in range(block))
        try:
            write_at(self._file.descriptor, at + start, view)
        except OSError as exc:
            raise self._failed(exc) from None

    def finish(self) -> NewFile:
        self._file.sync()
        return self._file

    def abort(self) -> None:
        self._file.drop()

    def _failed(self, exc: OSError) -> NdtoolError:
        return exc if isinstance(exc, NdtoolError) else failure(exc, self.name, OutputError)


def _nbytes(facts: Facts, number: int) -> int:
    box = grid.box(facts.shape, facts.grid, number)
    return prod(stop - first for first, stop in box) * facts.dtype.itemsize
