"""Constant arrays (zeros:, ones:, full:) give the results of files with the same values."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool as command
from command import save
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import EXAMPLES, Case, bits_equal, cases

import ndtool
from ndtool.analysis.oracle import reference
from ndtool.arrays import memory
from ndtool.arrays.constant import Constant
from ndtool.engine.gathers import ignore_progress
from ndtool.formats import constant
from ndtool.outofcore import execution
from ndtool.outofcore.partitioning import partitioning_for, rows_of
from ndtool.rules import dtypes
from ndtool.rules.operators import OPERATORS, Attributes
from ndtool.runs import steps
from ndtool.runs.calls import OpenCall
from ndtool.runs.request import Request

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
    expected, source = ARGUMENTS[argument], constant.open_source(argument)
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


def _with_constant_data(case: Case) -> tuple[Case, Constant]:
    """Return the case with constant data, the first value of the original, and their source."""
    data = case.arrays[0]
    element = np.zeros(1, data.dtype) if not data.size else data[(slice(0, 1),) * data.ndim]
    element = np.array(element.reshape(-1)[:1])
    constant_data = np.frombuffer(element.tobytes() * data.size, data.dtype).reshape(data.shape)
    metadata = memory.source("data", constant_data).metadata
    source = Constant("data", metadata, element.tobytes())
    return case._replace(arrays=(constant_data, *case.arrays[1:])), source


@settings(max_examples=EXAMPLES, deadline=None)
@given(cases, st.sampled_from((1, 600, 1 << 20)), st.integers(1, 3))
def test_runs_give_the_bits_of_the_reference(case: Case, budget: int, threads: int) -> None:
    if case.arrays[0].dtype.kind in "V" or not case.arrays[0].dtype.isnative:
        return
    case, source = _with_constant_data(case)
    roles = OPERATORS[case.operator].inputs
    expected = getattr(reference, case.operator)(*case.arrays, **case.arguments)
    attributes = Attributes(**case.arguments)
    request = Request(case.operator, *roles, attributes=attributes, threads=threads)
    for is_external in (False, True):
        other_inputs = zip(roles[1:], case.arrays[1:], strict=True)
        inputs: dict[str, Any] = {role: memory.source(role, a) for role, a in other_inputs}
        with OpenCall(request, {"data": source, **inputs}) as call:
            buffer = np.full(call.inference.nbytes, 255, np.uint8)
            sink = memory.BufferSink(buffer.data, call.metadata)
            rows = rows_of(call.inference)
            if is_external and (not rows.tuples or not rows.width or rows.row_count < 2):
                return
            if is_external:
                partitioning = partitioning_for(rows, len(roles) == 2, budget, threads)
                list(execution.run(call, partitioning, (), sink, ignore_progress, print))
            else:
                with steps.prepare(call, None) as prepared:
                    steps.execute(prepared, sink=sink)
        assert bits_equal(buffer.view(expected.dtype).reshape(expected.shape), expected)


@pytest.mark.parametrize("way", ["direct", "sweep", "cluster"])
def test_every_algorithm_accepts_constants(workdir: Path, way: str) -> None:
    if way == "cluster":
        pytest.importorskip("distributed")
    rng = np.random.default_rng(3)
    ids, updates = rng.integers(0, 1 << 20, 300_000), rng.random(300_000, np.float32)
    save(ids=ids, upd=updates)
    options = {"direct": (), "sweep": ("--memory", "1MiB"), "cluster": ("--workers", "1")}[way]
    call = ("scatter", "full:2:float32[1048576]", "ids.npy", "upd.npy", "--reduction", "add")
    completed = command(*call, *options, "-o", "out.npy", "--json")
    assert (completed.status, json.loads(completed.out)["plan"]["way"]) == (0, way)
    expected = np.full(1 << 20, 2, np.float32)
    np.add.at(expected, ids, updates)
    assert bits_equal(np.load("out.npy"), expected)
    if way == "direct":
        assert command("verify", *call[:4], "out.npy", *call[4:]).status == 0
        report = command("explain", *call, "--at", str(ids[0])).out.decode()
        assert "full:2:float32[1048576]" in report
        assert command("stats", *call).status == 2  # without updates
        assert command("stats", *call[:3]).status == 0
        assert command("infer", *call).status == 0
        completed = command("inspect", call[1])
        assert "float32[1048576]" in completed.out.decode()


def test_a_constant_is_no_anonymous_memory() -> None:
    source = constant.open_source("full:3:int16[30000001]")
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
