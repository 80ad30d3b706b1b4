"""The report as a reader meets it, in a real browser: light and dark, wide and narrow, by mouse and by keyboard."""

from __future__ import annotations

import functools
import io
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import browser as chromium
import matplotlib.image
import numpy as np
import pytest
from browser import Browser
from made_up_results import RAGGED, SERIES, SQUARES, results
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hgemm.bench.results import write
from hgemm.bench.schema import Results, Row
from hgemm.plot import KINDS, NothingToDraw
from hgemm.report import read, render

EVIL = "<script>alert(1)</script>"
OPEN_ALL = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = chromium.find()
    if program is None:
        missing = f"needs a browser: none of {', '.join(chromium.NAMES)} is on the path"
        # In CI, which installs one, that is a failure.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    with Browser(program, tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two results files, one with every chart and a name and a reason that would run if they were not text."""
    folder = tmp_path_factory.mktemp("page")
    measured = results(shapes=(*SQUARES, RAGGED), series=(*SERIES, (EVIL, EVIL, 0.3, 128, 49152)))
    measured.cases += results(shapes=SQUARES[:2]).cases
    for case in measured.cases[-2:]:
        case.label = "8B gate_up"
    for case in measured.cases:
        case.rows.append(Row("contestant", EVIL, None, "failed", f"{EVIL} " + "a long reason that goes on; " * 12))
    write(measured, folder / "squares.json")
    write(results(shapes=SQUARES[:2], gpu="NVIDIA GeForce RTX 5090"), folder / "other.json")
    out = folder / "page.html"
    with pytest.MonkeyPatch.context() as patch:
        kinds = {kind: functools.partial(_of_the_first, draw) for kind, draw in KINDS.items()}
        patch.setattr("hgemm.report.charts.KINDS", kinds)
        out.write_text(render([read(folder / "squares.json"), read(folder / "other.json")]), encoding="utf-8")
    return out


def _of_the_first(draw: Callable[..., Figure], measured: Results, dtype: str | None) -> Figure:
    """One set of charts is enough to look at."""
    if measured.env.gpu != "NVIDIA H200":
        raise NothingToDraw("left out")
    return draw(measured, dtype)


def column(browser: Browser, heading: str) -> list[str]:
    """Texts of a column of the first table, in the order shown."""
    texts: list[str] = browser.evaluate(
        f"""(() => {{
          const table = document.querySelector('table');
          const place = [...table.tHead.rows[0].cells].findIndex((cell) => cell.textContent.includes({heading!r}));
          const shown = [...table.tBodies[0].rows].filter((row) => row.checkVisibility());
          return shown.map((row) => row.cells[place].innerText);
        }})()"""
    )
    return texts


def picture(browser: Browser) -> NDArray[np.float64]:
    """What the window shows, as rows of red, green and blue between 0 and 1."""
    return np.asarray(matplotlib.image.imread(io.BytesIO(browser.screenshot(whole=False))), dtype=np.float64)[..., :3]


def luminance(colours: NDArray[np.float64]) -> NDArray[np.float64]:
    """Relative luminance, as WCAG 2 defines it."""
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    return linear @ np.array([0.2126, 0.7152, 0.0722])


def contrast(lighter: float, darker: float) -> float:
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1200])
def test_it_opens_in_peace_and_fits(browser: Browser, page: Path, width: int, dark: bool) -> None:
    browser.open(page, width=width, dark=dark)
    browser.evaluate(OPEN_ALL)
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]


def test_nothing_that_a_file_says_is_run(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.evaluate(OPEN_ALL)
    assert browser.dialogs() == []
    assert EVIL in browser.evaluate("document.body.innerText")


def test_a_script_that_gets_in_is_stopped_by_the_page_itself(browser: Browser, page: Path, tmp_path: Path) -> None:
    tampered = tmp_path / "tampered.html"
    stranger = "<script>document.title = 'taken'</script><img src='https://example.org/x.png'>"
    tampered.write_text(page.read_text().replace("</main>", f"{stranger}</main>"))
    browser.open(tampered)
    assert browser.evaluate("document.title").startswith("Half-precision matrix products")
    assert len([text for text in browser.complaints() if "Content Security Policy" in text]) >= 2


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(browser: Browser, page: Path, dark: bool) -> None:
    browser.open(page, dark=dark)
    browser.evaluate(OPEN_ALL)
    found: list[dict[str, Any]] = browser.evaluate(
        """(() => {
          const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
          const behind = (element) => {
            for (let each = element; each; each = each.parentElement) {
              const colour = numbers(getComputedStyle(each).backgroundColor);
              if (colour.length === 3 || colour[3] === 1) return colour;
            }
            return [255, 255, 255];
          };
          const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
          const seen = [];
          while (walker.nextNode()) {
            const element = walker.currentNode.parentElement;
            if (!walker.currentNode.textContent.trim() || element.closest('svg, script')) continue;
            if (element.checkVisibility())
              seen.push({text: walker.currentNode.textContent, colour: numbers(getComputedStyle(element).color),
                         paper: behind(element)});
          }
          const input = document.querySelector('input');
          seen.push({text: 'placeholder', colour: numbers(getComputedStyle(input, '::placeholder').color),
                     paper: behind(input)});
          return seen;
        })()"""
    )
    assert len(found) > 300
    for each in found:
        text, paper = (luminance(np.array(each[name][:3]) / 255).item() for name in ("colour", "paper"))
        assert (paper < 0.05) == dark, each
        assert contrast(max(text, paper), min(text, paper)) >= 4.5, each


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_charts_are_legible_on_the_paper_of_the_page(browser: Browser, page: Path, dark: bool) -> None:
    browser.open(page, dark=dark)
    count = browser.evaluate("document.querySelectorAll('figure svg').length")
    assert count >= 2
    for number in range(count):
        box = browser.evaluate(
            f"""(() => {{
              const chart = document.querySelectorAll('figure svg')[{number}];
              chart.scrollIntoView({{block: 'start', behavior: 'instant'}});
              const box = chart.getBoundingClientRect();
              const cells = chart.closest('figure').className === 'cells';
              return [...[box.x, box.y, box.width, Math.min(box.height, innerHeight - box.y)].map(Math.round), cells];
            }})()"""
        )
        x, y, width, height, cells = box
        shown = luminance(picture(browser))
        chart, paper = shown[y + 1 : y + height - 1, x + 1 : x + width - 1], shown[y + 20, 5]
        background = np.median(chart)
        # Figures on coloured cells keep the light paper that they were made for; all else is on that of the page.
        inverted = dark and not cells
        assert (background < 0.05) == inverted
        assert (contrast(max(background, paper), min(background, paper)) < 1.1) == (inverted == dark)
        # The strongest strokes are those of text and axes.
        ink = chart.max() if inverted else chart.min()
        assert contrast(max(ink, background), min(ink, background)) >= 7


def test_headings_tables_and_pictures_are_named_for_readers_of_screens(browser: Browser, page: Path) -> None:
    browser.open(page)
    found = browser.evaluate(
        """(() => { const all = (selector) => [...document.querySelectorAll(selector)]; return {
          language: document.documentElement.lang,
          levels: all('h1, h2, h3, h4, h5, h6').map((each) => Number(each.tagName[1])),
          unscoped: all('th:not([scope])').length,
          uncaptioned: all('table').filter((each) => !each.caption?.textContent.trim()).length,
          unnamed: all('svg').filter((each) => !each.ariaLabel || each.role !== 'img').length,
          unlabelled: all('input').filter((each) => !each.labels.length).length,
          landmarks: ['header', 'main', 'footer'].map((each) => all(each).length),
          regions: all('[role=region]').filter((each) => each.tabIndex || !each.ariaLabel).length,
        }; })()"""
    )
    levels = found.pop("levels")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(below <= above + 1 for above, below in itertools.pairwise(levels))
    assert found == {
        "language": "en",
        "unscoped": 0,
        "uncaptioned": 0,
        "unnamed": 0,
        "unlabelled": 0,
        "landmarks": [1, 1, 1],
        "regions": 0,
    }


def test_a_heading_sorts_by_its_numbers_and_then_the_other_way(browser: Browser, page: Path) -> None:
    browser.open(page)
    before = [float(text) for text in column(browser, "µs")]
    assert before != sorted(before)
    # By text 1000 would come before 200.
    assert sorted(before) != [float(text) for text in sorted(str(each) for each in before)]
    heading = "table th:nth-child(6)"
    for order, expected in (("descending", sorted(before, reverse=True)), ("ascending", sorted(before))):
        browser.click(f"{heading} button")
        assert [float(text) for text in column(browser, "µs")] == expected
        assert browser.evaluate(f"document.querySelector('{heading}').ariaSort") == order
    browser.click("table th:nth-child(2) button")
    assert column(browser, "Kind") == ["bf16"] * 4 + ["bf16, 8B gate_up"] * 2
    assert browser.evaluate("document.querySelectorAll('[aria-sort]').length") == 1


def test_the_keyboard_sorts_opens_and_scrolls(browser: Browser, page: Path) -> None:
    browser.open(page, width=400)
    browser.evaluate("document.querySelector('table th:nth-child(6) button').focus()")
    browser.press("Enter", "\r")
    assert column(browser, "µs") == sorted(column(browser, "µs"), key=float, reverse=True)
    browser.evaluate("document.querySelector('details[data-words] summary').focus()")
    assert not browser.evaluate("document.querySelector('details[data-words] table').checkVisibility()")
    browser.press("Enter", "\r")
    assert browser.evaluate("document.querySelector('details[data-words] table').checkVisibility()")
    # From the line that opens a table one tab leads to the box that it scrolls in.
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.matches('details .scroll')")
    outline = browser.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_the_filter_narrows_tables_down(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.evaluate("document.querySelector('input').focus()")
    browser.type("Gate 4096x4096")
    assert column(browser, "M × N × K") == ["4096 × 4096 × 4096"]
    visible = "[...document.querySelectorAll('#s1 details[data-words]')].filter((each) => each.checkVisibility())"
    assert browser.evaluate(f"{visible}.map((each) => each.dataset.words.slice(0, 14))") == ["4096x4096x4096"]
    assert browser.evaluate("document.querySelector('output').value") == "1 of 6 shown"
    assert browser.evaluate("document.querySelectorAll('#s2 tr[data-words]:not([hidden])').length") == 2


def test_it_is_whole_without_script(browser: Browser, page: Path) -> None:
    browser.open(page, script=False)
    assert len(column(browser, "µs")) == 6
    assert not browser.evaluate("document.querySelector('form').checkVisibility()")
    assert browser.evaluate("document.querySelectorAll('th button').length") == 0
    browser.click("details[data-words] summary")
    assert browser.evaluate("document.querySelector('details[data-words] table').checkVisibility()")


def test_the_data_are_downloaded_from_the_page_itself(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.accept_downloads()
    browser.click("a[download='squares.json']")
    browser.wait_for("Page.downloadProgress", state="completed")
    assert (browser.downloads / "squares.json").read_bytes() == (page.parent / "squares.json").read_bytes()
    assert browser.requests() == [page.as_uri()]
