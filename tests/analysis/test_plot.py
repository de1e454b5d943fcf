"""`stats --plot`: the counts in a picture equal those of brute force."""

import os
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from command import ndtool, save
from hypothesis import assume, given
from strategies import Case, cases, many, note_attributes
from test_explain import open_case
from test_html_report import MARKUP, Page
from test_stats import sizes_of, tuples_and_slices

from ndtool.analysis import stats
from ndtool.cli import pictures

pytestmark = pytest.mark.usefixtures("workdir")

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.slow("random cases of each plotted figure")
@many
@given(case=cases)
def test_the_counts_of_a_picture_equal_brute_force(case: Case) -> None:
    note_attributes(case)
    runs = sizes_of(case)
    assume(0 not in runs)
    counts = Counter(
        int(np.ravel_multi_index([i % n for i, n in zip(run, runs, strict=True)], runs))
        for _, run, _, _ in tuples_and_slices(case)
    )
    with open_case(case) as call:
        picture = pictures.picture(stats.stats(call))
    total = int(np.prod(runs))
    assert (picture.slices, picture.selected, picture.tuples) == (
        total,
        len(counts),
        counts.total(),
    )
    expected = [0] * len(picture.density)
    for run, times in counts.items():
        expected[run // picture.bin_size] += times
    assert picture.density == expected
    assert len(picture.density) == -(-total // picture.bin_size) <= stats.PICTURE_BINS
    frequencies = Counter(map(count_label, counts.values()))
    assert {name: count for name, count in picture.frequencies if count} == {
        **frequencies,
        **({"never": total - len(counts)} if total > len(counts) else {}),
    }


def count_label(times: int) -> str:
    """Return a picture's label of a count."""
    if times <= 2:
        return ("once", "2 times")[times - 1]
    power = 4
    while power < times:
        power *= 2
    return f"{power // 2 + 1}..{power} times"


def plot(path: str, *options: object) -> None:
    """Plot 1000 indices into 10,000 slices, 500 of them into the first."""
    distinct_indices = np.arange(1, 501) * 19
    save(
        data=np.zeros((10_000, 3)), indices=np.append(np.zeros(500, int), distinct_indices)[:, None]
    )
    result = ndtool("stats", "gather-nd", "data.npy", "indices.npy", "--plot", path, *options)
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith(b"gather_nd: ")


def test_an_svg_has_a_bar_for_each_part_and_says_what_it_shows() -> None:
    plot("p.svg")
    root = ElementTree.parse("p.svg").getroot()
    assert root.tag == f"{SVG}svg"
    assert root.get("role") == "img"
    title, desc = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert title.text == "Slices of data.npy that the indices of gather_nd select"
    assert desc is not None
    assert desc.text == (
        "1000 index tuples select 501 of 10000 slices of data. Slices by how often they are selected:"
        " never 9499, once 500, 2 times 0, 3..4 times 0, 5..8 times 0, 9..16 times 0,"
        " 17..32 times 0, 33..64 times 0, 65..128 times 0, 129..256 times 0, 257..512 times 1."
    )
    bars = [element for element in root.iter(f"{SVG}rect") if element.get("class") == "bar"]
    first = bars[0].find(f"{SVG}title")
    assert first is not None
    assert first.text == "slices 0..41: 502 tuples"  # 0 occurs that often, and 19 and 38
    assert float(bars[0].get("height", "")) == pictures.HISTOGRAM_HEIGHT
    width = float(root.get("width", ""))
    for bar in bars:
        assert (
            0
            <= float(bar.get("x", ""))
            <= float(bar.get("x", "")) + float(bar.get("width", ""))
            <= width
        )


def test_pictures_are_the_same_each_time() -> None:
    for name in ("a.svg", "b.svg"):
        plot(name)
    assert Path("a.svg").read_bytes() == Path("b.svg").read_bytes()


def test_a_name_in_a_picture_is_text() -> None:
    name = MARKUP.replace("/", "-")
    np.save(f"{name}.npy", np.arange(5))
    assert ndtool("stats", "gather", f"{name}.npy", "[1]", "--plot", "p.svg").status == 0
    root = ElementTree.parse("p.svg").getroot()
    assert {element.tag for element in root.iter()} == {
        SVG + tag for tag in ("svg", "title", "desc", "style", "text", "rect", "line")
    }
    assert f"Slices of {name}.npy" in str(root.findtext(f"{SVG}title"))


def test_a_picture_as_html() -> None:
    plot("p.html")
    page = Page("p.html")
    assert "$ ndtool stats gather-nd data.npy indices.npy --plot p.html" in page.visible_text
    assert "1000 index tuples select 501 of 10000 slices" in page.visible_text


@pytest.mark.parametrize("indices", ["[[7]]", "[]", "[[-3], [2]]"])
def test_a_picture_of_few_tuples(indices: str) -> None:
    save(data=np.arange(3))
    result = ndtool("stats", "gather", "data.npy", indices, "--plot", "p.svg", "--json")
    assert result.status == 0
    root = ElementTree.parse("p.svg").getroot()
    distinct_count = {"[[7]]": 0, "[]": 0, "[[-3], [2]]": 2}[indices]
    assert (
        len([element for element in root.iter(f"{SVG}rect") if element.get("class") == "bar"])
        >= distinct_count
    )
    assert result.json["distinct"] == distinct_count


def test_a_png_is_drawn_by_matplotlib() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    plot("p.png")
    raw = Path("p.png").read_bytes()
    assert raw.startswith(b"\x89PNG\r\n")
    assert int.from_bytes(raw[16:20], "big") == 800
    plot("q.png")
    assert Path("q.png").read_bytes() == raw


def test_a_png_without_matplotlib_says_what_is_missing() -> None:
    os.mkdir("none")
    Path("none/matplotlib.py").write_text("raise ImportError")
    save(data=np.arange(3))
    result = ndtool(
        "stats", "gather", "data.npy", "[1]", "--plot", "p.png", env={"PYTHONPATH": "none"}
    )
    assert (result.status, result.out, Path("p.png").exists()) == (2, b"", False)
    assert "needs the package matplotlib" in result.err
    assert "pip install 'ndtool[plot]'" in result.err


def test_another_suffix_is_refused() -> None:
    save(data=np.arange(3))
    result = ndtool("stats", "gather", "data.npy", "[1]", "--plot", "p.pdf")
    assert result.status == 2
    assert "'p.pdf': expected a name that ends with .svg or .png or .html" in result.err


def test_a_picture_replaces_no_other_file() -> None:
    save(data=np.arange(3))
    os.rename("data.npy", "data.svg")
    assert ndtool("stats", "gather", "data.svg", "[1]", "--plot", "data.svg").status == 2
    options = ("--plot", "p.html", "--html", "p.html")
    assert ndtool("stats", "gather", "data.svg", "[1]", *options).status == 2
    assert ndtool("stats", "gather", "data.svg", "[1]", "--plot", "no/p.svg").status == 7
    assert sorted(os.listdir()) == ["data.svg"]
