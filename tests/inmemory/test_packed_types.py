"""Types of less than a byte: packed in ONNX and safetensors files, a byte each in memory."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool
from hypothesis import given
from hypothesis import strategies as st
from later import later
from thresholds import STORAGE, patched_thresholds

from ndtool import files
from ndtool.engine import packing
from ndtool.errors import DtypeError, OutputError
from ndtool.formats import locators
from ndtool.formats.streams import Streams
from ndtool.rules.dtypes import PACKED
from ndtool.runs import convert

ml_dtypes = later("ml_dtypes")
SHAPES = ((), (0, 3), (1,), (5,), (3, 7), (2, 3, 5), (1001,))


def random_array(name: str, shape: Any, seed: int = 0) -> Any:
    """Return an array of a packed type with random bits."""
    bits = np.random.default_rng(seed).integers(0, 1 << PACKED[name], shape, "u1")
    return np.asarray(bits).view(getattr(ml_dtypes, name))


def load_array(argument: object) -> Any:
    """Return an argument's array."""
    with closing(locators.open_source(str(argument), Streams(-1))) as source:
        dtype = getattr(ml_dtypes, source.metadata.dtype.name)
        return np.frombuffer(source.load(), dtype).reshape(source.metadata.shape)


def convert_file(source: object, output: object, **options: Any) -> None:
    """Convert an array to another file."""
    with convert.Conversion(str(source), str(output), **options) as conversion:
        conversion.run()


def are_equal(first: Any, second: Any) -> bool:
    return (first.dtype, first.shape, first.tobytes()) == (
        second.dtype,
        second.shape,
        second.tobytes(),
    )


@given(raw=st.binary(max_size=40), bits=st.sampled_from([2, 4, 6]), split=st.integers(0, 40))
def test_packing(raw: bytes, bits: int, split: int) -> None:
    packed = packing.pack(raw, bits)
    packed_integer = sum((element & ((1 << bits) - 1)) << bits * k for k, element in enumerate(raw))
    nbytes = -(-len(raw) * bits // 8)
    assert packed[:nbytes] == packed_integer.to_bytes(nbytes, "little")
    assert not any(packed[nbytes:])
    unpacked = b"".join(packing.unpack_blocks([packed[:split], packed[split:nbytes]], bits))
    assert unpacked[: len(raw)] == bytes(element & ((1 << bits) - 1) for element in raw)


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("small_thresholds", [False, True])
def test_onnx_tensors(tmp_path: Path, name: str, small_thresholds: bool) -> None:
    onnx = pytest.importorskip("onnx")
    for shape in SHAPES:
        array = random_array(name, shape)
        proto = onnx.numpy_helper.from_array(array, "t")
        (tmp_path / "in.pb").write_bytes(proto.SerializeToString())
        with patched_thresholds(*[STORAGE] * small_thresholds):
            assert are_equal(load_array(tmp_path / "in.pb"), array)
            result = files.gather(tmp_path / "in.pb", [0]) if shape and shape[0] else None
            assert result is None or are_equal(result.array, array[:1])
        out = tmp_path / "out.pb"
        convert_file(tmp_path / "in.pb", f"{out}:t")
        written = onnx.load_tensor(out)
        assert (written.data_type, written.raw_data) == (proto.data_type, proto.raw_data)
        assert are_equal(onnx.numpy_helper.to_array(written), array)
        assert are_equal(load_array(out), array)


@pytest.mark.parametrize("name", ["float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"])
@pytest.mark.parametrize("small_thresholds", [False, True])
def test_safetensors(tmp_path: Path, name: str, small_thresholds: bool) -> None:
    safetensors = pytest.importorskip("safetensors")
    path = tmp_path / "m.safetensors"
    np.save(tmp_path / "bytes.npy", np.arange(7, dtype="u1"))
    np.save(tmp_path / "wide.npy", np.arange(3.0))
    for shape in ((8,), (0, 3), (4, 7), (3, 4, 1000)):
        array = random_array(name, shape)
        np.save(tmp_path / "a.npy", array.view("V1"))
        for member, only in (("a", True), ("b", False), ("a", False)):
            with patched_thresholds(*[STORAGE] * small_thresholds):
                convert_file(tmp_path / "a.npy", f"{path}:{member}", dtype=name, only=only)
            for filename in ("bytes", "wide"):
                convert_file(tmp_path / f"{filename}.npy", f"{path}:{filename}")
        entries = dict(safetensors.deserialize(path.read_bytes()))
        for member in ("a", "b"):
            entry = entries[member]
            assert entry["shape"] == list(shape)
            packed = packing.pack(array.tobytes(), PACKED[name])
            assert bytes(entry["data"]) == packed
            assert are_equal(load_array(f"{path}:{member}"), array)
        assert bytes(entries["bytes"]["data"]) == bytes(range(7))
        assert bytes(entries["wide"]["data"]) == np.arange(3.0).tobytes()


def test_arrays_that_a_safetensors_file_cannot_hold(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", random_array("float4_e2m1fn", (3, 5)).view("V1"))
    out = tmp_path / "m.safetensors"
    for extra in ((), ("--dry-run",)):
        completed = ndtool(
            "gather", tmp_path / "a.npy", "[0]", "--dtype", "float4_e2m1fn", "-o", out, *extra
        )
        assert completed.status == 7
        assert "float4_e2m1fn[1,5] has 20 bits" in completed.err
        assert not out.exists()
    with pytest.raises(OutputError, match="multiples of 8"):
        files.gather(tmp_path / "a.npy", [0], dtype="float6_e3m2fn", out=out)
    with pytest.raises(DtypeError, match="a safetensors file cannot hold int4"):
        files.gather(tmp_path / "a.npy", [0], dtype="int4", out=out)
    text = json.dumps({"x": {"dtype": "F4", "shape": [3], "data_offsets": [0, 2]}}).encode()
    out.write_bytes(len(text).to_bytes(8, "little") + text + bytes(2))
    completed = ndtool("inspect", out)
    assert completed.status == 3
    assert "F4[3] needs 12 bits" in completed.err


def test_the_standards_accept_packed_types_for_tensor_scatter_alone(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    past, update = random_array("uint4", (2, 5, 3)), random_array("uint4", (2, 2, 3), 1)
    for role, array in (("past", past), ("update", update)):
        np.save(tmp_path / "a.npy", array.view("V1"))
        arguments = (tmp_path / "a.npy", tmp_path / f"{role}.pb", "--dtype", "uint4")
        assert ndtool("convert", *arguments).status == 0
    inputs = (tmp_path / "past.pb", tmp_path / "update.pb", "[3, 0]")
    out = ("-o", tmp_path / "past.pb")
    completed = ndtool("tensor-scatter", *inputs, "--spec", "onnx:24", *out)
    assert completed.status == 0, completed.err
    past[0, 3:], past[1, :2] = update
    assert are_equal(load_array(tmp_path / "past.pb"), past)
    completed = ndtool("gather", tmp_path / "past.pb", "[0]", "--spec", "onnx:24", *out)
    assert completed.status == 4
    assert "data of uint4" in completed.err
    completed = ndtool(
        "scatter", tmp_path / "past.pb", "[0]", tmp_path / "past.pb", "--reduction", "add"
    )
    assert completed.status == 4


def test_fill_values_of_packed_types(tmp_path: Path) -> None:
    for name, value, bits in (
        ("int4", -3, 13),
        ("uint4", 15, 15),
        ("int2", -2, 2),
        ("uint2", 3, 3),
    ):
        out, kind = tmp_path / "o.npy", getattr(ml_dtypes, name)
        result = files.gather(np.zeros(3, kind), [9], out_of_bounds="fill", fill=value, out=out)
        assert result.outside == 1
        assert np.load(out).view("u1").tolist() == [bits]
        assert ndtool("gather", f"full:{value}:{name}[2]", "[1]", "-o", out).status == 0
        assert np.load(out).view("u1").tolist() == [bits]
    with pytest.raises(DtypeError, match=r"expected an integer in -8..7"):
        files.gather(np.zeros(3, ml_dtypes.int4), [9], out_of_bounds="fill", fill=8)
