"""Every numbered example of the standards, in Python and on the command line."""

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import FIXTURES, execute
from command import ndtool as command_line

import ndtool
from ndtool.analysis.oracle import reference

TABLE = runpy.run_path(str(FIXTURES / "examples.py"))
EXAMPLES, LAYERS = TABLE["EXAMPLES"], TABLE["LAYERS"]
UNDER_SPECS = [(e, spec) for e in EXAMPLES for spec in ("ndtool", *e.specs)]


def load(example: Any, *names: str) -> list[np.ndarray]:
    """Return the arrays of an example from its files; updates only if it has some."""
    folder = FIXTURES / example.name
    return [np.load(p) for n in names if (p := folder / f"{n}.npy").exists()]


def test_the_fixtures_are_what_the_script_writes(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="the script writes models with it")
    result = execute(sys.executable, FIXTURES / "make.py", tmp_path)
    assert result.status == 0, result.err
    paths = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*.np[yz]"))
    assert paths == sorted(p.relative_to(FIXTURES) for p in FIXTURES.rglob("*.np[yz]"))
    for path in paths:
        if path.name == "deflated.npz":  # other versions of zlib may compress differently
            with np.load(tmp_path / path) as a, np.load(FIXTURES / path) as b:
                assert all(np.array_equal(a[name], b[name]) for name in a.files)
                assert a.files == b.files
        else:
            assert (tmp_path / path).read_bytes() == (FIXTURES / path).read_bytes(), path


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)
def test_examples_of_the_oracle(example: Any) -> None:
    (expected,) = load(example, "output")
    arrays = load(example, "data", "indices", "updates")
    actual = getattr(reference, example.operator)(*arrays, **example.attributes)
    assert (actual.dtype, actual.tolist()) == (expected.dtype, expected.tolist())


@pytest.mark.parametrize(("example", "spec"), UNDER_SPECS, ids=lambda v: getattr(v, "name", v))
def test_examples_hold_under_their_specs(example: Any, spec: str) -> None:
    (expected,) = load(example, "output")
    arrays = load(example, "data", "indices", "updates")
    actual = getattr(ndtool, example.operator)(*arrays, **example.attributes, spec=spec)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert actual.tobytes() == expected.tobytes()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)
def test_examples_on_the_command_line(example: Any, tmp_path: Path) -> None:
    folder, out = FIXTURES / example.name, tmp_path / "out.npy"
    names = ("data", "indices") + (("updates",) if example.updates is not None else ())
    inputs = [folder / f"{name}.npy" for name in names]
    options = [f"--{key.replace('_', '-')}={value}" for key, value in example.attributes.items()]
    command = example.operator.replace("_", "-")
    result = command_line(command, *inputs, *options, f"--spec={example.specs[-1]}", "-o", out)
    assert (result.status, result.out) == (0, b""), result.err
    (expected,) = load(example, "output")
    actual = np.load(out)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert actual.tobytes() == expected.tobytes()


@pytest.mark.parametrize("layer", LAYERS, ids=["layer-1", "layer-2", "layer-3"])
def test_openvino_layers_on_arrays(layer: Any) -> None:
    rng = np.random.default_rng(12)
    data = rng.integers(0, 256, layer.data, dtype=np.uint8)
    b, k = layer.batch_dims, layer.indices[-1]
    indices = rng.integers(0, layer.data[b : b + k], layer.indices)
    before = data.tobytes(), indices.tobytes()
    actual = ndtool.gather_nd(data, indices, b, spec="openvino:8")
    assert actual.shape == layer.output
    for position in rng.integers(0, layer.indices[:-1], (500, len(layer.indices) - 1)):
        location = tuple(position)
        slice_ = data[location[:b] + tuple(indices[location])]
        assert np.array_equal(actual[location], slice_)
    assert (data.tobytes(), indices.tobytes()) == before


def is_accepted(spec: str, operator: str, data: Any, indices: Any, axis: int) -> bool:
    arrays = [np.zeros(data, "f4"), np.zeros(indices, "i4")]
    arrays += [np.zeros(indices, "f4")] * operator.startswith("scatter")
    try:
        getattr(ndtool, operator)(*arrays, axis=axis, spec=spec)
    except ndtool.RuleError:
        return False
    return True


@pytest.mark.parametrize("operator", ["gather_elements", "scatter_elements"])
@pytest.mark.parametrize("spec", ["webnn", "openvino:6", "openvino:12", "onnx:18", "ndtool"])
def test_sizes_that_a_standard_accepts(spec: str, operator: str) -> None:
    rng = np.random.default_rng(5)
    results = set()
    for _ in range(200):
        rank = int(rng.integers(1, 4))
        data = rng.integers(0 if spec == "webnn" else 1, 4, rank)
        indices = np.clip(data + rng.choice([0, 0, 0, 1, -1], rank), 0, None)
        axis = int(rng.integers(-rank, rank))
        off = np.arange(rank) != axis % rank
        expected = bool((indices <= data)[off].all())
        if spec == "webnn":
            expected &= axis >= 0 and data.all() and indices.all()
        if spec == "webnn" or (spec, operator[0]) in (("openvino:6", "g"), ("openvino:12", "g")):
            expected &= (indices == data)[off].all()
        if (spec, operator[0]) == ("openvino:6", "s"):
            expected &= indices[axis] <= data[axis]
        assert is_accepted(spec, operator, data, indices, axis) == expected
        results.add(bool(expected))
    assert results == {True, False}
