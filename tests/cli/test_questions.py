"""Questions from Python: the fields of --json, arrays in place of files, tables, refusals."""

import copy
import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool as command
from command import save
from rich.console import Console

import ndtool
from ndtool import files
from ndtool.analysis.answers import Answer
from ndtool.errors import (
    BoundsError,
    DifferenceError,
    InputError,
    OutputError,
    RuleError,
    UsageError,
)

pytestmark = pytest.mark.usefixtures("workdir")
DATA = np.arange(12, dtype="f4").reshape(4, 3)
IDX = np.array([[3], [0], [3]])
UPD = np.ones((3, 3), "f4")


@pytest.fixture(autouse=True)
def arrays(workdir: Path) -> None:
    save(data=DATA, idx=IDX, upd=UPD, out=DATA[[3, 0, 3]])
    np.savez("some.npz", a=DATA, b=IDX)


def command_json(*words: str) -> Any:
    result = command(*words, "--json")
    assert result.status == 0, result.err
    return result.json


def to_json(answer: Answer) -> Any:
    return json.loads(json.dumps(answer.to_dict()))


GATHER, SCATTER = ("data.npy", "idx.npy"), ("data.npy", "idx.npy", "upd.npy")
QUESTIONS: dict[str, tuple[tuple[str, ...], Any]] = {
    "infer": (
        ("infer", "gather-nd", "float32[N,4]", "int64[N,1]", "--batch-dims", "1"),
        lambda: ndtool.infer("gather_nd", "float32[N,4]", "int64[N,1]", batch_dims=1),
    ),
    "explain an element": (
        ("explain", "scatter-nd", *SCATTER, "--reduction", "add", "--at", "3,1"),
        lambda: ndtool.explain("scatter_nd", *SCATTER, at=(3, 1), reduction="add"),
    ),
    "explain several": (
        ("explain", "gather-nd", *GATHER, "--at", "0,1", "--at", "1,-1", "--from", "3,1", "--all"),
        lambda: ndtool.explain("gather_nd", *GATHER, at=[(0, 1), (1, -1)], from_=(3, 1), all=True),
    ),
    "explain an origin": (
        ("explain", "gather-nd", *GATHER, "--from", "3,1"),
        lambda: ndtool.explain("gather_nd", *GATHER, from_=(3, 1)),
    ),
    "explain a type": (
        ("explain", "gather-nd", "float32[4,3]", "idx.npy", "--at", "0,1"),
        lambda: ndtool.explain("gather_nd", "float32[4,3]", "idx.npy", at=(0, 1)),
    ),
    "stats": (
        ("stats", "scatter-nd", *GATHER, "--duplicates", "first"),
        lambda: ndtool.stats("scatter_nd", *GATHER, duplicates="first"),
    ),
    "stats of bad indices": (
        ("stats", "gather", "float32[3]", "idx.npy"),
        lambda: ndtool.stats("gather", "float32[3]", "idx.npy"),
    ),
    "verify": (
        ("verify", "gather-nd", *GATHER, "out.npy"),
        lambda: ndtool.verify("gather_nd", *GATHER, "out.npy"),
    ),
    "verify against": (
        ("verify", "gather-nd", *GATHER, "--against", "numpy"),
        lambda: ndtool.verify("gather_nd", *GATHER, against="numpy"),
    ),
    "inspect": (
        ("inspect", "data.npy", "some.npz"),
        lambda: ndtool.inspect("data.npy", Path("some.npz")),
    ),
}


@pytest.mark.parametrize(("arguments", "ask"), QUESTIONS.values(), ids=QUESTIONS)
def test_an_answer_has_the_fields_of_json(arguments: tuple[str, ...], ask: Any) -> None:
    answer, expected = ask(), command_json(*arguments)
    assert to_json(answer) == expected
    assert answer == ask()  # a value
    assert list(answer.to_dict()) == list(expected)
    with pytest.raises(AttributeError):
        answer.version = "2"
    require_copies(answer)
    require_tables(answer)


def require_copies(result: Any) -> None:
    """Require that a result survives copy, deepcopy and pickle with all its fields."""
    for copied in (copy.copy(result), copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        assert type(copied) is type(result)
        assert copied == result


def require_tables(answer: Answer) -> None:
    """Require that an answer shows itself in notebooks, with rich, and as text."""
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(answer)
    text_output = console.export_text()
    html, text = answer._repr_html_(), str(answer)
    assert html.startswith("<table")
    assert not html.count("<script")
    cells = [cell for table in answer.tables() for row in table.rows for cell in row]
    assert cells
    for cell in cells:
        assert cell in text_output
        assert cell in text


def test_arrays_take_the_place_of_files() -> None:
    for ask in (
        lambda data, idx, upd, out: ndtool.explain("scatter_nd", data, idx, upd, at=(3, 1)).value,
        lambda data, idx, upd, out: ndtool.explain("gather_nd", data, idx, at=(0, 1)).steps,
        lambda data, idx, upd, out: ndtool.stats("gather_nd", data, idx).to_dict(),
        lambda data, idx, upd, out: ndtool.verify("gather_nd", data, idx, out).comparison,
        lambda data, idx, upd, out: ndtool.verify("gather_nd", data, idx, against="numpy").engines,
        lambda data, idx, upd, out: ndtool.infer("gather_nd", data, idx).output,
    ):
        of_files = ask("data.npy", Path("idx.npy"), "upd.npy", "out.npy")
        assert ask(DATA, IDX, UPD, DATA[[3, 0, 3]]) == of_files
        assert ask(DATA.tolist(), IDX.tolist(), UPD.tolist(), DATA[[3, 0, 3]].tolist()) is not None
    assert ndtool.explain("gather_nd", DATA, "idx.npy", at=(0, 1)).value == 10.0
    assert DATA.flags.writeable  # inputs stay as they are
    assert np.array_equal(DATA, np.arange(12).reshape(4, 3))


def test_tensor_scatter() -> None:
    past, update = np.zeros((2, 4, 1)), np.ones((2, 1, 1))
    explanation = ndtool.explain("tensor_scatter", past, update, [1, 2], axis=1, at=(1, 2, 0))
    assert explanation.value == 1.0
    assert ndtool.infer("tensor_scatter", past, update).output.shape == (2, 4, 1)
    assert ndtool.stats("tensor_scatter", past, update, [1, 2], axis=1).tuples == 2
    after = ndtool.tensor_scatter(past, update, [1, 2], axis=1)
    assert ndtool.verify("tensor_scatter", past, update, [1, 2], after, axis=1).verified
    with pytest.raises(UsageError, match="tensor_scatter takes past, update, write_indices"):
        ndtool.verify("tensor_scatter", past, update, after, axis=1)


def test_fields_of_a_single_element() -> None:
    explanation = ndtool.explain("gather_nd", DATA, IDX, from_=(3, 1))
    assert explanation.outputs == ((0, 1), (2, 1))
    assert explanation.from_ == (3, 1)
    several = ndtool.explain("gather_nd", DATA, IDX, at=[(0, 0), (1, 0)])
    assert [item.value for item in several.explained] == [9.0, 0.0]
    with pytest.raises(AttributeError, match="2 elements are explained"):
        _ = several.value
    scalar = ndtool.explain("gather_nd", [1, 2], [1], at=())
    assert scalar.value == 2
    inferred = ndtool.infer("gather", DATA, [0])
    for answer in (explanation, inferred, ndtool.convert(DATA, "x.npy")):
        require_copies(answer)
    require_copies(files.gather_nd("data.npy", "idx.npy", out="y.npy"))
    where = np.argwhere(DATA[[0, 1]] > 1)
    assert len(ndtool.explain("gather", DATA, [0, 1], at=where).explained) == len(where)


def test_errors_are_those_of_the_operator() -> None:
    with pytest.raises(BoundsError, match=r"indices\[1, 0\] = 9"):
        ndtool.explain("gather_nd", DATA, [[0], [9]], at=(0, 0))
    with pytest.raises(DifferenceError) as excinfo:
        ndtool.verify("gather_nd", DATA, IDX, DATA[[3, 0, 0]])
    assert excinfo.value.comparison.different == 3  # type: ignore[attr-defined]
    for call in (
        lambda: ndtool.infer("gather_nd", DATA, IDX, batch_dims=2),
        lambda: ndtool.gather(np.zeros(3), [0], axis=2),
        lambda: ndtool.scatter_nd(np.zeros(3), [[0]], np.zeros((2, 2))),
    ):
        with pytest.raises(RuleError) as broken:
            call()
        assert "broken" in broken.value.trace._repr_html_()  # type: ignore[attr-defined]
    with pytest.raises(InputError):
        ndtool.inspect("missing.npy")
    for ask, message in (
        (lambda: ndtool.explain("gather_nd", DATA, IDX), "missing element"),
        (lambda: ndtool.explain("gather_nd", DATA, at=0), "takes data, indices: 1 arguments"),
        (lambda: ndtool.explain("gather", DATA, IDX, at=0.5), "at is 0.5: it must be an integer"),
        (lambda: ndtool.explain("gather", DATA, IDX, at=(0,)), "at 0: the output has shape"),
        (lambda: ndtool.stats("gathers", DATA, IDX), "is not an operator"),
        (lambda: ndtool.infer(["gather_nd"], "f4[1]", "i8[1]"), "operator is"),
        (lambda: ndtool.infer("gather_nd", "f4[1]", "i8[1]", axis=0), "has no attribute 'axis'"),
        (lambda: ndtool.stats("gather", DATA, IDX, mode="linear"), "has no attribute 'mode'"),
        (lambda: ndtool.inspect(), "missing file"),
        (lambda: ndtool.verify("gather", DATA, IDX, against="mxnet"), "is not an engine"),
        (lambda: ndtool.verify("gather", DATA, IDX, against="numpy", runs=0), "runs is 0"),
        (lambda: ndtool.model("m.onnx", save="here"), "save requires inputs"),
        (lambda: ndtool.convert(DATA, "x.unknown"), "does not write .unknown"),
        (lambda: ndtool.convert(DATA, "x.npy", chunks="4"), "chunks is '4'"),
        (lambda: ndtool.stats("gather", DATA, IDX, progress=1), "progress is 1"),
    ):
        with pytest.raises(UsageError, match=message):
            ask()  # type: ignore[no-untyped-call]


def test_convert() -> None:
    result = to_json(ndtool.convert("data.npy", "copy.npz"))
    expected = command_json("convert", "data.npy", "copy.npz")
    assert result.pop("seconds") >= 0 <= expected.pop("seconds")
    assert result == expected
    answer = ndtool.convert(DATA.T, "turned.npy", sync=True)
    assert answer.source.order == "F"
    assert np.array_equal(np.load("turned.npy"), DATA.T)
    with pytest.raises(OutputError):
        ndtool.convert(DATA, "turned.npy", clobber=False)
    require_tables(answer)


def test_progress_reaches_the_caller() -> None:
    shares: list[float] = []
    ndtool.stats("gather_nd", DATA, IDX, progress=shares.append)
    ndtool.convert(DATA, "x.npy", progress=shares.append)
    assert shares
    assert all(0 <= share <= 1 for share in shares)


@pytest.mark.parametrize("memory", ["2 hours", "1KB", 5, "", "-3MB"])
def test_refused_sizes_of_memory(memory: Any) -> None:
    with pytest.raises(UsageError, match="memory is"):
        files.gather_nd("data.npy", "idx.npy", memory=memory)
