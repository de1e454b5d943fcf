"""ONNX TensorScatter: compared with the reference, the onnx package's evaluator and its examples."""

import runpy
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import FIXTURES
from command import ndtool as command_line
from hypothesis import given
from hypothesis import strategies as st
from later import later
from strategies import bits_equal, many

import ndtool
from ndtool.analysis.oracle import reference
from ndtool.engine import tuning
from ndtool.errors import BoundsError, DtypeError, NdtoolError, RuleError, UsageError
from ndtool.rules import tensorscatter as rules

CACHES = runpy.run_path(str(FIXTURES / "examples.py"))["CACHES"]
TYPES = ("u1", "i8", ">f8", "f2", "?", "c8", "U3", "M8[s]")
ARRAYS = ("past", "update", "write_indices")


@pytest.mark.parametrize("function", [ndtool.tensor_scatter, reference.tensor_scatter])
@pytest.mark.parametrize("cache", CACHES, ids=lambda one: one.name)
def test_the_standard_s_examples(cache: Any, function: Any) -> None:
    *arrays, expected = (np.load(FIXTURES / cache.name / f"{n}.npy") for n in (*ARRAYS, "output"))
    assert bits_equal(function(*arrays, **cache.attributes), expected)


def fits(values: list[int], code: str) -> bool:
    limits = np.iinfo(code)
    return all(limits.min <= value <= limits.max for value in values)


@st.composite
def calls(draw: st.DrawFn) -> tuple[Any, ...]:
    """Draw past, update, write_indices, axis and mode; indices in bounds more often than not."""
    small = st.lists(st.integers(0, 5), min_size=2, max_size=4)
    shape = draw(small | st.just([2, 3, 200]))  # long enough to be copied in pieces
    axis = draw(st.integers(1, len(shape) - 1))
    size = shape[axis]
    length = draw(st.integers(0, size))
    mode = draw(st.sampled_from(rules.WRITE_MODES))
    new = [*shape[:axis], length, *shape[axis + 1 :]]
    dtype = draw(st.sampled_from(TYPES))
    past, update = (
        np.random.default_rng(seed).integers(0, 99, expected).astype(dtype)
        for seed, expected in enumerate((shape, new))
    )
    if draw(st.booleans()):
        past, update = np.asfortranarray(past), update[::-1][::-1]
    lowest, highest = (0, size - length) if draw(st.integers(0, 3)) else (-3, 7)
    if mode == "circular":
        lowest, highest = draw(st.sampled_from([(-(2**63), 2**63 - 1), (0, 99), (0, 2**64 - 1)]))
    values = draw(st.lists(st.integers(lowest, highest), min_size=shape[0], max_size=shape[0]))
    codes = [code for code in ("i8", "i1", "u1", "u8", ">i2") if fits(values, code)]
    write = np.array(values, draw(st.sampled_from(codes))) if draw(st.integers(0, 4)) else None
    return past, update, write, draw(st.sampled_from([axis, axis - len(shape)])), mode


def outcome(function: Any, *arguments: Any, **options: Any) -> Any:
    """Return a result, or the fields of an error about an index."""
    try:
        return function(*arguments, **options)
    except BoundsError as error:
        return {**error.first(), "count": error.count, "total": error.total}


@pytest.mark.parametrize("limit", [0, tuning.COMPILED_CALL], ids=["general path", "small calls"])
@many
@given(call=calls(), threads=st.sampled_from([1, 2, 3]))
def test_random_calls(limit: int, call: Any, threads: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "COMPILED_CALL", limit)
        check_call(call, threads)


def check_call(call: Any, threads: int) -> None:
    expected = outcome(reference.tensor_scatter, *call)
    before = [None if item is None else item.tobytes() for item in call[:3]]
    actual = outcome(ndtool.tensor_scatter, *call, threads=threads)
    assert [None if item is None else item.tobytes() for item in call[:3]] == before
    if isinstance(expected, dict):
        assert actual == expected
        return
    assert bits_equal(actual, expected)
    past = call[0].copy()
    assert ndtool.tensor_scatter(past, *call[1:], out=past) is past
    assert bits_equal(past, expected)


@pytest.mark.parametrize("mode", rules.WRITE_MODES)
def test_large_caches_at_any_number_of_threads(mode: str) -> None:
    rng = np.random.default_rng(3)
    past, update = rng.random((4, 3, 301, 64), "f4"), rng.random((4, 3, 200, 64), "f4")
    write = rng.integers(0, 101, 4) if mode == "linear" else rng.integers(-999, 999, 4)
    expected = reference.tensor_scatter(past, update, write, mode=mode)
    for threads in (1, 2, 3, 8):
        actual = ndtool.tensor_scatter(past, update, write, mode=mode, threads=threads)
        assert bits_equal(actual, expected)


def test_the_first_index_out_of_bounds_is_named_and_nothing_is_written() -> None:
    past, update = np.zeros((4, 2, 5, 3)), np.ones((4, 2, 2, 3))
    with pytest.raises(BoundsError) as excinfo:
        ndtool.tensor_scatter(past, update, [0, 4, -1, 3], out=past)
    assert str(excinfo.value).splitlines() == [
        "indices out of bounds: 2 of 4 elements",
        "  --> write_indices[1] = 4",
        "      data axis 2 of past has size 5, of which 2 are written: valid 0..3",
    ]
    assert not past.any()


P, U, W = np.zeros((2, 4, 3)), np.ones((2, 1, 3)), np.array([0, 1])


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "message"),
    [
        ((P[0, 0], U), {}, RuleError, "past has rank 1"),
        ((P, U[0]), {}, RuleError, "update has rank 2: it must equal rank"),
        ((P, U), {"axis": 0}, RuleError, r"axis is 0: .* -2..-1 or 1..2: axis 0 is the batch"),
        ((P, U), {"axis": -3}, RuleError, "axis is -3"),
        ((P, U), {"axis": 3}, RuleError, "axis is 3"),
        ((P, U), {"axis": 2**70}, RuleError, "axis is"),
        ((P, U[:1]), {}, RuleError, r"update has shape \[1,1,3\]: axis 0 must be .* = 2"),
        ((U, P), {}, RuleError, "update has 4 elements along axis 1: past has 1"),
        ((P, U, W[:1]), {}, RuleError, r"write_indices has shape \[1\]"),
        ((P, U, W[:, None]), {}, RuleError, r"write_indices has shape \[2,1\]"),
        ((P, U, W * 1.0), {}, DtypeError, "write_indices has dtype float64"),
        ((P, U.astype("f4"), W), {}, DtypeError, "update has dtype float32: it must be past's"),
        ((P, U, W), {"mode": "round"}, UsageError, "mode is 'round'"),
        ((P, U, W.astype("i4")), {"spec": "onnx:24"}, DtypeError, "indices of int32"),
        ((P, U, W), {"spec": "onnx:23"}, RuleError, "no TensorScatter: it was added in onnx:24"),
        ((P, U, W), {"spec": "openvino:8"}, RuleError, "openvino has no tensor_scatter"),
        ((P.astype("M8[s]"), U.astype("M8[s]")), {"spec": "onnx:24"}, DtypeError, "datetime64"),
        ((P, U, W), {"threads": 0}, NdtoolError, "threads"),
        ((P, U, W), {"spec": 24}, UsageError, "it must be a str"),
        ((P, U, W), {"out": np.zeros(3)}, NdtoolError, "out"),
    ],
)
def test_refusals_of_writes(arguments: Any, options: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        ndtool.tensor_scatter(*arguments, **options)


onnx = later("onnx")


def model(opset: int, names: Any, dtype: int = 1, **attributes: Any) -> Any:
    helper = onnx.helper
    node = helper.make_node("TensorScatter", names, ["o"], name="write", **attributes)
    types = {"past": dtype, "update": dtype, "write": 7}
    inputs = [helper.make_tensor_value_info(n, types[n], None) for n in names if n]
    output = helper.make_tensor_value_info("o", dtype, None)
    graph = helper.make_graph([node], "g", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def run(opset: int, feeds: dict[str, Any], **attributes: Any) -> Any:
    from onnx.reference import ReferenceEvaluator

    from ndtool.onnx import OPS

    return ReferenceEvaluator(model(opset, list(feeds), **attributes), new_ops=OPS).run(
        None, feeds
    )[0]


@many
@given(call=calls())
def test_the_evaluator(call: Any) -> None:
    past, update, write, axis, mode = call
    numbers = np.arange(past.size + update.size, dtype="f4")
    past = numbers[: past.size].reshape(past.shape)
    update = numbers[past.size :].reshape(update.shape)
    write = None if write is None else write.astype("i8")
    feeds = {"past": past, "update": update} | ({} if write is None else {"write": write})
    expected = outcome(reference.tensor_scatter, past, update, write, axis, mode)
    actual = outcome(run, 24, feeds, axis=axis, mode=mode)
    assert actual == expected if isinstance(expected, dict) else bits_equal(actual, expected)


def test_the_evaluator_moves_strings_and_refuses_older_operator_sets() -> None:
    past, update = np.array([["a", "bb", "c"]], object), np.array([["x"]], object)
    feeds = {"past": past, "update": update, "write": np.array([-1])}
    assert run(24, feeds, dtype=8, axis=1, mode="circular").tolist() == [["a", "bb", "x"]]
    with pytest.raises(RuleError, match="onnx:23 has no TensorScatter"):
        run(23, {"past": P.astype("f4"), "update": U.astype("f4")})


def test_the_model_command(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(24, ["past", "update", "write"], mode="circular"), path)
    (node,) = command_line("model", path, "--json").json["nodes"]
    assert (node["operator"], node["version"]) == ("tensor_scatter", 24)
    assert list(node["inputs"]) == list(ARRAYS)
    assert node["attributes"] == {"mode": "circular"}
    feeds = {"past": np.zeros((2, 8, 4), "f4"), "update": np.ones((2, 3, 4), "f4")}
    np.savez(tmp_path / "in.npz", **feeds, write=np.array([7, 1]))
    result = command_line("model", path, "--inputs", tmp_path / "in.npz", "--against", "onnx")
    assert b"not compared" in result.out
    onnx.save(model(24, ["past", "update", "write"]), path)
    result = command_line("model", path, "--inputs", tmp_path / "in.npz")
    assert result.status == 5
    assert "write: indices out of bounds: 1 of 2 elements" in result.err
    assert "write[0] = 7" in result.err
    onnx.save(model(24, ["past", "update", ""]), path)
    np.savez(tmp_path / "in.npz", **feeds)
    (node,) = command_line("model", path, "--inputs", tmp_path / "in.npz", "--json").json["nodes"]
    assert list(node["inputs"]) == ["past", "update"]
    assert node["output"]["shape"] == [2, 8, 4]


def test_out_may_only_overlap_past() -> None:
    memory, write = np.zeros(40), np.zeros((2, 4, 3))
    past, update = memory[:24].reshape(2, 4, 3), memory[20:32].reshape(2, 2, 3)
    with pytest.raises(RuleError, match="out overlaps update"):
        ndtool.tensor_scatter(past, update, out=past)
    with pytest.raises(RuleError, match="out overlaps write_indices"):
        ndtool.tensor_scatter(write, U, write.view("i8")[0, 0, :2], out=write)


def test_the_padding_of_a_structure_is_moved() -> None:
    dtype = np.dtype({"names": ["a"], "formats": ["u1"], "offsets": [1], "itemsize": 4})
    past, update = (np.full((2, 4, 12), n, "u1").view(dtype) for n in (1, 2))
    written = ndtool.tensor_scatter(past, update[:, :2])
    assert written.view("u1").reshape(2, 4, 12)[:, :, 0].tolist() == [[2, 2, 1, 1]] * 2


def test_positions_within_the_update_take_few_bytes() -> None:
    past, update = np.zeros((1, 1 << 20), np.int8), np.ones((1, 1 << 20), np.int8)
    tracemalloc.start()
    try:
        assert ndtool.tensor_scatter(past, update, [5], 1, "circular").all()
        assert tracemalloc.get_traced_memory()[1] < 10 * past.nbytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("function", [ndtool.tensor_scatter, reference.tensor_scatter])
def test_bytes_of_bools_are_kept(function: Any) -> None:
    past, update = np.arange(2, 8, dtype="u1").view("?"), np.array([9, 8], "u1").view("?")
    result = function(past.reshape(2, 3), update.reshape(2, 1), [1, 2], -1)
    assert result.view("u1").tolist() == [[2, 9, 4], [5, 6, 8]]


def test_jax_arrays_are_written_at_many_positions() -> None:
    jax = pytest.importorskip("jax.numpy")
    past, update = np.arange(24.0, dtype="f4").reshape(2, 4, 3), np.ones((2, 2, 3), "f4")
    result = ndtool.tensor_scatter(jax.asarray(past), jax.asarray(update), [2, 1])
    assert isinstance(result, type(jax.zeros(1)))
    assert bits_equal(np.asarray(result), reference.tensor_scatter(past, update, np.array([2, 1])))
