"""BrowseApp: the pages and how one leads to another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

from textual import events
from textual.app import App
from textual.binding import BindingType
from textual.filter import LineFilter
from textual.theme import Theme

from rollyard.analysis.browse.findings.findings_screen import FindingsScreen
from rollyard.analysis.browse.list.list_scope import ListScope
from rollyard.analysis.browse.list.list_screen import ListScreen
from rollyard.analysis.browse.list.rollout_source import Listed, RolloutSource
from rollyard.analysis.browse.palette import DARK, LIGHT, Palette
from rollyard.analysis.browse.parts.bindings import bindings
from rollyard.analysis.browse.parts.help_screen import HelpScreen
from rollyard.analysis.browse.parts.message_log import MessageLog
from rollyard.analysis.browse.parts.no_colour import NoColour
from rollyard.analysis.browse.parts.plain_filter import PlainFilter
from rollyard.analysis.browse.rollout.rollout_reader import RolloutReader
from rollyard.analysis.browse.rollout.rollout_screen import RolloutScreen
from rollyard.analysis.findings.finding import Example, Finding
from rollyard.analysis.viewer.findings import FindingIndex, rows_of_kind
from rollyard.analysis.viewer.library import FileIndex
from rollyard.analysis.viewer.rollout_list import Query
from rollyard.analysis.viewer.rollout_view import Replays
from rollyard.analysis.viewer.run_file import RunFile

_MESSAGES_S = 1.0


class BrowseApp(App[None]):
    """Shows the files of an index. Whoever starts it starts and closes the index and the findings, too."""

    CSS = "Screen { background: $background; color: $foreground; }"
    ENABLE_COMMAND_PALETTE = False
    TITLE = "ng_browse"
    BINDINGS: ClassVar[list[BindingType]] = bindings(
        {
            "question_mark": "keys",
            "t": "switch_theme",
            "r": "go('r')",
            "f": "go('f')",
            "q": "quit",
        },
        before_widgets={
            "ctrl+c": "quit",
        },
    )

    def __init__(self, index: FileIndex, findings: FindingIndex, replays: Replays, query: Query | None = None) -> None:
        super().__init__()
        self.index, self.findings = index, findings
        self.palette: Palette = DARK
        self._replays = replays
        self._query = query or Query()
        self._keys = ["", ""]
        self._plain: Sequence[LineFilter] = (PlainFilter(),)
        chosen = [colour for palette in (DARK, LIGHT) for colour in (palette.chosen, palette.first, palette.ink)]
        self._no_colour: Sequence[LineFilter] = (NoColour(chosen),)
        self.log_handler = MessageLog()
        """For warnings of the code that reads the files."""
        for palette in (DARK, LIGHT):
            self.register_theme(_theme(palette))

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*self._plain, *(self._no_colour if self.no_color else super().get_line_filters())]

    def on_mount(self) -> None:
        self.theme = _theme_name(self.palette)
        self.push_screen(ListScreen(self.index.runs[0], self._query))
        self.set_interval(_MESSAGES_S, self._show_messages)

    def _show_messages(self) -> None:
        for message in self.log_handler.take():
            self.notify(message, severity="warning", markup=False)

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key) and not event.is_forwarded:
            self._keys = [self._keys[1], event.key]
        await super().on_event(event)

    @property
    def follows_g(self) -> bool:
        """Whether the key before the current one was `g`."""
        return self._keys[0] == "g"

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "go" or self.follows_g

    def action_go(self, page: Literal["r", "f"]) -> None:
        """Go to the list or to the findings of the file that the current page is about."""
        run = self._current_run()
        while len(self.screen_stack) > 2:
            self.pop_screen()
        first = self.screen
        if page == "f":
            self.push_screen(FindingsScreen(run))
        elif isinstance(first, ListScreen) and first.run is not run:
            first.open(run)

    def _current_run(self) -> RunFile:
        for screen in reversed(self.screen_stack):
            if isinstance(screen, ListScreen | FindingsScreen):
                return screen.run
        return self.index.runs[0]

    def action_keys(self) -> None:
        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen(self.palette, str(self.screen.TITLE)))

    def action_switch_theme(self) -> None:
        self.palette = LIGHT if self.palette is DARK else DARK
        self.theme = _theme_name(self.palette)
        for screen in self.screen_stack:
            if isinstance(screen, ListScreen | RolloutScreen | FindingsScreen):
                screen.paint()

    def back(self) -> None:
        """Return to the page from which the current one was opened."""
        if len(self.screen_stack) > 2:
            self.pop_screen()

    def position(self, run: RunFile) -> str:
        """Return which of several files this is."""
        runs = self.index.runs
        return f" ({runs.index(run) + 1} of {len(runs)})" if len(runs) > 1 and run in runs else ""

    def neighbour(self, run: RunFile, by: int) -> RunFile | None:
        """Return the previous or next file."""
        runs = self.index.runs
        at = runs.index(run) + by
        return runs[at] if 0 <= at < len(runs) else None

    def open_rollout(
        self, source: RolloutSource, listed: Listed, at: int, find: str, moved: Callable[[int], None]
    ) -> None:
        """Show a rollout of a list."""
        self.push_screen(RolloutScreen(RolloutReader(source, listed, self._replays), at, find, moved))

    def open_finding(self, run: RunFile, finding: Finding) -> None:
        """List the rollouts of a finding."""
        if finding.filters:
            self.push_screen(ListScreen(run, Query.model_validate(finding.filters), ListScope(finding.title, None)))
            return
        rows = rows_of_kind(self.findings, run.number, finding.kind)
        self.push_screen(ListScreen(run, Query(), ListScope(finding.title, rows)))

    async def open_example(self, run: RunFile, example: Example) -> None:
        """Show one rollout of a finding."""
        source = RolloutSource(run)
        listed = await asyncio.to_thread(source.listed, Query())
        place = listed.find(example.task, example.repeat)
        if place is not None:
            self.open_rollout(source, listed, place, "", lambda at: None)


def _theme_name(palette: Palette) -> str:
    return f"rollyard-{palette.name}"


def _theme(palette: Palette) -> Theme:
    return Theme(
        name=_theme_name(palette),
        primary=palette.first,
        secondary=palette.second,
        accent=palette.first,
        foreground=palette.ink,
        background=palette.paper,
        surface=palette.raised,
        panel=palette.raised,
        success=palette.good,
        error=palette.bad,
        dark=palette.name == "dark",
    )
