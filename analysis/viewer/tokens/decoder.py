"""Decodes token ids to texts, for rows whose texts are not recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

INCOMPLETE = "\ufffd"
_LONGEST = 16
"""Number of tokens after which bytes that are no character are shown as they are."""


class Tokenizer(Protocol):
    """What is needed of a tokenizer."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of consecutive tokens, special tokens included."""
        ...


class TokenDecoder:
    """Thread-safe if the tokenizer is."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def texts(self, ids: Sequence[int]) -> list[str]:
        """Return the text that each token adds. A character whose bytes are spread over several tokens is the text of
        the last of them, and the others have an empty text.

        A token alone may decode to another text than after its predecessors, for example without its leading space. So
        each is decoded together with those since the last complete character but one.
        """
        found: list[str] = []
        start = end = 0
        """The tokens from `start` to `end` are the context, whose text is complete."""
        for place in range(1, len(ids) + 1):
            before, now = self._decoded(ids[start:end]), self._decoded(ids[start:place])
            is_complete = not now.endswith(INCOMPLETE) or place == len(ids) or place - end >= _LONGEST
            found.append(now[len(before) :] if is_complete else "")
            if is_complete:
                start, end = end, place
        return found

    def text(self, token: int) -> str:
        """Return the text of one token, with U+FFFD for a part of a character."""
        return self._decoded([token])

    def _decoded(self, ids: Sequence[int]) -> str:
        try:
            return self._tokenizer.decode(list(ids)) if ids else ""
        except (OverflowError, ValueError, TypeError):  # ids that no vocabulary has, because rows are untrusted
            return INCOMPLETE * len(ids)
