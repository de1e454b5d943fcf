"""Index literals: their values, refusals, and the precedence of an existing file."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inputs import load
from npyfile import npy

from ndtool.errors import InputError, UsageError
from ndtool.formats import literal, locators

DATA = np.arange(24.0).reshape(6, 4)


@pytest.fixture(autouse=True)
def workdir(workdir: Path, all_closed: None) -> Path:
    np.save("data.npy", DATA)
    return workdir


@pytest.mark.parametrize(
    "value",
    [[5, 7, -1], [[0, 1], [2, 0]], [], [[], []], [[[3]]], [2**63 - 1, -(2**63)], [2**63, 0]],
    ids=str,
)
def test_lists_of_whole_numbers(value: Any) -> None:
    wanted = np.array(value, np.uint64 if 2**63 in value else np.int64)
    for text in (str(value), f" {value}\n".replace(" ", ""), str(value).replace(" ", "\t")):
        got = load(text, literals=True)
        assert (got.dtype, got.shape, got.tolist()) == (wanted.dtype, wanted.shape, value)
    (entry,) = locators.describe(str(value), literals=True)
    assert entry.metadata is not None
    assert entry.metadata.shape == wanted.shape


shapes = st.lists(st.integers(0, 3), min_size=1, max_size=4)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(shapes, st.integers(-(2**63), 2**63 - 1))
def test_any_array(shape: list[int], value: int) -> None:
    array = np.full(shape, value, np.int64)
    nested = array.tolist()
    if np.array(nested).shape == array.shape:  # an empty list hides further axes
        assert load(str(nested), literals=True).tolist() == nested


@pytest.mark.parametrize(
    ("text", "why"),
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
        ("[[1], [2, 3]]", "ragged: axis 1 has a list of 1 and a list of 2"),
        ("[[1], 2]", "ragged: axis 1 has a list of 1 and 2"),
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
def test_refused_arguments(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why.translate({ord(c): "\\" + c for c in "[]{}^"})) as got:
        load(text, literals=True)
    assert got.value.message.isprintable()
    assert len(got.value.message) < 400


def test_a_file_of_that_name_takes_precedence() -> None:
    Path("[1]").write_bytes(npy(np.array([4])))
    assert load("[1]", literals=True).tolist() == [4]
    os.unlink("[1]")
    os.mkdir("[2]")
    with pytest.raises(InputError, match="is a directory"):
        load("[2]", literals=True)


def test_only_indices_are_written_out() -> None:
    ran = ndtool("gather-nd", "[1, 2]", "[0]", "-o", "out.npy")
    assert ran.status == 3
    assert "[1, 2]: No such file" in ran.err
    ran = ndtool("inspect", "[1, 2]")
    assert ran.status == 3


def test_runs() -> None:
    ran = ndtool("gather-nd", "data.npy", "[[5], [0], [-1]]", "-o", "out.npy")
    assert (ran.status, ran.err) == (0, "")
    assert np.load("out.npy").tolist() == DATA[[5, 0, -1]].tolist()
    ran = ndtool("gather-nd", "data.npy", "[5, 3]", "-o", "out.npy")  # one tuple
    assert np.load("out.npy").tolist() == 23
    ran = ndtool("gather-elements", "data.npy", "[[5, 0, 1, 1]]", "-o", "out.npy")
    assert np.load("out.npy").tolist() == [[20, 1, 6, 7]]
    ran = ndtool("verify", "gather-elements", "data.npy", "[[5, 0, 1, 1]]", "out.npy")
    assert ran.status == 0
    ran = ndtool("infer", "gather-nd", "data.npy", "[[5], [0]]", "--json")
    assert ran.json["inputs"]["indices"] == {
        "name": "[[5], [0]]", "dtype": "int64", "shape": [2, 1],
    }  # fmt: skip
    assert ran.json["output"]["shape"] == [2, 4]


@pytest.mark.parametrize("value", [6, -7, 2**63, 2**64 - 1, -(2**63)])
def test_an_index_out_of_bounds_is_named(value: int) -> None:
    ran = ndtool("gather-nd", "data.npy", f"[[0], [{value}]]", "-o", "out.npy", "--json")
    assert (ran.status, ran.json["value"], ran.json["position"]) == (5, value, [1])
    assert not Path("out.npy").exists()


def test_text_is_bounded() -> None:
    assert literal.MAX_CHARACTERS >= 1 << 17, "what a system passes as one argument"
