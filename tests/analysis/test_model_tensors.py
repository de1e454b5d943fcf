"""`ndtool model --save`: the tensors of nodes as files, which `explain` follows."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool, snapshot
from test_model import FLOAT, INT64, helper, save_embedding_model, save_model, value_info

import ndtool as python
from ndtool.analysis import modeltensors
from ndtool.errors import DifferenceError, OutputError, UsageError

pytestmark = pytest.mark.usefixtures("workdir")


def save_tensors(*options: str) -> Any:
    return ndtool("model", "m.onnx", "--inputs", "in.npz", "--save", "tensors", *options)


def test_saved_tensors_lead_to_an_explanation() -> None:
    save_embedding_model()
    np.savez("in.npz", rows=np.array([[3], [1]]))
    completed = save_tensors()
    assert completed.status == 0, completed.err
    assert sorted(os.listdir("tensors")) == [
        "1-take.data.npy", "1-take.indices.npy", "1-take.output.npy",
        "2-out.data.npy", "2-out.indices.npy", "2-out.output.npy", "2-out.updates.npy",
    ]  # fmt: skip
    assert "saved: take: tensors/1-take.data.npy, tensors/1-take.indices.npy" in " ".join(
        completed.out.decode().split()
    )
    files = [f"tensors/1-take.{role}.npy" for role in ("data", "indices")]
    explained = ndtool("explain", "gather-nd", *files, "--at", "1,2")
    assert "= 5.0" in explained.out.decode()
    assert "1-take.data.npy[1, 2]" in explained.out.decode()
    # the updates of the second node are the output of the first, doubled
    gathered, updates = np.load("tensors/1-take.output.npy"), np.load("tensors/2-out.updates.npy")
    assert np.array_equal(2 * gathered, updates)
    assert "2-out.updates.npy[1, 2]" in ndtool(
        "explain", "scatter-nd", *(f"tensors/2-out.{role}.npy" for role in ("data", "indices")),
        "tensors/2-out.updates.npy", "--at", "1,2",
    ).out.decode()  # fmt: skip
    report = save_tensors("--json").json
    saved = {role: f"tensors/1-take.{role}.npy" for role in ("data", "indices", "output")}
    assert report["nodes"][0]["saved"] == saved
    node = python.model("m.onnx", "in.npz", save="tensors").nodes[0]
    assert node.saved == saved
    assert python.verify("gather_nd", *saved.values()).verified


@pytest.mark.parametrize(
    "name", ["../../etc/x", "/abs", ".hidden", "-o", "a\nb\x1b[31m", "ü" * 300, "a:b", ""]
)
def test_file_names_have_only_safe_characters(name: str, workdir: Path) -> None:
    node = helper.make_node("Gather", ["d", "i"], ["o"], name=name)
    inputs = [value_info("d", FLOAT, [3]), value_info("i", INT64, [2])]
    save_model(helper.make_graph([node], "g", inputs, [value_info("o", FLOAT, None)]))
    np.savez("in.npz", d=np.arange(3, dtype="f4"), i=np.array([2, 0]))
    before = set(snapshot(workdir))
    completed = save_tensors()
    assert completed.status == 0, completed.err
    created = {Path(path).parts[-1] for path in set(snapshot(workdir)) - before}
    files = set(os.listdir("tensors"))
    assert len(files) == 3
    assert created <= {*files, "tensors"}
    for file in files:
        assert file.startswith("1-")
        assert len(file) < 100
        assert set(file) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")


def test_existing_files_remain_until_new_ones_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    save_embedding_model()
    np.savez("in.npz", rows=np.array([[3], [1]]))
    assert save_tensors().status == 0
    Path("tensors/mine.txt").write_text("mine")
    before = snapshot(Path("tensors"))

    def fail(*_: Any) -> None:
        raise DifferenceError("stopped")

    monkeypatch.setattr(modeltensors.sinks, "commit", fail)
    np.savez("in.npz", rows=np.array([[0], [1]]))
    with pytest.raises(DifferenceError, match="stopped"):
        python.model("m.onnx", "in.npz", save="tensors")
    assert snapshot(Path("tensors")) == before


def test_refusals_of_tensors_to_save() -> None:
    save_embedding_model()
    np.savez("in.npz", rows=np.array([[3], [1]]))
    completed = ndtool("model", "m.onnx", "--save", "tensors")
    assert (completed.status, "--save requires --inputs" in completed.err) == (2, True)
    Path("file").write_text("")
    completed = ndtool("model", "m.onnx", "--inputs", "in.npz", "--save", "file")
    assert (completed.status, "file is not a directory" in completed.err) == (7, True)
    completed = ndtool("model", "m.onnx", "--inputs", "in.npz", "--save", "s3://bucket/x")
    assert (completed.status, "expected a directory" in completed.err) == (2, True)
    assert Path("file").read_text() == ""


def test_invalid_python_arguments_are_refused() -> None:
    save_embedding_model()
    feeds: Any = {"rows": np.array([[3], [1]])}
    for options, message in (
        ({"inputs": {1: [2]}}, "a name in inputs is 1: it must be a str"),
        ({"inputs": feeds, "against": 5}, "against is 5: it must be a str"),
        ({"inputs": feeds, "against": [5]}, "against is 5: it must be a str"),
        ({"inputs": feeds, "progress": "x"}, "it must be a bool or a function"),
    ):
        arguments: Any = options
        with pytest.raises(UsageError, match=message):
            python.model("m.onnx", **arguments)
    with pytest.raises(OutputError, match="not a valid file name"):
        python.model("m.onnx", feeds, save="a\0b")
