"""Padding, negative indices out of bounds, indices that count from 1: commands and Python."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool as command
from command import save

import ndtool
from ndtool.errors import BoundsError, DifferenceError, DtypeError, RuleError, UsageError

DATA = np.arange(12).reshape(4, 3)


@pytest.fixture(autouse=True)
def arrays(workdir: Path) -> None:
    save(data=DATA, ids=np.array([1, -1, 3, -1]), ones=np.ones((4, 3), int))
    save(bytes=np.array([1, 255, 3], np.uint8), pairs=np.array([[0, 1], [-1, 2], [9, -1]]))


@pytest.mark.parametrize("memory", [(), ("--memory", "1MiB")])
def test_padding_selects_nothing(memory: tuple[str, ...]) -> None:
    arguments = ("gather", "data.npy", "ids.npy", "--pad", "-1", *memory)
    assert command(*arguments, "-o", "out.npy").err == ""
    assert np.load("out.npy").tolist() == [[3, 4, 5], [0] * 3, [9, 10, 11], [0] * 3]
    assert command(*arguments, "--fill", "7", "-o", "out.npy").status == 0
    assert np.load("out.npy").tolist() == [[3, 4, 5], [7] * 3, [9, 10, 11], [7] * 3]
    verify_arguments = ("data.npy", "ids.npy", "out.npy", "--pad", "-1", "--fill", "7")
    assert command("verify", "gather", *verify_arguments).status == 0
    arguments = ("scatter", "data.npy", "ids.npy", "ones.npy", "--reduction", "add", "--pad", "-1")
    assert command(*arguments, "-o", "out.npy", *memory).status == 0
    assert np.load("out.npy").tolist() == [[0, 1, 2], [4, 5, 6], [6, 7, 8], [10, 11, 12]]


def test_components_that_are_not_padding_are_checked() -> None:
    completed = command("gather-nd", "data.npy", "pairs.npy", "--pad", "-1", "-o", "out.npy")
    assert (completed.status, "pairs.npy[2, 0] = 9" in completed.err) == (5, True)
    extra = ("--out-of-bounds", "clip")
    assert command("gather-nd", "data.npy", "pairs.npy", "--pad", "-1", *extra, "-o", "o.npy")
    with pytest.raises(BoundsError):
        ndtool.gather(np.empty((0, 3)), [-1, 0], pad=-1)
    assert ndtool.gather(np.empty((0, 3)), [-1, -1], pad=-1, fill=5).tolist() == [[5.0] * 3] * 2
    assert ndtool.scatter(np.empty((0, 2)), [-1], np.ones((1, 2)), pad=-1).shape == (0, 2)
    with pytest.raises(BoundsError):
        ndtool.scatter(np.empty((0, 2)), [0], np.ones((1, 2)), pad=-1)


def test_the_padding_index_must_be_an_integer() -> None:
    arguments = ("gather", "data.npy", "bytes.npy", "--out-of-bounds", "fill", "--fill", "8")
    completed = command(*arguments, "--pad", "-1", "-o", "out.npy")
    assert "bytes.npy: pad -1 equals no index of uint8: as uint8 it is 255" in completed.err
    assert command(*arguments, "--pad", "255", "-o", "out.npy").err == ""
    largest_indices = np.array([2**64 - 1, 1], np.uint64)
    assert ndtool.gather([5, 6], largest_indices, pad=2**64 - 1).tolist() == [0, 6]
    with pytest.raises(BoundsError):
        ndtool.gather([5, 6], largest_indices, pad=2**63 - 1)


def test_negative_indices_may_be_out_of_bounds() -> None:
    arguments = ("gather", "data.npy", "ids.npy", "--no-negatives", "-o", "out.npy")
    for mode, expected in (("clip", [3, 0, 9, 0]), ("wrap", [3, 9, 9, 9]), ("fill", [3, 0, 9, 0])):
        completed = command(*arguments, "--out-of-bounds", mode)
        assert "2 of 4 elements are out of bounds" in completed.err
        assert np.load("out.npy")[:, 0].tolist() == expected
    completed = command(*arguments)
    assert (completed.status, "valid 0..3" in completed.err) == (5, True)


@pytest.mark.parametrize(
    ("error_type", "options"),
    [
        (UsageError, {"fill": 3}),
        (RuleError, {"pad": -1, "spec": "onnx:18"}),
        (RuleError, {"negatives": False, "spec": "openvino:8"}),
        (UsageError, {"negatives": 1}),
        (RuleError, {"pad": 1.5}),
        (RuleError, {"pad": True}),
        (RuleError, {"pad": 2**64}),
        (DtypeError, {"pad": -1, "fill": "x"}),
    ],
)
def test_invalid_arguments_are_refused(
    error_type: type[Exception], options: dict[str, Any]
) -> None:
    with pytest.raises(error_type):
        ndtool.gather(DATA, [0], **options)


def test_questions_support_padding() -> None:
    pads = ("--pad", "-1")
    report = command("explain", "gather", "data.npy", "ids.npy", *pads, "--at", "1,0").out.decode()
    assert "ids.npy[1] = -1, padding" in report
    report = command(
        "explain", "gather", "data.npy", "ids.npy", *pads, "--from", "3,0"
    ).out.decode()
    assert "was copied to 1 element" in report
    statistics = command("stats", "gather", "data.npy", "ids.npy", *pads, "--json").json
    assert (statistics["tuples"], statistics["distinct"], statistics["duplicated"]) == (4, 2, 0)
    env = {"NDTOOL_PAD": "-1", "NDTOOL_NO_NEGATIVES": "1", "NDTOOL_FILL": "4"}
    assert command("gather", "data.npy", "ids.npy", "-o", "out.npy", env=env).err == ""
    assert np.load("out.npy")[:, 0].tolist() == [3, 4, 9, 4]


def test_extreme_indices_that_count_from_one() -> None:
    for dtype, value in (("i8", -(2**63)), ("u8", 2**64 - 1)):
        ids = np.array([value, 1], dtype)
        save(ids=ids)
        result = command("gather", "data.npy", "ids.npy", "-o", "o.npy", "--index-base", "1")
        assert (result.status, f"ids.npy[0] = {value}\n" in result.err) == (5, True)
        statistics = ndtool.stats("gather", DATA, ids, index_base=1, out_of_bounds="clip")
        assert statistics.first_out_of_bounds[0].value == value
        assert value in (statistics.components[0].lowest, statistics.components[0].highest)
        with pytest.raises(BoundsError, match="1 of 2 elements") as caught:
            ndtool.gather(DATA, ids, index_base=1)
        assert (caught.value.value, f"= {value}" in str(caught.value)) == (value, True)
        with pytest.raises(UsageError, match="cannot wrap with index_base 1"):
            ndtool.gather(DATA, ids, index_base=1, out_of_bounds="wrap")
    with pytest.raises(UsageError, match="index_base is 2: it must be 0 or 1"):
        ndtool.gather(DATA, [1], index_base=2)
    with pytest.raises(RuleError, match="does not accept index_base=1: it requires spec='ndtool'"):
        ndtool.gather(DATA, [1], index_base=1, spec="onnx:13")


def test_questions_show_indices_that_count_from_one_as_they_are_stored() -> None:
    options: Any = {"index_base": 1, "pad": -7}
    statistics = ndtool.stats("gather", DATA, [1, 4, -7], **options)
    component = statistics.components[0]
    assert (component.lowest, component.highest, component.valid) == (-7, 4, (1, 4))
    explained = ndtool.explain("gather", DATA, [1, 4, -7], at=(2, 0), **options)
    assert "indices[2] = -7, padding" in str(explained)
    assert explained.steps[0].tuple == (-7,)
    clipped = ndtool.explain("gather", DATA, [9], at=(0, 0), index_base=1, out_of_bounds="clip")
    assert "indices[0] = 9, out of bounds, clipped to 4" in str(clipped)


def test_verify_compares_engines_with_indices_that_count_from_one() -> None:
    updates = np.ones((2, *DATA.shape[1:]), DATA.dtype)
    expected = ndtool.scatter(DATA, [1, 3], updates, index_base=1)
    arguments: Any = ("scatter", DATA, [1, 3], updates)
    answer = ndtool.verify(*arguments, expected, index_base=1, against="numpy")
    assert [report.result for report in answer.engines or ()] == ["same"]
    with pytest.raises(DifferenceError) as caught:
        ndtool.verify(*arguments, DATA, index_base=1)
    comparison: Any = caught.value.comparison
    assert comparison.lost_updates == comparison.different


def test_commands_take_indices_that_count_from_one() -> None:
    save(ids=np.array([1, 4], "i4"), bad=np.array([1, 4, 5, 0], "u2"))
    gather = ("gather", "data.npy", "ids.npy")
    flags = ("--index-base", "1")
    for memory in ((), ("--memory", "1MiB")):
        assert command(*gather, "-o", "o.npy", *flags, *memory).status == 0
        assert np.load("o.npy").tolist() == DATA[[0, 3]].tolist()
    assert command("verify", *gather, "o.npy", *flags).status == 0
    assert command("verify", *gather, "o.npy").status == 5
    completed = command("gather", "data.npy", "bad.npy", "-o", "o.npy", *flags)
    place = "--> bad.npy[2] = 5\n      data axis 0 of data.npy has size 4: valid 1..4\n"
    assert place in completed.err
    statistics = command("stats", "gather", "data.npy", "bad.npy", "--json", *flags).json
    (component,) = statistics["components"]
    assert (component["lowest"], component["highest"], component["out_of_bounds"]) == (0, 5, 2)
    assert [bad["value"] for bad in statistics["first_out_of_bounds"]] == [5, 0]
    step = command("explain", *gather, "--at", "1,2", "--json", *flags).json
    assert (step["steps"][0]["tuple"], step["value"]) == ([4], 11)
    for report in (
        command(*gather, "-o", "o.npy", "--json", *flags, "--out-of-bounds", "clip").json,
        command("infer", *gather, "--json", *flags).json,
    ):
        assert report["inputs"]["indices"]["dtype"] == "int32"
