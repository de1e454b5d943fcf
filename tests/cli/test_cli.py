"""Commands in processes: results, refusals, and the absence of leftover files."""

import io
import json
import os
import re
from typing import Any

import numpy as np
import pytest
from command import NDTOOL, execute, ndtool, save, snapshot
from commandlines import run_commands
from npyfile import npy, write_sparse

pytestmark = pytest.mark.usefixtures("workdir")

INT64_MAX = 2**63 - 1
DATA = np.arange(12, dtype="f4").reshape(4, 3)
SQUARE = np.arange(9, dtype="i4").reshape(3, 3)


def i8(*values: Any) -> np.ndarray:
    return np.array(values, "i8")


ROWS = np.zeros((2, 3), "f4")
ROW = ROWS[:1]
SECOND_TUPLE = "indices.npy[1, 0] = "
LARGE = np.where(np.isin(np.arange(400_000), (399_000, 200_123)), 11, 0)[:, None]
RANK_64 = np.arange(2).reshape([1] * 63 + [2])
# Command line, arrays, exit status, and texts that the error contains.
REFUSALS: list[tuple[str, tuple[Any, ...], int, tuple[str, ...]]] = [
    ("gather-nd", (DATA, i8([0, 0], [1, 3])), 5,
     ("indices.npy[1, 1] = 3", "data axis 1 of data.npy has size 3: valid -3..2")),
    ("gather-nd --batch-dims 1", (DATA.reshape(4, 3, 1), i8([[0]], [[1]], [[2]], [[3]])), 5,
     ("indices.npy[3, 0, 0] = 3", "data axis 1 of data.npy has size 3")),
    ("scatter-nd", (DATA, i8([0], [4]), ROWS), 5,
     (SECOND_TUPLE + "4", "data axis 0 of data.npy has size 4: valid -4..3")),
    ("scatter-elements --axis -1", (SQUARE, i8([0, 3, 1]), np.zeros((1, 3), "i4")), 5,
     ("indices.npy[0, 1] = 3", "data axis 1 of data.npy has size 3: valid -3..2")),
    ("gather-nd", (DATA, i8([0], [-5])), 5, (SECOND_TUPLE + "-5",)),
    ("gather-nd", (DATA, i8([0], [-INT64_MAX - 1])), 5, (SECOND_TUPLE + str(-INT64_MAX - 1),)),
    ("scatter-nd", (DATA, i8([0], [2**32]), ROWS), 5, (SECOND_TUPLE + str(2**32),)),
    ("gather-nd", (DATA, np.array([[0], [2**63]], "u8")), 5, (SECOND_TUPLE + str(2**63),)),
    ("gather-nd --threads 2", (np.zeros(10, "f4"), LARGE), 5,
     ("indices.npy[200123, 0] = 11", "size 10", "2 of 400000 index tuples")),
    ("gather-nd", (np.zeros((4, 0)), i8([0], [4])), 5, (SECOND_TUPLE + "4",)),
    ("gather-nd", (np.zeros((0, 3)), i8([0])), 5,
     ("indices.npy[0, 0] = 0", "has size 0: no index is valid")),
    ("gather-nd", (DATA, np.zeros(0, "i8")), 4, ("indices.shape[-1] is 0",)),
    ("gather-nd", (DATA, np.zeros((2, 0), "i8")), 4, ("must be in 1..2",)),
    ("gather-nd", (DATA, np.zeros((2, 3), "i8")), 4, ("is 3", "1..2")),
    ("gather-nd --batch-dims 1", (DATA, np.zeros((4, 2), "i8")), 4,
     ("is 2", "batch_dims 1", "1..1")),
    ("gather-nd", (np.float32(1), i8(0)), 4, ("data has rank 0",)),
    ("gather-nd", (DATA, np.int64(1)), 4, ("indices has rank 0",)),
    ("gather-elements", (np.float32(1), np.int64(0)), 4, ("rank 0",)),
    *((f"gather-nd --batch-dims {b}", (DATA, i8([0])), 4, (f"is {b}", "0..1"))
      for b in (-1, 2, INT64_MAX)),
    (f"gather-nd --batch-dims {2**63}", (DATA, i8([0])), 2,
     ("--batch-dims", str(2**63), "64 bits")),
    ("gather-nd --batch-dims 1", (DATA, i8([0], [1])), 4,
     ("batch axis 0", "data has 4", "indices has 2")),
    ("gather-elements --axis 2", (SQUARE, SQUARE), 4, ("axis is 2", "-2..1")),
    ("scatter-elements --axis -3", (SQUARE, SQUARE, SQUARE), 4, ("-3", "-2..1")),
    *(("gather-nd", (DATA, np.zeros((2, 1), code)), 4, ("indices has", text))
      for code, text in (("f8", "float64"), ("?", "np.argwhere"), ("c8", "complex64"), ("U1", "U1"))),
    ("scatter-nd", (DATA, i8([0], [1]), np.zeros((2, 2), "f4")), 4,
     ("updates has shape [2,2]", "[2,3]")),
    ("scatter-nd", (DATA, i8([0], [1]), np.zeros((2, 1), "f4")), 4,
     ("updates has shape [2,1]", "no broadcasting")),
    ("scatter-nd", (DATA, i8([0], [1]), np.zeros((2, 3), "f8")), 4,
     ("updates has dtype float64", "float32", "no silent cast")),
    ("scatter-elements", (SQUARE, i8([0, 1]), np.zeros((1, 3), "i4")), 4,
     ("updates has shape [1,3]", "[1,2]")),
    ("gather-elements", (SQUARE, np.zeros((2, 4), "i8")), 4,
     ("4 along axis 1", "at most data's 3")),
    ("scatter-nd --reduction div", (SQUARE, i8([0]), SQUARE[:1]), 4,
     ("reduction div is not defined for data of int32",)),
    ("scatter-nd --reduction sub --no-include-self", (DATA, i8([0]), ROW), 4,
     ("reduction sub always includes the current value",)),
    ("scatter-nd --reduction max", (np.zeros(3, "c8"), i8([0]), np.zeros(1, "c8")), 4,
     ("max", "complex64", "none, add, sub, mul, mean")),
    ("scatter-nd --reduction min", (np.zeros(3, "U2"), i8([0]), np.zeros(1, "U2")), 4,
     ("min", "U2", "only none")),
    ("gather-nd --spec onnx:13", (DATA, np.array([[0]], "i4")), 4,
     ("onnx:13", "indices of int32", "int64")),
    ("scatter-nd --reduction mean --spec onnx:18", (DATA, i8([0]), ROW), 4,
     ("onnx:18", "no version of onnx accepts it")),
    ("scatter-nd --reduction add --no-include-self --spec onnx:18", (DATA, i8([0]), ROW), 4,
     ("onnx:18", "--no-include-self")),
    ("scatter-nd --reduction max --spec onnx:16", (DATA, i8([0]), ROW), 4, ("onnx:16", "onnx:18")),
    ("gather-nd --spec onnx:10", (DATA, i8([0])), 4, ("onnx:11",)),
    ("scatter-nd --spec openvino:2", (DATA, i8([0]), ROW), 4,
     ("openvino:2", "ScatterNDUpdate", "openvino:3")),
    ("scatter --spec webnn", (DATA, i8(0), ROW), 4, ("webnn", "scatter")),
    ("gather --spec openvino:8 --out-of-bounds fill --fill 7", (DATA, i8(0)), 4,
     ("openvino:8", "fills with 0, not 7")),
    ("gather-nd --spec openvino:5 --batch-dims 2", (np.zeros((2, 2, 2)), np.zeros((2, 2, 1), "i8")),
     4, ("GatherND-5", "up to 1")),
    ("gather --spec openvino:7", (DATA, i8(-1)), 5, ("valid 0..",)),
    ("gather-elements --spec openvino:6", (SQUARE, i8([0, 1])), 4,
     ("size 2 along axis 1", "must be data's 3")),
    ("scatter-elements --spec openvino:3",
     (SQUARE, np.zeros((5, 3), "i8"), np.ones((5, 3), "i4")), 4,
     ("at most data's 3", "openvino:12 is the first")),
    ("gather --spec webnn --axis -1", (DATA, i8([0])), 4,
     ("webnn (gather) does not accept axis -1",)),
    ("gather --spec webnn", (DATA, np.zeros(0, "i8")), 4, ("indices without elements",)),
    ("gather-nd --spec numpy", (DATA, i8([0])), 2, ("onnx:N",)),
    ("gather-nd", (RANK_64, np.zeros([1] * 9, "i8")), 4, ("rank 71", "at most 64")),
]  # fmt: skip


def test_invalid_calls_are_refused_without_side_effects(workdir):
    (workdir / "out.npy").write_bytes(b"existing")
    calls = []
    for number, (words, arrays, _, _) in enumerate(REFUSALS):
        names = [f"{name}{number}.npy" for name in ("data", "indices", "updates")[: len(arrays)]]
        for name, array in zip(names, arrays, strict=True):
            np.save(name, array)
        operator, *options = words.split()
        command = [operator, *names, *options, "-o", "out.npy"]
        calls += [(command, {}), ([*command, "--json", "--dry-run"], {})]
    before = snapshot(workdir)
    reports = run_commands(calls)
    for number, (words, _, status, texts) in enumerate(REFUSALS):
        completed, report = reports[2 * number : 2 * number + 2]
        assert (completed[0], report[0]) == (status, status), (words, completed)
        assert completed[1].startswith("error: "), words
        assert "Traceback" not in completed[1], words
        plain = re.sub(rf"(data|indices|updates){number}\.npy", r"\1.npy", completed[1])
        assert all(text in plain for text in texts), (words, plain)
        record = json.loads(report[1])
        message = completed[1].splitlines()[0].removeprefix("error: ")
        assert (record["status"], record["message"]) == (status, message), words
    assert snapshot(workdir) == before


def test_swapped_arguments_are_recognised():
    save(data=DATA, idx=i8([1], [0]), upd=DATA[:2] + 1)
    hint = "\n  hint: swapped? {}\n"
    first_two = "indices would fit as data, data would fit as indices"
    for command, *names in (
        ("gather-nd", "idx", "data"), ("infer gather-nd", "idx", "data"),
        ("scatter-nd", "idx", "data", "upd"), ("gather", "idx", "data"),
    ):  # fmt: skip
        completed = ndtool(*command.split(), *(f"{name}.npy" for name in names))
        assert completed.status == 4
        assert completed.err.endswith(hint.format(first_two))
    completed = ndtool("scatter-nd", "upd.npy", "idx.npy", "data.npy")
    order = "updates would fit as data, data would fit as updates"
    assert completed.err.endswith(hint.format(order))
    completed = ndtool("scatter-nd", "upd.npy", "data.npy", "idx.npy")
    order = "indices would fit as data, updates would fit as indices, data would fit as updates"
    assert completed.err.endswith(hint.format(order))
    assert "swapped" not in ndtool("gather-nd", "data.npy", "data.npy").err


def test_a_bounds_error_has_the_documented_form(workdir):
    indices = np.zeros((20000, 2), "i8")
    indices[[2345, 7000, 19999], 1] = 120, -121, 5000
    save(data=np.zeros((3, 120)), idx=indices)
    completed = ndtool("gather-nd", "data.npy", "idx.npy")
    assert completed.out == b""
    assert completed.err == (
        "error: indices out of bounds: 3 of 20000 index tuples\n"
        "  --> idx.npy[2345, 1] = 120\n"
        "      data axis 1 of data.npy has size 120: valid -120..119\n"
        "  hint: 120 equals the size of the axis: are the indices 1-based? Then: --index-base 1\n"
    )
    report = ndtool("gather-nd", "data.npy", "idx.npy", "--json").json
    assert report == {
        "error": "BoundsError",
        "status": 5,
        "message": "indices out of bounds: 3 of 20000 index tuples",
        "places": [
            "idx.npy[2345, 1] = 120",
            "data axis 1 of data.npy has size 120: valid -120..119",
        ],
        "hint": "120 equals the size of the axis: are the indices 1-based? Then: --index-base 1",
        "position": [2345],
        "component": 1,
        "axis": 1,
        "value": 120,
        "size": 120,
        "count": 3,
        "total": 20000,
    }


def test_an_output_larger_than_the_disk_is_refused():
    write_sparse("data.npy", "<f4", (1, 2**28))
    write_sparse("idx.npy", "|i1", (2**22, 1))
    completed = ndtool("gather-nd", "data.npy", "idx.npy", "-o", "out.npy")
    assert completed.status == 6
    assert "out.npy" in completed.err
    assert f"needs {2**52 + 128} bytes" in completed.err
    assert sorted(os.listdir()) == ["data.npy", "idx.npy"]


def test_members_of_archives_are_read_and_written():
    np.savez("in.npz", data=DATA, idx=i8([2]))
    command = ("gather-nd", "in.npz:data", "in.npz:idx")
    assert ndtool(*command, "-o", "out.npz").status == 0
    assert ndtool(*command, "-o", "two.npz:picked").status == 0
    with np.load("out.npz") as out, np.load("two.npz") as two:
        assert out["output"].tolist() == two["picked"].tolist() == [[6, 7, 8]]
    completed = ndtool("gather-nd", "in.npz", "in.npz:idx")
    assert completed.status == 2
    assert "data: float32[4,3]" in completed.err
    completed = ndtool("gather-nd", "in.npz:nothing", "in.npz:idx")
    assert completed.status == 3
    assert "idx: int64[1,1]" in completed.err


def test_names_that_look_like_options_are_accepted_as_values_and_after_two_dashes(workdir):
    save(**{"-x": DATA, "-q": i8([1])})
    assert ndtool("gather-nd", "-o", "-y.npy", "--", "-x.npy", "-q.npy").status == 0
    assert np.load("-y.npy").tolist() == [[3, 4, 5]]
    assert ndtool("gather-nd", "-x.npy", "-q.npy").status == 2
    for words in (("-o", "-q"), ("-q", "-o-q"), ("--output", "-q", "-q")):
        assert ndtool("gather-nd", *words, "--", "-x.npy", "-q.npy").status == 0
        assert np.load(str(workdir / "-q")).tolist() == [[3, 4, 5]]
        os.remove("-q")


def test_a_dry_run_prints_the_trace_and_changes_nothing(workdir):
    save(data=DATA, idx=i8([1]))
    before = snapshot(workdir)
    command = ("gather-nd", "data.npy", "idx.npy", "--dry-run")
    for options in (("-o", "new.npy"), ()):
        completed = ndtool(*command, *options)
        assert (completed.status, completed.out) == (0, b"")
        assert "indices.shape[:-1] + data.shape[b+k:]" in completed.err
        assert "[1,3]" in completed.err
        assert ndtool(*command, *options, "-q").err == ""
    assert ndtool(*command, "-o", ".").status == 7
    assert snapshot(workdir) == before


def test_json_describes_a_run(workdir):
    save(data=DATA, idx=i8([1]))
    with open("data.npy", "ab") as file:
        file.write(b"abc")
    command = ("gather-nd", "data.npy", "idx.npy", "--json", "--threads", "3", "--spec", "onnx:15")
    report = ndtool(*command, "-o", "out.npy").json
    assert list(report) == [
        "version", "operator", "spec", "resolved", "attributes", "inputs", "output", "trace",
        "seconds", "threads", "plan", "dry_run", "warnings",
    ]  # fmt: skip
    assert report["operator"] == "gather_nd"
    assert report["spec"] == "onnx:15"
    assert report["resolved"] == {"standard": "onnx", "title": "GatherND", "version": 13}
    assert report["attributes"] == {"batch_dims": 0}
    assert report["inputs"] == {
        "data": {"name": "data.npy", "dtype": "float32", "shape": [4, 3]},
        "indices": {"name": "idx.npy", "dtype": "int64", "shape": [1, 1]},
    }
    shape = {"dtype": "float32", "shape": [1, 3], "bytes": 12}
    assert report["output"] == {"name": "out.npy", **shape}
    assert {"rule": "rank(data) >= 1", "with": "2 >= 1", "result": "ok"} in report["trace"]
    assert (report["threads"], report["dry_run"]) == (3, False)
    plan = report["plan"]
    counts = ["partitions", "blocks", "read", "written", "spilled", "memory"]
    assert list(plan) == ["way", *counts, "requests", "reason"]
    assert (plan["way"], plan["requests"]) == ("direct", {})
    assert (plan["partitions"], plan["blocks"], plan["spilled"]) == (0, 0, 0)
    assert (plan["read"], plan["written"]) == (8 + 12, 12)
    assert report["seconds"] > 0
    assert report["warnings"] == ["data.npy: 3 bytes after the array are ignored"]
    # if the array goes to stdout, the object goes to stderr
    for name in ("-", "/dev/stdout", "npy:/dev/stdout"):
        completed = ndtool(*command, "-o", name)
        assert np.load(io.BytesIO(completed.out)).tolist() == [[3, 4, 5]]
        assert completed.out.endswith(np.float32(5).tobytes())
        assert json.loads(completed.err)["output"] == {"name": name, **shape}
    assert json.loads(ndtool(*command, "--dry-run").out)["dry_run"] is True


def test_json_of_an_error_goes_to_the_stream_of_the_object():
    save(data=DATA, idx=i8([7]))
    command = ("gather-nd", "data.npy", "idx.npy", "--json")
    infer = ("infer", "gather-nd", "data.npy", "idx.npy", "--json")
    objects = (
        (5, *command, "-o", "out.npy"), (5, *command, "-oout.npz:x"), (5, *command, "--output=out.npy"),
        (5, *command, "--dry-run"), (5, *command, "-o", "-", "--dry-run"),
        (2, *command, "--wrong", "-o", "out.npy"), (2, *command, "--threads", "no", "--output", "out.npy"),
        (2, *command, "--wrong", "--dry-run"), (2, "wrong", "--json"), (2, "--json", "--wrong"),
        (2, "infer", "--json"), (4, *infer, "--batch-dims", "7"), (2, *infer, "--batch-dims", "x"),
        (3, "inspect", "idx.npy:x", "--json"), (3, "convert", "nosuch", "out.npy", "--json"),
    )  # fmt: skip
    arrays = (
        (5, *command), (5, *command, "-o", "-"), (5, *command, "-o", "/dev/stdout"), (2, *command, "--wrong"),
        (2, *command, "--wrong", "-o", "-"), (2, *command, "--threads", "no", "-o-"),
        (3, "convert", "nosuch", "-", "--json"),
    )  # fmt: skip
    for status, *words in objects:
        completed = ndtool(*words)
        result = completed.status, completed.err, json.loads(completed.out)["status"]
        assert result == (status, "", status), words
    for status, *words in arrays:
        completed = ndtool(*words)
        result = completed.status, completed.out, json.loads(completed.err)["status"]
        assert result == (status, b"", status), words
    completed = ndtool(*command, env={"NDTOOL_OUTPUT": "out.npy", "NDTOOL_THREADS": "no"})
    assert (completed.status, completed.err, completed.json["error"]) == (2, "", "UsageError")
    completed = ndtool("inspect", "data.npy", "nosuch.npy", "--json")
    assert json.loads(completed.out)["arrays"][1]["dtype"] is None
    assert json.loads(completed.err)["status"] == 3


def test_json_of_an_error_goes_to_stderr_if_stdout_fails():
    save(data=DATA, idx=i8([7]))
    command = f"{NDTOOL[0]} -m ndtool gather-nd data.npy idx.npy -o out.npy --json"
    for closed in (">&-", ">/dev/full", "| true"):
        completed = execute("bash", "-c", f"set -o pipefail; {command} {closed}")
        assert (completed.status, completed.out) == (5, b"")
        assert closed == "| true" or json.loads(completed.err)["status"] == 5


def test_warnings_are_one_line_and_quiet_prints_only_errors():
    save(data=DATA, idx=i8([1]))
    with open("data.npy", "ab") as file:
        file.write(b"abc")
    command = ("gather-nd", "data.npy", "idx.npy", "-o", "out.npy")
    assert ndtool(*command).err == "warning: data.npy: 3 bytes after the array are ignored\n"
    assert ndtool(*command, "-q").err == ""
    assert "error" in ndtool(*command[:-1], "nowhere/out.npy", "-q").err


def test_trace_is_printed_on_request():
    save(data=DATA, idx=i8([1]))
    command = ("gather-nd", "data.npy", "idx.npy", "-o", "out.npy")
    completed = ndtool(*command, "--trace")
    title = "gather_nd: data float32[4,3], indices int64[1,1], batch_dims 0"
    assert completed.err.splitlines()[0] == title
    assert "\x1b" not in completed.err
    assert "broken" not in completed.err
    completed = ndtool(*command, "--trace", "--batch-dims", "2")
    assert completed.err.index("broken") < completed.err.index("error: ")
    assert "broken" not in ndtool(*command, "--batch-dims", "2").err


def test_bfloat16_needs_its_name():
    raw = (np.array([1, 2, 3], "f4").view("u4") >> 16).astype("u2").view("V2")
    save(data=raw, idx=i8([0], [0]), upd=raw[1:])
    inputs, add = ("scatter-nd", "data.npy", "idx.npy", "upd.npy"), ("--reduction", "add")
    command = (*inputs, *add, "-o", "out.npy")
    completed = ndtool(*command)
    assert completed.status == 4
    assert "--dtype bfloat16" in completed.err
    assert ndtool(*command, "--dtype", "bfloat16").status == 0
    result = np.load("out.npy")
    assert result.dtype == "V2"
    assert (result.view("u2").astype("u4") << 16).view("f4").tolist() == [6, 2, 3]
    pytest.importorskip("ml_dtypes")
    verified = ndtool("verify", *inputs, "out.npy", *add, "--dtype", "bfloat16")
    assert (verified.status, verified.err) == (0, "")


def test_infer_prints_the_output_of_types_and_files():
    words = ("infer", "gather-nd", "float32[8,128,64]", "int64[8,5,1]", "--batch-dims", "1")
    completed = ndtool(*words)
    assert (completed.status, completed.err) == (0, "")
    assert completed.out.decode().splitlines()[-1] == "output float32[8,5,64], 10.2 kB"
    save(data=DATA)
    report = ndtool("infer", "gather-elements", "data.npy", "int64[4,9]", "--axis", "1", "--json")
    output = {"name": None, "dtype": "float32", "shape": [4, 9], "bytes": 144}
    assert report.json["output"] == output
    stream = ndtool("infer", "gather-nd", "-", "int8[2,1]", stdin=npy(DATA))
    assert b"output float32[2,3], 24 bytes" in stream.out
    dates = ndtool("infer", "gather-nd", "datetime64[ns][3]", "int8[2,1]")
    assert b"output datetime64[ns][2], 16 bytes" in dates.out


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("gather-nd", "float32[8,x-y]", "int64[8,2]"), 2, "dtype[d0,d1,...]"),
        (("gather-nd", f"float32[{2**63}]", "int64[8,2]"), 2, "dtype[d0,d1,...]"),
        (("gather-nd", f"float32[{'1,' * 64}1]", "int64[8,2]"), 2, "rank 65: valid 0..64"),
        (("gather-nd", "float33[8]", "int64[8,2]"), 4, "float33"),
        (("gather-nd", "float32[8]", "int32[8,1]", "--axis", "1"), 2, "--axis"),
        (("gather-nd", "nothing.npy", "int64[8,2]"), 3, "nothing.npy"),
        (("scatter-nd", "float32[8]", "int64[8,1]"), 2, "UPDATES"),
        (("gather-nd", f"float32[{2**62}]", f"int64[{2**62},1]"), 4, "bytes"),
        (("max-pool", "float32[8]"), 2, "max-pool"),
    ],
)
def test_infer_refuses_invalid_arguments(arguments, status, text):
    completed = ndtool("infer", *arguments)
    assert (completed.status, completed.out) == (status, b"")
    assert text in completed.err
    assert "Traceback" not in completed.err


def test_inspect_prints_the_metadata_of_files():
    np.save("fortran.npy", np.asfortranarray(DATA.astype(">f4")))
    np.savez("a.npz", x=DATA, y=i8(1))
    np.savez_compressed("z.npz", x=DATA)
    completed = ndtool("inspect", "fortran.npy", "a.npz", "z.npz:x")
    assert (completed.status, completed.err) == (0, "")
    lines = [line.split() for line in completed.out.decode().splitlines()]
    assert " ".join(lines[1]) == "fortran.npy float32[4,3] Fortran, big-endian 48 1.0 128 yes"
    assert [line[0] for line in lines[2:]] == ["a.npz:x", "a.npz:y", "z.npz:x"]
    assert lines[4][-2:] == ["no:", "deflate"]
    (report,) = ndtool("inspect", "fortran.npy", "--json").json["arrays"]
    assert report == {
        "name": "fortran.npy", "member": None, "dtype": "float32", "byte_order": "big",
        "shape": [4, 3], "order": "F", "chunks": None, "bytes": 48, "npy_version": [1, 0],
        "offset": 128, "mappable": True, "problem": None, "warning": None,
    }  # fmt: skip
    assert b"int8[3]" in ndtool("inspect", "-", stdin=npy(np.zeros(3, "i1"))).out


def test_inspect_continues_after_an_unreadable_file():
    save(good=DATA)
    completed = ndtool("inspect", "nothing.npy", "good.npy", __file__)
    assert completed.status == 3
    assert completed.err.startswith("error: nothing.npy: No such file")
    lines = completed.out.decode().splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["nothing.npy", "good.npy", __file__]
    assert "none: No such file" in lines[1]
    assert ndtool("inspect", "nothing.npy").out == b""
    assert ndtool("inspect").status == 2


def test_spec_lists_the_supported_standards():
    completed = ndtool("spec")
    assert (completed.status, completed.err) == (0, "")
    assert len(completed.out.decode().splitlines()) == 42
    text = ndtool("spec", "scatter-nd").out.decode()
    assert "GatherND" not in text
    assert "reduction (none, add, mul, max, min)" in text
    report = ndtool("spec", "gather-nd", "--json").json["specs"]
    names = [row["spec"] for row in report]
    assert names == [
        "onnx:11", "onnx:12", "onnx:13", "openvino:5", "openvino:8", "webnn", "ndtool",
    ]  # fmt: skip
    assert report[0]["attributes"] == []
    assert report[4]["negatives"] is False
    assert ndtool("spec", "pool").status == 2
