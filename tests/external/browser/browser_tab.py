"""Browser tabs that record what a page must never do, and which tests use one after another: loading takes longer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Dialog, Locator, Playwright, Request, expect, sync_playwright

from tests.support.waiting import deadline_s

CHROMIUM = "/usr/bin/chromium"
FIREFOX = "/usr/bin/firefox-esr"
_NOT_TESTED = (
    # Parts of Chromium's own window that are web pages, and a process in reserve: half of the cost of a new tab.
    *("InitialWebUI", "WebUIReloadButton", "WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "WebUIToolbarWebView"),
    *("PreloadTopChromeWebUI", "SpareRendererForSitePerProcess"),
    # Those that Playwright disables, because Chromium only reads the last list.
    *("AvoidUnnecessaryBeforeUnloadCheckSync", "DestroyProfileOnBrowserClose", "DialMediaRouteProvider"),
    *("GlobalMediaControls", "HttpsUpgrades", "LensOverlay", "MediaRouter", "PaintHolding"),
    *("ThirdPartyStoragePartitioning", "BlockOriginHeaderModificationOnRedirect", "Translate", "OptimizationHints"),
)
_FLAGS = [*("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"), f"--disable-features={','.join(_NOT_TESTED)}"]
DEADLINE_MS = 1000 * deadline_s()
NOWHERE = "#/nowhere"
COUNT = "main [role=status]:not(.notemessage)"
"""The line above a list that says how many rollouts it has."""
_WATCH = """{
addEventListener('securitypolicyviolation', (v) => console.error('policy', v.violatedDirective));
window.requestsInProgress = 0;
const send = window.fetch;
const counted = async (action) => {
    window.requestsInProgress += 1;
    try {
        return await action();
    } finally {
        window.requestsInProgress -= 1;
    }
};
window.fetch = (...request) => counted(async () => {
    const response = await send(...request);
    const read = response.text.bind(response);
    response.text = () => counted(read);
    return response;
});
}"""
"""Reports violations of the security policy, and counts requests."""
_SETTLED = """(deadline) => new Promise((resolve) => {
    const end = performance.now() + deadline;
    let quiet = 0;
    const look = () => {
        const busy = document.querySelector('main .busy, main .stale');
        const ready = window.requestsInProgress === 0 && document.querySelector('main h1') && !busy;
        quiet = ready ? quiet + 1 : 0;
        if (quiet > 5) resolve('');
        else if (performance.now() < end) requestAnimationFrame(look);
        else resolve(`requests: ${window.requestsInProgress}, busy: ${busy?.outerHTML}`);
    };
    look();
})"""
"""Several frames without requests, because a component asks for its data only after it was drawn."""


@contextlib.contextmanager
def playing() -> Iterator[Playwright]:
    """Playwright, of which a thread can have only one, with assertions that wait as long as a busy machine needs."""
    with sync_playwright() as playwright:
        expect.set_options(timeout=DEADLINE_MS)
        yield playwright


def chromium(playwright: Playwright) -> Browser:
    """Start the headless Chromium of Debian."""
    return playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=_FLAGS, timeout=DEADLINE_MS)


def firefox(playwright: Playwright) -> Browser:
    """Start the headless Firefox of Debian. Playwright drives a Firefox that it did not build by WebDriver BiDi."""
    return playwright.firefox.launch(channel="moz-firefox", executable_path=FIREFOX, headless=True, timeout=DEADLINE_MS)


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
        self.page.add_init_script(_WATCH)

    def go(self, place: str) -> Tab:
        """Open a place of the page and wait until everything is loaded. An open page only changes its address, after it
        left the place before, so that the components of every place are new.
        """
        if self.page.url.partition("#")[0] != self.url:
            self.page.goto(self.url + place)
            self.page.locator("main h1").wait_for()
        else:
            self.page.evaluate("place => { location.hash = place; }", NOWHERE)
            self.settled()
            self.page.evaluate("place => { location.hash = place; }", place)
        self.settled()
        return self

    def settled(self) -> None:
        """Wait until all requests have ended and nothing is marked as busy or stale."""
        assert self.page.evaluate(_SETTLED, DEADLINE_MS) == ""

    def reset(self, url: str) -> None:
        """Make the page that of a new visitor of `url`, except for its address if it is the same viewer's."""
        self.page.mouse.move(0, 0)
        if not self.page.url.startswith("about:"):  # which has no storage
            self.page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
        if url != self.url:
            self.page.goto("about:blank")  # so that the page asks nothing of a viewer that has ended
            self.url = url
        self.problems.clear()

    def find(self, selector: str, has_text: str | None = None) -> Locator:
        """The elements of a CSS selector, only those that contain `has_text` if given."""
        return self.page.locator(selector, has_text=has_text)

    @property
    def is_closed(self) -> bool:
        return bool(self.page.is_closed())

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


_MAX_FREE = 3


class TabPool:
    """Hands out tabs of which each has been reset and is used by one test at a time."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._free: list[tuple[str, Tab]] = []
        """Tabs that no test uses, with what they were opened with. The one that was used last is at the end."""
        self._used: dict[Tab, str] = {}

    def open(self, url: str, place: str, *, new: bool = False, **options: object) -> Tab:
        """Open a place in a free tab with these options of Playwright's `new_context`; if there is none, in a new one.

        `new`: in a tab whose page is loaded at this place, which no other test uses.
        """
        wanted = repr(sorted(options.items()))
        found = None if new else next((free for free in reversed(self._free) if free[0] == wanted), None)
        if found is None:
            tab = Tab(self._browser, url, **options)
        else:
            self._free.remove(found)
            tab = found[1]
            tab.reset(url)
        self._used[tab] = "" if new else wanted
        return tab.go(place)

    def give_back(self) -> list[str]:
        """End the use of all tabs, and return the problems that they recorded."""
        problems = [problem for tab in self._used for problem in tab.problems]
        for tab, opened_with in self._used.items():
            if not tab.is_closed and opened_with:
                self._free.append((opened_with, tab))
            elif not tab.is_closed:
                tab.close()
        self._used.clear()
        while len(self._free) > _MAX_FREE:
            self._free.pop(0)[1].close()
        return problems

    def close(self) -> None:
        """Close the free tabs."""
        for _, tab in self._free:
            tab.close()
        self._free.clear()


def figure(tab: Tab, title: str) -> Locator:
    """The chart with this title."""
    return tab.find(".figure").filter(has=tab.page.get_by_role("heading", name=title, exact=True)).first


def point(tab: Tab, chart: Locator, part: float) -> None:
    """Move the pointer to a position in a chart, from 0 to 1 of its width."""
    chart.scroll_into_view_if_needed()
    box = chart.locator(".area").bounding_box()
    assert box is not None
    tab.page.mouse.move(box["x"] + part * box["width"], box["y"] + box["height"] / 2)


Open = Callable[..., Tab]
"""The fixture `open_tab`: opens a place of the page in a tab."""
