"""Recompute an output with the slow reference, and compare every bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ndtool import notebook
from ndtool.analysis import diagnosis
from ndtool.analysis.answers import HIDDEN, Answer, Scalar, Value
from ndtool.analysis.oracle import reference
from ndtool.analysis.oracle.blocks import (
    Options,
    ProgressCallback,
    block_ranges,
    flat_view,
    portion,
    silent,
)
from ndtool.analysis.oracle.distances import INFINITE, Ulps, distances, has_distances, value_bits
from ndtool.analysis.values import as_array, json_value, short_text
from ndtool.arrays.source import Source
from ndtool.errors import BoundsError, DifferenceError, NdtoolError, argument_name, printable
from ndtool.formats import locators
from ndtool.inmemory.buffers import as_void
from ndtool.notebook import Table
from ndtool.rules import dtypes, inference, numbers, shapes
from ndtool.rules.inference import Input, name_inputs
from ndtool.rules.operators import (
    COMMON_ATTRIBUTES,
    LOWERED,
    LOWERED_INPUTS,
    Attributes,
    operator_of,
)
from ndtool.rules.plans import Position
from ndtool.runs import operands
from ndtool.runs.calls import OpenCall, Request
from ndtool.storage import tempfiles

Array = NDArray[Any]
Arrays = dict[str, Array]  # inputs by role

# Classes of elements by distance in ulps; the first has the elements of equal bits.
CLASSES = ("0", "1", "2..4", "5..64", ">64")
RECOMPUTATION = 0.2  # the fraction of the progress before other engines run
MAX_LISTED = 5  # engines or nodes that an error lists
CLASS_LIMITS = np.array([0, 1, 4, 64], np.uint64)  # the largest distance in each class but the last


@dataclass(frozen=True, slots=True)
class Difference(Value):
    """An element whose bits differ. ulps: its distance in units in the last place, or None.

    arrays: output and expected as 0-d arrays.
    """

    position: Position
    output: Scalar
    expected: Scalar
    ulps: int | None
    arrays: tuple[Array, Array] = field(metadata=HIDDEN, compare=False)

    @property
    def with_bytes(self) -> list[str]:
        """Output and expected as text, with their bytes."""
        return [
            f"{short_text(array)} (bytes {printable(array.tobytes().hex(), 40)})"
            for array in self.arrays
        ]


@dataclass(frozen=True, slots=True)
class Comparison(Value):
    """The comparison of an output with the correct one.

    equal, different, total: counts of elements. first: the first difference of more than `within`
    ulps, else the first difference. largest: the first of the largest differences. ulps: counts of
    elements by distance, see CLASSES. examined: how many elements were diagnosed, by descending
    difference. lost_updates, doubled_updates: how many of these lack exactly one update, or have
    one twice; None for a gather. within: the accepted distance. description: the type and shape.
    beyond: the count of elements more than `within` ulps apart. has_distances: whether the type has
    them.
    """

    equal: int
    different: int
    total: int
    first: Difference | None
    largest: Difference | None
    ulps: Mapping[str, int]
    examined: int = field(metadata=HIDDEN)
    lost_updates: int | None
    doubled_updates: int | None
    within: int
    description: str = field(metadata=HIDDEN)
    beyond: int = field(metadata=HIDDEN)
    has_distances: bool = field(metadata=HIDDEN)

    @property
    def findings(self) -> list[str]:
        """The diagnosis in sentences, without full stops."""
        is_sample = self.examined < self.different
        examined = f"the {self.examined} furthest apart" if is_sample else str(self.examined)
        if count := (self.lost_updates or 0) + (self.doubled_updates or 0):
            return [
                f"{count} of {examined} are off by exactly one update:"
                f" {self.lost_updates} lost one, {self.doubled_updates} applied one twice"
            ]
        return []

    @property
    def accuracy(self) -> str:
        """How close an output within the accepted distance is."""
        if not self.different:
            return f"{self.description}, bit for bit"
        different = f"{self.different} elements with other bits"
        return f"{self.description}, within {self.within} ulp, {different}"

    def tables(self) -> list[Table]:
        """Return the counts of elements by distance, the largest difference and the diagnosis."""
        notes = self.findings
        if (largest := self.largest) is not None and self.has_distances:
            distance = "infinitely many" if largest.ulps is None else largest.ulps
            actual, expected = map(short_text, largest.arrays)
            position = f"[{', '.join(map(str, largest.position))}]"
            text = f"{position} is {actual}, not {expected}: {distance} ulps apart"
            notes.insert(0, f"largest difference: {text}")
        if not self.has_distances:
            return [Table("", notes=notes)] if notes else []
        rows = [
            ("same bits" if name == "0" else name, str(count)) for name, count in self.ulps.items()
        ]
        return [Table("", ("ulps apart", "elements"), rows, notes, bars=True)]

    def table(self, title: str = "") -> Table:
        """Return the table, or only its notes, with a title; title: by default the counts."""
        counts = f"{self.description}: {self.equal} of {self.total} elements have the same bits"
        return (self.tables() or [Table()])[0]._replace(title=title or counts)

    def _repr_html_(self) -> str:
        return notebook.html_table(self.table())


@dataclass(frozen=True, slots=True)
class EngineReport(Value):
    """The report on another engine with a number of threads, None if it did not run.

    result: "same", "different", "unstable" (bits vary between runs, and the worst output is wrong),
    "refused", "crashed" or "missing". different: the count of different elements, None if unknown.
    message: the explanation. comparison: the comparison of the worst output, whose fields are keys.
    """

    INLINED: ClassVar = "comparison"
    engine: str
    version: str | None
    threads: int | None
    result: str
    different: int | None = None
    message: str | None = None
    comparison: Comparison | None = None

    def with_outputs(self, comparisons: Sequence[Comparison]) -> EngineReport:
        """Return the report with the comparisons of all distinct outputs."""
        worst = max(comparisons, key=lambda comparison: (comparison.beyond, comparison.different))
        report = replace(self, different=worst.different, comparison=worst)
        if not worst.different:
            return report
        message = f"{worst.different} of {worst.total} elements differ"
        if not worst.findings and worst.largest and worst.largest.ulps is not None:
            message += f", by up to {worst.largest.ulps} ulp"
        message = "; ".join([message, *worst.findings])
        if not worst.beyond:
            return replace(report, message=f"{message}, within {worst.within} ulp")
        if len(comparisons) == 1:
            return replace(report, result="different", message=message)
        message = f"bits vary between runs; at worst {message}"
        return replace(report, result="unstable", message=message)

    @property
    def cells(self) -> tuple[str, str, str]:
        """The engine, its threads and its answer, as a row of a table."""
        name = f"{self.engine} {(self.version or '').partition('-')[0]}".rstrip()
        answer = self.message or "the same bits"
        if self.result in ("refused", "crashed", "missing"):
            answer = answer if answer.startswith("not offered: ") else f"{self.result}: {answer}"
        return name, str(self.threads or "-"), answer


ENGINE_COLUMNS = ("engine", "threads", "answer")


def engine_rows(reports: Sequence[EngineReport]) -> list[tuple[str, ...]]:
    """Return the rows of the table of engines; equal results of an engine share a row."""
    rows: list[tuple[str, ...]] = []
    for row in (report.cells for report in reports):
        if rows and (rows[-1][0], rows[-1][2]) == (row[0], row[2]):
            row = row[0], f"{rows.pop()[1]}, {row[1]}", row[2]
        rows.append(row)
    return rows


@dataclass(frozen=True, slots=True)
class Verification(Answer):
    """A verified output, and the reports on other engines if they were requested.

    comparison: that of the output, whose fields are keys; None without one. error: an index out of
    bounds, a wrong output, or else an engine that differs.
    """

    DETAILS: ClassVar = "engines"
    OPTIONAL: ClassVar = ("engines",)
    INLINED: ClassVar = "comparison"
    output: str | None
    verified: bool
    comparison: Comparison | None
    engines: tuple[EngineReport, ...] | None = None

    def tables(self) -> list[Table]:
        """Return the counts of elements by distance, and a row for each engine."""
        tables = []
        if self.comparison is not None:
            title = (
                f"verified {argument_name(self.output or 'the output')}: {self.comparison.accuracy}"
            )
            tables.append(self.comparison.table(title))
        if self.engines is not None:
            tables.append(Table("", ENGINE_COLUMNS, engine_rows(self.engines)))
        return tables


def disagreement(operator: str, reports: Sequence[EngineReport]) -> DifferenceError | None:
    """Return the error about engines whose output differs from the operator's, or None."""
    differing = {
        report.engine: report for report in reports if report.result in ("different", "unstable")
    }
    if not differing:
        return None
    verb = "differs" if len(differing) == 1 else "differ"
    places = []
    for report in differing.values():
        if report.comparison is not None and report.comparison.first is not None:
            first = report.comparison.first
            position = ", ".join(map(str, first.position))
            actual, expected = first.with_bytes
            places.append(f"{report.engine}[{position}] = {actual}, not {expected}")
    return DifferenceError(
        f"{', '.join(differing)} {verb} from {operator}", places=tuple(places[:MAX_LISTED])
    )


def open_call(request: Request, sources: dict[str, Source] | None = None) -> OpenCall:
    """Open a call, and the output to verify, if there is one, as its source "output".

    sources: inputs and output that the caller has opened, by role.
    """
    call = OpenCall(request, sources)
    if request.output is not None:
        try:
            call.sources["output"] = (sources or {}).get("output") or locators.open_role(
                "output", request.output, call.streams, call.inference.dtype
            )
        except BaseException:
            call.close()
            raise
    return call


# Returns the reports on engines, given inputs and the correct output, None if there is none.
Against = Callable[[Arrays, Array | None], Sequence[EngineReport]]


def verify(
    call: OpenCall,
    progress: ProgressCallback = silent,
    within: int = 0,
    against: Against | None = None,
) -> Verification:
    """Check that the output of a call from `open_call` is the operator's; return the comparison.

    within: the largest accepted distance, in units in the last place. against: returns the reports
    on other engines; then there may be no output, and the answer has the error, which is raised
    otherwise. The recomputed output is in a temporary file if memory is short. Raises
    DifferenceError, with the comparison, if distances are larger; it names the first such element
    in row-major order.
    """
    error: NdtoolError | None = None
    comparison, expected, reports, result = None, None, None, None
    inferred, name = call.reported, call.request.output
    operator, attributes = inferred.operator, inferred.attributes
    label = "the output" if name is None else argument_name(name)
    arrays = {role: _load(call, role, given) for role, given in inferred.inputs.items()}
    if (source := call.sources.get("output")) is not None:
        metadata = source.metadata
        output = Input(source.name, metadata.dtype, metadata.shape).view_as(call.request.dtype)
        result = as_array(source.load(), output.dtype, output.shape, metadata.strides)
    try:
        share = 0.9 if against is None else RECOMPUTATION
        expected = recompute(
            operator, attributes, arrays, portion(progress, 0, share), result, label
        )
    except NdtoolError as exc:
        call.require_unchanged()  # a changed input may be the cause, here and below
        name_inputs(exc, inferred.inputs)
        if against is None or not isinstance(exc, BoundsError):
            raise
        error = exc
    except IndexError:  # indices were validated
        raise operands.changed_error(inferred) from None
    if against is not None:
        reports = tuple(against(arrays, expected))
    if result is not None and expected is not None:
        last = silent if against else portion(progress, 0.9, 1)
        comparison = compare(operator, attributes, arrays, result, expected, last, within)
        error = difference_error(comparison, label, operator)
    call.require_unchanged()
    error = error or disagreement(operator, reports or ())
    if against is None and error is not None:
        raise error
    return Verification(name, True, comparison, reports, error=error)


def _load(call: OpenCall, role: str, given: Input) -> Array:
    """Return an input as the user gave it, of a lowered operator its own."""
    is_index = role.endswith("indices")
    source = call.stored_indices if is_index else call.sources[LOWERED_INPUTS.get(role, role)]
    return as_array(source.load(), given.dtype, given.shape, source.metadata.strides)


def recompute(
    operator: str,
    attributes: Attributes,
    arrays: Arrays,
    progress: ProgressCallback = silent,
    result: Array | None = None,
    label: str = "the output",
) -> Array:
    """Return the correct output; raise DifferenceError if `result` has another dtype or shape."""
    unchecked = [] if result is None else [result]

    def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if unchecked:  # the output is allocated first
            _check_type(unchecked.pop(), shape, dtype, label, operator)
        buffer = tempfiles.allocate(prod(shape) * dtype.itemsize, f"temporary copy of {label}")
        return np.ndarray(shape, dtype, buffer)

    keywords: dict[str, Any] = operator_of(operator).attribute_values(attributes)
    if operator not in LOWERED:
        names = Options._fields
        keywords |= {name: getattr(attributes, name) for name in COMMON_ATTRIBUTES if name in names}
        keywords["progress"] = progress
    if attributes.out_of_bounds == "fill" or attributes.fill is not None:
        data_dtype = dtypes.from_numpy(arrays["data"].dtype)
        keywords["filling"] = numbers.encode_fill(attributes.fill, data_dtype)
    output: Array = getattr(reference, operator)(**arrays, **keywords, allocate=allocate)
    return output


def compare(
    operator: str,
    attributes: Attributes,
    arrays: Arrays,
    result: Array,
    expected: Array,
    progress: ProgressCallback = silent,
    within: int = 0,
) -> Comparison:
    """Compare an output with the expected one of the same type and shape; arrays: the inputs."""
    comparison_pass = _ComparisonPass(result, expected, within)
    comparison_pass.run(progress)
    counts: tuple[int, int | None, int | None] = 0, None, None
    if "updates" in arrays:
        types = {role: dtypes.from_numpy(array.dtype) for role, array in arrays.items()}
        sizes = {role: array.shape for role, array in arrays.items()}
        _, _, plan = inference.check(operator, types, sizes, attributes, "ndtool")
        wrong_indices = comparison_pass.worst_indices
        counts = diagnosis.diagnose(plan, arrays, wrong_indices, result, expected)
    return comparison_pass.comparison(*counts)


def difference_error(comparison: Comparison, label: str, operator: str) -> DifferenceError | None:
    """Return the error about a wrong output, which it calls `label`; None if it is correct."""
    first, within = comparison.first, comparison.within
    if not comparison.beyond:
        return None
    assert first is not None
    position = ", ".join(map(str, first.position))
    margin = f" by more than {within} ulp" if within else ""
    error = DifferenceError(
        f"{label} differs from {operator}{margin} in {comparison.beyond} of {comparison.total}"
        " elements",
        places=(
            f"{label}[{position}] = {first.with_bytes[0]}",
            f"{operator} gives {first.with_bytes[1]}",
        ),
    )
    error.comparison = comparison
    return error


def _check_type(
    result: Array, shape: tuple[int, ...], dtype: np.dtype[Any], label: str, operator: str
) -> None:
    if str(result.dtype) != str(dtype):  # big-endian types differ, too
        raise DifferenceError(f"{label} has dtype {result.dtype}: {operator} gives {dtype}")
    if result.shape != shape:
        raise DifferenceError(
            f"{label} has shape {shapes.format_shape(result.shape)}:"
            f" {operator} gives {shapes.format_shape(shape)}"
        )


class _ComparisonPass:
    """The pass that compares all elements, in row-major order."""

    def __init__(self, result: Array, expected: Array, within: int) -> None:
        self._result, self._expected, self._within = result, expected, within
        self._flat_expected, self._flat_result = (
            flat_view(as_void(expected)),
            flat_view(as_void(result)),
        )
        self.counts = dict.fromkeys(CLASSES, 0)
        self.beyond = 0
        self._first = self._first_exceeding = -1
        # The linear indices of elements, by descending distance, and their distances.
        self.worst_indices, self._worst_ulps = np.empty(0, np.int64), np.empty(0, np.uint64)

    def run(self, progress: ProgressCallback) -> None:
        """Compare all elements."""
        expected, actual = self._flat_expected, self._flat_result
        for span in block_ranges(self._result.size, self._result.itemsize, progress):
            expected_bits, actual_bits = value_bits(expected[span]), value_bits(actual[span])
            if not np.array_equal(expected_bits, actual_bits):
                (different,) = np.nonzero((expected_bits != actual_bits).any(axis=1))
                self._add(
                    span.start + different,
                    distances(expected[span][different], actual[span][different]),
                )

    def _add(self, indices: NDArray[np.int64], ulps: Ulps) -> None:
        """Process the next elements that differ."""
        classes = np.bincount(np.searchsorted(CLASS_LIMITS, ulps), minlength=len(CLASSES))
        for name, count in zip(CLASSES, classes.tolist(), strict=True):
            self.counts[name] += count
        self._first = self._first if self._first >= 0 else int(indices[0])
        exceeding = ulps > self._within
        if not self.beyond and exceeding.any():
            self._first_exceeding = int(indices[exceeding.argmax()])
        self.beyond += int(exceeding.sum())
        if len(self._worst_ulps) == diagnosis.MAX_EXAMINED:
            is_worse = ulps > self._worst_ulps[-1]
            indices, ulps = indices[is_worse], ulps[is_worse]
        indices = np.concatenate([self.worst_indices, indices])
        ulps = np.concatenate([self._worst_ulps, ulps])
        order = np.argsort(~ulps, kind="stable")[: diagnosis.MAX_EXAMINED]
        self.worst_indices, self._worst_ulps = indices[order], ulps[order]

    def comparison(self, examined: int, lost: int | None, doubled: int | None) -> Comparison:
        """Return the comparison, with counts of the diagnosis."""
        different, total = sum(self.counts.values()), self._result.size
        first = self._first_exceeding if self.beyond else self._first
        return Comparison(
            total - different,
            different,
            total,
            self._difference(first) if different else None,
            self._difference(int(self.worst_indices[0])) if different else None,
            {**self.counts, CLASSES[0]: total - different},
            examined,
            lost,
            doubled,
            self._within,
            dtypes.from_numpy(self._result.dtype).name + shapes.format_shape(self._result.shape),
            self.beyond,
            has_distances(self._result.dtype),
        )

    def _difference(self, index: int) -> Difference:
        position = tuple(int(i) for i in np.unravel_index(index, self._result.shape))
        subscript: Any = (*position, ...)  # a 0-d array, not a scalar
        actual, expected = self._result[subscript].copy(), self._expected[subscript].copy()
        ulps = int(
            distances(self._flat_result[index : index + 1], self._flat_expected[index : index + 1])[
                0
            ]
        )
        return Difference(
            position,
            json_value(actual),
            json_value(expected),
            None if ulps == INFINITE else ulps,
            (actual, expected),
        )
