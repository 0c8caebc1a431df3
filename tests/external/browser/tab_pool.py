"""TabPool: tabs that tests use one after another, because loading the page takes longer than most tests."""

from __future__ import annotations

from playwright.sync_api import Browser

from tests.external.browser.browser_tab import Tab

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
