"""Duplicate indices: `duplicates` refuses and reports them, or assigns the first update."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool, save
from strategies import bits_equal

import ndtool as package
from ndtool import DuplicatesError, RuleError
from ndtool.analysis.oracle import reference


@pytest.mark.parametrize(("positions", "memory"), [((0, 1), None), ((123_456, 299_999), "1MiB")])
def test_duplicates_in_files_are_refused_or_ignored(
    workdir: Path, memory: str | None, positions: tuple[int, int]
) -> None:
    rng = np.random.default_rng(positions[1])
    rows = rng.permutation(1 << 19)[:300_000].reshape(-1, 1)
    rows[positions[1]] = rows[positions[0]] - (1 << 19)
    data = np.zeros((1 << 19, 2), "f4")
    save(data=data, rows=rows, upd=np.ones((300_000, 2), "f4"), out=data[:1])
    before = Path("out.npy").read_bytes()
    command = ["scatter-nd", "data.npy", "rows.npy", "upd.npy", "-o", "out.npy"]
    command += ["--memory", memory] if memory else []
    completed = ndtool(*command, "--duplicates", "error", "--json")
    error = completed.json
    assert completed.status == 4
    assert (error["error"], error["first"], error["second"]) == (
        "DuplicatesError", [positions[0]], [positions[1]],
    )  # fmt: skip
    assert Path("out.npy").read_bytes() == before
    assert ndtool(*command, "--duplicates", "error", "--dry-run").status == 4
    assert ndtool(*command, "--duplicates", "first").status == 0
    expected = package.scatter_nd(data, rows, np.ones((300_000, 2), "f4"))
    assert bits_equal(np.load("out.npy"), expected)
    rows[positions[1]] = np.setdiff1d(np.arange(1 << 19), rows)[0]
    save(rows=rows)
    assert ndtool(*command, "--duplicates", "error").status == 0
    assert bits_equal(
        np.load("out.npy"), package.scatter_nd(data, rows, np.ones((300_000, 2), "f4"))
    )


def test_the_message_names_both_duplicates(workdir: Path) -> None:
    save(data=np.zeros(4), rows=np.array([[3], [0], [-1]]), upd=np.ones(3))
    command = ("scatter-nd", "data.npy", "rows.npy", "upd.npy", "-o", "out.npy")
    assert ndtool(*command, "--duplicates", "error").err == (
        "error: duplicate indices: two of them select the same slice of data\n"
        "  --> rows.npy[0]\n"
        "      rows.npy[2] selects the same slice\n"
    )
    assert not Path("out.npy").exists()
    for element in ("3", "1"):
        explanation = ndtool("explain", *command[:4], "--at", element, "--duplicates", "error")
        assert (explanation.status, explanation.err) == (
            4,
            ndtool(*command, "--duplicates", "error").err,
        )


def test_duplicates_among_few_of_many_rows_are_those_among_all() -> None:
    """A table of the rows that tuples select is smaller than a bit per row; rows may have no bytes."""
    rng = np.random.default_rng(10)
    for count in (1, 2, 3, 40, 300, 5000):
        for size in (1, 1 << 9, 1 << 25):
            few = np.zeros((1 << 26, 0), "f4"), np.zeros(1 << 26, "u1")
            rows = rng.integers(-min(size, count * count), min(size, count * count), count)
            _, first, inverse = np.unique(rows % (1 << 26), return_index=True, return_inverse=True)
            earlier = first[inverse]
            repeated = np.flatnonzero(earlier != np.arange(count))
            for data in few:
                updates = np.zeros((count, *data.shape[1:]), data.dtype)
                arguments: Any = {"out": data, "duplicates": "error"}
                if not len(repeated):
                    package.scatter(data, rows, updates, **arguments)
                    continue
                with pytest.raises(DuplicatesError) as raised:
                    package.scatter(data, rows, updates, **arguments)
                expected = (earlier[repeated[0]],), (repeated[0],)
                assert (raised.value.first, raised.value.second) == expected


def test_data_in_place_keep_their_bits() -> None:
    data = np.arange(6.0).reshape(3, 2)
    before = data.copy()
    with pytest.raises(DuplicatesError) as excinfo:
        package.scatter_nd(
            data, [[1], [0], [1]], np.ones((3, 2)), "add", out=data, duplicates="error"
        )
    assert (excinfo.value.first, excinfo.value.second) == ((0,), (2,))
    assert isinstance(excinfo.value, RuleError)
    assert bits_equal(data, before)


def test_an_index_out_of_bounds_is_reported_before_duplicates() -> None:
    for data in (np.zeros(4), np.zeros((4, 0))):
        updates = np.zeros((3, *data.shape[1:]))
        with pytest.raises(package.BoundsError):
            package.scatter_nd(data, [[1], [1], [4]], updates, duplicates="error")
        with pytest.raises(DuplicatesError):
            package.scatter_nd(data, [[1], [1], [3]], updates, duplicates="error")


def test_duplicates_of_an_empty_output_are_refused() -> None:
    for function in (package.scatter, reference.scatter):
        with pytest.raises(DuplicatesError) as excinfo:
            function(np.zeros((0, 1)), np.array([0, 0]), np.zeros((0, 2)), 1, duplicates="error")
        assert (excinfo.value.first, excinfo.value.second) == ((0,), (1,))


def test_dropped_and_padding_indices_are_no_duplicates() -> None:
    data, updates = np.zeros(4), np.arange(4.0)
    result = package.scatter_nd(
        data, [[9], [9], [1], [-9]], updates, out_of_bounds="drop", duplicates="error"
    )
    assert result.tolist() == [0, 2, 0, 0]
    result = package.scatter(data, [-1, -1, 3, -1], updates, pad=-1, duplicates="error")
    assert result.tolist() == [0, 0, 0, 2]
    with pytest.raises(DuplicatesError):  # clipped to the same row
        package.scatter_nd(
            data, [[9], [8], [1], [2]], updates, out_of_bounds="clip", duplicates="error"
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"duplicates": "first", "reduction": "add"}, "duplicates='first' is for reduction none"),
        ({"duplicates": "any"}, "duplicates is 'any': expected one of last, first, error"),
        ({"duplicates": "first", "spec": "onnx:18"}, "does not accept duplicates='first'"),
    ],
)
def test_invalid_combinations_of_duplicates_are_refused(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(package.NdtoolError, match=message):
        package.scatter_nd(np.zeros(4), [[1]], np.ones(1), **arguments)
    with pytest.raises(TypeError):
        package.gather_nd(np.zeros(4), [[1]], duplicates="error")  # type: ignore[call-overload]
