"""`--html`: a self-contained report, whose facts equal those of brute force."""

import json
import os
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import numpy as np
import pytest
from command import NDTOOL, execute, ndtool, run_in_terminal, save
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import Array, Case, call, cases, many, note_attributes, plain_axes
from test_explain import gathered_positions, open_case, running_values, updates_of

from ndtool.analysis import drawing
from ndtool.analysis.drawing import Drawing, Grid
from ndtool.analysis.engines import EngineReport
from ndtool.analysis.oracle import reference
from ndtool.analysis.values import short_text
from ndtool.analysis.verify import compare, open_arrays, recompute
from ndtool.cli.page import HtmlReport as PageReport
from ndtool.cli.reporter import Reporter
from ndtool.errors import OutputError
from ndtool.publish import document, sinks
from ndtool.runs.calls import OpenCall, Request

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


def draw_case(case: Case) -> Drawing:
    with open_case(case) as call:
        diagram = drawing.draw(call)
    assume(diagram is not None and diagram.is_complete)
    assert diagram is not None
    return diagram


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


@pytest.mark.slow("reports before a run are correct on random calls")
@many
@given(case=cases, strategy_data=st.data())
def test_a_drawing_without_output_shows_selected_elements(
    case: Case, strategy_data: st.DataObject
) -> None:
    note_attributes(case)
    data, indices, *updates = case.arrays
    assume(indices.size and data.size)
    int64_indices = np.array(indices, np.int64)
    invalid_position = np.unravel_index(
        strategy_data.draw(st.integers(0, int64_indices.size - 1)), int64_indices.shape
    )
    int64_indices[invalid_position] = strategy_data.draw(
        st.sampled_from((10**6, -(10**6), 2**63 - 1, -(2**63)))
    )
    diagram = draw_case(Case(case.operator, (data, int64_indices, *updates), case.arguments))
    assert [grid.role for grid in diagram.grids if grid.role == "output"] == []
    out_of_bounds_cells = [
        index_tuple.cells[j] for index_tuple in diagram.tuples for j in index_tuple.out_of_bounds
    ]
    assert out_of_bounds_cells == [tuple(map(int, invalid_position))]
    assert {(link.data, link.indices) for link in diagram.links} == expected_links(
        case, int64_indices, diagram
    )
    assert all((link.updates is not None) == bool(updates) for link in diagram.links)


def expected_links(
    case: Case, indices: Array, diagram: Drawing
) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return pairs of an element's position in data and that of a tuple that selects it."""
    data, pairs = case.arrays[0], set()
    flat_indices = np.arange(data.size).reshape(data.shape)
    for index_tuple in diagram.tuples:
        if index_tuple.out_of_bounds:
            continue
        row = tuple(int(indices[cell]) for cell in index_tuple.cells)
        if case.operator.endswith("_nd"):
            lead = index_tuple.position[: case.arguments.get("batch_dims", 0)]
            selected = flat_indices[(*lead, *row)]
        else:
            a, b = plain_axes(case)
            selects_slices = case.operator in ("gather", "scatter")
            leading: Any = (
                (*index_tuple.position[:b], *(slice(None),) * (a - b))
                if selects_slices
                else index_tuple.position[:a]
            )
            selected = flat_indices[
                (*leading, row[0], *(() if selects_slices else index_tuple.position[a + 1 :]))
            ]
        coordinates = np.unravel_index(np.ravel(selected), data.shape)
        pairs |= {
            (tuple(map(int, position)), index_tuple.position)
            for position in zip(*coordinates, strict=True)
        }
    return pairs


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


def test_few_tuples_without_components_are_drawn() -> None:
    save(data=np.zeros((0, 3)), indices=np.zeros((10**6, 0), int))
    np.save("updates.npy", np.zeros((10**6, 0, 3)))
    files = "data.npy", "indices.npy", "updates.npy"
    assert ndtool("scatter-nd", *files, "-o", "o.npy", "--html", "p.html").status == 0
    assert len(Page("p.html").drawing["tuples"]) < 10


@pytest.mark.parametrize("shape", [(), (0,), (1,) * 64, (400,), (400, 1), (1, 400), (2, 0, 3)])
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


@pytest.mark.parametrize("command", ["stats", "explain", "verify", "dry run", "run"])
def test_a_report_shows_the_index_out_of_bounds(command: str) -> None:
    files = save_inputs(indices=np.array([[1], [7], [1]]), output=np.zeros(4, np.float32))
    options = {"explain": ["--at", "0"], "dry run": ["--dry-run"], "run": ["-o", "o.npy"]}
    inputs = {"stats": files[:2], "verify": files}.get(command, files[:3])
    subcommand = [command] if command in ("stats", "explain", "verify") else []
    completed = ndtool(
        *subcommand, "scatter-nd", *inputs, *options.get(command, []), "--html", "p.html"
    )
    assert completed.status == (0 if command == "stats" else 5)
    page = Page("p.html")
    assert [item["out_of_bounds"] for item in page.drawing["tuples"]] == [[], [0], []]
    assert [item["selects"] for item in page.drawing["tuples"]] == [[1], None, [1]]
    assert [grid["role"] for grid in page.drawing["grids"]] == ["data", "indices", "updates"]
    assert (page.drawing["valid"], page.drawing["axis"]) == ([[-4, 3]], 0)
    assert "out of bounds: 1 tuple, first indices.npy[1, 0] = 7" in page.visible_text
    assert "There is no output, because an index is out of bounds." in page.visible_text
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


def test_reports_of_types_without_arrays_have_no_values() -> None:
    completed = ndtool(
        "explain", "gather-nd", "float32[2,3]", "[[1], [0]]", "--at", "0,2", "--html", "p.html"
    )
    assert completed.status == 0
    page = Page("p.html")
    assert [grid["values"] for grid in page.drawing["grids"]] == [None, ["1", "0"], None]
    assert page.drawing["links"][2]["data"] == [1, 2]


def test_an_explanation_lists_a_bounded_number_of_rows() -> None:
    save(data=np.arange(3.0), idx=np.zeros((1203, 1), np.int64))
    command = ("explain", "gather-nd", "data.npy", "idx.npy", "--from", "0", "--all")
    text = ndtool(*command, "--html", "p.html").out.decode()
    assert len(text.splitlines()) == 1 + 1203
    page_text = Page("p.html").visible_text
    for n, is_listed in ((499, True), (500, False), (702, False), (703, True), (1202, True)):
        assert (f"output[{n}]" in page_text) == is_listed
    assert "... 203 more rows, which the command prints" in page_text


@pytest.mark.parametrize("reduction", ["none", "add", "max"])
@pytest.mark.parametrize("command", ["explain", "stats"])
def test_updates_of_unknown_values_give_no_values(command: str, reduction: str) -> None:
    data, indices, _ = save_inputs()
    updates_and_options = ("float32[3]", "--at", "3") if command == "explain" else ()
    arguments = command, "scatter-nd", data, indices, *updates_and_options, "--reduction"
    assert ndtool(*arguments, reduction, "--html", "p.html").status == 0
    page = Page("p.html")
    assert [page.grid(role)["values"] for role in ("updates", "output")] == [None, None]
    assert page.grid("data")["values"] == ["1.5", "2.0", "3.0", "4.0"]
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


def test_a_verification_with_a_report_reads_no_pipe() -> None:
    files = save_inputs(output=np.array([1.5, 30, 3, 20], np.float32))
    data = Path(files[0]).read_bytes()
    completed = ndtool("verify", "scatter-nd", "-", *files[1:], "--html", "p.html", stdin=data)
    assert completed.status == 2
    assert "--html reads standard input twice: expected a file, not a pipe" in completed.err


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


def test_a_report_highlights_differences_of_engines(workdir: Path) -> None:
    save_inputs()
    request = Request("scatter_nd", "data.npy", "indices.npy", "updates.npy")
    wrong_output = np.float32([1.5, 30, 3, 21])
    with open_arrays(request) as call:
        comparison = compare(request, call.arrays, wrong_output, recompute(request, call.arrays))
    reports = [
        EngineReport("mine", MARKUP, 2, "different", 1, "1 of 4 elements differ", comparison),
        EngineReport("yours", None, None, "missing", None, "pip install yours"),
    ]
    with click.Context(click.Command("verify")), OpenCall(request) as open_call:
        page_report = PageReport("p.html", open_call, Reporter())
        page_report.add_engines(reports)
        page_report.publish()
    page = Page("p.html")
    assert page.drawing["selected"] == [["output", [3]]]
    for expected_text in (
        f"mine {MARKUP}, 2 threads", "3 of 4 elements have the same bits", "pip install yours",
        "largest difference: [3] is 21.0, not 20.0: 524288 ulps apart",
    ):  # fmt: skip
        assert expected_text in page.visible_text


def test_a_report_of_engines_with_an_index_out_of_bounds() -> None:
    save_inputs()
    completed = ndtool(
        "verify", "gather", "data.npy", "[0, 7]", "--against", "numpy", "--html", "p.html"
    )
    assert completed.status == 5
    page = Page("p.html")
    assert "indices out of bounds: 1 of 2 elements" in page.visible_text
    assert "refused" in page.visible_text
    assert [item["out_of_bounds"] for item in page.drawing["tuples"]] == [[], [0]]


def test_a_report_of_engines_replaces_no_input() -> None:
    files = save_inputs()
    os.rename("data.npy", "data.html")
    before = Path("data.html").read_bytes()
    completed = ndtool(
        "verify", "scatter-nd", "data.html", *files[1:], "--against", "numpy", "--html", "data.html"
    )
    assert (completed.status, completed.out, Path("data.html").read_bytes()) == (2, b"", before)


def test_a_report_that_cannot_be_written_leaves_no_output() -> None:
    command = "scatter-nd", *save_inputs(), "-o", "o.npy", "--html"
    completed = ndtool(*command, "nowhere/p.html")
    assert (completed.status, Path("o.npy").exists()) == (7, False)
    assert "nowhere/p.html" in completed.err
    Path("p.html").write_text("old")
    completed = ndtool(*command, "p.html", "--no-clobber")
    assert (completed.status, Path("o.npy").exists()) == (7, False)
    Path("p.html").chmod(0o400)
    assert ndtool("gather", "data.npy", "[0]", "-o", "no/o.npy", "--html", "q.html").status == 7
    assert (Path("p.html").read_text(), Path("q.html").exists()) == ("old", False)
    os.mkfifo("f.html")
    assert ndtool(*command, "f.html").status == 7
    os.mkdir("d.html")
    assert ndtool(*command, "d.html").status == 7
    completed = ndtool(*command, "https://127.0.0.1/p.html")
    assert (completed.status, Path("o.npy").exists()) == (7, False)


def test_a_report_replaces_no_other_file() -> None:
    files = save_inputs()
    os.rename("data.npy", "data.html")
    for output, page in (("o.npy", "./data.html"), ("p.html", "p.html")):
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


def test_a_report_is_not_written_to_a_replaced_store() -> None:
    zarr = pytest.importorskip("zarr", exc_type=ImportError)
    save_inputs()
    zarr.create_array("out.zarr", shape=(2,), dtype="f4")[...] = 1
    arguments = ("gather", "data.npy", "[0]", "-o", "out.zarr", "--html")
    completed = ndtool(*arguments, "out.zarr/page.html")
    assert completed.status == 2
    assert "out.zarr/page.html is in out.zarr" in completed.err
    assert ndtool(*arguments, "page.html").status == 0


def test_an_incomplete_document_is_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OutputError("p.html: No space left on device")

    Path("p.html").write_text("old")
    monkeypatch.setattr(sinks.FileSink, "write", fail)
    with pytest.raises(OutputError):
        document.create("p.html", b"new")
    assert sorted(os.listdir()) == ["p.html"]
    assert Path("p.html").read_text() == "old"


def test_a_broken_rule_writes_no_report() -> None:
    completed = ndtool(
        "scatter-nd", *save_inputs(updates=np.zeros(4)), "-o", "o.npy", "--html", "p.html"
    )
    assert (completed.status, Path("p.html").exists()) == (4, False)


def test_a_report_has_the_warnings_about_the_output() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    safetensors_numpy = pytest.importorskip("safetensors.numpy")
    safetensors_numpy.save_file({"a": np.ones(3, ml_dtypes.bfloat16)}, "a.safetensors")
    arguments = ("gather", "a.safetensors", "[0]", "-o", "o.npy", "--html", "o.html")
    for extra in ((), ("--dry-run",)):
        completed = ndtool(*arguments, *extra)
        assert (completed.status, "bfloat16 is stored as V2" in completed.err) == (0, True)
        assert Path("o.html").read_text().count("bfloat16 is stored as V2") == 1


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


def test_an_element_of_many_updates_has_the_first_and_last_ones() -> None:
    save(data=np.zeros(500), indices=np.full((1000, 1), 3), updates=np.ones(1000))
    files = "data.npy", "indices.npy", "updates.npy"
    arguments = "scatter-nd", *files, "--reduction", "add", "-o", "o.npy"
    assert ndtool(*arguments, "--html", "p.html").status == 0
    page = Page("p.html")
    number = page.grid("output")["axes"][0].index(3)
    assert page.drawing["counts"][number] == 1000
    links = [link for link in page.drawing["links"] if link["output"] == [3]]
    assert [link["updates"] for link in links[1:]] == [[n] for n in (*range(5), *range(995, 1000))]
    assert [link["result"] for link in links[5:7]] == ["5.0", "996.0"]


def test_large_arrays_are_drawn_around_the_first_index_out_of_bounds() -> None:
    indices = np.arange(3000)[:, None] % 900
    indices[1234] = 900
    save(data=np.zeros((900, 64)), indices=indices, updates=np.zeros((3000, 64)))
    arguments = "scatter-nd", "data.npy", "indices.npy", "updates.npy", "-o", "o.npy"
    assert ndtool(*arguments, "--html", "p.html").status == 5
    page = Page("p.html")
    assert page.grid("indices")["axes"] == [list(range(1231, 1238)), [0]]
    wrong = [item["position"] for item in page.drawing["tuples"] if item["out_of_bounds"]]
    assert wrong == [[1234]]
    assert page.grid("data")["axes"][0][0] == 331
    first = page.drawing["links"][0]
    assert (first["data"], first["indices"], first["updates"]) == ([331, 0], [1231], [1231, 0])


def test_large_arrays_are_drawn_around_the_first_difference() -> None:
    data, indices = np.arange(6400.0).reshape(100, 64), np.arange(80)[:, None]
    output = data[:80].copy()
    output[[40, 70], [17, 3]] += 1
    save(data=data, indices=indices, output=output)
    arguments = "verify", "gather-nd", "data.npy", "indices.npy", "output.npy"
    assert ndtool(*arguments, "--html", "p.html").status == 8
    page = Page("p.html")
    assert page.grid("output")["axes"] == [[39, 40, 41], list(range(14, 21))]
    assert page.grid("actual")["wrong"] == [10]
    assert page.grid("actual")["values"][10] == "2578.0"


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
        diagram = drawing.draw(opened_call, [focus])
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


def test_large_updates_in_chunks_are_not_read_for_a_drawing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    zarr = pytest.importorskip("zarr", exc_type=ImportError)
    save(data=np.zeros(500), indices=np.zeros((600, 1), int))
    zarr.create_array("u.zarr", shape=(600,), chunks=(100,), dtype="f8")[...] = 1
    with OpenCall(Request("scatter_nd", "data.npy", "indices.npy", "u.zarr")) as scatter_call:
        assert not drawing.has_large_updates(scatter_call)
        monkeypatch.setattr(drawing, "_MAX_UPDATE_BYTES", 4799)
        assert drawing.has_large_updates(scatter_call)


def test_a_report_has_the_histogram() -> None:
    """1000 indices into 10,000 slices, 500 of them into the first."""
    indices = np.append(np.zeros(500, int), np.arange(1, 501) * 19)[:, None]
    save(data=np.zeros((10_000, 3)), indices=indices)
    assert ndtool("stats", "gather-nd", "data.npy", "indices.npy", "--html", "p.html").status == 0
    page = Page("p.html")
    assert "0..624" in page.visible_text, "the histogram is a table"
