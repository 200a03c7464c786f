"""A real headless Chromium for the report: the system's own, started without any network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium_path() -> str:
    """Where Chromium is.

    Raises:
        FileNotFoundError: it is not installed.
    """
    for name in NAMES:
        if path := shutil.which(name):
            return path
    raise FileNotFoundError(f"none of {', '.join(NAMES)} is on PATH; sh tests/install_packages.sh installs one")


@contextmanager
def chromium() -> Iterator[Browser]:
    # Chromium refuses its sandbox to root, which is who tests in containers are.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=arguments)
        try:
            yield browser
        finally:
            browser.close()
