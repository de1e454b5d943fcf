"""Suspicious indices: a run reports the likely cause, as `stats` does."""

import os
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool, save

from ndtool import files
from ndtool.rules import dtypes, inference
from ndtool.rules.inference import Input
from ndtool.runs import operands

pytestmark = pytest.mark.usefixtures("workdir")

PADDING = "indices are -1, and no other is negative: -1 selects the last element of an axis"


@pytest.mark.parametrize(
    ("indices", "hint"),
    [
        ([4294967295, 1], "4294967295 is -1 as uint32: was a sign lost?"),
        ([65534, 1], "65534 is -2 as uint16: was a sign lost?"),
        (
            np.array([2, 5]).byteswap(),
            f"{2 << 56} is 2 with its bytes swapped: is the byte order wrong?",
        ),
        ([1, -(2**63)], "NaN converts to the lowest integer: were the indices floats?"),
        ([1, 9], "9 equals the size of the axis: are the indices 1-based? Then: --index-base 1"),
        ([1, 12], ""),
        (np.array([1, 25000], ">i2"), ""),
    ],
)
def test_an_error_suggests_the_cause_of_an_index(indices: Any, hint: str) -> None:
    size = 9 if hint else 10
    size = 20000 if isinstance(indices, np.ndarray) and not hint else size
    save(data=np.arange(size), idx=np.asarray(indices))
    for options in ((), ("--dry-run", "--no-trace")):
        result = ndtool("gather", "data.npy", "idx.npy", "-o", "out.npy", *options)
        assert result.status == 5
        assert result.err.endswith(f"\n  hint: {hint}\n") if hint else "hint" not in result.err
    report = ndtool("gather", "data.npy", "idx.npy", "-o", "out.npy", "--json").json
    assert report["hint"] == (hint or None)


HINT = "is it padding? --pad -1 lets it select nothing"


@pytest.mark.parametrize("code", ["i1", ">i4", "<i8"])
def test_a_run_warns_of_padding(code: str) -> None:
    save(data=np.arange(99), idx=np.array([3, 5, -1, 7, -1], code))
    message = f"idx.npy: 2 of 5 {PADDING}; {HINT}"
    run = ("gather", "data.npy", "idx.npy", "-o", "out.npy")
    assert ndtool(*run).err == f"warning: {message}\n"
    assert ndtool(*run, "--json").json["warnings"] == [message]
    assert f"warning: {message}\n" in ndtool(*run, "--dry-run", "--no-trace").err
    assert np.load("out.npy").tolist() == [3, 5, 98, 7, 98]
    with open("idx.npy", "rb") as file:
        result = ndtool("gather", "data.npy", "-", "-o", "out.npy", stdin=file.read())
    assert result.err == f"warning: standard input: 2 of 5 {PADDING}; {HINT}\n"


@pytest.mark.parametrize("indices", [[3, -1], [3, -1, -2, -1], [3, 4], [], [98]])
def test_other_indices_are_not_suspected(indices: list[int]) -> None:
    save(data=np.arange(99), idx=np.array(indices, "i8"))
    assert ndtool("gather", "data.npy", "idx.npy", "-o", "out.npy").err == ""


def test_only_indices_of_files_are_suspected() -> None:
    save(idx=np.array([1, -1, -1]))
    assert len(files.gather(np.arange(9), "idx.npy").warnings) == 1
    assert files.gather(np.arange(9), np.array([1, -1, -1])).warnings == ()
    assert ndtool("gather", "zeros:f4[9]", "[1, -1, -1]", "-o", "out.npy").err == ""
    result = ndtool("gather", "zeros:f4[9]", "[4294967295]", "-o", "out.npy")
    assert (result.status, "hint" in result.err) == (5, False)


def test_many_indices_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operands, "SAMPLE_SIZE", 100)
    indices = np.arange(1000)
    indices[500:] = -1
    save(data=np.arange(1000), idx=indices)
    (warning,) = files.gather("data.npy", "idx.npy").warnings
    assert warning.startswith("idx.npy: 45 of 91 indices in a sample are -1, and no")


PAIRS = "index tuples are all -1, and no index is lower: -1 selects the last element of an axis"


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([[0, -1], [1, -1], [2, -1]], ""),
        ([[-1, -1], [1, 2], [2, -1]], ""),
        ([[-1, -1], [1, 2], [-1, -1], [0, -1]], f"2 of 4 {PAIRS}; {HINT}"),
        ([[-1, -1], [1, -2], [-1, -1]], ""),
    ],
)
def test_a_tuple_with_a_valid_component_is_no_padding(indices: Any, message: str) -> None:
    pairs = np.array(indices, ">i4")
    save(data=np.arange(30).reshape(5, 6), idx=pairs)
    given = {"data": Input("data.npy", dtypes.from_name("int64"), (5, 6))}
    given["indices"] = Input("idx.npy", dtypes.from_numpy(pairs.dtype), pairs.shape)
    attributes, raw = inference.infer("gather_nd", given).attributes, memoryview(pairs.tobytes())
    warnings = operands.padding_warnings(given["indices"], raw, 2, attributes)
    in_python = message.replace("--pad -1", "pad=-1")
    assert warnings == ([f"idx.npy: {in_python}"] if message else [])
    report = ndtool("stats", "gather-nd", "data.npy", "idx.npy").out.decode()
    assert (message in report) if message else ("padding" not in report)


def test_a_run_beyond_memory_warns_of_padding() -> None:
    indices = np.random.default_rng(0).integers(0, 1 << 20, 100_000)
    indices[::9] = -1
    save(data=np.arange(1 << 20), idx=indices)
    run = ("gather", "data.npy", "idx.npy", "-o", "out.npy", "--memory", "1MiB")
    report = ndtool(*run, "--json").json
    assert report["plan"]["way"] == "sweep"
    assert HINT in report["warnings"][0]


def type_hint(err: str) -> list[str]:
    """Run the command that a hint ends with, or return the words to add to the call."""
    command = " ".join(err.partition("hint: ")[2].split()).partition("Then: ")[2]
    assert command
    if command.startswith("ndtool ") and "&&" not in command:
        assert ndtool(*shlex.split(command)[1:]).status == 0
    elif command.startswith(("ndtool ", "python ", "unzip ")):
        python = os.path.dirname(sys.executable)
        env = {**os.environ, "PATH": f"{python}:{os.environ['PATH']}"}
        subprocess.run(["bash", "-c", command], env=env, check=True)
    else:
        return command.split()
    return []


def test_the_command_that_a_hint_ends_with_is_the_way_on() -> None:
    data = np.arange(12.0).reshape(4, 3)
    np.save("my data.npy", data)
    save(mask=np.array([True, False, True, False]), grid=data > 7, ids=np.array([0, 2, -100]))
    save(
        most=np.array([1, 2**31 - 1], "i4"),
        rows=np.array([1, 3]),
        row=np.ones(3),
        one=np.ones((2, 1)),
    )
    np.array([[0, 1], [3, 2]], "<i4").tofile("pairs.bin")
    gather = ("gather", "my data.npy")
    for ids, expected in (
        ("ids.npy", [*data[[0, 2]], np.zeros(3)]), ("most.npy", [data[1], np.zeros(3)]),
    ):  # fmt: skip
        flags = type_hint(ndtool(*gather, ids, "-o", "o.npy").err)
        assert ndtool(*gather, ids, "-o", "o.npy", *flags).status == 0
        assert np.array_equal(np.load("o.npy"), expected)
    type_hint(ndtool(*gather, "mask.npy", "-o", "o.npy").err)
    assert ndtool(*gather, "mask-indices.npy", "-o", "o.npy").status == 0
    assert np.array_equal(np.load("o.npy"), data[[0, 2]])
    type_hint(ndtool("gather-nd", "my data.npy", "grid.npy", "-o", "o.npy").err)
    assert ndtool("gather-nd", "my data.npy", "grid-indices.npy", "-o", "o.npy").status == 0
    assert np.array_equal(np.load("o.npy"), data[data > 7])
    for updates in ("row", "one"):
        scatter = ("scatter", "my data.npy", "rows.npy")
        type_hint(ndtool(*scatter, f"{updates}.npy", "-o", "o.npy").err)
        assert ndtool(*scatter, f"{updates}-broadcast.npy", "-o", "o.npy").status == 0
        assert np.array_equal(np.load("o.npy")[[1, 3]], np.ones((2, 3)))
    completed = ndtool("gather-nd", "my data.npy", "raw:int64[2,1]:pairs.bin", "-o", "o.npy")
    (argument,) = type_hint(completed.err)
    assert argument == "raw:int32[2,1,2]:pairs.bin"
    assert ndtool("gather-nd", "my data.npy", argument, "-o", "o.npy").status == 0
    assert np.load("o.npy").tolist() == [[data[0, 1]], [data[3, 2]]]


def test_files_of_other_kinds_have_a_command_that_converts_them() -> None:
    save(data=np.arange(12.0).reshape(6, 2), whole=np.array([5.0, 2.0]), pairs=np.array([5 << 32]))
    Path("ids.csv").write_text("id,size\n5.0,1\n2.0,2\n")
    calls: list[tuple[str, str, Any]] = [
        ("whole.npy", "whole-indices.npy", [5, 2]),
        ("ids.csv:id", "ids.csv-id-indices.npy", [5, 2]),
        ("pairs.npy", "pairs-pairs.npy", [0, 5]),
    ]
    if find_spec("h5py"):
        import h5py

        layout = h5py.VirtualLayout((3,), "i8")
        layout[:] = h5py.VirtualSource("other.h5", "a", (3,))
        with h5py.File("other.h5", "w") as file:
            file["a"] = [3, 4, 5]
        with h5py.File("virtual.h5", "w") as file:
            file.create_virtual_dataset("v", layout)
        calls.append(("virtual.h5", "virtual-v.npy", [3, 4, 5]))
    if find_spec("scipy"):
        from scipy.io import savemat

        savemat("a.mat", {"x": [[1, 2]]})
        calls.append(("a.mat", "a.npz", [[1, 2]]))
    if shutil.which("unzip"):
        assert ndtool("convert", "data.npy", "s.zarr", "--codec", "none").status == 0
        shutil.make_archive("s.zarr", "zip", "s.zarr")
        shutil.rmtree("s.zarr")
        calls.append(("s.zarr.zip", "s.zarr", np.load("data.npy").tolist()))
    for name, converted, expected in calls:
        is_data = name[:2] in ("a.", "s.", "vi")
        arguments = (name, "[0]") if is_data else ("data.npy", name)
        err = ndtool("gather", *arguments, "-o", "o.npy").err
        assert type_hint(err) == [], name
        assert ndtool("convert", converted, "read.npy").status == 0
        assert np.load("read.npy").tolist() == expected
    Path("ids.ndjson").write_text('{"id": 5}\n{"id": 2}\n')
    (argument,) = type_hint(ndtool("gather", "data.npy", "ids.ndjson", "-o", "o.npy").err)
    assert ndtool("gather", "data.npy", argument, "-o", "o.npy").status == 0
