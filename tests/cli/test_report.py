"""The reporter in cases that complete runs do not reach."""

import errno
import os
from typing import NamedTuple

import numpy as np
import pytest
from command import NDTOOL, ndtool, run_in_terminal, save
from limits import fail_with

import ndtool as ndtool_package
from ndtool.analysis import infer, values
from ndtool.cli import console
from ndtool.errors import BoundsError, DtypeError, RuleError, UsageError, format_size
from ndtool.inmemory import ops
from ndtool.rules import dtypes, specs
from ndtool.rules.operators import Attributes


@pytest.mark.parametrize(
    ("count", "text"),
    [(1, "1 byte"), (999, "999 bytes"), (10_240, "10.2 kB"), (999_499, "999 kB"),
     (999_500, "1 MB"), (5 << 40, "5.5 TB"), (10**18, "1000 PB")],
)  # fmt: skip
def test_sizes(count, text):
    assert format_size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2e-6, "2 us"), (0.0012, "1.2 ms"), (2.5, "2.5 s"), (60, "1 min 0 s"), (125.4, "2 min 5 s")],
)
def test_times(seconds, text):
    assert console.format_duration(seconds) == text


def test_inference_of_a_type_that_is_stored_as_void():
    types = {"data": "V2[3]", "indices": "int8[1,1]", "updates": "V2[1]"}
    add = Attributes(reduction="add")
    with pytest.raises(DtypeError, match="reduction add is not defined for data of V2"):
        infer.infer("scatter_nd", types, add)
    inference = infer.infer("scatter_nd", types, add, dtype="bfloat16")
    assert {g.dtype for g in inference.inputs.values()} == {"bfloat16", "int8"}


def test_a_dry_run_without_an_output(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(data=np.zeros((4, 3), "f4"), idx=np.array([[3]]))
    result = run_in_terminal(*NDTOOL, "gather-nd", "data.npy", "idx.npy", "--no-trace", "--dry-run")
    assert result.status == 0
    assert result.screen.startswith("dry run: float32[1,3], 12 bytes; nothing was written\nplan: ")


def test_a_warning_in_colour(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(data=np.zeros(3))
    with open("data.npy", "ab") as file:
        file.write(b"more")
    result = ndtool("inspect", "data.npy", env={"FORCE_COLOR": "1"})
    assert result.status == 0
    assert "warning: \x1b[0mdata.npy: 4 bytes after the array are ignored" in result.err


def test_a_preview_for_a_terminal_that_is_gone(monkeypatch):
    monkeypatch.setattr(os, "get_terminal_size", fail_with(errno.EIO))
    lines = values.format_array(np.arange(60), False).splitlines()
    assert 72 < len(lines[0]) <= 80


def test_arguments_of_the_wrong_kind():
    for name in ("reduction", "spec"):
        with pytest.raises(UsageError, match=f"{name} is 3: it must be a str"):
            ops.scatter_nd([1], [[0]], [1], **{name: 3})
    with pytest.raises(RuleError, match="axis is 'x': it must be an integer"):
        ops.gather_elements([1], [0], "x")
    with pytest.raises(UsageError, match="reduction is 'avg': expected one of none, add"):
        ops.scatter_nd([1], [[0]], [1], "avg")


class OtherType(NamedTuple):
    """A type registered by another package."""

    hasobject: bool = False
    itemsize: int = 4
    name: str = "complex32"
    kind: str = "W"
    isbuiltin: int = 0
    names: None = None


def test_types_that_no_file_holds():
    with pytest.raises(DtypeError, match=r"complex32.*is not one that a \.npy file can hold"):
        dtypes.from_numpy(OtherType())
    with pytest.raises(DtypeError, match="holds Python objects"):
        dtypes.from_numpy(np.dtype(object))
    with pytest.raises(DtypeError, match="0 bytes per element"):
        dtypes.from_numpy(np.dtype("V0"))
    float32 = dtypes.from_name("float32")
    assert dtypes.view_as(float32, "float32") is float32
    with pytest.raises(DtypeError, match="float32 cannot be read as bfloat16: only V2"):
        dtypes.view_as(float32, "bfloat16")
    with pytest.raises(DtypeError, match="'<b3' is not an element type that NumPy has"):
        dtypes.from_descr("<b3")
    assert (dtypes.from_name("bool").name, dtypes.from_name("bool").swap_size) == ("bool", 1)


def test_data_that_a_standard_does_not_take():
    with pytest.raises(
        DtypeError, match=r"does not accept data of float128: no version of onnx accepts it"
    ):
        specs.accept(
            "onnx:13",
            "gather_nd",
            {"data": dtypes.from_code("<f16"), "indices": dtypes.from_code("<i8")},
        )
    with pytest.raises(RuleError, match="does not accept batch_dims: onnx:12 is the first"):
        ops.gather_nd(np.zeros((2, 3)), np.array([[0], [1]]), 1, spec="onnx:11")


@pytest.mark.parametrize(
    ("descr", "reason"),
    [
        (["a"], r"not a \(name, descr\)"),
        ([("a", "<i4", [2])], r"shape is \[2\]: expected sizes"),
        ([("a", "|V2000000000"), ("b", "|V2000000000")], "a record has more than"),
    ],
)
def test_records_that_are_none(descr, reason):
    with pytest.raises(DtypeError, match=reason):
        dtypes.from_descr(descr)


@pytest.mark.parametrize("attribute", [{"spec": "openvino:8"}, {"negatives": False}])
def test_negative_indices_where_none_are_taken(attribute):
    with pytest.raises(BoundsError) as excinfo:
        ops.gather_nd(np.zeros((2, 3)), np.array([[-1]]), **attribute)
    hint = "negative indices are not allowed here: by the spec, or by --no-negatives"
    assert excinfo.value.hint.startswith(hint)
    assert "has size 2: valid 0..1" in str(excinfo.value)


def test_a_dry_run_into_an_archive_and_a_device(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(data=np.zeros((4, 3)), idx=np.array([[3]]))
    for target in ("x.npz:a", "/dev/null"):
        result = ndtool("gather-nd", "data.npy", "idx.npy", "-o", target, "--dry-run", "-q")
        assert (result.status, result.err) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.npy", "idx.npy"]


def test_public_names_come_at_their_first_use(monkeypatch):
    monkeypatch.delitem(vars(ndtool_package), "RuleError", raising=False)
    assert ndtool_package.RuleError is RuleError
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = ndtool_package.nothing
