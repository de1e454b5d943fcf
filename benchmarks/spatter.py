"""The patterns of the Spatter suite through ndtool, compared with STREAM on the same machine.

    python benchmarks/spatter.py                     all patterns, two threads
    python benchmarks/spatter.py --threads 1 --elements 1048576 --repeats 3

Spatter (hpcgarage/spatter, Lavin et al., MEMSYS 2020) gathers or scatters doubles at `pattern[j] +
delta * i`. Its patterns are those of its standard suite: uniform strides, and traces of AMG,
LULESH, Nekbone and PENNANT. ndtool has no pattern: every index is materialised, as 8 bytes, and
every element of the output is written. All results are compared bit for bit with NumPy's.
"""

import argparse
import ctypes
from statistics import harmonic_mean
from typing import Any, NamedTuple

import machine
import numpy as np
import plain_c
from timing import Call, alternate, select_clock

import ndtool

ELEMENTS = 1 << 23  # of a pattern, at most
STREAM_DOUBLES = 1 << 25  # doubles of each array of STREAM
MIN_ELEMENTS = 1 << 16  # elements below which a call takes longer to begin than to move them


class Pattern(NamedTuple):
    """A pattern. offsets: of the elements of one step, from `delta` times its number on.

    count: the steps in the suite.
    """

    application: str
    kernel: str
    offsets: tuple[int, ...]
    delta: int
    count: int

    def steps(self, elements: int) -> int:
        """Return how many steps make at most `elements` elements."""
        return max(1, min(self.count, elements // len(self.offsets)))

    def indices(self, elements: int) -> Any:
        """Return the materialised indices."""
        starts = self.delta * np.arange(self.steps(elements), dtype=np.int64)
        return (starts[:, None] + np.array(self.offsets)).reshape(-1)


def _strided_offsets(step: int, count: int = 16) -> tuple[int, ...]:
    return tuple(range(0, step * count, step))


def _offsets_of_rows(rows: int, columns: tuple[int, ...], step: int) -> tuple[int, ...]:
    """Return the offsets `columns`, from 0, `step`, 2 * `step` ... on."""
    return tuple(row * step + column for row in range(rows) for column in columns)


_REPEATED_OFFSETS = _offsets_of_rows(4, (0, 0, 0, 0), 1)
_SIDES = _offsets_of_rows(4, (4, 8, 12, 0), 16)
_CORNERS = _offsets_of_rows(4, (6, 0, 2, 4), 8)
AMG = (
    (1333, 0, 1, 2, 36, 37, 38, 72, 73, 74, 1296, 1297, 1298, 1332, 1334, 1368),
    (1333, 0, 1, 36, 37, 72, 73, 1296, 1297, 1332, 1368, 1369, 2592, 2593, 2628, 2629),
)
LULESH = (  # kernel, stride, delta, steps
    ("scatter", 24, 0, 577806), ("gather", 8, 1, 231198), ("scatter", 8, 1, 167805),
    ("scatter", 24, 8, 128002), ("gather", 24, 4, 96360), ("gather", 24, 8, 96360),
    ("gather", 24, 8, 96186), ("scatter", 24, 1, 88011), ("gather", 1, 8, 76794),
    ("gather", 1, 41, 76794), ("gather", 1, 1, 76794), ("gather", 24, 1, 72270),
)  # fmt: skip
PENNANT = (
    ("gather", _strided_offsets(4), 2, 83333333),
    ("gather", _SIDES, 2, 83333333),
    ("gather", _CORNERS, 518408, 482),
    ("gather", _offsets_of_rows(4, (2, 484, 482, 0), 2), 2, 83333333),
    ("gather", _offsets_of_rows(4, (0, 2, 484, 482), 2), 2, 83333333),
    ("gather", _offsets_of_rows(4, (482, 0, 2, 484), 2), 482, 517598),
    ("scatter", _strided_offsets(4), 1, 125000000),
    ("gather", _REPEATED_OFFSETS, 388848, 642),
    ("gather", _REPEATED_OFFSETS, 388848, 642),
    ("gather", _SIDES, 4, 50000000),
    ("gather", _REPEATED_OFFSETS, 1882384, 132),
    ("gather", _CORNERS, 518408, 482),
    ("gather", _CORNERS, 1036816, 241),
    ("gather", _offsets_of_rows(4, (482, 0, 2, 484), 2), 480, 519750),
    ("gather", _offsets_of_rows(4, (2, 0, 0, 0), 0), 129608, 1928),
    ("gather", _REPEATED_OFFSETS, 4, 50000000),
    ("gather", _REPEATED_OFFSETS, 388852, 642),
)
PATTERNS = (
    *(
        Pattern(f"stride {step}", kernel, _strided_offsets(step, 8), 8 * step, 31250000 // step)
        for kernel in ("gather", "scatter")
        for step in (1, 2, 4, 8, 16, 32, 64)
    ),
    *(Pattern("AMG", "gather", offsets, 1, 1454647) for offsets in AMG),
    *(
        Pattern("LULESH", kernel, _strided_offsets(step), delta, steps)
        for kernel, step, delta, steps in LULESH
    ),
    *(
        Pattern("Nekbone", "gather", _strided_offsets(6), delta, steps)
        for delta, steps in ((3, 982980), (8, 982980), (8, 491490))
    ),
    *(Pattern("PENNANT", *record) for record in PENNANT),
)


class PatternTimes(NamedTuple):
    """The best times of a pattern, and of STREAM's copy of as many bytes."""

    pattern: Pattern
    elements: int
    seconds: float
    copied: float
    verified: bool

    @property
    def payload(self) -> float:
        """Bytes per second as Spatter counts them: 8 for each element."""
        return 8 * self.elements / self.seconds

    @property
    def share(self) -> float:
        """The part of STREAM's copy, of the index, the element read and the element written."""
        return self.copied / self.seconds


class Stream:
    """STREAM's copy of `nbytes` in all, half of them read."""

    def __init__(self, nbytes: int, threads: int) -> None:
        self._arrays = [np.full(max(1, nbytes // 16), float(i)) for i in range(2)]
        self._library = plain_c.library()
        self._arguments = [
            *(array.ctypes.data_as(ctypes.c_void_p) for array in reversed(self._arrays)),
            ctypes.c_int64(len(self._arrays[0])), ctypes.c_int64(threads),
        ]  # fmt: skip

    def __call__(self) -> None:
        self._library.stream_copy(*self._arguments)


def measure_stream(
    threads: int, doubles: int = STREAM_DOUBLES, repeats: int = 5
) -> dict[str, float]:
    """Return the bytes per second of STREAM's copy and triad."""
    library, arrays = plain_c.library(), [np.full(doubles, float(i)) for i in range(3)]
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in arrays]
    sizes = (ctypes.c_int64(doubles), ctypes.c_int64(threads))

    def copy() -> None:
        library.stream_copy(pointers[2], pointers[0], *sizes)

    def triad() -> None:
        library.stream_triad(pointers[0], pointers[1], pointers[2], *sizes)

    times = alternate(copy, triad, repeats, select_clock(threads))
    return {
        "copy": 16 * doubles / times.first_best * 1e3,
        "triad": 24 * doubles / times.second_best * 1e3,
    }


class Calls(NamedTuple):
    """The calls of a pattern: ndtool's and NumPy's, and the arrays that they write."""

    ndtool: Call
    numpy: Call
    got: Any
    expected: Any

    def verify(self) -> bool:
        """Make both calls; return whether all bytes of the results are equal."""
        self.ndtool()
        self.numpy()
        return bool(self.got.tobytes() == self.expected.tobytes())


def calls(pattern: Pattern, elements: int, threads: int) -> Calls:
    """Return the calls of a pattern, on arrays of their own."""
    indices = pattern.indices(elements)
    count, size = len(indices), int(indices.max()) + 1
    data = np.zeros(size)  # pages that no index selects are never allocated
    values = np.random.default_rng(size).random(count)
    if pattern.kernel == "gather":
        data[indices] = values
        got, expected = np.empty(count), np.empty(count)
        return Calls(
            lambda: ndtool.gather(data, indices, out=got, threads=threads),
            lambda: np.take(data, indices, out=expected, mode="clip"),
            got, expected,
        )  # fmt: skip
    expected = np.zeros(size)
    return Calls(
        lambda: ndtool.scatter(data, indices, values, out=data, threads=threads),
        lambda: expected.__setitem__(indices, values),  # the last of several values
        data, expected,
    )  # fmt: skip


def measure(pattern: Pattern, elements: int, threads: int, repeats: int) -> PatternTimes:
    """Run a pattern through ndtool, verified, and alternate it with STREAM's copy."""
    pattern_calls = calls(pattern, elements, threads)
    verified = pattern_calls.verify()
    count = len(pattern_calls.got) if pattern.kernel == "gather" else len(pattern.indices(elements))
    times = alternate(
        pattern_calls.ndtool, Stream(24 * count, threads), repeats, select_clock(threads)
    )
    return PatternTimes(pattern, count, times.first_best / 1e3, times.second_best / 1e3, verified)


def table(records: list[PatternTimes]) -> list[str]:
    """Return the table: harmonic means over the patterns of an application, as Spatter's."""
    lines = [
        "| patterns | kernel | number | elements | GB/s, 8 bytes an element |"
        " GB/s, 24 bytes an element (index, read, write) | of STREAM's copy |",
        "|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str], list[PatternTimes]] = {}
    for record in records:
        kind = record.pattern.application
        if record.elements < MIN_ELEMENTS and kind == "PENNANT":
            kind = f"PENNANT, fewer than {MIN_ELEMENTS} elements"
        groups.setdefault((kind, record.pattern.kernel), []).append(record)
    for (kind, kernel), group in groups.items():
        mean = harmonic_mean([record.payload for record in group])
        share = harmonic_mean([record.share for record in group])
        elements = sum(record.elements for record in group)
        lines.append(
            f"| {kind} | {kernel} | {len(group)} | {elements} | {mean / 1e9:.2f} |"
            f" {3 * mean / 1e9:.1f} | {share:.2f} |"
        )
    return lines


def run(elements: int, threads: int, repeats: int, doubles: int = STREAM_DOUBLES) -> list[str]:
    """Measure all patterns; return the lines to print. Raises ValueError for a wrong result."""
    rates = measure_stream(threads, doubles)
    records = [measure(pattern, elements, threads, repeats) for pattern in PATTERNS]
    wrong = [record.pattern for record in records if not record.verified]
    if wrong:
        raise ValueError(f"wrong results: {wrong}")
    rates_text = ", ".join(f"{name} {rate / 1e9:.1f} GB/s" for name, rate in rates.items())
    return [f"{threads} threads; STREAM: {rates_text}; all results verified", *table(records)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--elements", type=int, default=ELEMENTS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    machine.use_two_cores()
    print("\n".join(run(arguments.elements, arguments.threads, arguments.repeats)))
