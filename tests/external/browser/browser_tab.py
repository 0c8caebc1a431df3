"""A browser's tab that notices what a page must never do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Dialog, Locator, Request, expect, sync_playwright

CHROMIUM = "/usr/bin/chromium"
_FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
DEADLINE_MS = 30_000


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium, headless."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=_FLAGS)
        yield browser
        browser.close()


class Tab:
    """A page and what went wrong on it: errors, dialogs, requests to elsewhere, violations of its security policy."""

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        self.url = url
        self.wrong: list[str] = []
        self._context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        self.page = self._context.new_page()
        self.page.set_default_timeout(DEADLINE_MS)
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("dialog", self._asked)
        self.page.on("request", self._requested)
        self.page.add_init_script(
            "addEventListener('securitypolicyviolation', (v) => console.error('policy', v.violatedDirective))"
        )

    def go(self, place: str) -> Tab:
        """To a place within the page, once all it asks for is there."""
        self.page.goto("about:blank")
        self.page.goto(self.url + place)
        self.page.locator("main h1").wait_for()
        self.settled()
        return self

    def settled(self) -> None:
        """Until nothing is on its way any more."""
        self.page.wait_for_load_state("networkidle")
        expect(self.page.locator("main .busy, main .stale")).to_have_count(0, timeout=DEADLINE_MS)

    def find(self, selector: str, has_text: str | None = None) -> Locator:
        """What a CSS selector finds, of it what contains a text."""
        return self.page.locator(selector, has_text=has_text)

    def close(self) -> None:
        """The tab and its profile."""
        self._context.close()

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"{message.type}: {message.text}")

    def _asked(self, dialog: Dialog) -> None:
        self.wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _requested(self, request: Request) -> None:
        here, there = urlsplit(self.url), urlsplit(request.url)
        if there.scheme not in ("data", "blob") and (there.scheme, there.netloc) != (here.scheme, here.netloc):
            self.wrong.append(f"request: {request.url}")
