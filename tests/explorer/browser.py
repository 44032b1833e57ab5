"""A real browser for tests: Chromium through Playwright, or a skip that says what is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 120_000
"""Milliseconds that a page may take on a busy machine."""


@contextmanager
def launched() -> Iterator[Any]:
    """A headless browser; ``$NRM_BROWSER`` names its program, else one of the usual names on the path is taken."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install playwright")
    program = os.environ.get("NRM_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium: apt-get install chromium, or set NRM_BROWSER")
    with playwright.sync_playwright() as started:
        # Inside containers the browser runs as root, which its own sandbox refuses.
        arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        browser = started.chromium.launch(executable_path=program, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Any, url: str, *, refusals: bool = False, **options: Any) -> Iterator[Any]:
    """A page with nothing on its console in the end (but ``refusals`` of the server), and no dialog on the way."""
    context = browser.new_context(viewport={"width": 1366, "height": 768}, accept_downloads=True, **options)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: complaints.append(str(e)))
    page.on("dialog", lambda d: (complaints.append(f"dialog {d.message}"), d.dismiss()))
    page.on("request", lambda r: None if r.url.startswith(("data:", "blob:", "file:", url.partition("?")[0]))
            else complaints.append(f"asked for {r.url}"))  # fmt: skip
    try:
        page.goto(url)
        page.wait_for_selector("#network svg")
        yield page
        assert [text for text in complaints if not (refusals and text.startswith("Failed to load resource"))] == []
    finally:
        context.close()
