"""Input arrays outside memory, whatever their format: a few facts, and their bytes.

A flat array is a grid of one block. Formats whose bytes stand together make a `Flat`; a format of
chunks has a class of its own that keeps the contract of `Source`.
"""

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple, Protocol

from ndtool.arrays.local import Stretch, Tick, Told
from ndtool.errors import OutputError, called, printable
from ndtool.rules.dtypes import Dtype
from ndtool.rules.shapes import Shape, described


class Facts(NamedTuple):
    """What is known of an array without its bytes.

    order: "C" or "F": how the elements of a flat array follow each other; those of each of
    several blocks are in row-major order. grid: the shape of a block, of which the last ones
    along an axis may be cut; the array's own shape where it is flat. notes: what else its format
    says of it, for `inspect`.
    """

    dtype: Dtype
    shape: Shape
    order: str
    grid: Shape
    notes: dict[str, Any]

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def in_chunks(self) -> bool:
        """Whether blocks are read and written as a whole, though there may be only one."""
        return self.grid != self.shape or "chunks" in self.notes

    @property
    def described(self) -> str:
        """Type and shape."""
        return described(self.dtype, self.shape)


class Entry(NamedTuple):
    """What `inspect` tells about one array.

    name: the argument that opens it. facts: None where it is no array. position: where its bytes
    are in the file, None where they are not there as they are. problem: why not, else empty.
    """

    name: str
    member: str | None
    facts: Facts | None
    position: int | None
    file_size: int
    problem: str
    warning: str | None

    @property
    def label(self) -> str:
        """Type and shape, or why there are none."""
        return self.problem if self.facts is None else self.facts.described


class OperatorNode(NamedTuple):
    """A node of a model whose operator is one of ours.

    model: the file. node: its path there, by names. operator, title: our name and the standard's.
    version: of the operator set. attributes: those that the node has. output: None where it has
    none.
    """

    model: str
    node: str
    operator: str
    title: str
    version: int | None
    attributes: dict[str, Any]
    inputs: tuple[str, ...]
    output: str | None


class Known(NamedTuple):
    """What a model says of a name, None where it does not; a size may be a symbol's name."""

    dtype: str | None
    shape: tuple[int | str | None, ...] | None


class KnownNode(NamedTuple):
    """A node with what is known of its inputs and its output, by their names.

    place: the path of the graph or function that it is in.
    """

    node: OperatorNode
    place: str
    types: dict[str, Known]


class KnownModel(NamedTuple):
    """scopes: the nodes of our operators in the graph, and in each function, which sees no other.

    inputs: the graph's. held: those of them that have a value already.
    """

    scopes: list[list[KnownNode]]
    inputs: dict[str, Known]
    held: frozenset[str]


class Touched(Protocol):
    """What a run reads of an array; perhaps a little more, never less."""

    def blocks(self, step: Shape) -> Iterator[int]:
        """Yield the numbers of the blocks of a grid that hold it, ascending."""

    def ranges(self, itemsize: int, order: str) -> Iterator[tuple[int, int]]:
        """Yield where its bytes begin and stop in a flat array, ascending, none twice."""


class Source(Protocol):
    """One input array, open. name: the argument. warning: what is odd without being wrong.

    at_once: how many blocks are worth asking for at once, however few the processors. tick: told
    which share of it is there while it is brought from elsewhere, from 0 on; whoever wants to know
    sets it.
    """

    name: str
    facts: Facts
    warning: str | None
    at_once: int
    tick: Tick | None

    def whole(self, touched: Touched | None = None) -> Stretch | None:
        """Return all of the bytes where they stand together, None where they do not.

        touched: what must be right at least; the others may be zeros.
        """

    def block(self, number: int) -> memoryview:
        """Return the bytes of a block, by its number in row-major order of the grid.

        Several threads may ask for blocks at once.
        """

    def recheck(self) -> None:
        """Raise OutputError if the array was modified or replaced since it was opened."""

    def told(self) -> Told:
        """Return what tells its bytes from others, in another run, too; None where nothing does."""

    def is_open_as(self, fd: int) -> bool:
        """Whether a descriptor is open on what the bytes are from."""

    def close(self) -> None:
        """Let go of the bytes and of the place."""


class Place(Protocol):
    """What the bytes of a source are from, as far as the source itself needs it."""

    def change(self) -> str:
        """Say what happened to it since it was opened, nothing if nothing did."""

    def told(self) -> Told:
        """Return what tells its content from others, in another run, too."""

    def is_open_as(self, fd: int) -> bool:
        """Whether a descriptor is open on the same file."""

    def close(self) -> None:
        """Let go of it."""


class Flat:
    """A source whose bytes stand together; place: None for what came through a pipe."""

    at_once = 1
    tick: Tick | None = None

    def __init__(
        self,
        name: str,
        facts: Facts,
        stretch: Stretch,
        place: Place | None = None,
        warning: str | None = None,
    ) -> None:
        self.name, self.facts, self.warning = name, facts, warning
        self._stretch, self._place = stretch, place

    @property
    def is_place(self) -> bool:
        """Whether the bytes are from a place that can be opened again."""
        return self._place is not None

    @property
    def there(self) -> Stretch | None:
        """All of the bytes where each of them can be read at will, else None."""
        return None if self._stretch.fetch is not None else self._stretch

    def whole(self, touched: Touched | None = None) -> Stretch:
        if self._stretch.fetch is not None:
            size, order = self.facts.dtype.itemsize, self.facts.order
            ranges = None if touched is None else touched.ranges(size, order)
            self._stretch.fetch(ranges, self.tick)
        return self._stretch

    def block(self, number: int) -> memoryview:
        assert number == 0, "a flat array is one block"
        return self.whole().buffer

    def recheck(self) -> None:
        if self._place is not None and (change := self._place.change()):
            raise OutputError(f"{called(self.name)} {change}")

    def told(self) -> Told:
        return None if self._place is None else self._place.told()

    def is_open_as(self, fd: int) -> bool:
        return self._place is not None and self._place.is_open_as(fd)

    def close(self) -> None:
        self._stretch.release()
        if self._place is not None:
            self._place.close()


def whole(
    source: Source, touched: Touched | None = None, threads: int = 1, directory: str | None = None
) -> Stretch:
    """Return all bytes of an array: its own, or its blocks put together in row-major order.

    touched: what must be right at least; blocks without any of it are not read, and are zeros.
    directory: where they are put together if memory is too little, None for TMPDIR.
    """
    stretch = source.whole(touched)
    if stretch is None:
        from ndtool.arrays import assembly

        facts = source.facts
        cut = assembly.Cut(facts.shape, facts.grid, facts.dtype.itemsize)
        blocks = None if touched is None else touched.blocks
        label = f"temporary copy of {called(source.name)}"
        at_once = max(threads, source.at_once)
        stretch = assembly.assembled(
            cut, source.block, blocks, label, at_once, source.tick, directory
        )
    return stretch


def surplus(label: str, count: int) -> str | None:
    """Return the warning about `count` bytes too many, None where there are none."""
    return f"{printable(label)}: {count} bytes after the array are ignored" if count else None
