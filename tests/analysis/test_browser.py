"""HTML reports in headless Chromium, without requests to other hosts."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool, save
from strategies import Array

from ndtool.analysis.oracle import reference

pytestmark = pytest.mark.usefixtures("workdir")

DATA = np.arange(24, dtype=np.float32).reshape(3, 4, 2)
INDICES = np.array([[2, 0], [-1, -4], [0, 3]])  # the first two select the same slice
UPDATES = np.arange(100, 106, dtype=np.float32).reshape(3, 2)
MARKUP_NAME = '<img src=x onerror=alert(1)>"</script><script>alert(2)<!--'


class Browser:
    """Headless Chromium, driven by selenium."""

    def __init__(self) -> None:
        webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        driver = shutil.which("chromedriver")
        if chromium is None or driver is None:
            pytest.skip("chromium and chromedriver are not installed")
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        flags = ["--headless=new", "--disable-dev-shm-usage", "--disable-background-networking"]
        flags += ["--host-resolver-rules=MAP * ~NOTFOUND"]  # without DNS requests
        flags += ["--no-sandbox"] * (os.geteuid() == 0)  # Chromium refuses root otherwise
        for flag in flags:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver: Any = webdriver.Chrome(
            options=options, service=webdriver.ChromeService(driver)
        )

    def open(self, report: str, scheme: str = "light", width: int = 1280, media: str = "") -> None:
        """Open a report in the current directory."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", media=media, features=features)
        sizes = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.devtools("Emulation.setDeviceMetricsOverride", **sizes)
        for log in ("browser", "performance"):
            self.driver.get_log(log)
        self.driver.get(Path(report).absolute().as_uri())

    def devtools(self, command: str, **parameters: Any) -> Any:
        """Run a command of the Chrome DevTools protocol."""
        return self.driver.execute_cdp_cmd(command, parameters)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the report; return its result."""
        return self.driver.execute_script(script, *arguments)

    def cell(self, name: str) -> Any:
        """Return a cell of a grid by its ID."""
        return self.driver.find_element("id", name)

    def press(self, *keys: str) -> str:
        """Press keys; return the ID of the focused cell."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()
        return str(self.run("return document.activeElement.id"))

    def hover(self, name: str) -> None:
        """Move the mouse over a cell."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).move_to_element(self.cell(name)).perform()

    @property
    def highlighted(self) -> set[str]:
        """The IDs of the highlighted cells."""
        return set(self.run("return [...document.querySelectorAll('.highlighted')].map(c => c.id)"))

    @property
    def sentence(self) -> str:
        """The sentence about the selected cell."""
        return str(self.cell("sentence").text)

    @property
    def sentences(self) -> dict[str, str]:
        """The sentences of all cells, by ID."""
        script = (
            "return [...document.querySelectorAll('[role=gridcell]')].map(c => [c.id, c.ariaLabel])"
        )
        return dict(self.run(script))

    @property
    def requests(self) -> list[str]:
        """The requests since the report was opened."""
        events = [
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        ]
        requested = [event for event in events if event["method"] == "Network.requestWillBeSent"]
        return [entry["params"]["request"]["url"] for entry in requested]

    @property
    def console_messages(self) -> list[str]:
        """The messages on the browser's console."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    session = Browser()
    yield session
    session.driver.quit()


def write_report(operator: str, *options: str, **arrays: Array) -> None:
    """Run a call that writes an HTML report."""
    save(**arrays)
    files = [f"{name}.npy" for name in arrays]
    completed = ndtool(operator, *files, *options, "-o", "o.npy", "--html", "p.html")
    assert (completed.status, completed.err) == (0, "")


def highlighted_cells(browser: Browser) -> dict[str, list[str]]:
    """Return, for each cell, the cells that are highlighted while the mouse is over it."""
    return dict(
        browser.run(
            """
            return [...document.querySelectorAll("[role=gridcell]")].map((cell) => {
              cell.dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
              const highlighted = [...document.querySelectorAll(".highlighted")].map((node) => node.id);
              return [cell.id, highlighted.sort()];
            });
            """
        )
    )


def test_hovering_over_a_gather_highlights_linked_cells(browser: Browser) -> None:
    """An element of data highlights all tuples that select it; an output element only its own."""
    write_report("gather-nd", data=DATA, indices=INDICES)
    browser.open("p.html")
    positions = np.arange(DATA.size).reshape(DATA.shape)
    sources = reference.gather_nd(positions, INDICES).reshape(-1).tolist()
    expected: dict[str, set[str]] = {}
    for n, source in enumerate(sources):
        row = {f"indices-{n // 2 * 2}", f"indices-{n // 2 * 2 + 1}"}
        expected[f"output-{n}"] = linked = {f"output-{n}", f"data-{source}", *row}
        for name in linked - {f"output-{n}"}:
            expected.setdefault(name, set()).update(linked)
    highlighted = highlighted_cells(browser)
    assert len(highlighted) == DATA.size + INDICES.size + 6
    for name, names in highlighted.items():
        assert names == sorted(expected.get(name, []))
    assert (browser.console_messages, len(browser.requests)) == ([], 1)


def test_hovering_over_a_scatter_highlights_updates_in_order(browser: Browser) -> None:
    write_report("scatter-nd", "--reduction", "add", data=DATA, indices=INDICES, updates=UPDATES)
    browser.open("p.html")
    browser.hover("output-17")
    order = {name: browser.cell(name).get_attribute("data-order") for name in browser.highlighted}
    assert order == {
        "output-17": None, "data-17": None, "updates-1": "1", "updates-3": "2",
        "indices-0": "1", "indices-1": "1", "indices-2": "2", "indices-3": "2",
    }  # fmt: skip
    assert browser.sentence == (
        "output[2, 0, 1] = 221.0: data[2, 0, 1] = 17.0; + updates[0, 1] = 101.0, selected by"
        " indices[0] = (2, 0), gives 118.0; + updates[1, 1] = 103.0, selected by indices[1] = (-1, -4),"
        " which is (2, 0), gives 221.0"
    )
    browser.hover("updates-4")
    assert browser.highlighted == {"output-6", "updates-4", "indices-4", "indices-5"}
    browser.hover("output-0")
    assert browser.highlighted == {"output-0", "data-0"}


def test_arrow_keys_move_through_cells(browser: Browser) -> None:
    from selenium.webdriver.common.keys import Keys

    arrays = {"data": np.zeros((2, 3)), "indices": np.array([[2]]), "updates": np.ones((1, 1))}
    write_report("scatter-elements", "--axis", "1", **arrays)
    browser.open("p.html")
    focused = [browser.press(Keys.TAB)]
    while focused[-1] != "data-0":
        assert len(focused) < 20
        focused.append(browser.press(Keys.TAB))
    for key, name in (
        (Keys.ARROW_RIGHT, "data-1"), (Keys.ARROW_DOWN, "data-4"), (Keys.ARROW_LEFT, "data-3"),
        (Keys.ARROW_UP, "data-0"), (Keys.ARROW_UP, "data-0"), (Keys.END, "data-5"),
        (Keys.ARROW_RIGHT, "data-5"), (Keys.HOME, "data-0"),
    ):  # fmt: skip
        assert browser.press(key) == name
    browser.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert browser.sentence == "data[0, 2] = 0.0 is overwritten by updates[0, 0]"
    assert browser.press(Keys.ENTER) == "output-2"
    initial = {"output-2", "data-2", "indices-0", "updates-0"}
    assert browser.highlighted == initial
    browser.hover("data-0")
    assert browser.highlighted == {"data-0", "output-0"}


def test_a_screen_reader_reads_the_sentence(browser: Browser) -> None:
    write_report("gather", data=np.array([5, 6, 7]), indices=np.array([2]))
    browser.open("p.html")
    nodes = browser.devtools("Accessibility.getFullAXTree")["nodes"]
    labels = [
        (node.get("role", {}).get("value"), node.get("name", {}).get("value")) for node in nodes
    ]
    assert ("grid", "data[:]") in labels
    assert ("gridcell", "output[0] = 7 from data[2], selected by indices[0] = 2") in labels
    assert [role for role, _ in labels].count("gridcell") == 5


CONTRAST_SCRIPT = """
const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
const known = new Map();
const toRgb = (colour) => {
  if (!known.has(colour)) {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    known.set(colour, [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3));
  }
  return known.get(colour);
};
const luminance = (colour) => {
  const channels = toRgb(colour).map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2];
};
const background = (node) => {
  for (let element = node; element; element = element.parentElement) {
    const colour = getComputedStyle(element).backgroundColor;
    if (colour !== "rgba(0, 0, 0, 0)") return colour;
  }
  return "white";
};
const ratio = (node) => {
  const [a, b] = [luminance(getComputedStyle(node).color), luminance(background(node))];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
};
return [...document.querySelectorAll("h1, p, th, td, li, pre, strong, span, footer p")]
  .filter((node) => node.textContent.trim() && node.checkVisibility())
  .map((node) => [ratio(node), node.outerHTML.slice(0, 80)]);
"""


def write_gather_inputs() -> str:
    """Write inputs of which a report shows an excerpt; return the arguments of a gather."""
    save(data=np.arange(6400.0).reshape(100, 64), indices=np.arange(90)[:, None])
    return "gather-nd data.npy indices.npy"


def scatter_report() -> None:
    write_report("scatter-nd", "--reduction", "add", data=DATA, indices=INDICES, updates=UPDATES)


def error_report() -> None:
    save(data=DATA, indices=INDICES * [1, 5])
    assert ndtool("gather-nd", "data.npy", "indices.npy", "--html", "p.html").status == 5


def statistics_report() -> None:
    assert ndtool(*f"stats {write_gather_inputs()} --html p.html".split()).status == 0


def verification_report() -> None:
    command = f"verify {write_gather_inputs()} output.npy --html p.html"
    save(output=np.zeros((90, 64)))
    assert ndtool(*command.split()).status == 8


def test_a_report_without_scripts_shows_the_tables(browser: Browser) -> None:
    assert ndtool(*f"stats {write_gather_inputs()} --html p.html".split()).status == 0
    browser.devtools("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open("p.html")
        texts = [node.text for node in browser.driver.find_elements("tag name", "section")]
    finally:
        browser.devtools("Emulation.setScriptExecutionDisabled", value=False)
    assert texts[0] == "Drawing\nThe drawing needs scripts."
    text = "\n".join(texts)
    for line in ("data big.npy", "0 100 -100..99 0 89 0 0", "sorted: yes", "7..13 7"):
        assert line.replace("big", "data") in text


def test_names_are_never_run(browser: Browser) -> None:
    name = f"{MARKUP_NAME.replace('/', '-')}.npy"
    np.save(name, np.array([MARKUP_NAME, "x"]))
    save(indices=np.array([[0]]))
    completed = ndtool("gather-nd", name, "indices.npy", "-o", "o.npy", "--html", "p.html")
    assert completed.status == 0
    browser.open("p.html")  # selenium would fail with an alert open
    browser.hover("output-0")
    assert (
        browser.sentence == f"output[0] = {MARKUP_NAME} from data[0], selected by indices[0] = (0)"
    )
    assert browser.run("return document.querySelectorAll('img, script').length") == 2
    assert (browser.console_messages, len(browser.requests)) == ([], 1)


REPORTS = (scatter_report, error_report, statistics_report, verification_report)


@pytest.mark.parametrize("write", REPORTS)
def test_every_kind_of_report_is_readable_on_any_screen(
    browser: Browser, write: Callable[[], None]
) -> None:
    write()
    for scheme, width in (("light", 390), ("dark", 1280)):
        browser.open("p.html", scheme, width)
        background = browser.run("return getComputedStyle(document.body).backgroundColor")
        assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 22, 29)"}[scheme]
        highlighted_cells(browser)  # the last cell remains highlighted
        contrasts = browser.run(CONTRAST_SCRIPT)
        assert len(contrasts) > 1
        assert [entry for entry in contrasts if entry[0] < 4.5] == []
        assert (browser.console_messages, len(browser.requests)) == ([], 1)
        assert browser.run("return document.documentElement.scrollWidth") <= width
    browser.open("p.html", "dark", media="print")
    assert browser.run("return getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    for name in ("sentence", "drawing"):
        shown = [node.is_displayed() for node in browser.driver.find_elements("id", name)]
        is_drawn = write is not error_report  # else the drawing is empty
        assert set(shown) <= {name == "drawing" and is_drawn}
    clipped = "return [...document.querySelectorAll('.scrollable')].map(n => getComputedStyle(n).overflowX)"
    assert set(browser.run(clipped)) == {"visible"}


def test_statistics_are_plotted(browser: Browser) -> None:
    save(data=DATA)
    assert ndtool("stats", "gather", "data.npy", "[0, 2, 0]", "--html", "p.html").status == 0
    browser.open("p.html")
    rows = browser.run(
        "return [...document.querySelectorAll('table.bars tbody tr')]"
        ".map(row => [row.innerText.trim(), row.querySelector('.bar').clientWidth])"
    )
    assert [text.split() for text, _ in rows] == [["0", "2"], ["1", "0"], ["2", "1"]]
    widths = [width for _, width in rows]
    assert widths[1] == 0 < widths[2]
    assert abs(widths[0] - 2 * widths[2]) <= 2


OVERWRITING = {
    "output-1": (
        "output[1] = 30.0 from updates[2], selected by indices[2] = (1),"
        " which overwrites data[1] = 2.0 and 1 earlier update"
    ),
    "updates-0": (
        "updates[0] = 10.0 goes to output[1], selected by indices[0] = (1);"
        " a later update overwrites it"
    ),
}  # fmt: skip
ADDING = {
    "output-1": (
        "output[1] = 42.0: data[1] = 2.0; + updates[0] = 10.0, selected by indices[0] = (1), gives"
        " 12.0; + updates[2] = 30.0, selected by indices[2] = (1), gives 42.0"
    ),
    "output-0": "output[0] = 1.5 from data[0], which no index selects",
    "data-3": "data[3] = 4.0 gets 1 update in output[3]",
    "indices-1": "indices[1, 0] = -1, which is (3) applies updates[1] to output[3]",
}  # fmt: skip
REPLACING = {"data-1": "data[1] = 2.0 is replaced by updates[0]"}
KEEPING_THE_FIRST = {
    "updates-2": (
        "updates[2] = 30.0 goes to output[1], selected by indices[2] = (1);"
        " it is ignored: an earlier update was assigned"
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", OVERWRITING),
        ("--reduction add", ADDING),
        ("--reduction add --no-include-self", REPLACING),
        ("--duplicates first", KEEPING_THE_FIRST),
    ],
)
def test_the_sentences_of_a_scatter(
    browser: Browser, options: str, expected: dict[str, str]
) -> None:
    arrays = {
        "data": np.array([1.5, 2.0, 3.0, 4.0], np.float32),
        "indices": np.array([[1], [-1], [1]]),
        "updates": np.array([10, 20, 30], np.float32),
    }
    write_report("scatter-nd", *options.split(), **arrays)
    browser.open("p.html")
    sentences = browser.sentences
    assert {name: sentences[name] for name in expected} == expected


def test_the_sentences_of_a_gather(browser: Browser) -> None:
    write_report("gather-nd", data=np.arange(6).reshape(3, 2), indices=np.array([[2], [0], [-1]]))
    browser.open("p.html")
    expected = {
        "output-4": "output[2, 0] = 4 from data[2, 0], selected by indices[2] = (-1), which is (2)",
        "data-4": "data[2, 0] = 4 goes to output[0, 0], output[2, 0]",
        "data-2": "data[1, 0] = 2 goes to no output",
    }
    assert {name: browser.sentences[name] for name in expected} == expected
    arguments = ["--out-of-bounds", "fill", "-q"]
    write_report("gather-nd", *arguments, data=np.arange(3), indices=np.array([[5], [1]]))
    browser.open("p.html")
    assert browser.highlighted == {"indices-0", "output-0"}, "out of bounds comes first"
    assert browser.sentences["output-0"] == (
        "output[0] = 0 from the fill value, because indices[0] = (5) is out of bounds"
    )
    arguments = ["--index-base", "1", "--pad", "0", "--fill", "9"]
    write_report("gather-nd", *arguments, data=np.arange(3), indices=np.array([[0], [3], [1]]))
    browser.open("p.html")
    assert browser.sentences["output-1"] == (
        "output[1] = 2 from data[2], selected by indices[1] = (3), which is (2)"
    )


def test_the_sentence_of_an_index_out_of_bounds(browser: Browser) -> None:
    save(data=np.zeros(4), indices=np.array([[1], [2**63 - 1], [1]]), updates=np.zeros(3))
    files = "data.npy", "indices.npy", "updates.npy"
    options = "--out-of-bounds", "drop", "-o", "o.npy", "--html", "p.html"
    assert ndtool("scatter-nd", *files, *options).status == 0
    browser.open("p.html")
    assert browser.sentence == (
        f"indices[1, 0] = {2**63 - 1} is out of bounds: axis 0 of data has size 4: valid -4..3"
    )
    assert browser.sentences["updates-1"].endswith("is dropped: its index is out of bounds")
    assert browser.highlighted == set()


def test_elements_of_excerpts_say_so(browser: Browser) -> None:
    save(data=np.zeros(500), indices=np.full((1000, 1), 3), updates=np.ones(1000))
    arguments = "scatter-nd", "data.npy", "indices.npy", "updates.npy", "--reduction", "add"
    assert ndtool(*arguments, "-o", "o.npy", "--html", "p.html").status == 0
    browser.open("p.html")
    assert browser.sentence.startswith("output[3] = 1000.0: data[3] = 0.0; + updates[0] = 1.0")
    assert "gives 5.0; 990 more; + updates[995] = 1.0" in browser.sentence
    assert "mark omitted elements" in browser.run(
        "return document.getElementById('drawing').innerText"
    )
