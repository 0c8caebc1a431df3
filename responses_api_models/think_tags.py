"""`<think>...</think>` at the beginning of what a model says, for engines without a reasoning parser."""

from __future__ import annotations

OPENING, CLOSING = "<think>", "</think>"


def split_thinking(content: str) -> tuple[str, str]:
    """What stands in `<think>...</think>` at the beginning, and the rest, both as the model wrote them.

    Without the opening tag it was part of the prompt (so do the templates of pure thinking models); without the
    closing one the output was cut while thinking.
    """
    head, closing, rest = content.partition(CLOSING)
    before, opening, thought = head.partition(OPENING)
    if opening:
        return ("", content) if before.strip() else (thought, rest)
    return (head, rest) if closing else ("", content)


class ThinkTags:
    """The same for text in pieces.

    What follows an opening tag is a thought at once. Text that begins without one is held back up to the closing tag:
    before it nothing says whether it is a thought.
    """

    def __init__(self) -> None:
        self._held = ""
        self._state = self._begin

    def split(self, text: str) -> tuple[str, str]:
        """Thought and text of which it is known now that they are."""
        return self._state(text)

    def rest(self) -> tuple[str, str]:
        """What is still held back at the end."""
        return (self._held, "") if self._state == self._thinking else split_thinking(self._held)

    def _begin(self, text: str) -> tuple[str, str]:
        self._held += text
        begun = self._held.lstrip()
        if OPENING.startswith(begun[: len(OPENING)]) and len(begun) < len(OPENING):
            return "", ""
        held, self._held = self._held, ""
        if begun.startswith(OPENING):
            self._state = self._thinking
            return self._thinking(begun[len(OPENING) :])
        self._state = self._unknown
        return self._unknown(held)

    def _thinking(self, text: str) -> tuple[str, str]:
        seen = self._held + text
        thought, closing, rest = seen.partition(CLOSING)
        if closing:
            self._held, self._state = "", self._said
            return thought, rest
        # An end that may become the closing tag waits for more.
        sure = max(len(seen) - len(CLOSING) + 1, 0)
        while not CLOSING.startswith(seen[sure:]):
            sure += 1
        self._held = seen[sure:]
        return seen[:sure], ""

    def _unknown(self, text: str) -> tuple[str, str]:
        searched = max(len(self._held) - len(CLOSING), 0)
        self._held += text
        if self._held.find(CLOSING, searched) < 0:
            return "", ""
        held, self._held, self._state = self._held, "", self._said
        return split_thinking(held)

    def _said(self, text: str) -> tuple[str, str]:
        return "", text
