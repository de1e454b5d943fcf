"""TensorScatter on files: runs, and questions about them, compared with the reference."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool
from strategies import bits_equal

import ndtool as ndtool_package
from ndtool import files
from ndtool.analysis.oracle import reference
from ndtool.errors import BoundsError, RuleError, UsageError

COMMAND = "tensor-scatter"


@pytest.fixture
def cache(tmp_path: Path) -> Any:
    """Return the paths of past, update and write_indices, and the arrays."""
    rng = np.random.default_rng(2)
    arrays = {
        "past": rng.random((3, 2, 40, 8), "f4"),
        "update": rng.random((3, 2, 25, 8), "f4"),
        "write": np.array([0, 15, 7], "i4"),
    }
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    return [tmp_path / f"{name}.npy" for name in arrays], list(arrays.values())


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_the_command(cache: Any, tmp_path: Path, mode: str) -> None:
    (past, update, write), arrays = cache
    expected = reference.tensor_scatter(*arrays, mode=mode)
    out = tmp_path / "o.npy"
    result = ndtool(COMMAND, past, update, write, "--mode", mode, "-o", out, "--json")
    assert result.status == 0, result.err
    assert bits_equal(np.load(out), expected)
    assert result.json["operator"] == "tensor_scatter"
    assert result.json["attributes"] == {"axis": -2, "mode": mode}
    assert list(result.json["inputs"]) == ["past", "update", "write_indices"]
    assert result.json["resolved"]["title"] == "TensorScatter"
    result = ndtool("verify", COMMAND, past, update, write, out, "--mode", mode)
    assert result.status == 0, result.err


@pytest.mark.parametrize("shape", [(1, 300_000), (300_000, 3)])
def test_computed_indices_need_no_memory(shape: tuple[int, int], tmp_path: Path) -> None:
    rng, out = np.random.default_rng(5), tmp_path / "o.npy"
    past, write = rng.integers(0, 99, shape, "i1"), rng.integers(-(2**63), 2**63 - 1, shape[0])
    update = rng.integers(0, 99, (shape[0], 2), "i1") if shape[0] > 1 else past[::-1]
    names = [tmp_path / f"{name}.npy" for name in ("past", "update", "write")]
    for name, array in zip(names, (past, update, write), strict=True):
        np.save(name, array)
    options = ("--axis", "1", "--mode", "circular", "--memory", "1MiB", "-o", out, "--json")
    result = ndtool(COMMAND, *names, *options)
    assert result.json["plan"]["way"] == "sweep"
    assert result.json["plan"]["memory"] <= 1 << 20
    expected = reference.tensor_scatter(past, update, write, axis=1, mode="circular")
    assert bits_equal(np.load(out), expected)


@pytest.mark.parametrize("question", [(), ("stats",)])
def test_write_indices_have_no_base(question: tuple[str, ...]) -> None:
    result = ndtool(*question, COMMAND, "a.npy", "b.npy", "[1]", "--index-base", "1")
    assert result.status == 2
    assert "hint: write indices are numbers of positions that are in use" in result.err


def test_a_bad_index_leaves_the_output(cache: Any, tmp_path: Path) -> None:
    (past, update, _), _ = cache
    out = tmp_path / "o.npy"
    out.write_bytes(b"old")
    result = ndtool(COMMAND, past, update, "[0, 16, -1]", "-o", out)
    assert result.status == 5
    assert result.err.splitlines()[-3:] == [
        "error: indices out of bounds: 2 of 3 elements",
        "  --> write_indices[1] = 16",
        f"      data axis 2 of {past} has size 40, of which 25 are written: valid 0..15",
    ]
    assert out.read_bytes() == b"old"
    with pytest.raises(BoundsError, match="write_indices"):
        files.tensor_scatter(past, update, [0, 16, -1])
    with pytest.raises(RuleError, match="axis is 0"):
        files.tensor_scatter(past, update, axis=0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'pad'"):
        files.tensor_scatter(past, update, pad=-1)
    assert ndtool(COMMAND, past, update, "--pad", "-1").status == 2
    assert ndtool(COMMAND, past, update, "--spec", "onnx:23").status == 4
    assert ndtool(COMMAND, past, update, "[1.5, 2, 3]").status == 2


def test_infer(cache: Any) -> None:
    (past, update, write), _ = cache
    for arguments in ((past, update, write), (past, update)):
        inferred = ndtool_package.infer("tensor_scatter", *arguments, mode="circular")
        assert inferred.output.shape == (3, 2, 40, 8)
    result = ndtool("infer", COMMAND, "float32[B,8,4]", "float32[B,N,4]", "int64[B]", "--json")
    assert result.status == 0, result.err
    assert result.json["output"]["shape"] == ["B", 8, 4]
    assert result.json["assumed"] == ["update's axis 1 (N) is at most past's (8)"]
    result = ndtool("infer", COMMAND, past, update, write, "--axis", "0")
    assert result.status == 4
    assert "axis 0 is the batch" in result.err
    with pytest.raises(UsageError, match="tensor_scatter takes past, update"):
        ndtool_package.infer("tensor_scatter", past)
    with pytest.raises(UsageError, match="has no attribute 'pad': expected axis, mode"):
        ndtool_package.infer("tensor_scatter", past, update, pad=1)


@pytest.mark.slow("the workers of a cluster compute the indices of tensor-scatter")
def test_a_cluster_parses_the_computed_indices(cache: Any, tmp_path: Path) -> None:
    pytest.importorskip("distributed", exc_type=ImportError)
    (past, update, write), arrays = cache
    out, large = tmp_path / "o.npy", tmp_path / "large.npy"
    options = ("-o", out, "--workers", "1")
    result = ndtool(COMMAND, past, update, write, "--mode", "circular", *options)
    assert result.status == 0, result.err
    assert bits_equal(np.load(out), reference.tensor_scatter(*arrays, mode="circular"))
    np.save(large, np.zeros((2, 1 << 16, 1), "f4"))
    result = ndtool(COMMAND, large, large, *options)
    assert (result.status, "too many for a cluster" in result.err) == (2, True), result.err
