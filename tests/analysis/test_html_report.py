"""`--html`: a self-contained report, whose facts equal those of brute force."""

import json
import os
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import numpy as np
import pytest
from command import NDTOOL, execute, ndtool, run_in_terminal, save
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import Array, Case, call, cases, many, note_attributes, plain_axes, raw_bytes
from test_explain import bits, gathered_positions, open_case, running_values, updates_of

from ndtool.analysis import drawing, excerpts
from ndtool.analysis.drawing import Drawing
from ndtool.analysis.engines import EngineReport
from ndtool.analysis.oracle import reference
from ndtool.analysis.verify import compare, open_arrays, recompute
from ndtool.cli.html import markup
from ndtool.cli.html.page import HtmlReport as PageReport
from ndtool.cli.reporter import Reporter
from ndtool.errors import OutputError
from ndtool.publish import document, sinks
from ndtool.runs.calls import OpenCall
from ndtool.runs.request import Request

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
    def cells(self) -> dict[str, dict[str, str | None]]:
        """The attributes of the drawing's cells by ID."""
        gridcells = [
            attributes for _, attributes in self.tags if attributes.get("role") == "gridcell"
        ]
        cells_by_id = {str(attributes["id"]): attributes for attributes in gridcells}
        assert len(cells_by_id) == len(gridcells), "IDs are unique"
        return cells_by_id

    @property
    def highlighted(self) -> dict[str, str | None]:
        """The IDs of the cells that are highlighted without a script, with the orders of updates."""
        return {
            name: attributes.get("data-order")
            for name, attributes in self.cells.items()
            if "highlighted" in (attributes.get("class") or "").split()
        }

    def of_class(self, name: str) -> list[str]:
        """Return the IDs of the cells of a CSS class."""
        return [
            cell_id
            for cell_id, attributes in self.cells.items()
            if name in (attributes.get("class") or "").split()
        ]

    @property
    def links(self) -> Any:
        """The data of the page's script, from JSON."""
        (text,) = [text for tag, text in self.texts if text.startswith('{"tuples"')]
        return json.loads(text)


def draw_case(case: Case) -> Drawing:
    with open_case(case) as call:
        diagram = drawing.draw(call)
    assume(diagram is not None and diagram.is_complete)
    assert diagram is not None
    return diagram


@pytest.mark.slow("links of reports on random calls equal brute force")
@many
@given(case=cases)
def test_the_links_of_a_drawing_equal_brute_force(case: Case) -> None:
    note_attributes(case)
    expected, diagram = call(reference, case), draw_case(case)
    output = diagram.grids["output"]
    assert output.elements is not None
    assert [bits(element) for element in output.elements] == [
        raw_bytes(element) for element in list_elements(expected)
    ]
    links = list(diagram.links)
    for position in np.ndindex(expected.shape):
        check = check_gather_links if len(case.arrays) == 2 else check_scatter_links
        links = check(case, diagram, position, links)
    assert links == []


def list_elements(array: Array) -> list[Array]:
    return [array[(*position, ...)] for position in np.ndindex(array.shape)]


def check_gather_links(
    case: Case, diagram: Drawing, position: tuple[int, ...], links: list[Any]
) -> list[Any]:
    link = links[0]
    assert (link.output, link.updates) == (position, None)
    assert (
        np.ravel_multi_index(link.data, case.arrays[0].shape) == gathered_positions(case)[position]
    )
    assert bits(link.result) == raw_bytes(case.arrays[0][(*link.data, ...)])
    check_tuple(case, diagram, link.tuple_index)
    return links[1:]


def check_scatter_links(
    case: Case, diagram: Drawing, position: tuple[int, ...], links: list[Any]
) -> list[Any]:
    data, _, updates = case.arrays
    applied_updates = list(updates_of(case, position))
    update_values = [updates[(*origin, ...)] for _, origin in applied_updates]
    values = running_values(data[(*position, ...)], update_values, case.arguments)
    original_link, *update_links = links[: 1 + len(applied_updates)]
    assert (
        original_link.output,
        original_link.data,
        original_link.tuple_index,
        original_link.updates,
    ) == (position, position, None, None)
    for (tuple_position, origin), link, value in zip(
        applied_updates, update_links, values, strict=True
    ):
        assert (link.output, link.data, link.updates) == (position, None, origin)
        assert (diagram.tuples[link.tuple_index].position, bits(link.result)) == (
            tuple_position,
            raw_bytes(value),
        )
        check_tuple(case, diagram, link.tuple_index)
    return links[1 + len(applied_updates) :]


def check_tuple(case: Case, diagram: Drawing, tuple_index: int) -> None:
    index_tuple = diagram.tuples[tuple_index]
    assert index_tuple.stored == tuple(
        int(case.arrays[1][cell]) for cell in index_tuple.component_positions
    )
    assert index_tuple.out_of_bounds == []
    assert index_tuple.normalized is not None
    for stored_index, normalized_index, (_, highest) in zip(
        index_tuple.stored, index_tuple.normalized, diagram.valid_ranges, strict=True
    ):
        assert normalized_index == stored_index % (highest + 1)


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
    assert "output" not in diagram.grids
    out_of_bounds_cells = [
        index_tuple.component_positions[j]
        for index_tuple in diagram.tuples
        for j in index_tuple.out_of_bounds
    ]
    assert out_of_bounds_cells == [tuple(map(int, invalid_position))]
    assert {(link.data, link.tuple_index) for link in diagram.links} == expected_links(
        case, int64_indices, diagram
    )
    assert all((link.updates is not None) == bool(updates) for link in diagram.links)


def expected_links(
    case: Case, indices: Array, diagram: Drawing
) -> set[tuple[tuple[int, ...], int]]:
    """Return pairs of an element's position in data and the index of a tuple that selects it."""
    data, pairs = case.arrays[0], set()
    flat_indices = np.arange(data.size).reshape(data.shape)
    for number, index_tuple in enumerate(diagram.tuples):
        if index_tuple.out_of_bounds:
            continue
        row = tuple(int(indices[cell]) for cell in index_tuple.component_positions)
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
            (tuple(map(int, position)), number) for position in zip(*coordinates, strict=True)
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
    assert page.cells["output-1"]["aria-label"] == (
        "output[1] = 42.0: data[1] = 2.0; + updates[0] = 10.0, selected by indices[0] = (1), gives"
        " 12.0; + updates[2] = 30.0, selected by indices[2] = (1), gives 42.0"
    )
    assert (
        page.cells["output-0"]["aria-label"]
        == "output[0] = 1.5 from data[0], which no index selects"
    )
    assert page.cells["data-3"]["aria-label"] == "data[3] = 4.0 gets 1 update in output[3]"
    assert page.cells["indices-1"]["aria-label"] == (
        "indices[1, 0] = -1, which is (3) applies updates[1] to output[3]"
    )
    assert page.cells["updates-1"]["aria-label"] == (
        "updates[1] = 20.0 goes to output[3], selected by indices[1] = (-1), which is (3), gives 24.0"
    )
    assert page.links == {
        "tuples": [[0], [1], [2]],
        "links": [
            [0, 0, None, None, None], [1, 1, None, None, None], [1, None, 0, 0, 1],
            [1, None, 2, 2, 2], [2, 2, None, None, None], [3, 3, None, None, None],
            [3, None, 1, 1, 1],
        ],
    }  # fmt: skip
    for expected_text in (
        "$ ndtool scatter-nd data.npy indices.npy updates.npy --reduction add -o o.npy",
        "updates.shape = indices.shape[:-1] + data.shape[k:]",
        "duplicates: 1 slice",
        "+ updates[2] = 30.0, selected by indices[2] = (1), gives 42.0",
    ):
        assert expected_text in page.visible_text


def test_the_last_of_several_updates_is_shown() -> None:
    assert ndtool("scatter-nd", *save_inputs(), "-o", "o.npy", "--html", "p.html").status == 0
    cells = Page("p.html").cells
    assert cells["output-1"]["aria-label"] == (
        "output[1] = 30.0 from updates[2], selected by indices[2] = (1),"
        " which overwrites data[1] = 2.0 and 1 earlier update"
    )
    assert cells["data-1"]["aria-label"] == ("data[1] = 2.0 is overwritten by updates[2]")
    assert cells["updates-0"]["aria-label"] == (
        "updates[0] = 10.0 goes to output[1], selected by indices[0] = (1);"
        " a later update overwrites it"
    )


def test_a_gather_is_explained_in_both_directions() -> None:
    save(data=np.arange(6).reshape(3, 2), indices=np.array([[2], [0], [-1]]))
    assert ndtool("gather-nd", "data.npy", "indices.npy", "--html", "p.html").status == 0
    cells = Page("p.html").cells
    assert cells["output-4"]["aria-label"] == (
        "output[2, 0] = 4 from data[2, 0], selected by indices[2] = (-1), which is (2)"
    )
    assert cells["data-4"]["aria-label"] == "data[2, 0] = 4 goes to output[0, 0], output[2, 0]"
    assert cells["data-2"]["aria-label"] == "data[1, 0] = 2 goes to no output"
    assert (
        cells["indices-1"]["aria-label"]
        == "indices[1, 0] = 0 is used for output[1, 0], output[1, 1]"
    )


def test_the_cells_of_a_report_are_those_of_its_grids() -> None:
    rng = np.random.default_rng(0)
    save(data=rng.random((2, 3, 25)), indices=np.zeros((45, 2), np.uint8))
    assert (
        ndtool("gather-nd", "data.npy", "indices.npy", "--html", "p.html", "--dry-run").status == 0
    )
    assert "Large arrays are drawn in part" in Page("p.html").visible_text
    save(indices=np.zeros((9, 2), np.uint8))
    assert (
        ndtool("gather-nd", "data.npy", "indices.npy", "--html", "p.html", "--dry-run").status == 0
    )
    page = Page("p.html")
    assert len(page.cells) == 150 + 18 + 225
    assert {attributes["tabindex"] for attributes in page.cells.values()} == {"0", "-1"}
    first = [name for name, attributes in page.cells.items() if attributes["tabindex"] == "0"]
    assert first == ["data-0", "indices-0", "output-0"]
    grids = [attributes for tag, attributes in page.tags if attributes.get("role") == "grid"]
    assert [attributes["aria-label"] for attributes in grids][:2] == [
        "data[0, 0, :]",
        "data[0, 1, :]",
    ]
    for output, data, number, updates, _ in page.links["links"]:
        assert f"output-{output}" in page.cells
        assert f"data-{data}" in page.cells
        assert updates is None
        assert all(f"indices-{n}" in page.cells for n in page.links["tuples"][number])


def test_few_tuples_without_components_are_drawn() -> None:
    save(data=np.zeros((0, 3)), indices=np.zeros((10**6, 0), int))
    np.save("updates.npy", np.zeros((10**6, 0, 3)))
    files = "data.npy", "indices.npy", "updates.npy"
    assert ndtool("scatter-nd", *files, "-o", "o.npy", "--html", "p.html").status == 0
    assert len(Page("p.html").links["tuples"]) < 10


@pytest.mark.parametrize("shape", [(), (0,), (1,) * 64, (400,), (400, 1), (1, 400), (2, 0, 3)])
def test_arrays_of_any_shape(shape: tuple[int, ...]) -> None:
    save(data=np.arange(7, dtype=">i4"), indices=np.zeros(shape, np.int32))
    completed = ndtool("gather", "data.npy", "indices.npy", "--html", "p.html", "-q", "-o", "o.npy")
    assert (completed.status, completed.err) == (0, "")
    assert len(Page("p.html").cells) == 7 + 2 * int(np.prod(shape))


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
    assert page.cells["output-0"]["aria-label"] == (
        f"output[0] = {MARKUP} from data[0], selected by indices[0] = (0)"
    )
    assert page.cells["data-1"]["aria-label"] == "data[1] = \\x1b[31m\\x00x goes to output[1]"
    assert [link[0] for link in page.links["links"]] == [0, 1, 2, 3]


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
    assert page.cells["indices-1"]["class"] == "out-of-bounds highlighted current"
    assert page.cells["indices-1"]["aria-label"] == (
        "indices[1, 0] = 7 is out of bounds: axis 0 of data has size 4: valid -4..3"
    )
    assert page.cells["updates-1"]["aria-label"].endswith("is dropped: its index is out of bounds")
    assert "output-0" not in page.cells
    assert ["data-initial", "indices-1"] in [
        list(x) for _, attributes in page.tags for x in attributes.items()
    ]
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
    assert page.of_class("selected") == ["data-2", "output-1"]
    assert "data.npy[2] = 3.0 was copied to output[2] unchanged" in page.visible_text
    assert "output[1] = 30.0" in page.visible_text


def test_reports_of_types_without_arrays_have_no_values() -> None:
    completed = ndtool(
        "explain", "gather-nd", "float32[2,3]", "[[1], [0]]", "--at", "0,2", "--html", "p.html"
    )
    assert completed.status == 0
    page = Page("p.html")
    assert page.cells["output-2"]["aria-label"] == (
        "output[0, 2] from data[1, 2], selected by indices[0] = (1)"
    )


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
    arguments = (
        command,
        "scatter-nd",
        data,
        indices,
        *updates_and_options,
        "--reduction",
        reduction,
    )
    assert ndtool(*arguments, "--html", "p.html").status == 0
    page = Page("p.html")
    labels = {name: attributes["aria-label"] or "" for name, attributes in page.cells.items()}
    for n in range(4):
        assert not labels[f"output-{n}"].startswith(f"output[{n}] =")
        assert labels[f"data-{n}"].startswith(f"data[{n}] = {[1.5, 2.0, 3.0, 4.0][n]} ")
    for n in range(3):
        assert labels[f"updates-{n}"].startswith(f"updates[{n}] goes to output[")
    assert not any(", gives " in label for label in labels.values())


def test_a_verification_shows_the_differences() -> None:
    files = save_inputs(output=np.array([1.5, 30, 3, 21], np.float32))
    completed = ndtool("verify", "scatter-nd", *files, "--html", "p.html")
    assert completed.status == 8
    page = Page("p.html")
    assert page.of_class("wrong") == ["actual-3"]
    assert page.cells["actual-3"]["aria-label"] == (
        "output[3] is 21.0, which differs from output[3] = 20.0 from updates[1],"
        " selected by indices[1] = (-1), which is (3), which overwrites data[3] = 4.0"
    )
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
    assert f"numpy {np.__version__} 1 same" in " ".join(page.visible_text.split())
    assert len(page.cells) == 4 + 3 + 3 + 4
    save_inputs(output=np.array([1.5, 30, 3, 21], np.float32))
    completed = ndtool(*command[:5], "output.npy", *command[5:], "--json")
    assert (completed.status, completed.json["engines"][0]["result"]) == (8, "same")
    page = Page("p.html")
    assert "3 of 4 elements have the same bits" in page.visible_text
    assert page.of_class("wrong") == ["actual-3"]


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
    assert page.of_class("selected") == ["output-3"]
    classes = [
        attributes["class"]
        for _, attributes in page.tags
        if str(attributes.get("class")).startswith("result")
    ]
    assert classes == ["result different", "result missing"]
    for expected_text in (
        f"mine {MARKUP}, 2 threads", "3 of 4 elements have the same bits", "pip install yours",
        "largest difference: [3] is 21.0, not 20.0: 524288 ulps apart",
    ):  # fmt: skip
        assert expected_text in page.visible_text
    bars = [
        attributes["width"]
        for tag, attributes in page.tags
        if tag == "rect" and "%" in str(attributes["width"])
    ]
    assert bars == ["100.00%", "0.00%", "0.00%", "0.00%", "33.33%"]


def test_a_report_of_engines_with_an_index_out_of_bounds() -> None:
    save_inputs()
    completed = ndtool(
        "verify", "gather", "data.npy", "[0, 7]", "--against", "numpy", "--html", "p.html"
    )
    assert completed.status == 5
    page = Page("p.html")
    assert "indices out of bounds: 1 of 2 elements" in page.visible_text
    assert "refused" in page.visible_text
    assert page.cells["indices-1"]["class"] == "out-of-bounds highlighted current"


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


def test_elements_have_no_secrets_of_urls() -> None:
    element = markup.element("p", "https://me:word@host/x?key=1", title="s3://me:word@host")
    assert (element.text, element.get("title")) == ("https://host/x?...", "s3://host")


def test_completion_of_html_offers_pages_and_folders() -> None:
    for name in ("a.html", "a.npy", "b.svg"):
        Path(name).touch()
    os.mkdir("ab")
    typed = "ndtool gather data.npy indices.npy --html a"
    env = {"_NDTOOL_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": "5"}
    assert ndtool(env=env).out.decode().split("\0")[:2] == ["a.html", "ab/"]


def test_a_report_has_the_warnings_about_the_output() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    safetensors_numpy = pytest.importorskip("safetensors.numpy")
    safetensors_numpy.save_file({"a": np.ones(3, ml_dtypes.bfloat16)}, "a.safetensors")
    arguments = ("gather", "a.safetensors", "[0]", "-o", "o.npy", "--html", "o.html")
    for extra in ((), ("--dry-run",)):
        completed = ndtool(*arguments, *extra)
        assert (completed.status, "bfloat16 is stored as V2" in completed.err) == (0, True)
        assert Path("o.html").read_text().count("bfloat16 is stored as V2") == 1


def test_a_report_highlights_an_element_and_its_sources_before_any_script() -> None:
    completed = ndtool(
        "scatter-nd", *save_inputs(), "--reduction", "add", "-o", "o.npy", "--html", "p.html"
    )
    assert completed.status == 0
    page = Page("p.html")
    assert page.highlighted == {
        "data-1": None, "indices-0": "1", "indices-2": "2", "updates-0": "1", "updates-2": "2",
        "output-1": None,
    }  # fmt: skip
    assert page.of_class("current") == ["output-1"]
    assert page.visible_text.count("output[1] = 42.0: data[1] = 2.0; + updates[0] = 10.0") == 1
    save(data=np.arange(3), indices=np.array([[5], [1]]))
    arguments = "gather-nd", "data.npy", "indices.npy", "--out-of-bounds", "fill", "-o", "o.npy"
    assert ndtool(*arguments, "--html", "p.html").status == 0
    assert set(Page("p.html").highlighted) == {"indices-0", "output-0"}, "out of bounds comes first"


def drawn_elements(page: Page, array: str) -> set[str]:
    """Return an array's drawn elements, such as data[0, 1]."""
    cells = page.cells.items()
    return {
        str(attributes["aria-label"]).split("]")[0] + "]"
        for cell_id, attributes in cells
        if cell_id.startswith(array)
    }


def test_large_arrays_are_drawn_around_the_element_explained() -> None:
    indices = np.full((500, 1), 7)
    indices[[20, 440]] = 124
    save(data=np.arange(2000.0).reshape(1000, 2), indices=indices, updates=np.ones((500, 2)))
    files = "data.npy", "indices.npy", "updates.npy"
    arguments = "explain", "scatter-nd", *files, "--reduction", "add", "--at", "124,0"
    assert ndtool(*arguments, "--html", "p.html").status == 0
    page = Page("p.html")
    labels = [cell["aria-label"] for cell in page.cells.values()]
    assert (
        "output[124, 0] = 250.0: data[124, 0] = 248.0; + updates[20, 0] = 1.0, selected by"
        " indices[20] = (124), gives 249.0; + updates[440, 0] = 1.0, selected by"
        " indices[440] = (124), gives 250.0"
    ) in labels
    assert [page.cells[cell]["aria-label"] for cell in page.of_class("current")] == [labels[-4]]
    assert len(page.highlighted) == 1 + 2 + 2 + 1
    assert "data[123, 1] = 247.0 is unchanged in output[123, 1]" in labels
    assert "… and ⋮ mark omitted elements" in page.visible_text


def test_an_element_of_many_updates_has_the_first_and_last_ones() -> None:
    save(data=np.zeros(500), indices=np.full((1000, 1), 3), updates=np.ones(1000))
    arguments = (
        "scatter-nd",
        "data.npy",
        "indices.npy",
        "updates.npy",
        "--reduction",
        "add",
        "-o",
        "o.npy",
    )
    assert ndtool(*arguments, "--html", "p.html").status == 0
    page = Page("p.html")
    (focus,) = page.of_class("current")
    label = str(page.cells[focus]["aria-label"])
    assert label.startswith("output[3] = 1000.0: data[3] = 0.0; + updates[0] = 1.0")
    assert "gives 5.0; 990 more; + updates[995] = 1.0" in label
    assert label.endswith("gives 1000.0")
    orders = [page.highlighted[name] for name in page.highlighted if name.startswith("updates")]
    assert orders == ["1", "2", "3", "4", "5", "996", "997", "998", "999", "1000"]
    assert "data[3] = 0.0 gets 1000 updates in output[3]" in page.cells["data-3"]["aria-label"]


def test_large_arrays_are_drawn_around_the_first_index_out_of_bounds() -> None:
    indices = np.arange(3000)[:, None] % 900
    indices[1234] = 900
    save(data=np.zeros((900, 64)), indices=indices, updates=np.zeros((3000, 64)))
    arguments = "scatter-nd", "data.npy", "indices.npy", "updates.npy", "-o", "o.npy"
    assert ndtool(*arguments, "--html", "p.html").status == 5
    page = Page("p.html")
    assert drawn_elements(page, "indices") == {f"indices[{n}, 0]" for n in range(1231, 1238)}
    (focus,) = page.of_class("current")
    assert page.cells[focus]["aria-label"] == (
        "indices[1234, 0] = 900 is out of bounds: axis 0 of data has size 900: valid -900..899"
    )
    assert page.cells["data-0"]["aria-label"] == (
        "data[331, 0] = 0.0 is selected by indices[1231] = (331), of the drawn elements"
    )


def test_large_arrays_are_drawn_around_the_first_difference() -> None:
    data, indices = np.arange(6400.0).reshape(100, 64), np.arange(80)[:, None]
    output = data[:80].copy()
    output[[40, 70], [17, 3]] += 1
    save(data=data, indices=indices, output=output)
    arguments = "verify", "gather-nd", "data.npy", "indices.npy", "output.npy"
    assert ndtool(*arguments, "--html", "p.html").status == 8
    page = Page("p.html")
    (focus,) = page.of_class("current")
    assert focus.startswith("actual")
    assert page.cells[focus]["aria-label"] == (
        "output[40, 17] is 2578.0, which differs from output[40, 17] = 2577.0 from data[40, 17],"
        " selected by indices[40] = (40)"
    )
    assert drawn_elements(page, "output") == {
        f"output[{i}, {j}]" for i in (39, 40, 41) for j in range(14, 21)
    }


@pytest.mark.slow("excerpts of large arrays are correct on random calls")
@many
@given(case=cases, strategy_data=st.data())
def test_the_links_of_an_excerpt_equal_brute_force(
    case: Case, strategy_data: st.DataObject
) -> None:
    note_attributes(case)
    expected = call(reference, case)
    focus = tuple(strategy_data.draw(st.integers(0, size - 1)) for size in expected.shape if size)
    assume(len(focus) == expected.ndim)
    small_limits = patch.multiple(excerpts, MAX_ELEMENTS=12, _MAX_COMPLETE=4)
    with small_limits, open_case(case) as opened_call:
        diagram = drawing.draw(opened_call, excerpts.Focus((focus,)))
    assume(diagram is not None)
    assert diagram is not None
    output = diagram.grids["output"]
    assert output.elements is not None
    assert focus in output.positions
    links = list(diagram.links)
    for position, element in zip(output.positions, output.elements, strict=True):
        if expected.dtype.names is None:  # else padding may differ
            assert bits(element) == raw_bytes(expected[(*position, ...)])
        if len(case.arrays) == 2:
            links = check_gather_links(case, diagram, position, links)
        else:
            links = check_excerpt_links(case, diagram, position, links)
    assert links == []


def check_excerpt_links(
    case: Case, diagram: Drawing, position: tuple[int, ...], links: list[Any]
) -> list[Any]:
    """Check the links of an element: the original, and the first and last updates."""
    applied_updates = list(updates_of(case, position))
    assert diagram.updates[position] == len(applied_updates)
    element_links = [link for link in links if link.output == position]
    assert (element_links[0].output, element_links[0].data, element_links[0].tuple_index) == (
        position,
        position,
        None,
    )
    listed_at_each_end = (len(element_links) - 1) // 2
    expected = (
        applied_updates
        if len(element_links) > len(applied_updates)
        else [*applied_updates[:listed_at_each_end], *applied_updates[-listed_at_each_end:]]
    )
    assert [
        (diagram.tuples[link.tuple_index].position, link.updates) for link in element_links[1:]
    ] == expected
    for link in element_links[1:]:
        check_tuple(case, diagram, link.tuple_index)
    return links[len(element_links) :]


def test_large_updates_in_chunks_are_not_read_for_a_drawing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    zarr = pytest.importorskip("zarr", exc_type=ImportError)
    save(data=np.zeros(500), indices=np.zeros((600, 1), int))
    zarr.create_array("u.zarr", shape=(600,), chunks=(100,), dtype="f8")[...] = 1
    with OpenCall(Request("scatter_nd", "data.npy", "indices.npy", "u.zarr")) as scatter_call:
        assert not excerpts.has_large_updates(scatter_call)
        monkeypatch.setattr(excerpts, "_MAX_UPDATE_BYTES", 4799)
        assert excerpts.has_large_updates(scatter_call)
