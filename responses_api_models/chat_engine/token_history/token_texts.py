"""Reads the texts of a turn's tokens from the engine's logprobs."""

from __future__ import annotations

import codecs
import re

from rollyard.records.io.json_values import items, mapping
from rollyard.records.types import Json

_ID = re.compile(r"token_id:\d+")
"""What vLLM writes in place of a text with --return-tokens-as-token-ids."""
_REPLACEMENT = "\ufffd"


def token_texts(choice: Json, count: int) -> list[str]:
    """Return the text of each of the choice's `count` tokens; empty if the engine did not report all of them.

    If the engine reports the bytes of tokens that contain only a part of a character, the whole character is the text
    of its last token, and the others have an empty text. Otherwise, they contain U+FFFD.
    """
    entries = [mapping(entry) for entry in items(mapping(choice.get("logprobs")).get("content"))]
    texts = [text for entry in entries if isinstance(text := entry.get("token"), str) and not _ID.fullmatch(text)]
    if len(texts) != count or len(entries) != count:
        return []
    return _joined(entries, texts) if any(_REPLACEMENT in text for text in texts) else texts


def _joined(entries: list[Json], texts: list[str]) -> list[str]:
    """Return the texts decoded from the bytes, if these contain more than the texts do."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    try:
        decoded = [decoder.decode(bytes(entry.get("bytes") or ())) for entry in entries]
    except (TypeError, ValueError):  # not a list of bytes
        return texts
    decoded[-1] += decoder.decode(b"", final=True)
    return decoded if "".join(decoded).count(_REPLACEMENT) < "".join(texts).count(_REPLACEMENT) else texts
