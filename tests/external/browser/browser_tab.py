"""A browser tab that records what a page must never do."""

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
    """Headless Chromium of Debian."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=_FLAGS)
        yield browser
        browser.close()


class Tab:
    """A page and its problems: errors, dialogs, requests to other hosts, violations of its security policy."""

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        self.url = url
        self.problems: list[str] = []
        self._context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        self.page = self._context.new_page()
        self.page.set_default_timeout(DEADLINE_MS)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("dialog", self._on_dialog)
        self.page.on("request", self._on_request)
        self.page.add_init_script(
            "addEventListener('securitypolicyviolation', (v) => console.error('policy', v.violatedDirective))"
        )

    def go(self, place: str) -> Tab:
        """Open a place of the page and wait until everything is loaded."""
        self.page.goto("about:blank")
        self.page.goto(self.url + place)
        self.page.locator("main h1").wait_for()
        self.settled()
        return self

    def settled(self) -> None:
        """Wait until all requests have ended and nothing is marked as busy or stale."""
        self.page.wait_for_load_state("networkidle")
        expect(self.page.locator("main .busy, main .stale")).to_have_count(0, timeout=DEADLINE_MS)

    def find(self, selector: str, has_text: str | None = None) -> Locator:
        """The elements of a CSS selector, only those that contain `has_text` if given."""
        return self.page.locator(selector, has_text=has_text)

    def close(self) -> None:
        """Close the tab and its profile."""
        self._context.close()

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"{message.type}: {message.text}")

    def _on_dialog(self, dialog: Dialog) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _on_request(self, request: Request) -> None:
        own, requested = urlsplit(self.url), urlsplit(request.url)
        if requested.scheme not in ("data", "blob") and (requested.scheme, requested.netloc) != (
            own.scheme,
            own.netloc,
        ):
            self.problems.append(f"request: {request.url}")
