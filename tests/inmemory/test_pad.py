"""Padding, and negative indices out of bounds: on the command line and in Python."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool as command
from command import save

import ndtool
from ndtool.errors import BoundsError, DtypeError, RuleError, UsageError

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


@pytest.mark.parametrize(
    ("mode", "expected"), [("clip", [3, 0, 9, 0]), ("wrap", [3, 9, 9, 9]), ("fill", [3, 0, 9, 0])]
)
def test_negative_indices_may_be_out_of_bounds(mode: str, expected: list[int]) -> None:
    arguments = ("gather", "data.npy", "ids.npy", "--no-negatives", "--out-of-bounds", mode)
    completed = command(*arguments, "-o", "out.npy")
    assert "2 of 4 elements are out of bounds" in completed.err
    assert np.load("out.npy")[:, 0].tolist() == expected
    completed = command("gather", "data.npy", "ids.npy", "--no-negatives", "-o", "out.npy")
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
