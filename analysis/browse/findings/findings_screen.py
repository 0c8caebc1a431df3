"""FindingsScreen: what stands out in a file, most important first."""

from __future__ import annotations

import asyncio
from typing import ClassVar, cast

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import Screen
from textual.widgets import Static

from rollyard.analysis.browse.blocks.block_view import BlockView
from rollyard.analysis.browse.findings.finding_blocks import blocks_of
from rollyard.analysis.browse.navigation import Navigation
from rollyard.analysis.browse.parts.bindings import bindings
from rollyard.analysis.browse.text.visible import visible_line
from rollyard.analysis.findings.finding import Finding
from rollyard.analysis.report.formatting import percent
from rollyard.analysis.viewer.findings import FindingsView, findings_view
from rollyard.analysis.viewer.run_file import RunFile

_POLL_S = 1.0


class FindingsScreen(Screen[None]):
    TITLE = "Findings"
    CSS = """
    FindingsScreen #title, FindingsScreen #hint { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    FindingsScreen #title { text-style: bold; }
    FindingsScreen #hint { color: $text-muted; }
    FindingsScreen BlockView { height: 1fr; scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = bindings(
        {
            "enter": "rollouts",
            "1": "example(1)",
            "2": "example(2)",
            "3": "example(3)",
            "d": "definitions",
            "left_square_bracket": "file(-1)",
            "right_square_bracket": "file(1)",
            "u,escape": "back",
        },
        before_widgets={
            "j,down": "move(1)",
            "k,up": "move(-1)",
        },
    )

    def __init__(self, run: RunFile) -> None:
        super().__init__()
        self.run = run
        self.found: FindingsView | None = None
        self._definitions = False

    @property
    def browse(self) -> Navigation:
        """The app, for going to other pages."""
        return cast(Navigation, self.app)

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        yield BlockView()
        yield Static(Text("Enter its rollouts  1 2 3 examples  d what is counted  u back  ? keys"), id="hint")

    def on_mount(self) -> None:
        self.query_one(BlockView).focus()
        self._loading = self._load()
        self.set_interval(_POLL_S, self._follow)

    def _follow(self) -> None:
        if self.app.screen is self and self._loading.is_finished:
            self._loading = self._load()

    @work(exclusive=True, group="findings")
    async def _load(self) -> None:
        found = await asyncio.to_thread(findings_view, self.browse.findings, self.run.number)
        has_changed = self.found is None or found.findings != self.found.findings
        self.found = found
        if has_changed:
            self.paint()
        self._show_title(found)

    def _show_title(self, found: FindingsView) -> None:
        name = f"{self.run.name}{self.browse.position(self.run)}"
        number = len(found.findings)
        parts = [f"Findings in {name}", f"{number} in {found.rollouts:,} rollouts"]
        if found.examined < 1:
            parts.append(f"so far; examined {percent(found.examined, 0)} of the file")
        elif not number:
            parts = [f"Nothing stands out among the {found.rollouts:,} rollouts of {name}"]
        if found.error:
            parts.append(found.error)
        self.query_one("#title", Static).update(Text(visible_line("  ".join(parts)), no_wrap=True, overflow="ellipsis"))

    def paint(self) -> None:
        """Draw all findings with the colours of the current theme."""
        if self.found is not None:
            view = self.query_one(BlockView)
            at = view.current
            view.show(blocks_of(self.found.findings, definitions=self._definitions), self.browse.palette)
            view.current = min(at, max(len(self.found.findings) - 1, 0))

    @property
    def current(self) -> Finding | None:
        """The finding at the cursor."""
        view = self.query_one(BlockView)
        block = view.blocks[view.current] if view.blocks else None
        return block.key if block is not None and isinstance(block.key, Finding) else None

    def action_move(self, by: int) -> None:
        self.query_one(BlockView).move(by)

    def action_definitions(self) -> None:
        self._definitions = not self._definitions
        self.paint()

    def action_rollouts(self) -> None:
        if (finding := self.current) is not None:
            self.browse.open_finding(self.run, finding)

    @work(exclusive=True, group="example")
    async def action_example(self, number: int) -> None:
        if (finding := self.current) is not None and number <= len(finding.examples):
            await self.browse.open_example(self.run, finding.examples[number - 1])

    def action_file(self, by: int) -> None:
        if (run := self.browse.neighbour(self.run, by)) is not None:
            self.run, self.found = run, None
            self._loading = self._load()

    def action_back(self) -> None:
        self.browse.back()
