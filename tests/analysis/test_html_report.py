"""`--html`: a self-contained report, whose facts equal those of brute force."""

import json
import os
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from command import NDTOOL, execute, ndtool, run_in_terminal, save
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import Case, call, cases, many, note_attributes
from test_explain import gathered_positions, open_case, running_values, updates_of

from ndtool.analysis import drawing
from ndtool.analysis.drawing import Drawing, Grid
from ndtool.analysis.oracle import reference
from ndtool.analysis.values import short_text

pytestmark = pytest.mark.usefixtures("workdir")

MARKUP = '</script><script>alert("1")</script>]]>&lt;\'--><b>'


class Page(HTMLParser):
    """A parsed HTML report.

    tags: name and attributes of each element. texts: all text, also of scripts and styles, by
    the name of its element.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(Path(path).read_text("utf-8"))
        self.close()
        assert self._open == [], "each element ends"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "br", "hr", "img", "input"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self._open[-1] if self._open else "", data))

    @property
    def visible_text(self) -> str:
        """The text of all elements but scripts and styles."""
        return " ".join(text for tag, text in self.texts if tag not in ("script", "style"))

    @property
    def drawn(self) -> Any:
        """What the page's script draws, from JSON."""
        (text,) = [text for tag, text in self.texts if text.startswith('{"drawing"')]
        return json.loads(text)

    @property
    def drawing(self) -> Any:
        """The drawing of arrays."""
        return self.drawn["drawing"]

    def grid(self, role: str) -> Any:
        """Return the grid of an array."""
        (grid,) = [grid for grid in self.drawing["grids"] if grid["role"] == role]
        return grid


def grid_of(diagram: Drawing, role: str) -> Grid:
    (grid,) = [grid for grid in diagram.grids if grid.role == role]
    return grid


def check_gather_links(
    case: Case, diagram: Drawing, position: tuple[int, ...], links: list[Any]
) -> list[Any]:
    link = links[0]
    assert (link.output, link.updates) == (position, None)
    assert (
        np.ravel_multi_index(link.data, case.arrays[0].shape) == gathered_positions(case)[position]
    )
    assert link.result == short_text(case.arrays[0][(*link.data, ...)])
    check_tuple(case, diagram, link.indices)
    return links[1:]


def check_tuple(case: Case, diagram: Drawing, position: tuple[int, ...]) -> None:
    (index_tuple,) = [item for item in diagram.tuples if item.position == position]
    stored = [int(case.arrays[1][cell]) for cell in index_tuple.cells]
    assert (index_tuple.out_of_bounds, index_tuple.selects is not None) == ((), True)
    sizes = [highest + 1 for _, highest in diagram.valid]
    assert index_tuple.selects == tuple(i % n for i, n in zip(stored, sizes, strict=True))


def save_inputs(**changes: Any) -> list[str]:
    """Write the inputs of a small call of scatter_nd; return their paths."""
    arrays = {
        "data": np.array([1.5, 2.0, 3.0, 4.0], np.float32),
        "indices": np.array([[1], [-1], [1]]),
        "updates": np.array([10, 20, 30], np.float32),
        **changes,
    }
    save(**arrays)
    return [f"{name}.npy" for name in arrays]


def test_a_run_writes_its_report_with_the_output() -> None:
    files = save_inputs()
    completed = ndtool(
        "scatter-nd", *files, "--reduction", "add", "-o", "o.npy", "--html", "p.html"
    )
    assert (completed.status, completed.out, completed.err) == (0, b"", "")
    assert np.load("o.npy").tolist() == [1.5, 42, 3, 24]
    page = Page("p.html")
    assert [
        (link["output"], link["data"], link["indices"], link["updates"], link["result"])
        for link in page.drawing["links"]
    ] == [
        ([0], [0], None, None, "1.5"), ([1], [1], None, None, "2.0"),
        ([1], None, [0], [0], "12.0"), ([1], None, [2], [2], "42.0"),
        ([2], [2], None, None, "3.0"), ([3], [3], None, None, "4.0"),
        ([3], None, [1], [1], "24.0"),
    ]  # fmt: skip
    for expected_text in (
        "$ ndtool scatter-nd data.npy indices.npy updates.npy --reduction add -o o.npy",
        "updates.shape = indices.shape[:-1] + data.shape[k:]",
        "duplicates: 1 slice",
    ):
        assert expected_text in page.visible_text


@pytest.mark.parametrize("shape", [(), (0,), (1,) * 64, (400, 1), (2, 0, 3)])
def test_arrays_of_any_shape(shape: tuple[int, ...]) -> None:
    save(data=np.arange(7, dtype=">i4"), indices=np.zeros(shape, np.int32))
    completed = ndtool("gather", "data.npy", "indices.npy", "--html", "p.html", "-q", "-o", "o.npy")
    assert (completed.status, completed.err) == (0, "")
    counts = [len(grid["values"]) for grid in Page("p.html").drawing["grids"]]
    assert counts == [7, np.prod(shape), np.prod(shape)]


def test_a_report_is_self_contained() -> None:
    completed = ndtool("scatter-nd", *save_inputs(), "-o", "o.npy", "--html", "p.html")
    assert completed.status == 0
    text, page = Path("p.html").read_text(), Page("p.html")
    assert "http://" not in text
    assert "https://" not in text
    assert [attributes["href"] for tag, attributes in page.tags if "href" in attributes] == [
        "data:,"
    ]
    assert not any(
        {"src", "style", "onclick", "onload"} & attributes.keys() for _, attributes in page.tags
    )
    (policy,) = [
        attributes["content"] or ""
        for _, attributes in page.tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


def test_a_report_is_reproducible() -> None:
    command = "scatter-nd", *save_inputs(), "-o", "o.npy", "--html", "p.html"
    pages = []
    for columns in (60, 200):
        assert run_in_terminal(*NDTOOL, *command, columns=columns).status == 0
        pages.append(Path("p.html").read_bytes())
    assert ndtool(*command).status == 0
    assert [Path("p.html").read_bytes()] * 2 == pages


def test_names_and_values_are_escaped() -> None:
    name = MARKUP.replace("/", "-")
    np.save(f"{name}.npy", np.array([MARKUP, "\x1b[31m\0x", "a\nb", "\ud800"]))
    save(indices=np.array([[0], [1], [2], [3]]))
    completed = ndtool("gather-nd", f"{name}.npy", "indices.npy", "-o", "o.npy", "--html", "p.html")
    assert completed.status == 0
    page = Page("p.html")
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert not [tag for tag, _ in page.tags if tag == "b"]
    assert f"{name}.npy" in page.visible_text
    assert page.grid("output")["values"] == [
        MARKUP, "\\x1b[31m\\x00x", "a\\nb", "\\ud800"
    ]  # fmt: skip
    assert not any(ord(c) < 32 and c != "\n" for c in Path("p.html").read_text())


@pytest.mark.parametrize("command", ["stats", "verify", "run"])
def test_a_report_shows_the_index_out_of_bounds(command: str) -> None:
    files = save_inputs(indices=np.array([[1], [7], [1]]), output=np.zeros(4, np.float32))
    options = {"run": ["-o", "o.npy"]}
    inputs = {"stats": files[:2], "verify": files}.get(command, files[:3])
    subcommand = [command] if command != "run" else []
    completed = ndtool(
        *subcommand, "scatter-nd", *inputs, *options.get(command, []), "--html", "p.html"
    )
    assert completed.status == (0 if command == "stats" else 5)
    page = Page("p.html")
    assert page.drawing is None
    assert "out of bounds: 1 tuple, first indices.npy[1, 0] = 7" in page.visible_text
    assert "Not drawn: an index is out of bounds." in page.visible_text
    assert not Path("o.npy").exists()


def test_an_explanation_highlights_its_element() -> None:
    completed = ndtool(
        "explain", "scatter-nd", *save_inputs(), "--reduction", "max", "--at", "1", "--from", "2",
        "--html", "p.html",
    )  # fmt: skip
    assert completed.status == 0
    page = Page("p.html")
    assert page.drawing["selected"] == [["output", [1]], ["data", [2]]]
    assert "data.npy[2] = 3.0 was copied to output[2] unchanged" in page.visible_text
    assert "output[1] = 30.0" in page.visible_text


@pytest.mark.parametrize(("command", "reduction"), [("explain", "none"), ("stats", "max")])
def test_updates_of_unknown_values_give_no_values(command: str, reduction: str) -> None:
    data, indices, _ = save_inputs()
    updates_and_options = ("float32[3]", "--at", "3") if command == "explain" else ()
    arguments = command, "scatter-nd", data, indices, *updates_and_options, "--reduction"
    assert ndtool(*arguments, reduction, "--html", "p.html").status == 0
    page = Page("p.html")
    assert [page.grid(role)["values"] for role in ("updates", "output")] == [None, None]
    links = page.drawing["links"]
    assert {link["result"] for link in links if link["updates"] is not None} == {None}


def test_a_verification_shows_the_differences() -> None:
    files = save_inputs(output=np.array([1.5, 30, 3, 21], np.float32))
    completed = ndtool("verify", "scatter-nd", *files, "--html", "p.html")
    assert completed.status == 8
    page = Page("p.html")
    assert (page.grid("actual")["values"][3], page.grid("actual")["wrong"]) == ("21.0", [3])
    assert "3 of 4 elements have the same bits" in page.visible_text
    save_inputs(output=np.array([1.5, 30, 3, 20], np.float32))
    assert ndtool("verify", "scatter-nd", *files, "--html", "p.html").status == 0
    page = Page("p.html")
    assert "4 of 4 elements have the same bits" in page.visible_text
    assert "error" not in page.visible_text
    save(output=np.zeros(4, np.float64))
    assert ndtool("verify", "scatter-nd", *files, "--html", "p.html").status == 8
    assert "output.npy has dtype float64" in Page("p.html").visible_text


def test_a_report_has_the_results_of_engines() -> None:
    command = "verify", "scatter-nd", *save_inputs(), "--against", "numpy", "--html", "p.html"
    completed = ndtool(*command)
    assert (completed.status, completed.err) == (0, "")
    page = Page("p.html")
    assert f"numpy {np.__version__} 1 the same bits" in " ".join(page.visible_text.split())
    save_inputs(output=np.array([1.5, 30, 3, 21], np.float32))
    completed = ndtool(*command[:5], "output.npy", *command[5:], "--json")
    assert (completed.status, completed.json["engines"][0]["result"]) == (8, "same")
    page = Page("p.html")
    assert "3 of 4 elements have the same bits" in page.visible_text
    assert page.grid("actual")["wrong"] == [3]


def test_a_report_that_cannot_be_written_leaves_no_output() -> None:
    command = "scatter-nd", *save_inputs(), "-o", "o.npy", "--html"
    Path("p.html").write_text("old")
    os.mkfifo("f.html")
    os.mkdir("d.html")
    for page in ("nowhere/p.html", "f.html", "d.html", "https://127.0.0.1/p.html"):
        completed = ndtool(*command, page)
        assert (completed.status, Path("o.npy").exists()) == (7, False)
        assert page in completed.err
    completed = ndtool(*command, "p.html", "--no-clobber")
    assert (completed.status, Path("o.npy").exists()) == (7, False)
    assert ndtool("gather", "data.npy", "[0]", "-o", "no/o.npy", "--html", "q.html").status == 7
    assert (Path("p.html").read_text(), Path("q.html").exists()) == ("old", False)


def test_a_report_replaces_no_other_file() -> None:
    files = save_inputs()
    os.rename("data.npy", "data.html")
    for output, page in (("o.npy", "./data.html"), ("npy:p.html", "p.html")):
        completed = ndtool("scatter-nd", "data.html", *files[1:], "-o", output, "--html", page)
        assert completed.status == 2
        assert "expected another file" in completed.err
    assert ndtool("gather", "data.html", "[0]", "--html", "page.npy").status == 2
    for command in ("gather", "stats gather"):
        script = f'{NDTOOL[0]} -m ndtool {command} data.html "[0]" --html o.html > o.html'
        completed = execute("bash", "-c", script)
        assert (completed.status, Path("o.html").read_bytes()) == (2, b"")
        assert "o.html is standard output: expected another file" in completed.err
    assert np.load("data.html").shape == (4,)


def test_large_arrays_are_drawn_around_the_element_explained() -> None:
    indices = np.full((500, 1), 7)
    indices[[20, 440]] = 124
    save(data=np.arange(2000.0).reshape(1000, 2), indices=indices, updates=np.ones((500, 2)))
    files = "data.npy", "indices.npy", "updates.npy"
    arguments = "explain", "scatter-nd", *files, "--reduction", "add", "--at", "124,0"
    assert ndtool(*arguments, "--html", "p.html").status == 0
    page = Page("p.html")
    links = [link for link in page.drawing["links"] if link["output"] == [124, 0]]
    assert [(link["indices"], link["updates"], link["result"]) for link in links] == [
        (None, None, "248.0"), ([20], [20, 0], "249.0"), ([440], [440, 0], "250.0")
    ]  # fmt: skip
    assert page.grid("data")["axes"] == page.grid("output")["axes"] == [[123, 124, 125], [0, 1]]
    assert not page.drawing["is_complete"]


@pytest.mark.slow("links of reports on random calls equal brute force")
@pytest.mark.parametrize(
    "limits", [{"MAX_ELEMENTS": drawing.MAX_ELEMENTS}, {"MAX_ELEMENTS": 12, "_MAX_COMPLETE": 4}]
)
@many
@given(case=cases, strategy_data=st.data())
def test_the_links_of_a_drawing_equal_brute_force(
    limits: dict[str, int], case: Case, strategy_data: st.DataObject
) -> None:
    note_attributes(case)
    expected = call(reference, case)
    focus = tuple(strategy_data.draw(st.integers(0, size - 1)) for size in expected.shape if size)
    assume(len(focus) == expected.ndim)
    with patch.multiple(drawing, **limits), open_case(case) as opened_call:
        diagram = drawing.draw(opened_call, [focus], [], None)
    assume(diagram is not None)
    assert diagram is not None
    output = grid_of(diagram, "output")
    positions = list(product(*output.axes))
    assert output.values is not None
    assert focus in positions
    links = list(diagram.links)
    check = check_gather_links if len(case.arrays) == 2 else check_scatter_links
    for position, text in zip(positions, output.values, strict=True):
        assert text == short_text(expected[(*position, ...)])
        links = check(case, diagram, position, links)
    assert links == []


def check_scatter_links(
    case: Case, diagram: Drawing, position: tuple[int, ...], links: list[Any]
) -> list[Any]:
    """Check the links of an element: the original, and the first and last updates."""
    data, _, updates = case.arrays
    applied = list(updates_of(case, position))
    values = [updates[(*origin, ...)] for _, origin in applied]
    results = list(map(short_text, running_values(data[(*position, ...)], values, case.arguments)))
    positions = list(product(*grid_of(diagram, "output").axes))
    if not diagram.is_complete:
        assert diagram.counts[positions.index(position)] == len(applied)
    original, *update_links = [link for link in links if link.output == position]
    assert (original.data, original.indices, original.updates) == (position, None, None)
    edge = len(update_links) // 2
    shown = slice(None) if len(update_links) == len(applied) else np.r_[:edge, -edge:0]
    numbers = np.arange(len(applied))[shown].tolist()
    assert [(link.indices, link.updates, link.result) for link in update_links] == [
        (*applied[number], results[number]) for number in numbers
    ]
    for link in update_links:
        assert link.data is None
        check_tuple(case, diagram, link.indices)
    return links[1 + len(update_links) :]
