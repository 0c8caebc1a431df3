"""ListScreen: the rollouts of a file, filtered and sorted."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, cast

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import Screen
from textual.widgets import Static

from rollyard.analysis.browse.list.columns import DEFAULT_COLUMNS, LINE_COLUMNS, names_of
from rollyard.analysis.browse.list.filters import choices_of, chosen_filter, filter_changes
from rollyard.analysis.browse.list.list_scope import ListScope
from rollyard.analysis.browse.list.rollout_source import Listed, RolloutSource
from rollyard.analysis.browse.list.rollout_table import RolloutTable
from rollyard.analysis.browse.list.summary import query_text, title_text
from rollyard.analysis.browse.navigation import Navigation
from rollyard.analysis.browse.parts.bindings import bindings
from rollyard.analysis.browse.parts.choice_screen import Choice, ChoiceScreen
from rollyard.analysis.browse.parts.prompt import Prompt
from rollyard.analysis.browse.text.visible import visible_line
from rollyard.analysis.viewer.fields import PROMPT, VERDICT, ExpressionCheck
from rollyard.analysis.viewer.rollout_list import Query
from rollyard.analysis.viewer.run_file import RunFile
from rollyard.records.expressions.parse import ExpressionError

CHECK_EVERY_S = 0.5
_HINT = "Enter open  / search  e expression  f filter  s sort  c columns  ? keys"


class ListScreen(Screen[None]):
    TITLE = "List"
    CSS = """
    ListScreen #title, ListScreen #query, ListScreen #hint { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    ListScreen #title { text-style: bold; }
    ListScreen #query { color: $text-accent; }
    ListScreen #hint { color: $text-muted; }
    ListScreen RolloutTable { height: 1fr; scrollbar-size-vertical: 1; scrollbar-size-horizontal: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = bindings(
        {
            "slash": "search",
            "e": "expression",
            "f": "filter",
            "s": "sort",
            "c": "columns",
            "x": "clear",
            "left_square_bracket": "file(-1)",
            "right_square_bracket": "file(1)",
            "u,escape": "back",
        },
    )

    def __init__(self, run: RunFile, query: Query, scope: ListScope | None = None) -> None:
        super().__init__()
        self.run = run
        self.query_of_list = query
        self.source = RolloutSource(run, scope.rows if scope else None)
        self._scope = scope
        self._without_conditions = query if scope else Query()
        self._message = ""
        self._keys: list[str] = []

    def open(self, run: RunFile) -> None:
        """List the rollouts of another file."""
        self.run, self.source, self._keys = run, RolloutSource(run), []
        self.change()

    @property
    def browse(self) -> Navigation:
        """The app, for going to other pages."""
        return cast(Navigation, self.app)

    @property
    def listed(self) -> Listed | None:
        """The rollouts that are shown; None before the first have been read."""
        return self.query_one(RolloutTable).listed

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        yield RolloutTable()
        yield Prompt()
        yield Static(id="query")
        yield Static(Text(_HINT), id="hint")

    def on_mount(self) -> None:
        self.query_one(RolloutTable).focus()
        self.paint()
        self._refresh = self.refresh_list()
        self.set_interval(CHECK_EVERY_S, self._follow)

    def paint(self) -> None:
        """Use the colours of the current theme."""
        table = self.query_one(RolloutTable)
        table.palette = self.browse.palette
        table.refresh()

    def change(self, **changes: Any) -> None:
        """Change the query, and show what it selects."""
        self.query_of_list = self.query_of_list.model_copy(update=changes)
        self._message = ""
        self._refresh = self.refresh_list()

    def _follow(self) -> None:
        """Show what has been appended to the file, and what a search has found since."""
        if self.app.screen is not self or not self._refresh.is_finished:
            return
        if self.listed is None or not self.source.is_current(self.listed):
            self._refresh = self.refresh_list()
        else:
            self._show_title()

    @work(exclusive=True, group="list")
    async def refresh_list(self) -> None:
        query, source = self.query_of_list, self.source
        try:
            listed = await asyncio.to_thread(source.listed, query)
        except (ExpressionError, OSError) as error:
            self._message = str(error)
        else:
            self.query_one(RolloutTable).show(source, listed, query.columns, query.sort)
        self._show_title()

    def _show_title(self) -> None:
        listed = self.listed
        title = title_text(self.run, listed, self.browse.position(self.run), self._scope.title if self._scope else "")
        self.query_one("#title", Static).update(Text(visible_line(title), no_wrap=True, overflow="ellipsis"))
        text = f"! {self._message}" if self._message else query_text(self.query_of_list)
        shown = Text(visible_line(text), no_wrap=True, overflow="ellipsis")
        self.query_one("#query", Static).update(shown)

    # ---- questions

    def action_search(self) -> None:
        self.query_one(Prompt).ask("q", "Search in the rows (Enter; empty: all)", self.query_of_list.q)

    def action_expression(self) -> None:
        self._load_keys()
        label = "Expression, such as reward < 0.5 and tool_calls > 3 (→ completes)"
        self.query_one(Prompt).ask("where", label, self.query_of_list.where, lambda: self._keys)

    @work(exclusive=True, group="keys")
    async def _load_keys(self) -> None:
        self._keys = await self._fields()

    async def _fields(self) -> list[str]:
        """Return the fields of the rows; none if the file cannot be read, which the list states anyway."""
        try:
            keys = await asyncio.to_thread(self.run.fields.keys, self.run.listing.columns)
        except OSError:
            return []
        return [*keys.computed, *(key.path for key in keys.keys)]

    @on(Prompt.Typed)
    def _typed(self, event: Prompt.Typed) -> None:
        if event.name == "where":
            self._check(event.text)

    @work(exclusive=True, group="check")
    async def _check(self, text: str) -> None:
        found = await self._checked(text)
        self.query_one(Prompt).remark(found.error or found.hint, is_wrong=bool(found.error))

    @on(Prompt.Answered)
    async def _answered(self, event: Prompt.Answered) -> None:
        if event.name == "where" and (error := (await self._checked(event.text)).error):
            self.query_one(Prompt).remark(error, is_wrong=True)
            return
        self._close_prompt()
        self.change(**{event.name: event.text})

    async def _checked(self, text: str) -> ExpressionCheck:
        if not text:
            return ExpressionCheck(error="")
        return await asyncio.to_thread(self.run.fields.check, self.run.listing.columns, text)

    @on(Prompt.Cancelled)
    def _close_prompt(self) -> None:
        self.query_one(Prompt).close()
        self.query_one(RolloutTable).focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave `f` to the app after `g`."""
        return action != "filter" or not self.browse.follows_g

    def action_filter(self) -> None:
        page = self.listed.listing.page_of(self.listed.indexes[:0], 0) if self.listed else None
        choices = choices_of(page.ends if page else (), page.agents if page else ())

        def chosen(values: list[str] | None) -> None:
            if values:
                self.change(**filter_changes(values[0]))

        self.app.push_screen(ChoiceScreen("Show rollouts", choices, [chosen_filter(self.query_of_list)]), chosen)

    @work(exclusive=True, group="keys")
    async def action_sort(self) -> None:
        choices = [Choice(name, name) for name in dict.fromkeys([*LINE_COLUMNS, *await self._fields()])]
        choices = [choice for choice in choices if choice.value != "outcome"]

        def chosen(values: list[str] | None) -> None:
            if values:
                self.sort_by(values[0])

        current = self.query_of_list.sort.removeprefix("-")
        self.app.push_screen(ChoiceScreen("Sort by (again: descending)", choices, [current]), chosen)

    def sort_by(self, name: str) -> None:
        """Sort by a column, or in the other direction if the list is sorted by it."""
        self.change(sort=f"-{name}" if self.query_of_list.sort == name else name)

    @work(exclusive=True, group="keys")
    async def action_columns(self) -> None:
        now = names_of(self.query_of_list.columns)
        others = [*LINE_COLUMNS[1:], PROMPT, VERDICT, *await self._fields()]
        labels = {PROMPT: "the prompt", VERDICT: "the fields that explain the reward"}
        names = [name for name in dict.fromkeys([*now, *others]) if name != "outcome"]
        choices = [Choice(name, labels.get(name, name)) for name in names]

        def chosen(values: list[str] | None) -> None:
            if values is not None:
                self.change(columns="" if values == list(DEFAULT_COLUMNS) else ",".join(values or DEFAULT_COLUMNS))

        self.app.push_screen(ChoiceScreen("Columns", choices, now, several=True), chosen)

    def action_clear(self) -> None:
        kept = self.query_of_list
        self.query_of_list = self._without_conditions
        self.change(sort=kept.sort, columns=kept.columns)

    # ---- other pages

    def action_file(self, by: int) -> None:
        run = self.browse.neighbour(self.run, by)
        if run is not None and self._scope is None:
            self.open(run)

    def action_back(self) -> None:
        self.browse.back()

    @on(RolloutTable.HeaderClicked)
    def _header_clicked(self, event: RolloutTable.HeaderClicked) -> None:
        self.sort_by(event.path)

    @on(RolloutTable.Unreadable)
    def _unreadable(self, event: RolloutTable.Unreadable) -> None:
        self._message = event.reason
        self._show_title()

    @on(RolloutTable.Opened)
    def _opened(self, event: RolloutTable.Opened) -> None:
        if self.listed is not None:
            self.browse.open_rollout(self.source, self.listed, event.at, self.query_of_list.q, self._moved)

    def _moved(self, at: int) -> None:
        """Move the cursor along with the page of a rollout."""
        self.query_one(RolloutTable).move_to(at)
