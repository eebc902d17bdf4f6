"""A real browser on the page: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mcp_server.page.sessions import PageSessions
from tests.support.service import Service

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
WAIT_MS = 60_000  # of a loaded machine


@contextlib.asynccontextmanager
async def start_browser() -> AsyncIterator[Any]:
    """Yield a browser: starting one costs more processor time than most tests with one."""
    playwright = pytest.importorskip("playwright.async_api")
    if CHROMIUM is None:
        pytest.skip("no chromium")
    async with playwright.async_playwright() as started:
        browser = await started.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        try:
            yield browser
        finally:
            await browser.close()


@contextlib.asynccontextmanager
async def open_tab(browser: Any, **context: Any) -> AsyncIterator[Any]:
    """Yield a context of a browser, which shares nothing with others; any error on a page's console fails the test."""
    tab = await browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **context})
    try:
        tab.set_default_timeout(WAIT_MS)
        errors: list[str] = []
        tab.on("weberror", lambda error: errors.append(str(error.error)))
        yield tab
        assert errors == [], errors
    finally:
        await tab.close()


@contextlib.asynccontextmanager
async def browse(**context: Any) -> AsyncIterator[Any]:
    """Yield a context of a browser of its own."""
    async with start_browser() as browser, open_tab(browser, **context) as tab:
        yield tab


async def open_page(tab: Any, service: Service, path: str = "/") -> Any:
    """Return the page, opened by a link that works once."""
    page = await tab.new_page()
    code = PageSessions(service.sandbox.store.home).make_link()
    await page.goto(f"http://127.0.0.1:{service.port}/open/{code}")
    if path != "/":
        await page.goto(f"http://127.0.0.1:{service.port}{path}")
    return page
