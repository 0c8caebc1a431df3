"""ChoiceScreen: a list from which the user chooses one entry, or switches several on and off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from rollyard.analysis.browse.parts.bindings import bindings
from rollyard.analysis.browse.text.visible import visible_line


@dataclass(frozen=True)
class Choice:
    """An entry. `value` is what the page gets."""

    value: str
    label: str


class ChoiceScreen(ModalScreen[list[str] | None]):
    """Returns the chosen values; None if the user changed their mind. Typing shortens the list."""

    CSS = """
    ChoiceScreen { align: center middle; }
    ChoiceScreen > Vertical { width: 60; max-width: 100%; height: auto; max-height: 100%; }
    ChoiceScreen > Vertical { padding: 0 1; border: round $secondary; }
    ChoiceScreen Input { border: none; height: 1; padding: 0; background: $surface; }
    ChoiceScreen OptionList { height: auto; max-height: 14; border: none; padding: 0; }
    ChoiceScreen OptionList > .option-list--option-highlighted { background: $primary; color: $background; }
    """
    BINDINGS: ClassVar[list[BindingType]] = bindings(
        {
            "escape": "dismiss(None)",
        },
        before_widgets={
            "down": "move(1)",
            "up": "move(-1)",
            "enter": "choose",
            "tab": "switch",
        },
    )

    def __init__(self, title: str, choices: Sequence[Choice], chosen: Sequence[str], *, several: bool = False) -> None:
        """`chosen`: the current values, in order, which are marked. `several`: Tab switches an entry on or off."""
        super().__init__()
        self._title, self._choices, self._several = title, choices, several
        self._chosen = list(chosen)
        self._listed: list[Choice] = []

    def compose(self) -> ComposeResult:
        hint = "Tab: on or off   Enter: apply   Esc: cancel" if self._several else "Enter: choose   Esc: cancel"
        with Vertical():
            yield Static(Text(self._title, style="bold"))
            yield Input(placeholder="type to shorten the list", compact=True)
            yield OptionList(markup=False, compact=True)
            yield Static(Text(hint, style="dim"))

    def on_mount(self) -> None:
        self._list("")
        places = [at for at, choice in enumerate(self._listed) if choice.value in self._chosen]
        self.query_one(OptionList).highlighted = places[0] if places and not self._several else 0
        self.query_one(Input).focus()

    @on(Input.Changed)
    def _shorten(self, event: Input.Changed) -> None:
        self._list(event.value)

    def _list(self, text: str) -> None:
        self._listed = [choice for choice in self._choices if text.casefold() in choice.label.casefold()]
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options([Option(self._label(choice)) for choice in self._listed])
        options.highlighted = 0 if self._listed else None

    def _label(self, choice: Choice) -> Text:
        is_chosen = choice.value in self._chosen
        mark = ("[x] " if is_chosen else "[ ] ") if self._several else ("• " if is_chosen else "  ")
        return Text(mark + visible_line(choice.label))

    def action_move(self, by: int) -> None:
        options = self.query_one(OptionList)
        if self._listed:
            options.highlighted = ((options.highlighted or 0) + by) % len(self._listed)

    def action_switch(self) -> None:
        options = self.query_one(OptionList)
        at = options.highlighted
        if not self._several or at is None:
            return
        value = self._listed[at].value
        if value in self._chosen:
            self._chosen.remove(value)
        else:
            self._chosen.append(value)
        options.replace_option_prompt_at_index(at, self._label(self._listed[at]))

    def action_choose(self) -> None:
        if self._several:
            self.dismiss(self._chosen)
            return
        at = self.query_one(OptionList).highlighted
        if at is not None:
            self.dismiss([self._listed[at].value])

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        if self._several:
            self.action_switch()
        else:
            self.action_choose()
