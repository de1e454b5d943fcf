"""Constant arrays (zeros:, ones:, full:) give the results of files with the same values."""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from command import ndtool as command
from command import save
from hypothesis import given, settings
from strategies import EXAMPLES, Case, bits_equal, call, cases
from ways import contiguous

import ndtool
from ndtool.analysis.oracle import reference
from ndtool.arrays.source import PATTERN_SIZE
from ndtool.formats import declared
from ndtool.rules import dtypes

ARGUMENTS = {
    "zeros:float32[1000,64]": np.zeros((1000, 64), "f4"),
    "ones:int8[3]": np.ones(3, "i1"),
    "ones:complex64[]": np.ones((), "c8"),
    "ones:bool[2,0]": np.ones((2, 0), "?"),
    "full:-1.5:float16[2, 3]": np.full((2, 3), -1.5, "f2"),
    "full:nan:float64[2]": np.full(2, np.nan),
    "full:true:bool[2]": np.ones(2, "?"),
    "full:18446744073709551615:uint64[1]": np.full(1, 2**64 - 1, "u8"),
    "full:0:U3[2]": np.zeros(2, "U3"),
}


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_an_argument_is_an_array(argument: str) -> None:
    expected, source = ARGUMENTS[argument], declared.open_source(argument)
    assert source.metadata.shape == expected.shape
    assert source.metadata.dtype.name == dtypes.from_numpy(expected.dtype).name
    assert bytes(source.load()) == expected.tobytes()
    buffer = bytearray(3 * expected.itemsize)
    source.fill(memoryview(buffer))
    assert not expected.size or buffer == expected.reshape(-1)[:1].tobytes() * 3
    source.close()


@pytest.mark.parametrize(
    ("argument", "message", "status"),
    [
        ("zeros:float32", "expected zeros:TYPE[SIZE,...]", 2),
        ("zeros:3:float32[2]", "expected zeros:TYPE[SIZE,...]", 2),
        ("full:float32[2]", "expected full:VALUE:TYPE[SIZE,...]", 2),
        ("full:x:float32[2]", "x is not a number", 2),
        ("ones:float32[-2]", "expected ones:TYPE[SIZE,...]", 2),
        ("ones:U3[2]", "expected a numeric type", 4),
        ("full:300:int8[2]", "an integer in -128..127", 4),
        ("full:1.5:int8[2]", "an integer in -128..127", 4),
        ("ones:nothing[2]", "nothing", 4),
        ("zeros:int8[9223372036854775808]", "valid up to 64 sizes", 2),
        (f"zeros:int64[{2**61}]", "valid up to 64 sizes", 2),
        (f"zeros:int8[0,{2**62},4]", "axes of size 0 counted as 1", 2),
    ],
)
def test_malformed_arguments_are_refused(
    workdir: Path, argument: str, message: str, status: int
) -> None:
    completed = command("gather", argument, "[0]", "-o", "out.npy")
    assert (completed.status, message in completed.err) == (status, True), completed.err


def test_an_existing_file_takes_precedence(workdir: Path) -> None:
    with open("zeros:int8[2]", "wb") as file:
        np.save(file, np.array([5, 6]))
    assert ndtool.files.gather("zeros:int8[2]", [1]).array.tolist() == [6]


NUMBERS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")


@settings(max_examples=EXAMPLES, deadline=None)
@given(cases.filter(lambda case: case.arrays[0].dtype.str[1:] in NUMBERS))
def test_runs_give_the_bits_of_the_reference(case: Case) -> None:
    dtype, shape = case.arrays[0].dtype.newbyteorder("="), case.arrays[0].shape
    others = [contiguous(array) for array in case.arrays[1:]]
    expected = call(reference, case._replace(arrays=(np.full(shape, 2, dtype), *others)))
    argument = f"full:2:{dtype.name}[{','.join(map(str, shape))}]"
    result = getattr(ndtool.files, case.operator)(argument, *others, **case.arguments).array
    assert bits_equal(result, expected)


@pytest.mark.parametrize("way", ["direct", "sweep"])
def test_every_algorithm_accepts_constants(workdir: Path, way: str) -> None:
    rng = np.random.default_rng(3)
    ids, updates = rng.integers(0, 1 << 20, 300_000), rng.random(300_000, np.float32)
    save(ids=ids, upd=updates)
    options = ("--memory", "1MiB") if way == "sweep" else ()
    arguments = ("scatter", "full:2:float32[1048576]", "ids.npy", "upd.npy", "--reduction", "add")
    completed = command(*arguments, *options, "-o", "out.npy", "--json")
    assert (completed.status, json.loads(completed.out)["plan"]["way"]) == (0, way)
    expected = np.full(1 << 20, 2, np.float32)
    np.add.at(expected, ids, updates)
    assert bits_equal(np.load("out.npy"), expected)
    assert command("gather", *arguments[1:3], *options, "-o", "rows.npy").status == 0
    assert bits_equal(np.load("rows.npy"), np.full(300_000, 2, np.float32))
    if way == "direct":
        assert command("verify", *arguments[:4], "out.npy", *arguments[4:]).status == 0
        assert "float32[1048576]" in command("inspect", arguments[1]).out.decode()


def test_a_constant_is_no_anonymous_memory() -> None:
    source = declared.open_source("full:3:int16[30000001]")
    tracemalloc.start()
    buffer = source.load()
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    assert np.array_equal(np.frombuffer(buffer, "i2"), np.full(30_000_001, 3))
    source.close()


def test_zeros_larger_than_memory_take_no_memory(workdir: Path) -> None:
    completed = command("gather", "zeros:int64[300000000000,4]", "[[7], [-1]]", "-o", "out.npy")
    assert completed.status == 0, completed.err
    assert bits_equal(np.load("out.npy"), np.zeros((2, 1, 4), np.int64))
    (result,) = (ndtool.files.gather("ones:int8[400000000000]", [3, -1]).array,)
    assert result.tolist() == [1, 1]


@pytest.mark.parametrize("shape", ["3,300001", "3,2,150001"])
def test_slices_larger_than_a_pattern_have_the_constant_everywhere(shape: str) -> None:
    result = ndtool.files.gather(f"full:258:int32[{shape}]", [2, 0]).array
    assert result.nbytes > 2 * PATTERN_SIZE
    assert (result == 258).all()
