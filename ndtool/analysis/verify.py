"""Recompute an output the slow and obvious way, and compare every bit."""

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ndtool import notebook
from ndtool.analysis import blame, reference
from ndtool.analysis.distances import FAR, Ulps, bits, distances, opaque
from ndtool.analysis.reference import New, Tick, in_order, part, pieces, silent
from ndtool.analysis.values import as_array, element
from ndtool.arrays import names, spill
from ndtool.arrays.local import Stretch
from ndtool.arrays.source import Source, whole
from ndtool.arrays.streams import Streams
from ndtool.errors import BoundsError, DifferenceError, NdtoolError, OutputError, called, printable
from ndtool.rules import dtypes, filling, shapes, specs
from ndtool.rules.inference import Given, point_out
from ndtool.rules.operators import OPERATORS

if TYPE_CHECKING:
    from ndtool.runs.jobs import Request


# Of elements, by distance: the first class has those of the same bits.
CLASSES = ("0", "1", "2..4", "5..64", ">64")
LIMITS = np.array([0, 1, 4, 64], np.uint64)  # up to which distance each but the last goes


class Difference(NamedTuple):
    """An element that has other bits; output, expected: arrays without axes.

    ulps: how far they are apart, None where there is no distance.
    """

    position: tuple[int, ...]
    output: NDArray[Any]
    expected: NDArray[Any]
    ulps: int | None


class Comparison(NamedTuple):
    """How an output compares with what the operator gives.

    described: its type and shape. total, different, beyond: how many elements there are, have other
    bits, are more than `within` apart. first: of those beyond, else of all different ones. largest:
    the first of those furthest apart. ulps: how many are how far apart, by CLASSES. lost, doubled:
    how many of the `examined` that are furthest apart are wrong by one update that is not there, or
    there twice; None in a gather.
    """

    described: str
    total: int
    different: int
    beyond: int
    first: Difference | None
    largest: Difference | None
    ulps: dict[str, int]
    examined: int
    lost: int | None
    doubled: int | None
    within: int

    @property
    def looked_into(self) -> str:
        """Which elements were examined, in words."""
        few = self.examined < self.beyond
        return f"the {self.examined} furthest apart" if few else str(self.examined)

    def _repr_html_(self) -> str:
        rows = [(name, str(count)) for name, count in self.ulps.items()]
        equal = f"{self.total - self.different} of {self.total} elements have the same bits"
        blamed = (self.lost or 0) + (self.doubled or 0)
        lost = f", {blamed} are off by exactly one update" if blamed else ""
        title = f"{self.described}: {equal}{lost}"
        return notebook.table(title, ("ulps apart", "elements"), rows)


def verify(request: "Request", tick: Tick = silent, within: int = 0) -> Comparison:
    """Check that `request.output` is what the operator gives, and tell how far it is from that.

    within: how many units in the last place elements may be apart. What the output must be is kept
    as a run keeps what does not fit into memory. Raises DifferenceError, which names the first
    element that is further apart, in row-major order, and has the comparison.
    """
    with Opened(request) as call:
        return _verified(request, call.arrays, call.label, tick, within)


class Opened:
    """A call whose inputs are open; a context manager, which sees that none changed meanwhile.

    arrays: the inputs, and the output where the request has one. stretches: their bytes. label:
    what the output is called.
    """

    def __init__(self, request: "Request") -> None:
        row = specs.resolve("ndtool", request.operator)
        specs.check_rule("ndtool", row, request.attributes)
        arguments = dict(request.arguments)
        if request.output is not None:
            arguments["output"] = request.output
        self.label = label_of(request)
        self.arrays: dict[str, NDArray[Any]] = {}
        self.stretches: dict[str, Stretch] = {}
        self._sources: list[Source] = []
        streams = Streams()
        try:
            for name, argument in arguments.items():
                source = names.open_source(argument, streams, literals=name == "indices")
                self._sources.append(source)
                self.stretches[name] = whole(source)
                self.arrays[name] = _array(source, self.stretches[name], name, request.dtype)
        except BaseException:
            self._close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            # whoever changes an input finds a difference
            if kind is None or issubclass(kind, DifferenceError | BoundsError):
                self.recheck()
        finally:
            self._close()

    def recheck(self) -> None:
        """Raise OutputError if an input changed since it was opened."""
        for source in self._sources:
            source.recheck()

    def _close(self) -> None:
        for source in self._sources:
            source.close()


def label_of(request: "Request") -> str:
    """Return what messages call the output of a call."""
    return "the output" if request.output is None else called(request.output)


def _verified(
    request: "Request", arrays: dict[str, NDArray[Any]], label: str, tick: Tick, within: int
) -> Comparison:
    result = arrays.pop("output")
    expected = recomputed(request, arrays, part(tick, 0, 0.9), result)
    compared = compare(request, arrays, result, expected, part(tick, 0.9, 1), within)
    if error := difference(compared, label, request.operator):
        raise error
    return compared


def recomputed(
    request: "Request",
    arrays: dict[str, NDArray[Any]],
    tick: Tick = silent,
    result: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Return what the operator gives; `result`, where there is one, must be alike."""
    label = label_of(request)

    def new(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        if result is not None:
            _compare_types(result, shape, dtype, label, request.operator)
        room = spill.room(prod(shape) * dtype.itemsize, f"temporary copy of {label}")
        return np.ndarray(shape, dtype, room)

    return _recomputed(request, arrays, new, tick)


def compare(
    request: "Request",
    arrays: dict[str, NDArray[Any]],
    result: NDArray[Any],
    expected: NDArray[Any],
    tick: Tick = silent,
    within: int = 0,
) -> Comparison:
    """Compare an output for the inputs `arrays` with what it must be, of one type and shape."""
    comparing = _Comparing(result, expected, within)
    comparing.go(tick)
    blamed = None
    if "updates" in arrays:
        plan, reduction = _plan(request, arrays), request.attributes.reduction
        wrong, rule = comparing.wrong, request.attributes.out_of_bounds
        blamed = blame.blame(plan, arrays, reduction, wrong, result, expected, rule)
    return comparing.comparison(blamed)


def _plan(request: "Request", arrays: dict[str, NDArray[Any]]) -> shapes.Plan:
    sizes = {role: array.shape for role, array in arrays.items()}
    return shapes.infer(request.operator, sizes, request.attributes)[1]


def difference(compared: Comparison, label: str, operator: str) -> DifferenceError | None:
    """Return the error about an output, called `label`, that is not what it must be, if it is."""
    first, within = compared.first, compared.within
    if not compared.beyond:
        return None
    assert first is not None
    position = ", ".join(map(str, first.position))
    more = f" by more than {within} ulp" if within else ""
    error = DifferenceError(
        f"{label} differs from {operator}{more} in {compared.beyond} of {compared.total} elements",
        places=(
            f"{label}[{position}] = {exactly(first.output)}",
            f"{operator} gives {exactly(first.expected)}",
        ),
    )
    error.comparison = compared
    return error


def _array(source: Source, bytes_: Stretch, name: str, dtype: str | None) -> NDArray[Any]:
    facts = source.facts
    given = Given(source.name, facts.dtype, facts.shape)
    taken = given if name == "indices" else given.taken_as(dtype)
    return as_array(bytes_.buffer, taken.dtype, facts.shape, facts.order == "F")


def _recomputed(
    request: "Request", arrays: dict[str, NDArray[Any]], new: New, tick: Tick
) -> NDArray[Any]:
    operator = getattr(reference, request.operator)
    how: dict[str, Any] = OPERATORS[request.operator].given(request.attributes)
    how["out_of_bounds"] = request.attributes.out_of_bounds
    try:
        if how["out_of_bounds"] == "fill":
            dtype = dtypes.from_numpy(arrays["data"].dtype)
            how["filling"] = filling.element(request.attributes.fill, dtype)
        result: NDArray[Any] = operator(**arrays, **how, new=new, tick=tick)
    except NdtoolError as exc:
        point_out(
            exc, {role: _given(name, arrays[role]) for role, name in request.arguments.items()}
        )
        raise
    except IndexError:  # they were within bounds
        raise OutputError(f"{called(request.indices)} changed during the run") from None
    return result


def _given(name: str, array: NDArray[Any]) -> Given:
    return Given(name, dtypes.from_numpy(array.dtype), array.shape)


def _compare_types(
    result: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any], label: str, operator: str
) -> None:
    if _code(result.dtype) != _code(dtype):
        raise DifferenceError(
            f"{label} has dtype {_code(result.dtype)}: {operator} gives {_code(dtype)}"
        )
    if result.shape != shape:
        raise DifferenceError(
            f"{label} has shape {shapes.written(result.shape)}:"
            f" {operator} gives {shapes.written(shape)}"
        )


def _code(dtype: np.dtype[Any]) -> str:
    return str(dtype) if dtype.kind == "V" else dtype.str


class _Comparing:
    """Elements that have other bits, as they are come to in row-major order."""

    def __init__(self, result: NDArray[Any], expected: NDArray[Any], within: int) -> None:
        self._result, self._expected, self._within = result, expected, within
        self._ours, self._theirs = in_order(opaque(expected)), in_order(opaque(result))
        self.counts = dict.fromkeys(CLASSES, 0)
        self.beyond = 0
        self._first = self._first_beyond = -1
        self._furthest = np.empty(0, np.int64)  # those that are furthest apart, in that order
        self._apart = np.empty(0, np.uint64)  # how far these are

    def go(self, tick: Tick) -> None:
        """Go through all elements."""
        ours, theirs = self._ours, self._theirs
        for piece in pieces(self._result.size, self._result.itemsize, tick):
            left, right = bits(ours[piece]), bits(theirs[piece])
            if not np.array_equal(left, right):
                (at,) = np.nonzero((left != right).any(axis=1))
                self._meet(piece.start + at, distances(ours[piece][at], theirs[piece][at]))

    def _meet(self, numbers: NDArray[np.int64], ulps: Ulps) -> None:
        """Take elements that differ."""
        classes = np.bincount(np.searchsorted(LIMITS, ulps), minlength=len(CLASSES))
        for name, count in zip(CLASSES, classes.tolist(), strict=True):
            self.counts[name] += count
        self._first = self._first if self._first >= 0 else int(numbers[0])
        beyond = ulps > self._within
        if not self.beyond and beyond.any():
            self._first_beyond = int(numbers[beyond.argmax()])
        self.beyond += int(beyond.sum())
        if len(self._apart) == blame.EXAMINED:
            further = ulps > self._apart[-1]
            numbers, ulps = numbers[further], ulps[further]
        numbers = np.concatenate([self._furthest, numbers])
        ulps = np.concatenate([self._apart, ulps])
        order = np.argsort(~ulps, kind="stable")[: blame.EXAMINED]
        self._furthest, self._apart = numbers[order], ulps[order]

    @property
    def wrong(self) -> NDArray[np.int64]:
        """Elements that are further apart than they may be, as many as are examined."""
        return self._furthest[: self.beyond]

    def comparison(self, blamed: tuple[int, int, int] | None) -> "Comparison":
        """Return what came of it; blamed: what `blame` found."""
        different, total = sum(self.counts.values()), self._result.size
        examined, lost, doubled = blamed or (0, None, None)
        first = self._first_beyond if self.beyond else self._first
        return Comparison(
            dtypes.from_numpy(self._result.dtype).name + shapes.written(self._result.shape),
            total,
            different,
            self.beyond,
            self._difference(first) if different else None,
            self._difference(int(self._furthest[0])) if different else None,
            {**self.counts, CLASSES[0]: total - different},
            examined,
            lost,
            doubled,
            self._within,
        )

    def _difference(self, number: int) -> "Difference":
        place = tuple(int(i) for i in np.unravel_index(number, self._result.shape))
        whole: Any = (*place, ...)  # an array still, of one element
        found, wanted = self._result[whole].copy(), self._expected[whole].copy()
        ulps = int(distances(self._theirs[number : number + 1], self._ours[number : number + 1])[0])
        return Difference(place, found, wanted, None if ulps == FAR else ulps)


def exactly(one: NDArray[Any]) -> str:
    """Return the element of an array without axes as people read it, and its bytes."""
    return f"{printable(element(one), 80)} (bytes {printable(one.tobytes().hex(), 40)})"
