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
NAMED = np.array([[2, 0], [-1, -4], [0, 3]])  # the first two refer to the same slice
BROUGHT = np.arange(100, 106, dtype=np.float32).reshape(3, 2)
BADNAME = '<img src=x onerror=alert(1)>"</script><script>alert(2)<!--'


class Browser:
    """A browser without state from earlier reports."""

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

    def see(self, page: str, scheme: str = "light", width: int = 1280, media: str = "") -> None:
        """Open a report in the current directory."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", media=media, features=features)
        sizes = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.devtools("Emulation.setDeviceMetricsOverride", **sizes)
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)
        self.driver.get(Path(page).absolute().as_uri())

    def devtools(self, command: str, **parameters: Any) -> Any:
        """Run a command of the Chrome DevTools protocol."""
        return self.driver.execute_cdp_cmd(command, parameters)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the report; return its result."""
        return self.driver.execute_script(script, *arguments)

    def cell(self, name: str) -> Any:
        """Return an element of a grid."""
        return self.driver.find_element("id", name)

    def press(self, *keys: str) -> str:
        """Press keys; return the name of the focused cell."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()
        return str(self.run("return document.activeElement.id"))

    def hover(self, name: str) -> None:
        """Move the mouse over a cell, given by itself or by name."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).move_to_element(self.cell(name)).perform()

    @property
    def lit(self) -> set[str]:
        """The names of the highlighted cells."""
        return set(self.run("return [...document.querySelectorAll('.highlighted')].map(c => c.id)"))

    @property
    def sentence(self) -> str:
        """The sentence about the selected cell."""
        return str(self.cell("sentence").text)

    @property
    def requests(self) -> list[str]:
        """The requests since the report was opened."""
        events = [
            json.loads(one["message"])["message"] for one in self.driver.get_log("performance")
        ]
        requested = [e for e in events if e["method"] == "Network.requestWillBeSent"]
        return [one["params"]["request"]["url"] for one in requested]

    @property
    def complaints(self) -> list[str]:
        """The messages on the browser's console."""
        return [one["message"] for one in self.driver.get_log("browser")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    running = Browser()
    yield running
    running.driver.quit()


def draw(operator: str, *options: str, **arrays: Array) -> None:
    """Run a call that writes an HTML report."""
    save(**arrays)
    files = [f"{name}.npy" for name in arrays]
    ran = ndtool(operator, *files, *options, "-o", "o.npy", "--html", "p.html")
    assert (ran.status, ran.err) == (0, "")


def lights(browser: Browser) -> dict[str, list[str]]:
    """Return the highlighted cells while the mouse is over each cell."""
    return dict(
        browser.run(
            """
            return [...document.querySelectorAll("[role=gridcell]")].map((cell) => {
              cell.dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
              const lit = [...document.querySelectorAll(".highlighted")].map((one) => one.id);
              return [cell.id, lit.sort()];
            });
            """
        )
    )


def by_brute_force(pairs: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the linked cells; pairs: the cells of each element of the output."""
    lit: dict[str, set[str]] = {}
    for output, others in pairs.items():
        for name in (output, *others):
            lit.setdefault(name, set()).update((output, *others))
    return {name: sorted(found) for name, found in lit.items()}


def test_hovering_over_a_gather_highlights_linked_cells(browser: Browser) -> None:
    draw("gather-nd", data=DATA, indices=NAMED)
    browser.see("p.html")
    numbers = np.arange(DATA.size).reshape(DATA.shape)
    sources = reference.gather_nd(numbers, NAMED).reshape(-1).tolist()
    pairs = {
        f"output-{n}": [f"data-{source}", f"indices-{n // 2 * 2}", f"indices-{n // 2 * 2 + 1}"]
        for n, source in enumerate(sources)
    }
    wanted = by_brute_force(pairs)
    found = lights(browser)
    assert len(found) == DATA.size + NAMED.size + 6
    # A shared element of data highlights all its tuples; each output only its own.
    for name, lit in found.items():
        if name.startswith("output"):
            assert lit == sorted([name, *pairs[name]])
        else:
            assert lit == wanted.get(name, [])
    assert (browser.complaints, len(browser.requests)) == ([], 1)


def test_hovering_over_a_scatter_lights_updates_in_order(browser: Browser) -> None:
    draw("scatter-nd", "--reduction", "add", data=DATA, indices=NAMED, updates=BROUGHT)
    browser.see("p.html")
    browser.hover("output-17")
    assert browser.lit == {
        "output-17", "data-17", "updates-1", "updates-3",
        "indices-0", "indices-1", "indices-2", "indices-3",
    }  # fmt: skip
    order = {name: browser.cell(name).get_attribute("data-order") for name in browser.lit}
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
    assert browser.lit == {"output-6", "updates-4", "indices-4", "indices-5"}
    browser.hover("output-0")
    assert browser.lit == {"output-0", "data-0"}
    browser.run("document.getElementById('drawing').dispatchEvent(new Event('pointerleave'))")
    assert len(browser.lit) == 8, "as at first"


def test_arrow_keys_move_through_cells(browser: Browser) -> None:
    from selenium.webdriver.common.keys import Keys

    draw(
        "scatter-elements",
        "--axis",
        "1",
        data=np.zeros((2, 3)),
        indices=np.array([[2]]),
        updates=np.ones((1, 1)),
    )
    browser.see("p.html")
    seen = [browser.press(Keys.TAB)]
    while seen[-1] != "data-0":
        assert len(seen) < 20
        seen.append(browser.press(Keys.TAB))
    for key, name in (
        (Keys.ARROW_RIGHT, "data-1"),
        (Keys.ARROW_DOWN, "data-4"),
        (Keys.ARROW_LEFT, "data-3"),
        (Keys.ARROW_UP, "data-0"),
        (Keys.ARROW_UP, "data-0"),
        (Keys.END, "data-5"),
        (Keys.ARROW_RIGHT, "data-5"),
        (Keys.HOME, "data-0"),
    ):
        assert browser.press(key) == name
    browser.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert browser.sentence == "data[0, 2] = 0.0 is overwritten by updates[0, 0]"
    assert browser.press(Keys.ENTER) == "output-2"
    assert browser.lit == {"output-2", "data-2", "indices-0", "updates-0"}
    stops = browser.run(
        "return [...document.querySelectorAll('[tabindex=\"0\"][role=gridcell]')].map(c => c.id)"
    )
    assert stops == ["data-2", "indices-0", "updates-0", "output-2"]
    browser.hover("data-0")
    assert browser.lit == {"data-0", "output-0"}
    browser.press(Keys.ESCAPE)
    assert browser.lit == {"output-2", "data-2", "indices-0", "updates-0"}, "as at first"


def test_a_screen_reader_reads_the_sentence(browser: Browser) -> None:
    draw("gather", data=np.array([5, 6, 7]), indices=np.array([2]))
    browser.see("p.html")
    nodes = browser.devtools("Accessibility.getFullAXTree")["nodes"]
    report = [(one.get("role", {}).get("value"), one.get("name", {}).get("value")) for one in nodes]
    assert ("grid", "data[:]") in report
    assert ("gridcell", "output[0] = 7 from data[2], selected by indices[0] = 2") in report
    assert [role for role, _ in report].count("gridcell") == 5
    assert ("image", "Slices of data.npy that the indices of gather select") in report


def test_the_report_of_an_explanation_highlights_its_element(browser: Browser) -> None:
    save(data=DATA, indices=NAMED)
    ran = ndtool(
        "explain", "gather-nd", "data.npy", "indices.npy", "--at", "2,1", "--html", "p.html"
    )
    assert ran.status == 0
    browser.see("p.html")
    assert browser.lit == {"output-5", "data-7", "indices-4", "indices-5"}
    browser.hover("output-0")
    assert "output-5" not in browser.lit
    browser.run("document.getElementById('drawing').dispatchEvent(new Event('pointerleave'))")
    assert "output-5" in browser.lit


CONTRAST = """
const rgb = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
const shown = (colour) => {
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
};
const light = (colour) => {
  const parts = shown(colour).map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
};
const behind = (node) => {
  for (let at = node; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if (colour !== "rgba(0, 0, 0, 0)") return colour;
  }
  return "white";
};
const ratio = (node) => {
  const [a, b] = [light(getComputedStyle(node).color), light(behind(node))];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
};
return [...document.querySelectorAll("h1, p, th, td, li, pre, strong, span, footer p")]
  .filter((node) => node.textContent.trim() && node.checkVisibility())
  .map((node) => [ratio(node), node.outerHTML.slice(0, 80)]);
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_colour_schemes_can_be_read(browser: Browser, scheme: str) -> None:
    save(data=DATA, indices=NAMED * [1, 5])
    ran = ndtool("stats", "gather-nd", "data.npy", "indices.npy", "--html", "p.html")
    assert ran.status == 0
    browser.see("p.html", scheme)
    assert browser.lit == set()
    browser.hover("indices-0")
    paper = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 22, 29)"}[scheme]
    found = browser.run(CONTRAST)
    assert len(found) > 50
    assert [one for one in found if one[0] < 4.5] == []


UNCOVERED = """
const cell = document.getElementById(arguments[0]);
const { left, top, width, height } = cell.getBoundingClientRect();
return document.elementFromPoint(left + width / 2, top + height / 2) === cell;
"""


def test_a_narrow_screen_needs_no_horizontal_scrolling(browser: Browser) -> None:
    from selenium.webdriver.common.keys import Keys

    wide = np.random.default_rng(0).random((3, 40))
    draw("gather-elements", "--axis", "1", data=wide, indices=np.zeros((3, 5), int))
    browser.see("p.html", width=360)
    assert browser.run("return document.documentElement.scrollWidth") <= 360
    browser.run("document.getElementById('indices-2').scrollIntoView({ block: 'center' })")
    browser.cell("indices-2").click()
    assert browser.lit == {"output-2", "data-0", "indices-2"}
    for key in (Keys.END, Keys.ENTER, Keys.HOME):
        name = browser.press(key)
        assert browser.run(UNCOVERED, name), f"{name} is behind the sentence"


def test_highlighted_cells_are_scrolled_into_their_boxes(browser: Browser) -> None:
    draw("gather-elements", "--axis", "1", data=DATA.reshape(2, 12), indices=np.array([[11], [0]]))
    browser.see("p.html", width=360)
    inside = """
        const cell = document.getElementById(arguments[0]).getBoundingClientRect();
        const box = document.getElementById(arguments[0]).closest(".panel").getBoundingClientRect();
        return box.left <= cell.left && cell.right <= box.right;
    """
    assert browser.lit == {"data-11", "indices-0", "output-0"}
    assert browser.run(inside, "data-11")
    assert not browser.run(inside, "data-0")


def lookups() -> str:
    """Write inputs of which only a part is drawn; return the command line."""
    save(data=np.arange(6400.0).reshape(100, 64), indices=np.arange(90)[:, None])
    return "gather-nd data.npy indices.npy"


def scattered_page() -> None:
    draw("scatter-nd", "--reduction", "add", data=DATA, indices=NAMED, updates=BROUGHT)


def error_page() -> None:
    save(data=DATA, indices=NAMED * [1, 5])
    assert ndtool("gather-nd", "data.npy", "indices.npy", "--html", "p.html").status == 5


def excerpt_page() -> None:
    command = f"explain {lookups()} --at 44,40 --html p.html"
    assert ndtool(*command.split()).status == 0


def statistics_page() -> None:
    assert ndtool(*f"stats {lookups()} --html p.html".split()).status == 0


def plot_page() -> None:
    assert ndtool(*f"stats {lookups()} --plot p.html".split()).status == 0


def verification_page() -> None:
    command = f"verify {lookups()} output.npy --html p.html"
    save(output=np.zeros((90, 64)))
    assert ndtool(*command.split()).status == 8


def test_a_device_without_a_mouse_is_not_told_to_hover(browser: Browser) -> None:
    scattered_page()
    browser.see("p.html", width=390)  # headless Chromium has no mouse
    text = browser.run("return document.querySelector('.hint').innerText")
    assert text == (
        "Tap an element to highlight the elements that it is computed from or used for."
    )
    assert ">Hover over<" in Path("p.html").read_text()


def test_a_report_without_scripts_highlights_linked_cells(browser: Browser) -> None:
    scattered_page()
    browser.devtools("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.see("p.html")
        lit = {
            one.get_attribute("id")
            for one in browser.driver.find_elements("class name", "highlighted")
        }
        words = browser.cell("sentence").text
    finally:
        browser.devtools("Emulation.setScriptExecutionDisabled", value=False)
    assert len(lit) == 8
    assert words.startswith("output[2, 0, 0] = 218.0: data[2, 0, 0] = 16.0; + updates[0, 0]")
    browser.see("p.html")
    assert browser.lit == lit, "the script begins with the same"
    assert browser.sentence == words


def test_a_printed_report_is_complete(browser: Browser) -> None:
    draw("scatter-nd", data=DATA, indices=NAMED, updates=BROUGHT)
    browser.see("p.html", "dark", media="print")
    assert browser.run("return getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    for name in ("sentence", "drawing"):
        assert browser.cell(name).is_displayed() == (name == "drawing")
    hidden = browser.run(
        """
        return [...document.querySelectorAll("main *")].filter((node) =>
          getComputedStyle(node).overflowX !== "visible" && node.closest("svg") === null
        ).map((node) => node.className);
        """
    )
    assert hidden == []
    assert browser.devtools("Page.printToPDF")["data"].startswith("JVBERi")


def test_names_are_never_run(browser: Browser) -> None:
    name = f"{BADNAME.replace('/', '-')}.npy"
    np.save(name, np.array([BADNAME, "x"]))
    save(indices=np.array([[0]]))
    ran = ndtool("gather-nd", name, "indices.npy", "-o", "o.npy", "--html", "p.html")
    assert ran.status == 0
    browser.see("p.html")  # selenium would fail with an alert open
    browser.hover("output-0")
    assert browser.sentence == f"output[0] = {BADNAME} from data[0], selected by indices[0] = (0)"
    assert browser.run("return document.querySelectorAll('img, script').length") == 2
    assert (browser.complaints, len(browser.requests)) == ([], 1)


def engines_page() -> None:
    """Write the report of a call with comparisons of engines."""
    save(data=DATA, indices=NAMED)
    files = "data.npy", "indices.npy"
    ran = ndtool("verify", "gather-nd", *files, "--against", "numpy", "--html", "p.html")
    assert ran.status == 0


def model_page() -> None:
    """Write the report of a model run whose names contain markup."""
    onnx = pytest.importorskip("onnx")
    helper = pytest.importorskip("onnx.helper")
    node = helper.make_node("GatherND", ["data", "rows"], ["out"], name=BADNAME)
    shapes = {"data": (1, [3, 4, 2]), "rows": (7, ["N", 2]), "out": (1, None)}
    known = {name: helper.make_tensor_value_info(name, *one) for name, one in shapes.items()}
    graph = helper.make_graph([node], "g", [known["data"], known["rows"]], [known["out"]])
    opsets = [helper.make_opsetid("", 13)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), "m.onnx")
    np.savez("in.npz", data=DATA, rows=NAMED)
    command = "model", "m.onnx", "--inputs", "in.npz", "--against", "numpy", "--html", "p.html"
    assert ndtool(*command).status == 0


@pytest.mark.parametrize(
    "write",
    [
        scattered_page,
        error_page,
        excerpt_page,
        statistics_page,
        plot_page,
        verification_page,
        engines_page,
        model_page,
    ],
)
def test_every_kind_of_report_is_readable_on_any_screen(
    browser: Browser, write: Callable[[], None]
) -> None:
    write()
    for scheme in ("light", "dark"):
        browser.see("p.html", scheme)
        found = browser.run(CONTRAST)
        assert len(found) > 1
        assert [one for one in found if one[0] < 4.5] == []
        assert (browser.complaints, len(browser.requests)) == ([], 1)
    for width in (360, 390, 1280):
        browser.see("p.html", width=width)
        assert browser.run("return document.documentElement.scrollWidth") <= width
    browser.see("p.html", "dark", media="print")
    assert browser.run("return getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    clipped = "return [...document.querySelectorAll('.scrollable')].map(n => getComputedStyle(n).overflowX)"
    assert set(browser.run(clipped)) == {"visible"}


def test_names_in_a_model_are_never_run(browser: Browser) -> None:
    model_page()
    browser.see("p.html")  # selenium would fail with an alert open
    rows = browser.run(
        "return [...document.querySelectorAll('tbody tr')].map(r => r.cells[0].innerText)"
    )
    assert rows == [BADNAME, BADNAME]
    assert browser.run("return document.querySelectorAll('img, script').length") == 1


def test_hovering_on_a_page_of_engines(browser: Browser) -> None:
    engines_page()
    browser.see("p.html")
    browser.hover("output-5")
    assert browser.lit == {"output-5", "data-7", "indices-4", "indices-5"}


def test_pictures_are_pages_and_images(browser: Browser) -> None:
    save(data=DATA)
    for page in ("p.svg", "p.html"):
        assert ndtool("stats", "gather", "data.npy", "[0, 2, 0]", "--plot", page).status == 0
        browser.see(page)
        bars = browser.run("return document.querySelectorAll('rect.bar').length")
        assert bars == 2 + 2
        assert (browser.complaints, len(browser.requests)) == ([], 1)
