"""Separates a leading `<think>...</think>` from a model's other output, for engines without a reasoning parser."""

from __future__ import annotations

OPENING, CLOSING = "<think>", "</think>"


def split_thinking(content: str) -> tuple[str, str]:
    """Return the text inside a leading `<think>...</think>`, and the rest of the content, both verbatim.

    If the opening tag is missing, it was part of the prompt, as in the templates of pure reasoning models. If the
    closing tag is missing, the output was truncated during the reasoning.
    """
    head, closing, rest = content.partition(CLOSING)
    before, opening, reasoning = head.partition(OPENING)
    if opening:
        return ("", content) if before.strip() else (reasoning, rest)
    return (head, rest) if closing else ("", content)


class ThinkTags:
    """Splits streamed text into reasoning and content.

    Text after an opening tag is reasoning and is returned immediately. Text without an opening tag is held back until
    the closing tag arrives, because it can still turn out to be reasoning.
    """

    def __init__(self) -> None:
        self._held = ""
        self._state = self._begin

    def split(self, text: str) -> tuple[str, str]:
        """Return the reasoning and the content that can be distinguished so far."""
        return self._state(text)

    def rest(self) -> tuple[str, str]:
        """Return the text that is still held back at the end of the stream, as reasoning and content."""
        return (self._held, "") if self._state == self._thinking else split_thinking(self._held)

    def _begin(self, text: str) -> tuple[str, str]:
        self._held += text
        stripped = self._held.lstrip()
        if OPENING.startswith(stripped[: len(OPENING)]) and len(stripped) < len(OPENING):
            return "", ""
        held, self._held = self._held, ""
        if stripped.startswith(OPENING):
            self._state = self._thinking
            return self._thinking(stripped[len(OPENING) :])
        self._state = self._unknown
        return self._unknown(held)

    def _thinking(self, text: str) -> tuple[str, str]:
        seen = self._held + text
        reasoning, closing, rest = seen.partition(CLOSING)
        if closing:
            self._held, self._state = "", self._content
            return reasoning, rest
        # A suffix that may be the start of the closing tag is held back.
        end = max(len(seen) - len(CLOSING) + 1, 0)
        while not CLOSING.startswith(seen[end:]):
            end += 1
        self._held = seen[end:]
        return seen[:end], ""

    def _unknown(self, text: str) -> tuple[str, str]:
        searched = max(len(self._held) - len(CLOSING), 0)
        self._held += text
        if self._held.find(CLOSING, searched) < 0:
            return "", ""
        held, self._held, self._state = self._held, "", self._content
        return split_thinking(held)

    def _content(self, text: str) -> tuple[str, str]:
        return "", text
