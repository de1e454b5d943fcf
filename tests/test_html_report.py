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
from command import NDTOOL, at_terminal, execute, ndtool, save
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import Array, Case, cases, plain_axes, raw
from test_explain import bits, numbered, opened, results, updates_of
from test_properties import call, many, note_attributes

from ndtool.analysis import drawing, excerpts
from ndtool.analysis.drawing import Drawing
from ndtool.analysis.engines import Report
from ndtool.analysis.oracle import reference
from ndtool.analysis.verify import compare, open_arrays, recompute
from ndtool.cli.html import markup
from ndtool.cli.html.page import Report as PageReport
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
    def words(self) -> str:
        """All visible text."""
        return " ".join(text for tag, text in self.texts if tag not in ("script", "style"))

    @property
    def cells(self) -> dict[str, dict[str, str | None]]:
        """The attributes of the drawing's cells by ID."""
        found = [one for _, one in self.tags if one.get("role") == "gridcell"]
        named = {str(one["id"]): one for one in found}
        assert len(named) == len(found), "no name comes twice"
        return named

    @property
    def lit(self) -> dict[str, str | None]:
        """The cells highlighted at first, with the orders of updates."""
        return {
            name: one.get("data-order")
            for name, one in self.cells.items()
            if "highlighted" in (one.get("class") or "").split()
        }

    def of_class(self, name: str) -> list[str]:
        """Return the IDs of the cells of a class."""
        return [n for n, one in self.cells.items() if name in (one.get("class") or "").split()]

    @property
    def links(self) -> Any:
        """The JSON data for the script."""
        (text,) = [text for tag, text in self.texts if text.startswith('{"tuples"')]
        return json.loads(text)


def drawn(case: Case) -> Drawing:
    with opened(case) as call:
        found = drawing.draw(call)
    assume(found is not None and found.is_complete)
    assert found is not None
    return found


@pytest.mark.slow("random cases of each link of a report")
@many
@given(case=cases)
def test_the_links_of_a_drawing_equal_brute_force(case: Case) -> None:
    note_attributes(case)
    expected, found = call(reference, case), drawn(case)
    output = found.grids["output"]
    assert output.elements is not None
    assert [bits(one) for one in output.elements] == [raw(one) for one in flat(expected)]
    links = list(found.links)
    for at in np.ndindex(expected.shape):
        check = check_gathered if len(case.arrays) == 2 else check_scattered
        links = check(case, found, at, links)
    assert links == []


def flat(array: Array) -> list[Array]:
    return [array[(*at, ...)] for at in np.ndindex(array.shape)]


def check_gathered(case: Case, found: Drawing, at: tuple[int, ...], links: list[Any]) -> list[Any]:
    link = links[0]
    assert (link.output, link.updates) == (at, None)
    assert np.ravel_multi_index(link.data, case.arrays[0].shape) == numbered(case)[at]
    assert bits(link.result) == raw(case.arrays[0][(*link.data, ...)])
    check_tuple(case, found, link.tuple_index)
    return links[1:]


def check_scattered(case: Case, found: Drawing, at: tuple[int, ...], links: list[Any]) -> list[Any]:
    data, _, updates = case.arrays
    applied = list(updates_of(case, at))
    taken = [updates[(*origin, ...)] for _, origin in applied]
    after = results(data[(*at, ...)], taken, case.arguments)
    old, *others = links[: 1 + len(applied)]
    assert (old.output, old.data, old.tuple_index, old.updates) == (at, at, None, None)
    for (where, origin), link, value in zip(applied, others, after, strict=True):
        assert (link.output, link.data, link.updates) == (at, None, origin)
        assert (found.tuples[link.tuple_index].position, bits(link.result)) == (where, raw(value))
        check_tuple(case, found, link.tuple_index)
    return links[1 + len(applied) :]


def check_tuple(case: Case, found: Drawing, number: int) -> None:
    one = found.tuples[number]
    assert one.stored == tuple(int(case.arrays[1][cell]) for cell in one.component_positions)
    assert one.out_of_bounds == []
    assert one.normalized is not None
    for written, front, (_, highest) in zip(
        one.stored, one.normalized, found.valid_ranges, strict=True
    ):
        assert front == written % (highest + 1)


@pytest.mark.slow("random cases of a report before a run")
@many
@given(case=cases, chosen=st.data())
def test_a_drawing_without_output_shows_selected_elements(
    case: Case, chosen: st.DataObject
) -> None:
    note_attributes(case)
    data, indices, *updates = case.arrays
    assume(indices.size and data.size)
    wide = np.array(indices, np.int64)
    bad = np.unravel_index(chosen.draw(st.integers(0, wide.size - 1)), wide.shape)
    wide[bad] = chosen.draw(st.sampled_from((10**6, -(10**6), 2**63 - 1, -(2**63))))
    found = drawn(Case(case.operator, (data, wide, *updates), case.arguments))
    assert "output" not in found.grids
    beyond = [one.component_positions[j] for one in found.tuples for j in one.out_of_bounds]
    assert beyond == [tuple(map(int, bad))]
    assert {(link.data, link.tuple_index) for link in found.links} == named(case, wide, found)
    assert all((link.updates is not None) == bool(updates) for link in found.links)


def named(case: Case, indices: Array, found: Drawing) -> set[tuple[tuple[int, ...], int]]:
    """Return which elements of data each tuple selects, except tuples out of bounds."""
    data, pairs = case.arrays[0], set()
    numbers = np.arange(data.size).reshape(data.shape)
    for number, one in enumerate(found.tuples):
        if one.out_of_bounds:
            continue
        row = tuple(int(indices[cell]) for cell in one.component_positions)
        if case.operator.endswith("_nd"):
            lead = one.position[: case.arguments.get("batch_dims", 0)]
            run = numbers[(*lead, *row)]
        else:
            a, b = plain_axes(case)
            whole = case.operator in ("gather", "scatter")
            before: Any = (
                (*one.position[:b], *(slice(None),) * (a - b)) if whole else one.position[:a]
            )
            run = numbers[(*before, row[0], *(() if whole else one.position[a + 1 :]))]
        places = np.unravel_index(np.ravel(run), data.shape)
        pairs |= {(tuple(map(int, at)), number) for at in zip(*places, strict=True)}
    return pairs


def saved(**changes: Any) -> list[str]:
    """Write the inputs of a small call of scatter_nd; return its arguments."""
    arrays = {
        "data": np.array([1.5, 2.0, 3.0, 4.0], np.float32),
        "indices": np.array([[1], [-1], [1]]),
        "updates": np.array([10, 20, 30], np.float32),
        **changes,
    }
    save(**arrays)
    return [f"{name}.npy" for name in arrays]


def test_a_run_writes_its_report_with_the_output() -> None:
    files = saved()
    ran = ndtool("scatter-nd", *files, "--reduction", "add", "-o", "o.npy", "--html", "p.html")
    assert (ran.status, ran.out, ran.err) == (0, b"", "")
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
    for words in (
        "$ ndtool scatter-nd data.npy indices.npy updates.npy --reduction add -o o.npy",
        "updates.shape = indices.shape[:-1] + data.shape[k:]",
        "duplicates: 1 slice",
        "+ updates[2] = 30.0, selected by indices[2] = (1), gives 42.0",
    ):
        assert words in page.words


def test_the_last_of_several_updates_is_shown() -> None:
    assert ndtool("scatter-nd", *saved(), "-o", "o.npy", "--html", "p.html").status == 0
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


def test_cells_are_those_of_grids() -> None:
    rng = np.random.default_rng(0)
    save(data=rng.random((2, 3, 25)), indices=np.zeros((45, 2), np.uint8))
    assert (
        ndtool("gather-nd", "data.npy", "indices.npy", "--html", "p.html", "--dry-run").status == 0
    )
    assert "Large arrays are drawn in part" in Page("p.html").words
    save(indices=np.zeros((9, 2), np.uint8))
    assert (
        ndtool("gather-nd", "data.npy", "indices.npy", "--html", "p.html", "--dry-run").status == 0
    )
    page = Page("p.html")
    assert len(page.cells) == 150 + 18 + 225
    assert {one["tabindex"] for one in page.cells.values()} == {"0", "-1"}
    first = [name for name, one in page.cells.items() if one["tabindex"] == "0"]
    assert first == ["data-0", "indices-0", "output-0"]
    grids = [one for tag, one in page.tags if one.get("role") == "grid"]
    assert [one["aria-label"] for one in grids][:2] == ["data[0, 0, :]", "data[0, 1, :]"]
    for output, data, number, updates, _ in page.links["links"]:
        assert f"output-{output}" in page.cells
        assert f"data-{data}" in page.cells
        assert updates is None
        assert all(f"indices-{n}" in page.cells for n in page.links["tuples"][number])


def test_tuples_without_components_are_not_drawn_by_the_thousand() -> None:
    save(data=np.zeros((0, 3)), indices=np.zeros((10**6, 0), int))
    np.save("updates.npy", np.zeros((10**6, 0, 3)))
    files = "data.npy", "indices.npy", "updates.npy"
    assert ndtool("scatter-nd", *files, "-o", "o.npy", "--html", "p.html").status == 0
    assert len(Page("p.html").links["tuples"]) < 10


@pytest.mark.parametrize("shape", [(), (0,), (1,) * 64, (400,), (400, 1), (1, 400), (2, 0, 3)])
def test_arrays_of_any_shape(shape: tuple[int, ...]) -> None:
    save(data=np.arange(7, dtype=">i4"), indices=np.zeros(shape, np.int32))
    ran = ndtool("gather", "data.npy", "indices.npy", "--html", "p.html", "-q", "-o", "o.npy")
    assert (ran.status, ran.err) == (0, "")
    assert len(Page("p.html").cells) == 7 + 2 * int(np.prod(shape))


def test_a_report_is_self_contained() -> None:
    ran = ndtool("scatter-nd", *saved(), "-o", "o.npy", "--html", "p.html")
    assert ran.status == 0
    text, page = Path("p.html").read_text(), Page("p.html")
    assert "http://" not in text
    assert "https://" not in text
    assert [one["href"] for tag, one in page.tags if "href" in one] == ["data:,"]
    assert not any({"src", "style", "onclick", "onload"} & one.keys() for _, one in page.tags)
    (policy,) = [
        one["content"] or ""
        for _, one in page.tags
        if one.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


def test_a_report_is_reproducible() -> None:
    command = "scatter-nd", *saved(), "-o", "o.npy", "--html", "p.html"
    pages = []
    for columns in (60, 200):
        assert at_terminal(*NDTOOL, *command, columns=columns).status == 0
        pages.append(Path("p.html").read_bytes())
    assert ndtool(*command).status == 0
    assert [Path("p.html").read_bytes()] * 2 == pages


def test_names_and_values_are_text() -> None:
    name = MARKUP.replace("/", "-")
    np.save(f"{name}.npy", np.array([MARKUP, "\x1b[31m\0x", "a\nb", "\ud800"]))
    save(indices=np.array([[0], [1], [2], [3]]))
    ran = ndtool("gather-nd", f"{name}.npy", "indices.npy", "-o", "o.npy", "--html", "p.html")
    assert ran.status == 0
    page = Page("p.html")
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert not [tag for tag, _ in page.tags if tag == "b"]
    assert f"{name}.npy" in page.words
    assert page.cells["output-0"]["aria-label"] == (
        f"output[0] = {MARKUP} from data[0], selected by indices[0] = (0)"
    )
    assert page.cells["data-1"]["aria-label"] == "data[1] = \\x1b[31m\\x00x goes to output[1]"
    assert [link[0] for link in page.links["links"]] == [0, 1, 2, 3]


@pytest.mark.parametrize("command", ["stats", "explain", "verify", "dry run", "run"])
def test_a_report_shows_the_index_out_of_bounds(command: str) -> None:
    files = saved(indices=np.array([[1], [7], [1]]), output=np.zeros(4, np.float32))
    options = {"explain": ["--at", "0"], "dry run": ["--dry-run"], "run": ["-o", "o.npy"]}
    inputs = {"stats": files[:2], "verify": files}.get(command, files[:3])
    words = [command] if command in ("stats", "explain", "verify") else []
    ran = ndtool(*words, "scatter-nd", *inputs, *options.get(command, []), "--html", "p.html")
    assert ran.status == (0 if command == "stats" else 5)
    page = Page("p.html")
    assert page.cells["indices-1"]["class"] == "out-of-bounds highlighted current"
    assert page.cells["indices-1"]["aria-label"] == (
        "indices[1, 0] = 7 is out of bounds: axis 0 of data has size 4: valid -4..3"
    )
    assert page.cells["updates-1"]["aria-label"].endswith("is dropped: its index is out of bounds")
    assert "output-0" not in page.cells
    assert ["data-initial", "indices-1"] in [list(x) for _, one in page.tags for x in one.items()]
    assert "out of bounds: 1 tuple, first indices.npy[1, 0] = 7" in page.words
    assert "There is no output, because an index is out of bounds." in page.words
    assert not Path("o.npy").exists()


def test_an_explanation_highlights_its_element() -> None:
    ran = ndtool(
        "explain", "scatter-nd", *saved(), "--reduction", "max", "--at", "1", "--from", "2",
        "--html", "p.html",
    )  # fmt: skip
    assert ran.status == 0
    page = Page("p.html")
    assert page.of_class("selected") == ["data-2", "output-1"]
    assert "data.npy[2] = 3.0 went to output[2] unchanged" in page.words
    assert "output[1] = 30.0" in page.words


def test_types_that_stand_for_arrays_have_no_values() -> None:
    ran = ndtool(
        "explain", "gather-nd", "float32[2,3]", "[[1], [0]]", "--at", "0,2", "--html", "p.html"
    )
    assert ran.status == 0
    page = Page("p.html")
    assert page.cells["output-2"]["aria-label"] == (
        "output[0, 2] from data[1, 2], selected by indices[0] = (1)"
    )


def test_an_explanation_lists_a_bounded_number_of_rows() -> None:
    save(data=np.arange(3.0), idx=np.zeros((1203, 1), np.int64))
    command = ("explain", "gather-nd", "data.npy", "idx.npy", "--from", "0", "--all")
    text = ndtool(*command, "--html", "p.html").out.decode()
    assert len(text.splitlines()) == 1 + 1203
    words = Page("p.html").words
    assert "output[999]" in words
    assert "output[1000]" not in words
    assert "… 203 more, which the command prints" in words


@pytest.mark.parametrize("reduction", ["none", "add", "max"])
@pytest.mark.parametrize("command", ["explain", "stats"])
def test_updates_of_unknown_values_give_no_values(command: str, reduction: str) -> None:
    data, indices, _ = saved()
    requested = ("float32[3]", "--at", "3") if command == "explain" else ()
    run = (command, "scatter-nd", data, indices, *requested, "--reduction", reduction)
    assert ndtool(*run, "--html", "p.html").status == 0
    page = Page("p.html")
    labels = {name: one["aria-label"] or "" for name, one in page.cells.items()}
    for n in range(4):
        assert not labels[f"output-{n}"].startswith(f"output[{n}] =")
        assert labels[f"data-{n}"].startswith(f"data[{n}] = {[1.5, 2.0, 3.0, 4.0][n]} ")
    for n in range(3):
        assert labels[f"updates-{n}"].startswith(f"updates[{n}] goes to output[")
    assert not any(", gives " in label for label in labels.values())


def test_a_verification_shows_what_is_wrong() -> None:
    files = saved(output=np.array([1.5, 30, 3, 21], np.float32))
    ran = ndtool("verify", "scatter-nd", *files, "--html", "p.html")
    assert ran.status == 8
    page = Page("p.html")
    assert page.of_class("wrong") == ["actual-3"]
    assert page.cells["actual-3"]["aria-label"] == (
        "output[3] is 21.0, which differs from output[3] = 20.0 from updates[1],"
        " selected by indices[1] = (-1), which is (3), which overwrites data[3] = 4.0"
    )
    assert "3 of 4 elements have the same bits" in page.words
    saved(output=np.array([1.5, 30, 3, 20], np.float32))
    assert ndtool("verify", "scatter-nd", *files, "--html", "p.html").status == 0
    page = Page("p.html")
    assert "4 of 4 elements have the same bits" in page.words
    assert "error" not in page.words
    save(output=np.zeros(4, np.float64))
    assert ndtool("verify", "scatter-nd", *files, "--html", "p.html").status == 8
    assert "output.npy has dtype <f8" in Page("p.html").words


def test_a_verification_with_a_report_reads_no_pipe() -> None:
    files = saved(output=np.array([1.5, 30, 3, 20], np.float32))
    data = Path(files[0]).read_bytes()
    ran = ndtool("verify", "scatter-nd", "-", *files[1:], "--html", "p.html", stdin=data)
    assert ran.status == 2
    assert "--html reads standard input twice: expected a file, not a pipe" in ran.err


def test_a_report_has_the_results_of_engines() -> None:
    command = "verify", "scatter-nd", *saved(), "--against", "numpy", "--html", "p.html"
    ran = ndtool(*command)
    assert (ran.status, ran.err) == (0, "")
    page = Page("p.html")
    assert f"numpy {np.__version__} 1 same" in " ".join(page.words.split())
    assert len(page.cells) == 4 + 3 + 3 + 4
    saved(output=np.array([1.5, 30, 3, 21], np.float32))
    ran = ndtool(*command[:5], "output.npy", *command[5:], "--json")
    assert (ran.status, ran.json["engines"][0]["result"]) == (8, "same")
    page = Page("p.html")
    assert "3 of 4 elements have the same bits" in page.words
    assert page.of_class("wrong") == ["actual-3"]


def test_a_report_highlights_differences_of_engines(workdir: Path) -> None:
    saved()
    request = Request("scatter_nd", "data.npy", "indices.npy", "updates.npy")
    wrong = np.float32([1.5, 30, 3, 21])
    with open_arrays(request) as call:
        compared = compare(request, call.arrays, wrong, recompute(request, call.arrays))
    answers = [
        Report("mine", MARKUP, 2, "different", 1, "1 of 4 elements differ", compared),
        Report("yours", None, None, "missing", None, "pip install yours"),
    ]
    with click.Context(click.Command("verify")), OpenCall(request) as job:
        described = PageReport("p.html", job, Reporter())
        described.add_engines(answers)
        described.publish()
    page = Page("p.html")
    assert page.of_class("selected") == ["output-3"]
    classes = [one["class"] for _, one in page.tags if str(one.get("class")).startswith("result")]
    assert classes == ["result different", "result missing"]
    for words in (
        f"mine {MARKUP}, 2 threads", "3 of 4 elements have the same bits", "pip install yours",
        "largest difference: [3] is 21.0, not 20.0: 524288 ulps apart",
    ):  # fmt: skip
        assert words in page.words
    bars = [one["width"] for tag, one in page.tags if tag == "rect" and "%" in str(one["width"])]
    assert bars == ["100.00%", "0.00%", "0.00%", "0.00%", "33.33%"]


def test_a_report_of_engines_with_an_index_out_of_bounds() -> None:
    saved()
    ran = ndtool("verify", "gather", "data.npy", "[0, 7]", "--against", "numpy", "--html", "p.html")
    assert ran.status == 5
    page = Page("p.html")
    assert "indices out of bounds: 1 of 2 elements" in page.words
    assert "refused" in page.words
    assert page.cells["indices-1"]["class"] == "out-of-bounds highlighted current"


def test_a_report_of_engines_replaces_no_input() -> None:
    files = saved()
    os.rename("data.npy", "data.html")
    before = Path("data.html").read_bytes()
    ran = ndtool(
        "verify", "scatter-nd", "data.html", *files[1:], "--against", "numpy", "--html", "data.html"
    )
    assert (ran.status, ran.out, Path("data.html").read_bytes()) == (2, b"", before)


def test_a_report_that_cannot_be_written_leaves_nothing() -> None:
    command = "scatter-nd", *saved(), "-o", "o.npy", "--html"
    ran = ndtool(*command, "nowhere/p.html")
    assert (ran.status, Path("o.npy").exists()) == (7, False)
    assert "nowhere/p.html" in ran.err
    Path("p.html").write_text("old")
    ran = ndtool(*command, "p.html", "--no-clobber")
    assert (ran.status, Path("o.npy").exists()) == (7, False)
    Path("p.html").chmod(0o400)
    assert ndtool("gather", "data.npy", "[0]", "-o", "no/o.npy", "--html", "q.html").status == 7
    assert (Path("p.html").read_text(), Path("q.html").exists()) == ("old", False)
    os.mkfifo("f.html")
    assert ndtool(*command, "f.html").status == 7
    os.mkdir("d.html")
    assert ndtool(*command, "d.html").status == 7
    ran = ndtool(*command, "https://127.0.0.1/p.html")
    assert (ran.status, Path("o.npy").exists()) == (7, False)


def test_a_report_replaces_no_other_file() -> None:
    files = saved()
    os.rename("data.npy", "data.html")
    for output, page in (("o.npy", "./data.html"), ("p.html", "p.html")):
        ran = ndtool("scatter-nd", "data.html", *files[1:], "-o", output, "--html", page)
        assert ran.status == 2
        assert "expected another file" in ran.err
    assert ndtool("gather", "data.html", "[0]", "--html", "page.npy").status == 2
    for command in ("gather", "stats gather"):
        script = f'{NDTOOL[0]} -m ndtool {command} data.html "[0]" --html o.html > o.html'
        ran = execute("bash", "-c", script)
        assert (ran.status, Path("o.html").read_bytes()) == (2, b"")
        assert "o.html is standard output: expected another file" in ran.err
    assert np.load("data.html").shape == (4,)


def test_a_report_is_not_written_to_a_replaced_store() -> None:
    zarr = pytest.importorskip("zarr", exc_type=ImportError)
    saved()
    zarr.create_array("out.zarr", shape=(2,), dtype="f4")[...] = 1
    run = ("gather", "data.npy", "[0]", "-o", "out.zarr", "--html")
    ran = ndtool(*run, "out.zarr/page.html")
    assert ran.status == 2
    assert "out.zarr/page.html is in out.zarr" in ran.err
    assert ndtool(*run, "page.html").status == 0


def test_an_incomplete_document_is_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OutputError("p.html: No space left on device")

    Path("p.html").write_text("old")
    monkeypatch.setattr(sinks.FileSink, "write", full)
    with pytest.raises(OutputError):
        document.create("p.html", b"new")
    assert sorted(os.listdir()) == ["p.html"]
    assert Path("p.html").read_text() == "old"


def test_a_broken_rule_writes_no_report() -> None:
    ran = ndtool("scatter-nd", *saved(updates=np.zeros(4)), "-o", "o.npy", "--html", "p.html")
    assert (ran.status, Path("p.html").exists()) == (4, False)


def test_secrets_of_urls_are_left_out() -> None:
    made = markup.element("p", "https://me:word@host/x?key=1", title="s3://me:word@host")
    assert (made.text, made.get("title")) == ("https://host/x?...", "s3://host")


def test_shells_offer_pages_and_folders() -> None:
    for name in ("a.html", "a.npy", "b.svg"):
        Path(name).touch()
    os.mkdir("ab")
    words = "ndtool gather data.npy indices.npy --html a"
    requested = {"_NDTOOL_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "5"}
    assert ndtool(env=requested).out.decode().split() == ["path,a.html", "path,ab/"]


def test_a_report_has_the_warnings_about_the_output() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    saved_as = pytest.importorskip("safetensors.numpy")
    saved_as.save_file({"a": np.ones(3, ml_dtypes.bfloat16)}, "a.safetensors")
    run = ("gather", "a.safetensors", "[0]", "-o", "o.npy", "--html", "o.html")
    for more in ((), ("--dry-run",)):
        ran = ndtool(*run, *more)
        assert (ran.status, "bfloat16 is stored as V2" in ran.err) == (0, True)
        assert Path("o.html").read_text().count("bfloat16 is stored as V2") == 1


def test_a_report_highlights_an_element_and_its_sources_before_any_script() -> None:
    ran = ndtool("scatter-nd", *saved(), "--reduction", "add", "-o", "o.npy", "--html", "p.html")
    assert ran.status == 0
    page = Page("p.html")
    assert page.lit == {
        "data-1": None, "indices-0": "1", "indices-2": "2", "updates-0": "1", "updates-2": "2",
        "output-1": None,
    }  # fmt: skip
    assert page.of_class("current") == ["output-1"]
    assert page.words.count("output[1] = 42.0: data[1] = 2.0; + updates[0] = 10.0") == 1
    save(data=np.arange(3), indices=np.array([[5], [1]]))
    run = "gather-nd", "data.npy", "indices.npy", "--out-of-bounds", "fill", "-o", "o.npy"
    assert ndtool(*run, "--html", "p.html").status == 0
    assert set(Page("p.html").lit) == {"indices-0", "output-0"}, "out of bounds comes first"


def drawn_of(page: Page, array: str) -> set[str]:
    """Return the names of an array's drawn elements."""
    cells = page.cells.items()
    return {str(x["aria-label"]).split("]")[0] + "]" for n, x in cells if n.startswith(array)}


def test_large_arrays_are_drawn_around_the_element_explained() -> None:
    indices = np.full((500, 1), 7)
    indices[[20, 440]] = 124
    save(data=np.arange(2000.0).reshape(1000, 2), indices=indices, updates=np.ones((500, 2)))
    files = "data.npy", "indices.npy", "updates.npy"
    run = "explain", "scatter-nd", *files, "--reduction", "add", "--at", "124,0"
    assert ndtool(*run, "--html", "p.html").status == 0
    page = Page("p.html")
    labels = [one["aria-label"] for one in page.cells.values()]
    assert (
        "output[124, 0] = 250.0: data[124, 0] = 248.0; + updates[20, 0] = 1.0, selected by"
        " indices[20] = (124), gives 249.0; + updates[440, 0] = 1.0, selected by"
        " indices[440] = (124), gives 250.0"
    ) in labels
    assert [page.cells[one]["aria-label"] for one in page.of_class("current")] == [labels[-4]]
    assert len(page.lit) == 1 + 2 + 2 + 1
    assert "data[123, 1] = 247.0 is unchanged in output[123, 1]" in labels
    assert "… and ⋮ mark omitted elements" in page.words


def test_an_element_of_many_updates_has_the_first_and_last_ones() -> None:
    save(data=np.zeros(500), indices=np.full((1000, 1), 3), updates=np.ones(1000))
    run = (
        "scatter-nd",
        "data.npy",
        "indices.npy",
        "updates.npy",
        "--reduction",
        "add",
        "-o",
        "o.npy",
    )
    assert ndtool(*run, "--html", "p.html").status == 0
    page = Page("p.html")
    (here,) = page.of_class("current")
    words = str(page.cells[here]["aria-label"])
    assert words.startswith("output[3] = 1000.0: data[3] = 0.0; + updates[0] = 1.0")
    assert "gives 5.0; 990 more; + updates[995] = 1.0" in words
    assert words.endswith("gives 1000.0")
    orders = [page.lit[name] for name in page.lit if name.startswith("updates")]
    assert orders == ["1", "2", "3", "4", "5", "996", "997", "998", "999", "1000"]
    assert "data[3] = 0.0 gets 1000 updates in output[3]" in page.cells["data-3"]["aria-label"]


def test_large_arrays_are_drawn_around_the_first_index_out_of_bounds() -> None:
    indices = np.arange(3000)[:, None] % 900
    indices[1234] = 900
    save(data=np.zeros((900, 64)), indices=indices, updates=np.zeros((3000, 64)))
    run = "scatter-nd", "data.npy", "indices.npy", "updates.npy", "-o", "o.npy"
    assert ndtool(*run, "--html", "p.html").status == 5
    page = Page("p.html")
    assert drawn_of(page, "indices") == {f"indices[{n}, 0]" for n in range(1231, 1238)}
    (here,) = page.of_class("current")
    assert page.cells[here]["aria-label"] == (
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
    run = "verify", "gather-nd", "data.npy", "indices.npy", "output.npy"
    assert ndtool(*run, "--html", "p.html").status == 8
    page = Page("p.html")
    (here,) = page.of_class("current")
    assert here.startswith("actual")
    assert page.cells[here]["aria-label"] == (
        "output[40, 17] is 2578.0, which differs from output[40, 17] = 2577.0 from data[40, 17],"
        " selected by indices[40] = (40)"
    )
    assert drawn_of(page, "output") == {
        f"output[{i}, {j}]" for i in (39, 40, 41) for j in range(14, 21)
    }


@pytest.mark.slow("random cases of excerpts of large arrays")
@many
@given(case=cases, chosen=st.data())
def test_the_links_of_an_excerpt_equal_brute_force(case: Case, chosen: st.DataObject) -> None:
    note_attributes(case)
    expected = call(reference, case)
    at = tuple(chosen.draw(st.integers(0, size - 1)) for size in expected.shape if size)
    assume(len(at) == expected.ndim)
    small = patch.multiple(excerpts, LIMIT=12, _SMALL=4)
    with small, opened(case) as opened_call:
        found = drawing.draw(opened_call, excerpts.Focus((at,)))
    assume(found is not None)
    assert found is not None
    output = found.grids["output"]
    assert output.elements is not None
    assert at in output.positions
    links = list(found.links)
    for position, element in zip(output.positions, output.elements, strict=True):
        if expected.dtype.names is None:  # else padding may differ
            assert bits(element) == raw(expected[(*position, ...)])
        if len(case.arrays) == 2:
            links = check_gathered(case, found, position, links)
        else:
            links = check_shortened(case, found, position, links)
    assert links == []


def check_shortened(case: Case, found: Drawing, at: tuple[int, ...], links: list[Any]) -> list[Any]:
    """Check the links of an element: the original, and the first and last updates."""
    applied = list(updates_of(case, at))
    assert found.updates[at] == len(applied)
    own = [link for link in links if link.output == at]
    assert (own[0].output, own[0].data, own[0].tuple_index) == (at, at, None)
    ends = (len(own) - 1) // 2
    wanted = applied if len(own) > len(applied) else [*applied[:ends], *applied[-ends:]]
    assert [(found.tuples[link.tuple_index].position, link.updates) for link in own[1:]] == wanted
    for link in own[1:]:
        check_tuple(case, found, link.tuple_index)
    return links[len(own) :]


def test_large_updates_in_chunks_are_not_read_for_a_drawing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    zarr = pytest.importorskip("zarr", exc_type=ImportError)
    save(data=np.zeros(500), indices=np.zeros((600, 1), int))
    zarr.create_array("u.zarr", shape=(600,), chunks=(100,), dtype="f8")[...] = 1
    with OpenCall(Request("scatter_nd", "data.npy", "indices.npy", "u.zarr")) as large:
        assert not excerpts.has_large_updates(large)
        monkeypatch.setattr(excerpts, "_READ", 4799)
        assert excerpts.has_large_updates(large)
