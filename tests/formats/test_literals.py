"""Index literals: their values, refusals, and the precedence of an existing file."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool
from inputs import load
from npyfile import npy
from strategies import bits_equal

from ndtool.errors import InputError, UsageError
from ndtool.formats import locators

DATA = np.arange(24.0).reshape(6, 4)


@pytest.fixture(autouse=True)
def files(workdir: Path, check_files_closed: None) -> None:
    np.save("data.npy", DATA)


@pytest.mark.parametrize(
    "value",
    [[5, 7, -1], [[0, 1], [2, 0]], [], [[], []], [[[3]]], [2**63 - 1, -(2**63)], [2**63, 0]],
    ids=str,
)
def test_lists_of_integers(value: Any) -> None:
    expected = np.array(value, np.uint64 if 2**63 in value else np.int64)
    for text in (str(value), f" {value}\n".replace(" ", ""), str(value).replace(" ", "\t")):
        result = load(text, literals=True)
        assert bits_equal(result, expected)
    (entry,) = locators.describe(str(value), literals=True)
    assert entry.metadata is not None
    assert entry.metadata.shape == expected.shape


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[1.5]", "1.5 is not an integer"),
        ("[1e3]", "1e3 is not an integer"),
        ("[NaN]", "NaN is not an integer"),
        ("[true]", "True is not an integer"),
        ("[null]", "None is not an integer"),
        ('["1"]', "'1' is not an integer"),
        ("[{}]", "{} is not an integer"),
        ("[-9223372036854775809]", "-9223372036854775809 is beyond 64 bits"),
        ("[18446744073709551616]", "18446744073709551616 is beyond 64 bits"),
        ("[9223372036854775808, -1]", "9223372036854775808 is beyond 64 bits"),
        ("[" + "9" * 900 + "]", "about 10^9.. is beyond 64 bits"),
        ("[" + "9" * 9000 + "]", "is not an integer of up to 64 bits"),
        ("[[1], [2, 3]]", "ragged: axis 1 has a list of 1 item and a list of 2 items"),
        ("[[1], 2]", "ragged: axis 1 has a list of 1 item and 2"),
        ("[1, [2]]", "ragged: axis 1 has 1 and a list of 1"),
        ("[[[]], [[1]]]", "ragged: axis 2"),
        ("[1", "not a list of integers"),
        ("[1,]", "not a list of integers"),
        ("[01]", "not a list of integers"),
        ("[1 2]", "not a list of integers"),
        ("[1]]", "not a list of integers"),
        ("[x]", "not a list of integers"),
        ("[\udcff]", "not a list of integers"),
        ("[" * 65 + "]" * 65, "rank above 64"),
        ("[" * 100_000, "not a list of integers"),
        ("[" + "1," * (1 << 19) + "1]", "characters: valid up to 131072"),
    ],
    ids=lambda text: text[:20],
)
def test_invalid_literals_are_refused(text: str, reason: str) -> None:
    with pytest.raises(
        UsageError, match=reason.translate({ord(c): "\\" + c for c in "[]{}^"})
    ) as excinfo:
        load(text, literals=True)
    assert excinfo.value.message.isprintable()
    assert len(excinfo.value.message) < 400


def test_a_file_with_the_name_of_a_literal_takes_precedence() -> None:
    Path("[1]").write_bytes(npy(np.array([4])))
    assert load("[1]", literals=True).tolist() == [4]
    os.unlink("[1]")
    os.mkdir("[2]")
    with pytest.raises(InputError, match="is a directory"):
        load("[2]", literals=True)


def test_only_indices_may_be_literals() -> None:
    completed = ndtool("gather-nd", "[1, 2]", "[0]", "-o", "out.npy")
    assert completed.status == 3
    assert "[1, 2]: No such file" in completed.err
    completed = ndtool("inspect", "[1, 2]")
    assert completed.status == 3


def test_a_number_without_brackets_gets_a_hint() -> None:
    result = ndtool("gather", "data.npy", "2")
    assert result.status == 3
    assert result.err.endswith("hint: a literal is in brackets: '[2]'\n")


def test_runs_with_literal_indices() -> None:
    completed = ndtool("gather-nd", "data.npy", "[[5], [0], [-1]]", "-o", "out.npy")
    assert (completed.status, completed.err) == (0, "")
    assert np.load("out.npy").tolist() == DATA[[5, 0, -1]].tolist()
    completed = ndtool("gather-nd", "data.npy", "[5, 3]", "-o", "out.npy")  # one tuple
    assert np.load("out.npy").tolist() == 23
    completed = ndtool("gather-elements", "data.npy", "[[5, 0, 1, 1]]", "-o", "out.npy")
    assert np.load("out.npy").tolist() == [[20, 1, 6, 7]]
    completed = ndtool("infer", "gather-nd", "data.npy", "[[5], [0]]", "--json")
    assert completed.json["inputs"]["indices"] == {
        "name": "[[5], [0]]", "dtype": "int64", "shape": [2, 1],
    }  # fmt: skip
    assert completed.json["output"]["shape"] == [2, 4]


@pytest.mark.parametrize("value", [6, -7, 2**63, 2**64 - 1, -(2**63)])
def test_an_index_of_a_literal_out_of_bounds_is_reported(value: int) -> None:
    completed = ndtool("gather-nd", "data.npy", f"[[0], [{value}]]", "-o", "out.npy", "--json")
    assert (completed.status, completed.json["value"]) == (5, value)
    assert completed.json["position"] == [1]
    assert not Path("out.npy").exists()
