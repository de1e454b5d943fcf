"""`stats`: every figure equals brute force's, however slices are counted."""

import re
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from command import ndtool, save, snapshot
from hypothesis import given
from hypothesis import strategies as st
from strategies import Case, cases, many, note_attributes, plain_axes
from test_explain import open_case

from ndtool.analysis import stats, tally, tuples
from ndtool.analysis.stats import Stats
from ndtool.errors import OutputError
from ndtool.runs.calls import Request
from ndtool.storage import tempfiles

pytestmark = pytest.mark.usefixtures("workdir")


@pytest.fixture
def limits() -> Iterator[pytest.MonkeyPatch]:
    """Yield a function that sets thresholds."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def tuples_and_slices(
    case: Case,
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], list[int], list[int]]]:
    """Yield each tuple: its position, its slice, its values, and the sizes of their axes."""
    data, indices = case.arrays[:2]
    if case.operator.endswith("_nd"):
        b = case.arguments.get("batch_dims", 0)
        for i in np.ndindex(indices.shape[:-1]):
            values = list(map(int, indices[i]))
            yield i, (*i[:b], *values), values, list(data.shape[b : b + len(values)])
        return
    a, b = plain_axes(case)
    has_plain_indices = case.operator in ("gather", "scatter")
    for i in np.ndindex(indices.shape):
        value = int(indices[i])
        run = (*i[:b], value) if has_plain_indices else (*i[:a], value, *i[a + 1 :])
        yield i, run, [value], [data.shape[a]]


def sizes_of(case: Case) -> tuple[int, ...]:
    """Return the shape of all slices."""
    data, indices = case.arrays[:2]
    if case.operator.endswith("_nd"):
        return data.shape[: case.arguments.get("batch_dims", 0) + indices.shape[-1]]
    if case.operator in ("gather", "scatter"):
        axis, b = plain_axes(case)
        return (*data.shape[:b], data.shape[axis])
    return data.shape


@st.composite
def corrupt_indices(draw: st.DrawFn) -> Case:
    """Draw a case in which some indices may be out of bounds."""
    case = draw(cases)
    indices = np.array(case.arrays[1])
    if indices.size and draw(st.booleans()):
        info = np.iinfo(indices.dtype)
        for _ in range(draw(st.integers(1, 7))):
            number = draw(st.integers(0, indices.size - 1))
            value = draw(st.sampled_from((info.min, info.max, 7, 8, info.max - 3)))
            indices[np.unravel_index(number, indices.shape)] = value
    return case._replace(arrays=(case.arrays[0], indices, *case.arrays[2:]))


@pytest.mark.slow("random cases of each figure")
@many
@given(case=corrupt_indices(), chosen=st.data())
def test_every_figure_equals_brute_force(
    limits: pytest.MonkeyPatch, case: Case, chosen: st.DataObject
) -> None:
    note_attributes(case)
    for module, name, limits_to_try in (
        (tuples, "BLOCK", (1, 3, 1 << 17)),
        (tally, "MAX_COUNTERS", (0, 1 << 23)),
        (tally, "BLOCK", (1, 2, 1 << 20)),
        (stats, "PAGE", (1, 16, 4096)),
        (stats, "MAX_LISTED", (1, 2, 5)),
    ):
        limits.setattr(module, name, chosen.draw(st.sampled_from(limits_to_try)))
    with open_case(case) as call:
        statistics = stats.stats(call)
    check(case, statistics)


def check(case: Case, found: Stats) -> None:
    every = list(tuples_and_slices(case))
    valid_tuples = [(i, run) for i, run, values, sizes in every if is_in_bounds(values, sizes)]
    sizes = sizes_of(case)
    assert found.tuples == len(every)
    assert found.out_of_bounds == len(every) - len(valid_tuples)
    for j, column in enumerate(found.components):
        values = [values[j] for _, _, values, _ in every]
        assert column.lowest == min(values, default=None)
        assert column.highest == max(values, default=None)
        assert column.negative == sum(value < 0 for value in values)
        assert column.out_of_bounds == sum(not -column.size <= v < column.size for v in values)
    beyond = [
        (i, j, value)
        for i, _, values, lengths in every
        for j, (value, size) in enumerate(zip(values, lengths, strict=True))
        if not -size <= value < size
    ]
    assert [
        (item.position, item.component or 0, item.value) for item in found.first_out_of_bounds
    ] == beyond[: stats.MAX_LISTED]
    runs = [tuple(v % n for v, n in zip(run, sizes, strict=True)) for _, run in valid_tuples]
    assert found.sorted == (runs == sorted(runs))
    counts = Counter(runs)
    assert found.slices == sizes
    assert found.distinct == len(counts)
    frequent_rows = sorted((-times, run) for run, times in counts.items() if times > 1)
    assert found.duplicated == len(frequent_rows)
    assert [(-item.count, item.row) for item in found.most] == frequent_rows[: stats.MAX_LISTED]
    for item in found.most:
        who = [i for (i, _), run in zip(valid_tuples, runs, strict=True) if run == item.row]
        assert list(item.tuples) == (who if len(who) <= 10 else who[:5] + who[-5:])
    check_data_statistics(case, found, counts)


def is_in_bounds(values: list[int], sizes: list[int]) -> bool:
    return all(-size <= value < size for value, size in zip(values, sizes, strict=True))


def check_data_statistics(case: Case, found: Stats, counts: Counter[tuple[int, ...]]) -> None:
    """Check the statistics of slices in data: bytes, pages, and distribution."""
    data = case.arrays[0]
    touched, numbers = np.zeros(data.shape, bool), Counter[int]()
    for run, times in counts.items():
        numbers[int(np.ravel_multi_index(run, found.slices)) if run else 0] += times
        if case.operator in ("gather", "scatter"):
            axis, b = plain_axes(case)
            touched[(*run[:b], *(slice(None),) * (axis - b), *run[b:])] = True
        else:
            touched[run] = True
    assert found.bytes_touched == touched.sum() * data.itemsize
    if found.pages_touched is not None:
        pages = np.repeat(touched.reshape(-1), data.itemsize)
        padded = np.pad(pages, (0, -len(pages) % stats.PAGE)).reshape(-1, stats.PAGE)
        assert found.pages_touched == padded.any(axis=1).sum()
    assert sum(found.histogram.tuples) == sum(counts.values())
    for part, times in enumerate(found.histogram.tuples):
        first = part * found.histogram.width
        assert times == sum(numbers[n] for n in range(first, first + found.histogram.width))
    assert len(found.histogram.tuples) <= stats.BINS


def test_explanations_as_text() -> None:
    idx = np.arange(400)[:, None] % 5
    idx[77] = -1
    idx[300] = 8
    save(data=np.zeros((8, 2)), idx=idx)
    result = ndtool("stats", "scatter-nd", "data.npy", "idx.npy")
    assert (result.status, result.err) == (0, "")
    text = result.out.decode()
    assert text.startswith(
        "scatter_nd: data float64[8,2], indices int64[400,1], updates float64[400,2],"
        " reduction none\n"
        "400 index tuples\n"
        "axis  size  valid  lowest  highest  negative  out of bounds\n"
        "0     8     -8..7  -1      8        1         1\n"
        "out of bounds: 1 tuple, first idx.npy[300, 0] = 8\n"
        "hint: 8 equals the size of the axis: is it a placeholder for a missing index?\n"
        "sorted: no\n"
        "selected: 6 of 8 slices (75%); 96 bytes of 128 bytes, in 1 page\n"
        "duplicates: 5 slices; the last update is assigned; onnxruntime does not guarantee this\n"
        "  [1]: 80 times, by idx.npy[1], idx.npy[6], idx.npy[11], ..., idx.npy[396]\n"
    )
    assert text.splitlines()[-8:] == [
        "0       79      " + "━" * 40,
        "1       80      " + "━" * 40,
        "2       79      " + "━" * 40,
        "3       80      " + "━" * 40,
        "4       80      " + "━" * 40,
        "5       0",
        "6       0",
        "7       1       ━",
    ]
    result = ndtool("stats", "scatter-nd", "data.npy", "idx.npy", env={"PYTHONIOENCODING": "ascii"})
    assert result.out.decode("ascii").endswith("7       1       #\n")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("gather", "i4[9]", "[1, 1]"), "1 slice; they are read more than once"),
        (("scatter-nd", "f4[9]", "[[1], [1]]", "--reduction", "add"), "rounds differently"),
        (("scatter-nd", "i4[9]", "[[1], [1]]", "--reduction", "add"), "does not matter"),
        (("scatter-elements", "f4[9]", "[1, 1]", "--reduction", "max"), "does not matter"),
        (("scatter-elements", "f4[9]", "[1, 2]"), "duplicates: none"),
        (("scatter-nd", "f4[0]", "[[1], [1]]"), "valid"),
        (("gather-nd", "f4[9]", "[[-1]]", "--spec", "openvino:8"), "0..8"),
    ],
    ids=str,
)
def test_inferred_symbols(call: tuple[str, ...], message: str) -> None:
    result = ndtool("stats", *call)
    assert (result.status, result.err) == (0, "")
    assert message in result.out.decode()


def test_the_keys_of_json() -> None:
    run = ("stats", "scatter-nd", "float32[5,3]", "[[4], [-1], [9]]", "--json")
    result = ndtool(*run).json
    del result["version"]
    assert result == {
        "operator": "scatter_nd",
        "tuples": 3,
        "components": [
            {"axis": 0, "size": 5, "lowest": -1, "highest": 9, "negative": 1, "out_of_bounds": 1}
        ],
        "out_of_bounds": 1,
        "first_out_of_bounds": [{"position": [2], "component": 0, "value": 9}],
        "hints": [],
        "sorted": True,
        "slices": [5],
        "distinct": 1,
        "duplicated": 1,
        "most": [{"row": [4], "count": 2, "tuples": [[0], [1]]}],
        "bytes_touched": 12,
        "pages_touched": 1,
        "bytes_of_data": 60,
        "histogram": {"width": 1, "tuples": [0, 0, 0, 0, 2]},
    }
    beyond = ndtool("stats", "gather", "f4[5]", "[5]", "--json").json["first_out_of_bounds"]
    assert beyond == [{"position": [0], "component": None, "value": 5}]


def test_of_data_only_the_header_is_read() -> None:
    np.savez_compressed("d.npz", np.zeros(9, "f4"))
    result = ndtool("stats", "gather", "d.npz", "[9]", "--json", env={"NDTOOL_MAX_INFLATE": "1"})
    assert result.json["bytes_of_data"] == 36


def test_tuples_without_components_are_no_padding() -> None:
    save(idx=np.zeros((5, 0), "i8"))
    with stats.open_call(Request("scatter_nd", "f4[9]", "idx.npy")) as call:
        assert stats.stats(call).hints == ()


@pytest.mark.parametrize(
    ("indices", "data", "guess"),
    [
        ([[2**32 - 1], [5]], "f4[9]", "4294967295 is -1 as uint32: was a sign lost?"),
        ([[1], [9]], "f4[9]", "are they 1-based? Then: index_base=1"),
        ([[0], [9]], "f4[9]", "is it a placeholder for a missing index?"),
        ([[-1], [5], [-1]], "f4[9]", "2 of 3 indices are -1, and no other is negative"),
        ([[-1], [5], [-2]], "f4[9]", ""),
        ([[0], [1], [1]], "f4[3]", "is it a mask?"),
    ],
)
def test_likely_causes(indices: Any, data: str, guess: str) -> None:
    save(idx=np.array(indices))
    request = Request("gather_nd", data, "idx.npy")
    with stats.open_call(request) as call:
        messages = stats.stats(call).hints
    assert len(messages) == bool(guess)
    assert guess in "".join(messages)


@pytest.mark.parametrize("rows", [1000, 1 << 40])
def test_memory_depends_on_no_size(
    rows: int, workdir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfiles, "MAX_IN_MEMORY", 1 << 16)
    count = 2_000_000
    idx = np.random.default_rng(0).integers(-rows, rows, (count, 1))
    save(idx=idx)
    before = snapshot(workdir)
    shares: list[float] = []
    tracemalloc.start()
    try:
        with stats.open_call(Request("gather_nd", f"int8[{rows},2]", "idx.npy")) as call:
            statistics = stats.stats(call, shares.append)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()
    rows_met, times = np.unique(idx % rows, return_counts=True)
    assert (statistics.distinct, statistics.duplicated) == (len(rows_met), (times > 1).sum())
    assert [item.count for item in statistics.most] == sorted(times[times > 1].tolist())[::-1][:5]
    assert shares == sorted(shares)
    assert 0.99 < shares[-1] <= 1 or not statistics.most
    assert snapshot(workdir) == before


def test_indices_that_change_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "MAX_COUNTERS", 0)
    save(idx=np.full((5, 1), 9))

    def corrupt(share: float) -> None:
        with open("idx.npy", "r+b") as file:
            file.seek(-40, 2)
            file.write(np.zeros(5, "i8").tobytes())

    request = Request("gather_nd", "f4[9]", "idx.npy")
    with stats.open_call(request) as call, pytest.raises(OutputError, match=r"idx\.npy changed"):
        stats.stats(call, corrupt)


def test_pages_of_a_large_file_stay_within_the_limit() -> None:
    """The limit counts mapped pages, too, as that of a run does."""
    idx = np.lib.format.open_memmap("idx.npy", "w+", "i4", (10_000_000, 1))
    idx[:] = 7
    del idx
    program = (
        "import sys; from ndtool.__main__ import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([line for line in open('/proc/self/status') if 'VmHWM' in line], file=sys.stderr)"
    )
    peaks = []
    for options in ([], ["--memory", "16MiB"]):
        words = ["explain", "gather-nd", "float32[1000,4]", "idx.npy", "--from", "7,0", *options]
        run = subprocess.run(
            [sys.executable, "-c", program, *words], capture_output=True, check=True
        )
        peaks.append(int(re.findall(rb"(\d+) kB", run.stderr)[0]) >> 10)
    assert peaks[0] - peaks[1] > 15  # of the 38 MiB of the file
