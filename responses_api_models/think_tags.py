"""Splits `<think>...</think>` from the start of a model's output, for engines without a reasoning parser."""

from __future__ import annotations

OPENING, CLOSING = "<think>", "</think>"


def split_thinking(content: str) -> tuple[str, str]:
    """Return the text in `<think>...</think>` at the start, and the rest, both verbatim.

    A missing opening tag was part of the prompt (as in templates of pure reasoning models); if the closing tag is
    missing, the output was truncated during reasoning.
    """
    head, closing, rest = content.partition(CLOSING)
    before, opening, thought = head.partition(OPENING)
    if opening:
        return ("", content) if before.strip() else (thought, rest)
    return (head, rest) if closing else ("", content)


class ThinkTags:
    """Splits streamed text.

    Text after an opening tag is reasoning and is returned immediately. Text that starts without one is held back up to
    the closing tag, because until then it may be either.
    """

    def __init__(self) -> None:
        self._held = ""
        self._state = self._begin

    def split(self, text: str) -> tuple[str, str]:
        """Return the reasoning and the text that are now known to be such."""
        return self._state(text)

    def rest(self) -> tuple[str, str]:
        """Return what is still held back at the end of the stream."""
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
        # A suffix that may be the start of the closing tag is held back.
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
