"""Differences between an output and the expected one: in ulps, and as lost or doubled updates."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from command import NDTOOL, ndtool, run_in_terminal, save
from hypothesis import given
from hypothesis import strategies as st
from strategies import ALL_DTYPES, Array, Case, call, indices_for, many, random_values, seeds

from ndtool import questions
from ndtool.analysis import diagnosis, verify
from ndtool.analysis.oracle import blocks, reference
from ndtool.analysis.oracle.distances import INFINITE, distances, has_distances
from ndtool.errors import DifferenceError
from ndtool.rules import plans, shapes
from ndtool.rules.operators import Attributes
from ndtool.runs.calls import Request

pytestmark = pytest.mark.usefixtures("workdir")

SMALL = [np.dtype("f2"), np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn),
         np.dtype(ml_dtypes.float8_e5m2)]  # fmt: skip


@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_distances_count_the_numbers_between(dtype: Any) -> None:
    bits = np.arange(1 << 8 * dtype.itemsize).astype(f"u{dtype.itemsize}")
    all_values = bits.view(dtype)
    with np.errstate(all="ignore"):
        is_nan = np.isnan(all_values)
    numbers, nans = all_values[~is_nan], all_values[is_nan]
    doubles = numbers.astype("f8")
    order = np.lexsort((~np.signbit(doubles), doubles))  # -0 before 0
    ranks = np.empty(len(numbers), np.int64)
    ranks[order] = np.arange(len(numbers))
    permutation = np.random.default_rng(0).permutation(len(numbers))
    expected = np.abs(ranks - ranks[permutation])
    assert distances(numbers, numbers[permutation]).tolist() == expected.tolist()
    assert set(distances(nans, numbers[: len(nans)]).tolist()) == {INFINITE}
    assert distances(nans, nans).tolist() == [0] * len(nans)
    if len(nans) > 1:
        assert set(distances(nans[1:], nans[:-1]).tolist()) == {1}


@pytest.mark.parametrize("dtype", ["f4", "f8", ">f4", ">f8"])
def test_distances_of_single_and_double_precision_are_correct(dtype: str) -> None:
    ones = np.ones(3, dtype)
    neighbours = np.nextafter(np.nextafter(ones, ones + 1), ones + 1)
    assert distances(ones, neighbours.astype(dtype)).tolist() == [2, 2, 2]
    left = np.array([np.inf, 0.0, 5e-324 if dtype[-1] == "8" else 1e-45], dtype)
    info = np.finfo(dtype)
    right = np.array([info.max, -0.0, -0.0], dtype)
    assert distances(left, right).tolist() == [1, 1, 2]
    steps = 2 * (2**31 - 2**23 if dtype[-1] == "4" else 2**63 - 2**52) + 1
    infinities = np.array([np.inf], dtype)
    assert distances(infinities, -infinities).tolist() == [steps]


@pytest.mark.parametrize("code", ["i1", "i4", ">i8", "u2", "u8"])
def test_distances_of_integers_are_differences(code: str) -> None:
    info = np.iinfo(code)
    left = np.array([info.min, info.min, 5, info.max], code)
    right = np.array([info.max, info.min, 7, info.max - 1], code)
    assert distances(left, right).tolist() == [int(info.max) - int(info.min), 0, 2, 1]


def test_types_without_distance_have_0_or_infinity() -> None:
    left = np.array([1 + 2j, 1, complex("nan")], "c8")
    right = np.array([1 + 2j, np.nextafter(np.float32(1), 2), 1], "c8")
    assert distances(left, right).tolist() == [0, 1, INFINITE]
    for array in (np.array([b"a", b"b"]), np.zeros(2, "V3"), np.array([True, False]),
                  np.array([1, 2], "M8[D]"), np.array([1, 2], "g")):  # fmt: skip
        assert not has_distances(array.dtype)
        assert distances(array, array).tolist() == [0, 0]
    assert distances(np.array([b"a", b"b"]), np.array([b"a", b"c"])).tolist() == [0, INFINITE]


def plan_of(case: Case) -> plans.Plan:
    roles = ("data", "indices", "updates")
    sizes = {role: array.shape for role, array in zip(roles, case.arrays, strict=True)}
    return shapes.infer(case.operator, sizes, Attributes(**case.arguments))[1]


def diagnose(case: Case, out: Array, wrong_positions: list[int]) -> tuple[int, int, int]:
    arrays = dict(zip(("data", "indices", "updates"), case.arrays, strict=True))
    positions = np.array(wrong_positions, np.int64)
    return diagnosis.diagnose(plan_of(case), arrays, positions, out, call(reference, case))


EXACT = [np.dtype(code) for code in ("i1", "i8", "u2", "u8", ">i4")]


@st.composite
def scatters(draw: st.DrawFn) -> Case:
    """Draw a valid scatter_nd of a type for which a lost update changes exact results."""
    sizes = st.integers(1, 7)
    shape = draw(st.lists(sizes, min_size=1, max_size=4))
    k = draw(st.integers(1, len(shape)))
    rows = draw(st.lists(sizes, max_size=2))
    reduction = draw(st.sampled_from(("none", "add", "sub", "mul", "max", "min")))
    # NumPy's copies of records drop the padding between fields.
    copied_types = [dtype for dtype in ALL_DTYPES if dtype.names is None]
    dtype = draw(st.sampled_from(copied_types if reduction == "none" else EXACT))
    rng = np.random.default_rng(draw(seeds))
    data = random_values(rng, dtype, tuple(shape))
    indices = draw(indices_for((*rows, k), tuple(shape[:k])))
    updates = random_values(rng, dtype, (*rows, *shape[k:]))
    return Case("scatter_nd", (data, indices, updates), {"reduction": reduction})


@pytest.mark.slow("random cases of lost updates are diagnosed")
@many
@given(case=scatters(), chosen=st.data())
def test_a_lost_or_doubled_update_is_diagnosed(case: Case, chosen: st.DataObject) -> None:
    data, indices, updates = case.arrays
    reduction, k = case.arguments["reduction"], indices.shape[-1]
    tuples = indices.size // k
    tuple_index = chosen.draw(st.integers(0, tuples - 1))
    is_doubled = reduction in ("add", "sub", "mul") and chosen.draw(st.booleans())
    rows, slices = indices.reshape(-1, k), updates.reshape(tuples, -1)
    applied = np.sort(np.concatenate([np.arange(tuples), [tuple_index]])) if is_doubled else (
        np.delete(np.arange(tuples), tuple_index)
    )  # fmt: skip
    corrupted = reference.scatter_nd(
        data, rows[applied], slices[applied].reshape(len(applied), *data.shape[k:]), reduction
    )
    expected = call(reference, case)
    pairs = zip(element_bytes(corrupted), element_bytes(expected), strict=True)
    wrong_positions = [position for position, (a, b) in enumerate(pairs) if a != b]
    examined, lost, doubled = diagnose(case, corrupted, wrong_positions)
    assert examined == len(wrong_positions)
    assert lost + doubled == len(wrong_positions)
    if not is_doubled:
        assert lost == len(wrong_positions)


def element_bytes(array: Array) -> list[bytes]:
    raw = np.ascontiguousarray(array).tobytes()
    return [raw[i : i + array.itemsize] for i in range(0, len(raw), array.itemsize)]


@pytest.mark.parametrize(
    ("operator", "code"), [("scatter_nd", "f2"), ("scatter_elements", "f4"), ("scatter_nd", "c8")]
)
def test_rounding_differs_from_lost_updates(operator: str, code: str) -> None:
    rng = np.random.default_rng(0)
    rows, many_updates = 50, 600
    idx = rng.permutation(np.arange(many_updates) % rows)
    data, upd = rng.random(rows).astype(code), (rng.random(many_updates) + 0.5).astype(code)
    index = idx[:, None] if operator == "scatter_nd" else idx
    case = Case(operator, (data, index, upd), {"reduction": "add"})
    expected = call(reference, case)
    other_order = expected.copy()
    for row in range(rows):  # added in reverse order
        total = data[row]
        for value in upd[idx == row][::-1]:
            total = (total + value).astype(code)
        other_order[row] = total
    assert (other_order != expected).any()
    wrong_positions = list(range(rows))
    assert diagnose(case, other_order, wrong_positions) == (rows, 0, 0)
    one_update = np.array([upd[idx == row][3] for row in range(rows)])
    assert diagnose(case, other_order - one_update, wrong_positions) == (rows, rows, 0)
    assert diagnose(case, other_order + one_update, wrong_positions) == (rows, 0, rows)
    two_updates = np.array([upd[idx == row][:2].sum() for row in range(rows)])
    assert diagnose(case, other_order - two_updates, wrong_positions)[1] < rows / 4


def test_lost_and_doubled_factors_are_diagnosed() -> None:
    idx, upd = np.zeros((5, 1), int), np.array([2.0, 3.0, 0.3, 7.0, 1.1])
    case = Case("scatter_nd", (np.ones(1), idx, upd), {"reduction": "mul"})
    product = upd.prod()
    for out, counts in ((product / 3, (1, 0)), (product * 7, (0, 1)), (product * 1.5, (0, 0)),
                       (product * (1 + 4e-16), (0, 0))):  # fmt: skip
        assert diagnose(case, np.array([out]), [0])[1:] == counts


def save_wrong_output(workdir: Path) -> Request:
    """Save a scatter whose output lacks some updates, applied some twice and is rounded otherwise."""
    rng = np.random.default_rng(1)
    idx, upd = rng.integers(0, 100, (2000, 1)), rng.random(2000).astype("f4") + np.float32(1)
    data = np.zeros(100, "f4")
    out = reference.scatter_nd(data, idx, upd, "add")
    for row in range(7):
        out[row] -= upd[idx[:, 0] == row][2]
    for row in range(7, 10):
        out[row] += upd[idx[:, 0] == row][1]
    out[50] = np.nextafter(out[50], np.float32(100))
    save(data=data, idx=idx, upd=upd, out=out)
    return Request(
        "scatter_nd", "data.npy", "idx.npy", "upd.npy", "out.npy", Attributes(reduction="add")
    )


COMMAND = (
    "verify", "scatter-nd", "data.npy", "idx.npy", "upd.npy", "out.npy", "--reduction", "add",
)  # fmt: skip


def test_lost_updates_are_printed(workdir: Path) -> None:
    save_wrong_output(workdir)
    completed = ndtool(*COMMAND)
    assert completed.status == 8
    lines = completed.err.splitlines()
    assert lines[0] == "error: out.npy differs from scatter_nd in 11 of 100 elements"
    assert lines[4:9] == [
        "same bits   89        " + "━" * 40,
        "1           1         ━",
        "2..4        0",
        "5..64       0",
        ">64         10        " + "━" * 5,
    ]
    assert lines[-1] == ("10 of 11 are off by exactly one update: 7 lost one, 3 applied one twice")


def test_json_has_the_documented_keys(workdir: Path) -> None:
    save_wrong_output(workdir)
    completed = ndtool(*COMMAND, "--json")
    assert (completed.status, completed.err) == (8, "")
    record = json.loads(completed.out)
    assert (record["error"], record["status"]) == ("DifferenceError", 8)
    assert (record["equal"], record["different"], record["total"]) == (89, 11, 100)
    assert record["ulps"] == {"0": 89, "1": 1, "2..4": 0, "5..64": 0, ">64": 10}
    assert (record["lost_updates"], record["doubled_updates"]) == (7, 3)
    assert record["within"] == 0
    out, expected = np.load("out.npy"), reference.scatter_nd(
        *(np.load(f"{name}.npy") for name in ("data", "idx", "upd")), "add"
    )  # fmt: skip
    ulps = distances(out, expected)
    assert record["first"] == {
        "position": [0], "output": float(out[0]), "expected": float(expected[0]),
        "ulps": int(ulps[0]),
    }  # fmt: skip
    assert record["largest"]["position"] == [int(ulps.argmax())]
    save(out=expected)
    verified = ndtool(*COMMAND, "--json").json
    assert verified["verified"] is True
    assert (verified["different"], verified["first"], verified["largest"]) == (0, None, None)
    gather = ("verify", "gather", "data.npy", "[1]", "one.npy", "--json")
    save(one=np.zeros(1, "f4"))
    assert ndtool(*gather).json["lost_updates"] is None


@pytest.mark.skipif(np.finfo("g").nmant != 63, reason="only x86-64's long doubles are padded")
@pytest.mark.parametrize("dtype", ["g", "G"])
def test_the_padding_of_long_doubles_is_not_compared(dtype: str) -> None:
    data = np.arange(4).astype(dtype)
    output = data[[1, 2]]
    padded = output.view(np.uint8).reshape(-1, 16)
    padded[:, 10:] = 99
    assert questions.verify("gather", data, [1, 2], output).verified
    padded[-1, 0] = 1
    with pytest.raises(DifferenceError, match="in 1 of 2 elements"):
        questions.verify("gather", data, [1, 2], output)


def test_differences_within_some_ulps_are_accepted(workdir: Path) -> None:
    data = np.arange(1, 9, dtype="f4")
    out = data.copy()
    out[3] = np.nextafter(out[3], np.float32(9))
    for _ in range(3):
        out[5] = np.nextafter(out[5], np.float32(9))
    save(data=data, out=out)
    command = ("verify", "gather", "data.npy", "[0,1,2,3,4,5,6,7]", "out.npy")
    for flags in (("--within", "3"), ("--within", "3ulp"), ("--within", "3 ulps")):
        completed = ndtool(*command, *flags)
        assert (completed.status, completed.out, completed.err) == (0, b"", "")
    record = ndtool(*command, "--within", "3", "--json").json
    assert (record["verified"], record["different"], record["within"]) == (True, 2, 3)
    assert (record["largest"]["ulps"], record["first"]["position"]) == (3, [3])
    run = run_in_terminal(*NDTOOL, *command, "--within", "4", env={"NO_COLOR": "1"})
    screen = run.screen
    assert screen.startswith(
        "verified out.npy: float32[8], within 4 ulp, 2 elements with other bits\nulps apart"
    )
    completed = ndtool(*command, "--within", "2")
    assert completed.status == 8
    assert completed.err.startswith(
        "error: out.npy differs from gather by more than 2 ulp in 1 of 8 elements\n"
        "  --> out.npy[5] = 6.0000014 "
    )
    assert ndtool(*command, env={"NDTOOL_WITHIN": "3"}).status == 0
    assert ndtool(*command, "--within", "-1").status == 2
    assert ndtool(*command, "--within", "1.5").status == 2


def test_lost_and_doubled_updates_within_some_ulps_are_counted(workdir: Path) -> None:
    idx = np.arange(8)[:, None] % 4
    save(data=np.zeros(4, "i4"), idx=idx, upd=np.array([1, 2, 3, 4, 1, 9, 9, 9], "i4"))
    save(out=np.array([1, 13, 12, 13], "i4"))  # the first lacks a 1, the second has 2 twice
    record = ndtool(*COMMAND, "--within", "2", "--json").json
    assert (record["verified"], record["different"], record["within"]) == (True, 2, 2)
    assert (record["lost_updates"], record["doubled_updates"]) == (1, 1)
    screen = run_in_terminal(*NDTOOL, *COMMAND, "--within", "2").screen
    assert "2 of 2 are off by exactly one update: 1 lost one, 1 applied one twice" in screen
    refused = ndtool(*COMMAND, "--within", "1")
    assert refused.status == 8
    assert "in 1 of 4 elements" in refused.err
    assert "2 of 2 are off by exactly one update: 1 lost one, 1 applied one twice" in refused.err


NAN = np.nan


@pytest.mark.parametrize(
    ("reduction", "code"), [("max", "f4"), ("min", "f2"), ("max", "bfloat16"), ("min", ">f8")]
)
def test_other_comparisons_of_nan_and_zeros_are_no_lost_updates(reduction: str, code: str) -> None:
    """An engine compares by < or >, which are false for NaN, and treats signed zeros as equal."""
    dtype = np.dtype(code)
    rng = np.random.default_rng(0)
    comparisons: list[Callable[[float, float], bool]] = [  # whether an update replaces the element
        lambda current, update: update > current,
        lambda current, update: update >= current,
        lambda current, update: not current > update,
        lambda current, update: not current >= update,
        lambda current, update: update > current or current != current,
    ]
    count = 300
    chains = rng.choice([NAN, NAN, 0.0, 0.0, -0.0, -0.0, 1.0, -1.0, 2.0], (count, 4))
    sign = 1 if reduction == "max" else -1
    idx = np.tile(np.arange(count), 3)[:, None]
    updates = chains[:, 1:].T.reshape(-1).astype(dtype)
    case = Case("scatter_nd", (chains[:, 0].astype(dtype), idx, updates), {"reduction": reduction})
    expected = call(reference, case)
    for replaces in comparisons:
        values = chains[:, 0].copy()
        for row, chain in enumerate(chains):
            for update in chain[1:]:
                values[row] = update if replaces(sign * values[row], sign * update) else values[row]
        out = values.astype(dtype)
        pairs = zip(element_bytes(out), element_bytes(expected), strict=True)
        wrong_positions = [position for position, (a, b) in enumerate(pairs) if a != b]
        assert len(wrong_positions) > 5
        count_wrong = len(wrong_positions)
        assert diagnose(case, out, wrong_positions) == (count_wrong, 0, 0)


def test_lost_updates_of_a_maximum_are_counted_only_without_nan_and_zeros() -> None:
    idx = np.zeros((3, 1), int)
    for data, updates, out, lost in (
        (1.0, [5.0, 3.0, 7.0], 5.0, 1),
        (1.0, [5.0, NAN, 7.0], 7.0, 0),
        (0.0, [0.0, 0.0, 0.0], -0.0, 0),
    ):
        case = Case("scatter_nd", (np.array([data]), idx, np.array(updates)), {"reduction": "max"})
        assert diagnose(case, np.array([out]), [0]) == (1, lost, 0)


def test_within_excludes_types_without_distance(workdir: Path) -> None:
    save(data=np.array([np.nan, 1.0]), out=np.array([0.0, 1.0]))
    command = ("verify", "gather", "data.npy", "[0,1]", "out.npy", "--within", str(2**63 - 1))
    completed = ndtool(*command)
    assert completed.status == 8
    assert "largest difference: [0] is 0.0, not nan: infinitely many ulps apart" in completed.err
    assert ndtool(*command, "--json").json["first"]["ulps"] is None
    save(data=np.array([b"a", b"b"]), out=np.array([b"a", b"c"]))
    completed = ndtool(*command)
    assert completed.status == 8
    assert "ulps apart" not in completed.err
    assert ndtool(*command, "--json").json["ulps"][">64"] == 1


@pytest.mark.parametrize("block_bytes", [16, 64, 1 << 20])
def test_all_blocks_are_compared(
    block_bytes: int, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
    request = save_wrong_output(workdir)
    with verify.open_call(request) as call, pytest.raises(DifferenceError) as excinfo:
        verify.verify(call)
    compared: Any = excinfo.value.comparison
    assert (compared.different, compared.lost_updates, compared.doubled_updates) == (11, 7, 3)
    assert compared.ulps == {"0": 89, "1": 1, "2..4": 0, "5..64": 0, ">64": 10}
