"""Finds stop sequences in a text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopSequences:
    """Returns the text up to the first stop sequence. Text that may be the start of a sequence is held back."""

    def __init__(self, sequences: Sequence[str]) -> None:
        self.sequences = sequences
        self.matched: str | None = None
        """The sequence that was found."""
        self._held = ""

    def feed(self, text: str) -> str:
        """Return the text that certainly precedes every stop sequence."""
        if self.matched is not None:
            return ""
        text, self._held = self._held + text, ""
        found = [(at + len(one), at, one) for one in self.sequences if (at := text.find(one)) >= 0]
        if found:
            # The one that is complete first, so that the result does not depend on how the text is divided.
            _, at, self.matched = min(found)
            return text[:at]
        keep = max((_overlap(text, one) for one in self.sequences), default=0)
        if keep:
            text, self._held = text[:-keep], text[-keep:]
        return text

    def rest(self) -> str:
        """Return the text that was held back, because the text has ended."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, sequence: str) -> int:
    """Return the length of the longest end of the text with which the sequence begins."""
    return next((size for size in range(min(len(sequence) - 1, len(text)), 0, -1) if text.endswith(sequence[:size])), 0)
