"""The report's page in a real Chromium: sorted, filtered, printed, on a phone, without JavaScript, without a network."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from playwright.sync_api import Browser, Locator, Page

from hpctrain.analysis.frames import load_frames
from hpctrain.analysis.report.write_report import write_report
from tests.analysis.report.browser import chromium
from tests.analysis.report.report_picture import draw
from tests.analysis.report.report_runs import HOSTILE_NAME, make_sweep

pytestmark = pytest.mark.browser

MISSING_LAST = "at-once"
"""The run without a step: last in whatever order."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_report(load_frames([make_sweep(folder / "runs")]), folder / "report.html", max_pictures=2)
    return folder / "report.html"


@pytest.fixture
def page(browser: Browser, report: Path) -> Iterator[Page]:
    """The page at 1280 px; whatever it complains of or asks for fails the test."""
    complaints: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    opened.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
    opened.on("request", lambda request: complaints.append(request.url) if request.url[:5] != "data:" else None)
    opened.goto(report.as_uri())
    yield opened
    assert complaints == [report.as_uri()], "the file itself is all that is asked for, and nothing is said"
    context.close()


def column(page: Page, table: str, header: str) -> list[str]:
    """Visible cells of one column, top to bottom."""
    heads = [head.strip() for head in page.locator(f"#{table} thead th").all_text_contents()]
    place = heads.index(header) + 1
    return [
        text.strip() for text in page.locator(f"#{table} tbody tr:visible > :nth-child({place})").all_text_contents()
    ]


def head(page: Page, header: str) -> Locator:
    return page.locator("#runs-table thead th", has_text=header).first


def overflow_px(page: Page) -> int:
    value: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return value


def test_numbers_sort_as_numbers_with_missing_ones_last(page: Page) -> None:
    button = head(page, "Tokens/s").get_by_role("button")
    button.click()
    assert column(page, "runs-table", "Tokens/s") == ["1,024", "1,463", "1,829", "1,862", "3,413", "6,554", "-"]
    assert head(page, "Tokens/s").get_attribute("aria-sort") == "ascending"
    button.click()
    assert column(page, "runs-table", "Tokens/s") == ["6,554", "3,413", "1,862", "1,829", "1,463", "1,024", "-"]
    assert head(page, "Tokens/s").get_attribute("aria-sort") == "descending"
    head(page, "Run").get_by_role("button").click()
    assert head(page, "Tokens/s").get_attribute("aria-sort") is None
    assert column(page, "runs-table", "Run") == [
        HOSTILE_NAME, MISSING_LAST, "killed", "toy-1n", "toy-2n", "toy-4n", "toy-8n",
    ]  # fmt: skip


def test_sorting_works_from_the_keyboard(page: Page) -> None:
    head(page, "GPUs").get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert column(page, "runs-table", "GPUs") == ["4", "8", "8", "8", "8", "16", "32"]
    page.keyboard.press("Space")
    assert column(page, "runs-table", "GPUs")[0] == "32"


def test_every_column_of_every_table_sorts(page: Page) -> None:
    page.locator("#runs-table-all").check()
    for table in page.locator(".table-box").all():
        count = table.locator("tbody tr").count()
        table.evaluate("box => box.querySelectorAll('thead button').forEach((button) => button.click())")
        assert table.locator("tbody tr").count() == count
        assert table.locator("th[aria-sort]").count() == 1


def test_rows_are_filtered_by_words_and_validity(page: Page) -> None:
    box = page.locator("#runs-table")
    box.get_by_role("searchbox").fill("toy- N")
    assert column(page, "runs-table", "Run") == ["toy-1n", "toy-2n", "toy-4n", "toy-8n"]
    assert box.get_by_role("status").text_content() == "4 of 7 rows"
    box.get_by_role("searchbox").fill("")
    box.get_by_role("combobox").select_option("no")
    assert column(page, "runs-table", "Run") == [MISSING_LAST, "killed"]
    box.get_by_role("searchbox").fill("launch_failed")
    assert box.get_by_role("status").text_content() == "0 of 7 rows", "only what is shown is searched"
    box.get_by_role("checkbox").check()
    assert box.get_by_role("status").text_content() == "1 of 7 rows"


def test_all_columns_are_one_click_away(page: Page) -> None:
    reason = page.locator("#runs-table tbody tr", has_text="killed").locator("td").last
    assert not reason.is_visible()
    page.get_by_label(re.compile(r"all \d+ columns")).check()
    assert reason.is_visible()


def test_names_are_shown_and_not_obeyed(page: Page) -> None:
    assert page.locator("#runs-table tbody th", has_text="Größe").text_content() == HOSTILE_NAME
    assert page.locator("img[src=x]").count() == 0


def test_a_link_leads_to_the_picture_of_its_run(page: Page) -> None:
    links = page.locator("#runs-table tbody a")
    assert links.count() == 2
    links.first.click()
    assert page.locator(":target h3").text_content() is not None
    assert page.locator(":target img").is_visible()


def test_every_picture_is_drawn(page: Page) -> None:
    sizes = page.evaluate("Array.from(document.images, image => [image.complete, image.naturalWidth])")
    assert len(sizes) == 6, "scaling, throughput, two runs, memory of the plan, goodput"
    assert all(complete and width > 100 for complete, width in sizes)


@pytest.mark.parametrize("width", [375, 768, 1280])
def test_the_page_is_never_wider_than_the_screen(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.locator("#runs-table-all").check()
    assert overflow_px(page) == 0
    scroll = page.locator("#runs-table .scroll")
    assert scroll.evaluate("box => box.scrollWidth > box.clientWidth"), "the table scrolls in its own box"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("width", "selector"), [(375, ".scroll"), (375, ".figure"), (375, "nav ul"), (1280, "#runs-table .scroll")],
    ids=["table-375", "figure-375", "nav-375", "table-1280"],
)  # fmt: skip
def test_what_scrolls_sideways_shows_it(page: Page, width: int, selector: str, scheme: str) -> None:
    """A shadow at the right edge, which ends where the content does."""
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    box = page.locator(selector).first
    assert box.evaluate("box => box.scrollWidth > box.clientWidth")
    shaded = shade_at_the_right_edge(box)
    box.evaluate("box => { box.scrollLeft = box.scrollWidth; }")
    assert shaded > 0.1 > shade_at_the_right_edge(box)


def shade_at_the_right_edge(box: Locator) -> float:
    """Median over the rows of pixels: how far the brightness 2 px from the edge is from that 40 px from it, 0 to 1."""
    pixels = np.asarray(imread(io.BytesIO(box.screenshot())), dtype=float)[..., :3].mean(axis=2)
    return float(np.median(np.abs(pixels[:, -3] - pixels[:, -40])))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_both_schemes(page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    for selector in ("body", "section", "thead th", ".good", ".bad", ".quiet", "a"):
        ratio = page.locator(selector).first.evaluate(CONTRAST)
        assert ratio >= 4.5, f"{selector}: {ratio:.1f}, WCAG 2.1 asks for 4.5"


CONTRAST = """element => {
  const channels = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  let behind = element;
  let back = channels(getComputedStyle(behind).backgroundColor);
  while (back.length === 4 && back[3] === 0 && behind.parentElement) {
    behind = behind.parentElement;
    back = channels(getComputedStyle(behind).backgroundColor);
  }
  const [low, high] = [light(back), light(channels(getComputedStyle(element).color))].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}"""
"""Contrast of an element's text against what lies behind it. Source: WCAG 2.1, definition of contrast ratio."""


def test_print_has_no_controls_and_no_cut_tables(page: Page) -> None:
    page.emulate_media(media="print")
    assert not page.locator("#runs-table .controls").is_visible()
    assert page.locator("#runs-table .scroll").evaluate("box => getComputedStyle(box).maxHeight") == "none"
    # A4 across with margins of 10 mm, at the 96 pixels an inch of CSS
    page.set_viewport_size({"width": round(277 / 25.4 * 96), "height": round(190 / 25.4 * 96)})
    assert page.evaluate("Math.max(...Array.from(document.querySelectorAll('table'), t => t.offsetWidth))") <= 1047
    row = page.locator("#runs-table tbody tr", has_text="toy-8n")
    assert row.evaluate("row => row.offsetHeight") < 20, "numbers and states stay whole"
    assert page.pdf().startswith(b"%PDF")


def test_everything_can_be_read_without_javascript(browser: Browser, report: Path) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 375, "height": 800})
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.locator("#runs-table tbody tr:visible").count() == 7
    assert page.locator("#weak-scaling tbody tr:visible").count() == 4
    assert not page.locator(".controls").first.is_visible()
    assert page.locator("thead button").count() == 0
    page.locator("#runs-table-all").check()
    assert page.locator("#runs-table tbody td").last.is_visible()
    assert page.locator("#problems li").first.is_visible()
    context.close()


def test_the_picture_of_the_readme_ends_between_two_parts(browser: Browser, report: Path, tmp_path: Path) -> None:
    picture = tmp_path / "report.png"
    draw(browser, report.parent / "runs", picture)
    kind, width, height = struct.unpack(">12x4sII", picture.read_bytes()[:24])
    assert (kind, width) == (b"IHDR", 1200)
    assert 800 < height <= 1700
