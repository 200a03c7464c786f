"""Draws the README's picture of the report: ``python -m tests.analysis.report.report_picture RUNS FILE.png``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser

from hpctrain.analysis.frames import load_frames
from hpctrain.analysis.report.write_report import write_report
from tests.analysis.report.browser import chromium

WIDTH_PX = 1200
HEIGHT_PX = 1700
"""At most; the picture ends where a part of the page does."""


def draw(browser: Browser, runs: Path, target: Path) -> None:
    """The head of the report of ``runs``, down to the last part, or row of figures, that is whole within ``HEIGHT_PX``."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.html"
        write_report(load_frames([runs]), report)
        page = browser.new_page(viewport={"width": WIDTH_PX, "height": HEIGHT_PX}, color_scheme="light")
        page.goto(report.as_uri())
        # A picture may end where a part of the page, or its figures, do.
        ends = page.evaluate(
            "Array.from(document.querySelectorAll('section, .figures'), part => part.getBoundingClientRect().bottom)"
        )
        whole = [end for end in ends if end <= HEIGHT_PX]
        height = round(whole[-1]) + 4 if whole else HEIGHT_PX
        page.screenshot(path=target, clip={"x": 0, "y": 0, "width": WIDTH_PX, "height": height})


if __name__ == "__main__":
    with chromium() as started:
        draw(started, Path(sys.argv[1]), Path(sys.argv[2]))
