"""Prompt: a line for typing a search, a text to find, or an expression, with its error below."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.suggester import Suggester
from textual.widgets import Input, Static

from rollyard.analysis.browse.parts.bindings import bindings
from rollyard.analysis.browse.parts.completion import completion
from rollyard.analysis.browse.text.visible import visible_line


class Prompt(Vertical):
    """Hidden until `ask` is called."""

    DEFAULT_CSS = """
    Prompt { height: auto; max-height: 5; display: none; }
    Prompt.open { display: block; }
    Prompt #label { height: 1; text-style: bold; }
    Prompt Input { height: 1; border: none; padding: 0; }
    Prompt #check { height: auto; max-height: 3; }
    Prompt #check.wrong { color: $text-error; text-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = bindings(
        {
            "escape": "cancel",
        },
    )

    class Typed(Message):
        """The text has changed, but the user has not finished."""

        def __init__(self, name: str, text: str) -> None:
            super().__init__()
            self.name, self.text = name, text

    class Answered(Message):
        """The user has pressed Enter."""

        def __init__(self, name: str, text: str) -> None:
            super().__init__()
            self.name, self.text = name, text

    class Cancelled(Message):
        """The user has pressed Escape."""

    def __init__(self) -> None:
        super().__init__()
        self._asked = ""

    def compose(self) -> ComposeResult:
        yield Static(id="label")
        yield Input(compact=True)
        yield Static(id="check")

    def ask(self, name: str, label: str, value: str, names: Callable[[], Sequence[str]] | None = None) -> None:
        """Ask for a text. `name` is in the answer; `names` returns the names that complete what is typed."""
        self._asked = name
        self.query_one("#label", Static).update(Text(label))
        field = self.query_one(Input)
        field.suggester = _Names(names) if names else None
        field.value = visible_line(value)
        field.cursor_position = len(field.value)
        self.remark("")
        self.add_class("open")
        field.focus()

    def remark(self, text: str, *, is_wrong: bool = False) -> None:
        """Show a remark below the field."""
        shown = self.query_one("#check", Static)
        shown.set_class(is_wrong, "wrong")
        shown.update(Text(("Error: " if is_wrong else "") + visible_line(text)) if text else "")

    def close(self) -> None:
        """Hide the line."""
        self.remove_class("open")

    @property
    def is_open(self) -> bool:
        return self.has_class("open")

    def action_cancel(self) -> None:
        self.close()
        self.post_message(self.Cancelled())

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        event.stop()
        if self.is_open:
            self.post_message(self.Typed(self._asked, event.value.strip()))

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.post_message(self.Answered(self._asked, event.value.strip()))


class _Names(Suggester):
    """Completes the name at the end of an expression."""

    def __init__(self, names: Callable[[], Sequence[str]]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._names = names

    async def get_suggestion(self, value: str) -> str | None:
        return completion(value, self._names())
