"""Commands in processes: results, refusals, and the absence of leftover files."""

import io
import json
import os
from typing import Any, NamedTuple

import numpy as np
import pytest
from command import NDTOOL, execute, ndtool, save, snapshot
from npyfile import npy, write_sparse

from ndtool.analysis.oracle import reference

pytestmark = pytest.mark.usefixtures("workdir")

INT64_MAX = 2**63 - 1
DATA = np.arange(12, dtype="f4").reshape(4, 3)
SQUARE = np.arange(9, dtype="i4").reshape(3, 3)


def i8(*values: Any) -> np.ndarray:
    return np.array(values, "i8")


class Call(NamedTuple):
    """One command on arrays, its exit status, and texts that its error must contain."""

    title: str
    operator: str
    data: Any
    indices: Any
    updates: Any = None
    flags: str = ""
    status: int = 0
    texts: tuple[str, ...] = ()

    def save(self) -> list[str]:
        arrays = {"data": self.data, "indices": self.indices, "updates": self.updates}
        present = {name: array for name, array in arrays.items() if array is not None}
        save(**present)
        return [f"{name}.npy" for name in present]

    @property
    def command(self) -> str:
        return self.operator.replace("_", "-")


def out_of_bounds(title, operator, data, indices, updates=None, flags="", position="", axis=""):
    return Call(
        title, operator, data, indices, updates, flags, 5, ("out of bounds", position, axis)
    )


def refused_case(title, operator, data, indices, updates=None, flags="", texts=(), status=4):
    return Call(title, operator, data, indices, updates, flags, status, texts)


ROWS = np.zeros((2, 3), "f4")
SECOND_TUPLE = "indices.npy[1, 0] = "
AXIS_0 = "data axis 0 of data.npy has size 4: valid -4..3"
CALLS = [
    out_of_bounds("index equal to the size", "gather_nd", DATA, i8([0], [4]), None, "", SECOND_TUPLE + "4",
           AXIS_0),
    out_of_bounds("second component equal to the size", "gather_nd", DATA, i8([0, 0], [1, 3]), None,
           "", "indices.npy[1, 1] = 3", "data axis 1 of data.npy has size 3: valid -3..2"),
    out_of_bounds("equal to the size behind a batch axis", "gather_nd", DATA.reshape(4, 3, 1),
           i8([[0]], [[1]], [[2]], [[3]]), None,
           "--batch-dims 1", "indices.npy[3, 0, 0] = 3", "data axis 1 of data.npy has size 3"),
    out_of_bounds("index equal to the size", "scatter_nd", DATA, i8([0], [4]), ROWS, "", SECOND_TUPLE + "4",
           AXIS_0),
    out_of_bounds("index equal to the size", "gather_elements", SQUARE, i8([0, 3, 1]), None, "",
           "indices.npy[0, 1] = 3", "data axis 0 of data.npy has size 3: valid -3..2"),
    out_of_bounds("equal to the size of the last axis", "scatter_elements", SQUARE, i8([0, 3, 1]),
           np.zeros((1, 3), "i4"), "--axis -1",
           "indices.npy[0, 1] = 3", "data axis 1 of data.npy has size 3: valid -3..2"),
    out_of_bounds("index below minus the size", "gather_nd", DATA, i8([0], [-5]), None, "",
           SECOND_TUPLE + "-5", AXIS_0),
    out_of_bounds("index below minus the size", "scatter_elements", SQUARE, i8([-4, 0, 0]),
           np.zeros((1, 3), "i4"), "", "indices.npy[0, 0] = -4", "valid -3..2"),
    Call("lowest and highest index", "gather_nd", DATA, i8([-4], [3])),
    Call("lowest and highest index", "scatter_elements", SQUARE, i8([-3, 2, 0]),
         np.ones((1, 3), "i4")),
    out_of_bounds("the lowest int64", "gather_nd", DATA, i8([0], [-INT64_MAX - 1]), None, "",
           SECOND_TUPLE + str(-INT64_MAX - 1)),
    out_of_bounds("the highest int64", "scatter_nd", DATA, i8([0], [INT64_MAX]), ROWS, "",
           SECOND_TUPLE + str(INT64_MAX)),
    out_of_bounds("index that wraps in a product", "gather_nd", DATA, i8([0], [2**62 + 2**61]), None,
           "", SECOND_TUPLE),
    out_of_bounds("index that is 0 in 32 bits", "gather_nd", DATA, i8([0], [2**32]), None, "",
           SECOND_TUPLE + str(2**32)),
    out_of_bounds("index of 10**12", "gather_elements", SQUARE, i8([0, 10**12, 1]), None, "",
           f"= {10**12}"),
    out_of_bounds("the first of two bad indices, two threads", "gather_nd", np.zeros(10, "f4"),
           np.where(np.isin(np.arange(400_000), (399_000, 200_123)), 11, 0)[:, None], None,
           "--threads 2", "indices.npy[200123, 0] = 11", "size 10"),
    out_of_bounds("only the last of 10**7 is bad", "gather_nd", np.zeros(10, "i1"),
           np.where(np.arange(10**7) == 10**7 - 1, 10, 0).astype("i1")[:, None], None, "",
           "indices.npy[9999999, 0] = 10", "1 of 10000000 index tuples"),
    out_of_bounds("bad index of empty slices", "gather_nd", np.zeros((4, 0)), i8([0], [4]), None, "",
           SECOND_TUPLE + "4", AXIS_0),
    out_of_bounds("index into an axis of size 0", "gather_nd", np.zeros((0, 3)), i8([0]), None, "",
           "indices.npy[0, 0] = 0", "has size 0: no index is valid"),
    Call("no indices", "gather_nd", DATA, np.zeros((0, 1), "i8")),
    Call("no indices", "scatter_nd", DATA, np.zeros((0, 1), "i8"), np.zeros((0, 3), "f4")),
    refused_case("one tuple of no components", "gather_nd", DATA, np.zeros(0, "i8"),
            texts=("indices.shape[-1] is 0",)),
    refused_case("tuples of no components", "gather_nd", DATA, np.zeros((2, 0), "i8"),
            texts=("must be in 1..2",)),
    Call("tuples of no components", "scatter_nd", SQUARE, np.zeros((2, 0), "i8"),
         np.ones((2, 3, 3), "i4"), "--reduction add"),
    refused_case("tuples longer than the rank", "gather_nd", DATA, np.zeros((2, 3), "i8"),
            texts=("is 3", "1..2")),
    refused_case("tuples too long behind a batch axis", "gather_nd", DATA, np.zeros((4, 2), "i8"),
            None, "--batch-dims 1", ("is 2", "batch_dims 1", "1..1")),
    refused_case("data of rank 0", "gather_nd", np.float32(1), i8([0]), texts=("data has rank 0",)),
    refused_case("indices of rank 0", "gather_nd", DATA, np.int64(1), texts=("indices has rank 0",)),
    refused_case("both of rank 0", "gather_elements", np.float32(1), np.int64(0), texts=("rank 0",)),
    refused_case("batch_dims of -1", "gather_nd", DATA, i8([0]), None, "--batch-dims -1",
            ("is -1", "0..1")),
    refused_case("batch_dims equal to the rank", "gather_nd", DATA, i8([0]), None, "--batch-dims 2",
            ("is 2", "0..1")),
    refused_case("batch_dims of 10", "gather_nd", DATA, i8([0]), None, "--batch-dims 10",
            ("is 10", "0..1")),
    refused_case("the largest batch_dims", "gather_nd", DATA, i8([0]), None, f"--batch-dims {INT64_MAX}",
            (f"is {INT64_MAX}",)),
    refused_case("batch_dims of 2**63", "gather_nd", DATA, i8([0]), None, f"--batch-dims {2**63}",
            ("--batch-dims", str(2**63), str(INT64_MAX)), 2),
    refused_case("batch axes that differ", "gather_nd", DATA, i8([0], [1]), None, "--batch-dims 1",
            ("batch axis 0", "data has 4", "indices has 2")),
    Call("a batch axis of size 0", "gather_nd", np.zeros((0, 3)), np.zeros((0, 2, 1), "i8"), None,
         "--batch-dims 1"),
    refused_case("axis equal to the rank", "gather_elements", SQUARE, SQUARE, None, "--axis 2",
            ("axis is 2", "-2..1")),
    refused_case("axis below minus the rank", "scatter_elements", SQUARE, SQUARE, SQUARE, "--axis -3",
            ("-3", "-2..1")),
    Call("axis -1", "gather_elements", SQUARE, i8([0, 2], [1, 1], [2, 0]), None, "--axis -1"),
    *(
        refused_case(f"indices of type {code}", "gather_nd", DATA, np.zeros((2, 1), code), None, "",
                ("indices has", w))
        for code, w in (("f8", "float64"), ("?", "np.argwhere"), ("c8", "complex64"), ("U1", "U1"))
    ),
    out_of_bounds("uint64 index of 2**63", "gather_nd", DATA, np.array([[0], [2**63]], "u8"), None, "",
           SECOND_TUPLE + str(2**63)),
    Call("int32 indices", "gather_nd", DATA, np.array([[0], [-1]], "i4")),
    Call("int8 indices", "scatter_elements", SQUARE, np.array([[0, -1]], "i1"),
         np.ones((1, 2), "i4")),
    refused_case("int32 indices under onnx:13", "gather_nd", DATA, np.array([[0]], "i4"), None,
            "--spec onnx:13", ("onnx:13", "indices of int32", "int64")),
    refused_case("updates one column short", "scatter_nd", DATA, i8([0], [1]),
            np.zeros((2, 2), "f4"), texts=("updates has shape [2,2]", "[2,3]")),
    refused_case("updates that would broadcast", "scatter_nd", DATA, i8([0], [1]),
            np.zeros((2, 1), "f4"), texts=("updates has shape [2,1]", "no broadcasting")),
    refused_case("updates of the right size only", "scatter_nd", DATA, i8([0], [1]),
            np.zeros((3, 2), "f4"), texts=("updates has shape [3,2]", "[2,3]")),
    refused_case("updates of another type", "scatter_nd", DATA, i8([0], [1]), np.zeros((2, 3), "f8"),
            texts=("updates has dtype float64", "float32", "no silent cast")),
    refused_case("updates longer than indices", "scatter_elements", SQUARE, i8([0, 1]),
            np.zeros((1, 3), "i4"), texts=("updates has shape [1,3]", "[1,2]")),
    refused_case("indices too long off the axis", "gather_elements", SQUARE, np.zeros((2, 4), "i8"),
            texts=("4 along axis 1", "at most data's 3")),
    Call("indices longer than data", "scatter_elements", SQUARE, np.zeros((5, 3), "i8"),
         np.ones((5, 3), "i4"), "--reduction add"),
    Call("duplicates: the last update is written", "scatter_nd", SQUARE, i8([1], [1]),
         i8([1, 2, 3], [4, 5, 6]).astype("i4")),
    *(
        Call(f"duplicates: {r}, {t} threads", "scatter_nd", DATA,
             np.arange(600).reshape(600, 1) % 3,
             np.linspace(-2, 2, 1800, dtype="f4").reshape(600, 3), f"--reduction {r} --threads {t}")
        for r in ("add", "sub", "mul", "div", "max", "min", "mean")
        for t in (1, 2)
    ),
    Call("a mean of integers, rounded down", "scatter_nd", np.array([-7, 5], "i1"), i8([0], [0]),
         np.array([1, 1], "i1"), "--reduction mean"),
    Call("another library's name", "scatter_elements", SQUARE, np.zeros((3, 3), "i8"), SQUARE,
         "--axis 1 --reduction amax"),
    refused_case("a quotient of integers", "scatter_nd", SQUARE, i8([0]), SQUARE[:1], "--reduction div",
            ("reduction div is not defined for data of int32",)),
    refused_case("a mean in ONNX", "scatter_nd", DATA, i8([0]), ROWS[:1],
            "--reduction mean --spec onnx:18", ("onnx:18", "no version of onnx accepts it")),
    refused_case("no --no-include-self in ONNX", "scatter_nd", DATA, i8([0]), ROWS[:1],
            "--reduction add --no-include-self --spec onnx:18", ("onnx:18", "no include_self")),
    refused_case("a mean of index tuples in openvino:15", "scatter_nd", DATA, i8([0]), ROWS[:1],
            "--reduction mean --spec openvino:15", ("openvino:15", "mean")),
    refused_case("a difference without the current values", "scatter_nd", DATA, i8([0]), ROWS[:1],
            "--reduction sub --no-include-self", ("reduction sub always includes the current value",)),
    Call("NaN, infinity and zeros in max", "scatter_nd", np.array([0.0, 1.0, np.nan]),
         i8([0], [1], [2], [1], [0]), np.array([-0.0, np.nan, 1, np.inf, 0.0]), "--reduction max"),
    Call("products that overflow", "scatter_nd", np.array([127, -128], "i1"), i8([0], [1], [0]),
         np.array([1, -1, 127], "i1"), "--reduction mul"),
    refused_case("max of complex numbers", "scatter_nd", np.zeros(3, "c8"), i8([0]), np.zeros(1, "c8"),
            "--reduction max", ("max", "complex64", "none, add, sub, mul, mean")),
    refused_case("min of text", "scatter_nd", np.zeros(3, "U2"), i8([0]), np.zeros(1, "U2"),
            "--reduction min", ("min", "U2", "only none")),
    refused_case("max before onnx:18", "scatter_nd", DATA, i8([0]), ROWS[:1],
            "--reduction max --spec onnx:16", ("onnx:16", "onnx:18")),
    refused_case("add before onnx:16", "scatter_nd", DATA, i8([0]), ROWS[:1],
            "--reduction add --spec onnx:13", ("onnx:13", "onnx:16")),
    refused_case("older than the operator", "gather_nd", DATA, i8([0]), None, "--spec onnx:10",
            ("onnx:11",)),
    refused_case("an operator that openvino lacks", "scatter_nd", DATA, i8([0]), ROWS[:1],
            "--spec openvino:2", ("openvino:2", "ScatterNDUpdate", "openvino:3")),
    refused_case("an operator that webnn lacks", "scatter", DATA, i8(0), ROWS[:1],
            "--spec webnn", ("webnn", "scatter")),
    refused_case("a fill value in openvino:8", "gather", DATA, i8(0), None,
            "--spec openvino:8 --out-of-bounds fill --fill 7", ("openvino:8", "fill is 7")),
    refused_case("two batch axes in openvino:5", "gather_nd", np.zeros((2, 2, 2)), np.zeros((2, 2, 1), "i8"),
            None, "--spec openvino:5 --batch-dims 2", ("GatherND-5", "up to 1")),
    refused_case("negative indices in openvino:7", "gather", DATA, i8(-1), None, "--spec openvino:7",
            ("valid 0..",), 5),
    refused_case("int8 indices in webnn", "gather", DATA, np.int8([0]), None, "--spec webnn",
            ("webnn", "int8")),
    refused_case("shorter indices in openvino:6", "gather_elements", SQUARE, i8([0, 1]), None,
            "--spec openvino:6", ("size 2 along axis 1", "must be data's 3")),
    refused_case("longer indices in openvino:3", "scatter_elements", SQUARE, np.zeros((5, 3), "i8"),
            np.ones((5, 3), "i4"), "--spec openvino:3", ("at most data's 3", "openvino:12 is the first")),
    refused_case("a negative axis in webnn", "gather", DATA, i8([0]), None, "--spec webnn --axis -1",
            ("webnn (gather) does not accept axis -1",)),
    refused_case("an axis without elements in webnn", "gather", DATA, np.zeros(0, "i8"), None, "--spec webnn",
            ("indices without elements",)),
    refused_case("no standard at all", "gather_nd", DATA, i8([0]), None, "--spec numpy", ("onnx:N",),
            2),
    Call("tuples as long as the rank", "gather_nd", np.arange(6, dtype="u1").reshape(1, 2, 3),
         i8([0, 1, 2], [0, 0, 0])),
    Call("rank 64", "gather_nd", np.arange(2).reshape([1] * 63 + [2]), np.zeros((2, 63), "i8")),
    refused_case("output of rank 71", "gather_nd", np.arange(2).reshape([1] * 63 + [2]),
            np.zeros([1] * 9, "i8"), texts=("rank 71", "at most 64")),
]  # fmt: skip


def case_id(call):
    return f"{call.command}: {call.title}"


ALIASES = {"amax": "max"}


def expected_result(call):
    words = iter(call.flags.split())
    options = {flag.removeprefix("--"): value for flag, value in zip(words, words, strict=True)}
    attributes: dict[str, Any] = {}
    if call.operator == "gather_nd":
        attributes["batch_dims"] = int(options.get("batch-dims", 0))
    elif call.operator != "scatter_nd":
        attributes["axis"] = int(options.get("axis", 0))
    reduction = options.get("reduction", "none")
    if call.updates is not None:
        attributes |= {"updates": call.updates, "reduction": ALIASES.get(reduction, reduction)}
    return getattr(reference, call.operator)(call.data, call.indices, **attributes)


@pytest.mark.parametrize("call", [c for c in CALLS if not c.status], ids=case_id)
def test_valid_calls_give_the_bits_of_the_reference(call, workdir):
    inputs = call.save()
    before = snapshot(workdir)
    completed = ndtool(call.command, *inputs, *call.flags.split(), "-o", "out.npy")
    assert (completed.status, completed.out, completed.err) == (0, b"", "")
    result, reference_output = np.load("out.npy"), expected_result(call)
    assert (result.dtype, result.shape) == (reference_output.dtype, reference_output.shape)
    assert result.tobytes() == reference_output.tobytes()
    os.unlink("out.npy")
    assert snapshot(workdir) == before


@pytest.mark.parametrize("call", [c for c in CALLS if c.status], ids=case_id)
def test_invalid_calls_are_refused_without_side_effects(call, workdir):
    inputs = call.save()
    (workdir / "out.npy").write_bytes(b"existing")
    before = snapshot(workdir)
    command = [call.command, *inputs, *call.flags.split(), "-o", "out.npy"]
    completed = ndtool(*command)
    assert (completed.status, completed.out) == (call.status, b"")
    assert completed.err.startswith("error: ")
    assert "Traceback" not in completed.err
    for text in call.texts:
        assert text in completed.err
    assert snapshot(workdir) == before
    report = ndtool(*command, "--json", "--dry-run")
    assert (report.status, report.err) == (call.status, "")
    assert report.json["status"] == call.status
    assert report.json["message"] == completed.err.splitlines()[0].removeprefix("error: ")
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


def test_a_million_bad_indices_give_a_short_message():
    save(data=np.zeros(3), idx=np.full((10**6, 1), 7))
    completed = ndtool("gather-nd", "data.npy", "idx.npy", "-o", "out.npy")
    assert completed.status == 5
    assert "1000000 of 1000000" in completed.err
    assert len(completed.err) < 500


def test_an_output_of_too_many_elements_is_refused():
    write_sparse("data.npy", "<f4", (1, 2**40, 0))
    write_sparse("idx.npy", "<i8", (2**24, 1))
    completed = ndtool("gather-nd", "data.npy", "idx.npy", "-o", "out.npy")
    assert completed.status == 4
    assert f"{2**64} elements" in completed.err
    assert not os.path.exists("out.npy")


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


def test_names_that_look_like_options_are_accepted_after_two_dashes():
    save(**{"-x": DATA, "-q": i8([1])})
    assert ndtool("gather-nd", "-o", "-y.npy", "--", "-x.npy", "-q.npy").status == 0
    assert np.load("-y.npy").tolist() == [[3, 4, 5]]
    assert ndtool("gather-nd", "-x.npy", "-q.npy").status == 2


def test_no_clobber_and_dry_run_change_nothing(workdir):
    save(data=DATA, idx=i8([1]), out=i8(0))
    before = snapshot(workdir)
    command = ("gather-nd", "data.npy", "idx.npy", "-o")
    for options in ((), ("--dry-run",)):
        completed = ndtool(*command, "out.npy", "--no-clobber", *options)
        assert completed.status == 7
        assert "out.npy exists" in completed.err
    completed = ndtool(*command, "new.npy", "--dry-run")
    assert (completed.status, completed.out) == (0, b"")
    assert "indices.shape[:-1] + data.shape[b+k:]" in completed.err
    assert "[1,3]" in completed.err
    assert ndtool(*command, "new.npy", "--dry-run", "-q").err == ""
    assert ndtool(*command, "nowhere/new.npy", "--dry-run").status == 7
    assert ndtool(*command, ".", "--dry-run").status == 7
    piped = ndtool("gather-nd", "data.npy", "idx.npy", "--dry-run")
    assert (piped.status, piped.out) == (0, b"")
    assert snapshot(workdir) == before
    assert ndtool(*command, "new.npy", "--no-clobber", "--sync").status == 0


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


def test_json_describes_errors():
    save(data=DATA, idx=i8([1, 2, 3]))
    report = ndtool("gather-nd", "data.npy", "idx.npy", "--json").json
    assert report["error"] == "RuleError"
    assert report["trace"][-1] == {
        "rule": "1 <= k <= r - b",
        "with": "1 <= 3 <= 2 - 0",
        "result": "broken",
    }


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
        assert (completed.status, completed.err, json.loads(completed.out)["status"]) == (
            status,
            "",
            status,
        ), words
    for status, *words in arrays:
        completed = ndtool(*words)
        assert (completed.status, completed.out, json.loads(completed.err)["status"]) == (
            status,
            b"",
            status,
        ), words
    completed = ndtool(*command, env={"NDTOOL_OUTPUT": "out.npy", "NDTOOL_THREADS": "no"})
    assert (completed.status, completed.err, completed.json["error"]) == (2, "", "UsageError")
    completed = ndtool(
        "inspect", "data.npy", "nosuch.npy", "--json"
    )  # the error object goes to stderr
    assert (
        json.loads(completed.out)["arrays"][1]["dtype"],
        json.loads(completed.err)["status"],
    ) == (None, 3)


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


def test_environment_variables_set_options():
    save(data=DATA, idx=i8([1]), upd=np.ones((1, 3), "f4"))
    command = ("scatter-nd", "data.npy", "idx.npy", "upd.npy", "--json", "-o", "out.npy")
    env = {"NDTOOL_THREADS": "3", "NDTOOL_SPEC": "onnx:18", "NDTOOL_REDUCTION": "max"}
    report = ndtool(*command, env=env).json
    assert (report["threads"], report["spec"]) == (3, "onnx:18")
    assert report["attributes"] == {"reduction": "max", "batch_dims": 0}
    assert ndtool(*command, "--threads", "1", env=env).json["threads"] == 1
    assert ndtool(*command, env={"NDTOOL_THREADS": "abc"}).status == 2
    assert ndtool(*command, env={"NDTOOL_NO_CLOBBER": "1"}).status == 7
    assert ndtool(*command[:-3], env={"NDTOOL_OUTPUT": "env.npy", "NDTOOL_QUIET": "1"}).out == b""
    assert np.load("env.npy")[1].tolist() == [1, 1, 1]


def test_bfloat16_needs_its_name():
    raw = (np.array([1, 2, 3], "f4").view("u4") >> 16).astype("u2").view("V2")
    save(data=raw, idx=i8([0], [0]), upd=raw[1:])
    command = (
        "scatter-nd",
        "data.npy",
        "idx.npy",
        "upd.npy",
        "--reduction",
        "add",
        "-o",
        "out.npy",
    )
    completed = ndtool(*command)
    assert completed.status == 4
    assert "--dtype bfloat16" in completed.err
    assert ndtool(*command, "--dtype", "bfloat16").status == 0
    result = np.load("out.npy")
    assert result.dtype == "V2"
    assert (result.view("u2").astype("u4") << 16).view("f4").tolist() == [6, 2, 3]
    pytest.importorskip("ml_dtypes")
    verified = ndtool("verify", *command[:4], "out.npy", *command[4:6], "--dtype", "bfloat16")
    assert (verified.status, verified.err) == (0, "")


def test_infer_prints_the_output_of_types_and_files():
    completed = ndtool(
        "infer", "gather-nd", "float32[8,128,64]", "int64[8,5,1]", "--batch-dims", "1"
    )
    assert (completed.status, completed.err) == (0, "")
    assert completed.out.decode().splitlines()[-1] == "output float32[8,5,64], 10.2 kB"
    save(data=DATA)
    report = ndtool("infer", "gather-elements", "data.npy", "int64[4,9]", "--axis", "1", "--json")
    assert report.json["output"] == {
        "name": None,
        "dtype": "float32",
        "shape": [4, 9],
        "bytes": 144,
    }
    stream = ndtool("infer", "gather-nd", "-", "int8[2,1]", stdin=npy(DATA))
    assert b"output float32[2,3], 24 bytes" in stream.out
    dates = ndtool("infer", "gather-nd", "datetime64[ns][3]", "int8[2,1]")
    assert b"output datetime64[ns][2], 16 bytes" in dates.out


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("gather-nd", "float32[8,3]", "int64[8,2]", "--batch-dims", "1"), 4, "it must be in 1..1"),
        (("gather-nd", "float32[8,x-y]", "int64[8,2]"), 2, "dtype[d0,d1,...]"),
        (("gather-nd", "float32[-1]", "int64[8,2]"), 2, "dtype[d0,d1,...]"),
        (("gather-nd", f"float32[{2**63}]", "int64[8,2]"), 2, "dtype[d0,d1,...]"),
        (("gather-nd", f"float32[{'1,' * 64}1]", "int64[8,2]"), 2, "rank 65: valid 0..64"),
        (("gather-nd", "float33[8]", "int64[8,2]"), 4, "float33"),
        (("gather-nd", "float32[8]", "float32[8,1]"), 4, "expected an integer dtype"),
        (("gather-nd", "float32[8]", "int32[8,1]", "--spec", "onnx:13"), 4, "int64"),
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


def test_infer_reads_archives():
    np.savez("one.npz", x=DATA)
    np.savez("two.npz", x=DATA, y=DATA)
    completed = ndtool("infer", "gather-nd", "one.npz", "int64[2,1]")
    assert completed.out.decode().splitlines()[-1] == "output float32[2,3], 24 bytes"
    completed = ndtool("infer", "gather-nd", "two.npz", "int64[2,1]")
    assert (completed.status, completed.out) == (2, b"")
    assert "two.npz: the archive has 2 members: name one of them" in completed.err


def test_infer_explains_a_broken_rule():
    completed = ndtool("infer", "gather-nd", "float32[8,3]", "int64[8,2]", "--batch-dims", "1")
    assert "1 <= 2 <= 2 - 1" in completed.err
    assert completed.err.index("broken") < completed.err.index("error: ")
    assert "  --> data float32[8,3]\n      indices int64[8,2]\n" in completed.err


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
    report = ndtool("inspect", "fortran.npy", "--json").json["arrays"]
    assert report == [
        {
            "name": "fortran.npy",
            "member": None,
            "dtype": "float32",
            "byte_order": "big",
            "shape": [4, 3],
            "order": "F",
            "chunks": None,
            "bytes": 48,
            "npy_version": [1, 0],
            "offset": 128,
            "mappable": True,
            "position": 128,
            "file_size": 176,
            "problem": None,
            "warning": None,
        }
    ]
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
