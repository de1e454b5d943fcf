"""Inference and verification in Python, and their tables in notebooks."""

from html.parser import HTMLParser

import numpy as np
import pytest
from command import save

import ndtool
from ndtool.errors import DifferenceError, DtypeError, RuleError, UsageError


class Cells(HTMLParser):
    """The texts of all cells and captions."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        if tag in ("td", "th", "caption", "p"):
            self.texts.append("")

    def handle_data(self, data: str) -> None:
        self.texts[-1] += data


def parse_cells(value: object) -> Cells:
    return Cells(value._repr_html_())


def test_an_inference_shows_types_and_every_rule() -> None:
    result = ndtool.infer("gather_nd", "float32[N,128,D]", "int64[B,M,1]", batch_dims=1)
    assert result.output.shape == ("B", "M", "D")
    cells = parse_cells(result).texts
    text = " ".join(cells)
    assert "float32[N,128,D]" in text
    assert "float32[B,M,D]" in text
    assert "data's axis 0 (N) and indices' axis 0 (B) are equal" in text
    for step in result.trace:
        assert {step.rule, step.with_, step.result} <= set(cells)


def test_the_trace_of_a_broken_rule_is_a_table() -> None:
    with pytest.raises(RuleError) as excinfo:
        ndtool.infer("scatter_elements", "f4[3,3]", "i8[2,4]", "f4[2,4]", axis=0)
    cells = parse_cells(excinfo.value.trace).texts
    assert cells[0] == "scatter_elements"
    assert cells[-1] == "broken"


def test_the_trace_of_a_broken_rule_of_arrays_is_a_table() -> None:
    for call in (
        lambda: ndtool.gather(np.zeros(3), [0], axis=2),
        lambda: ndtool.scatter_nd(np.zeros(3), [[0]], np.zeros((2, 2))),
    ):
        with pytest.raises(RuleError) as excinfo:
            call()
        assert "broken" in parse_cells(excinfo.value.trace).texts


def test_names_are_escaped(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(**{"<b>&x": np.zeros((3, 2)), "idx": np.zeros((1, 1), "i8")})
    cells = parse_cells(ndtool.inspect("<b>&x.npy"))
    assert "<b>&x.npy" in cells.texts
    assert "b" not in cells.tags


def test_a_verification_shows_differences_in_ulps(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = np.arange(6.0).reshape(3, 2)
    save(data=data, idx=np.array([[2], [0]]), out=data[[2, 0]])
    result = ndtool.verify("gather_nd", "data.npy", "idx.npy", "out.npy")
    assert (result.comparison.different, result.comparison.total) == (0, 4)
    assert "float64[2,2], bit for bit" in parse_cells(result).texts[0]
    save(out=np.nextafter(data[[2, 0]], 9))
    with pytest.raises(DifferenceError) as excinfo:
        ndtool.verify("gather_nd", "data.npy", tmp_path / "idx.npy", "out.npy")
    cells = parse_cells(excinfo.value.comparison).texts
    assert cells[cells.index("1") + 1] == "4"
    verification = ndtool.verify("gather_nd", "data.npy", "idx.npy", "out.npy", within=1)
    assert (verification.comparison.different, verification.comparison.beyond) == (4, 0)


def test_lost_updates_are_reported(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(data=np.zeros(3), idx=np.array([[1], [1]]), upd=np.ones(2), out=np.array([0, 1.0, 0]))
    with pytest.raises(DifferenceError) as excinfo:
        ndtool.verify("scatter_nd", "data.npy", "idx.npy", "upd.npy", "out.npy", reduction="add")
    assert "1 are off by exactly one update" in " ".join(
        parse_cells(excinfo.value.comparison).texts
    )


@pytest.mark.parametrize(
    ("arguments", "attributes", "error", "message"),
    [
        (("gathernd", "f4[1]", "i8[1]"), {}, UsageError, "'gathernd' is not an operator"),
        ((["gather_nd"], "f4[1]", "i8[1]"), {}, ndtool.NdtoolError, "operator is"),
        (("gather_nd", "f4[1]"), {}, UsageError, "gather_nd takes data, indices: 1 arguments"),
        (
            ("gather_nd", "f4[1]", "i8[1]"),
            {"axis": 0},
            UsageError,
            "has no attribute 'axis': expected batch",
        ),
        (("gather_nd", "f4[1]", "i8[1]"), {"batch_dims": "1"}, ndtool.NdtoolError, "batch_dims"),
        (("gather_nd", "f4[1]", "f8[1]"), {}, DtypeError, "indices has dtype float64"),
    ],
)
def test_invalid_requests(arguments, attributes, error, message) -> None:
    with pytest.raises(error, match=message):
        ndtool.infer(*arguments, **attributes)
