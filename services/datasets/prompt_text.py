"""What a row asks, whatever its form: words without markup, and the question without the prompt around it.

A row of GSM8K may be `{"question": ...}`, a chat with a system prompt, or text with worked examples before the
question. Rows of one question are found by comparing their questions as words, not their prompts.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

from rollyard.services.types import Json

FIELDS = ("question", "problem", "query", "instruction", "prompt", "text", "messages", "conversations", "input")
"""Top-level keys under which published rows ask; a row that has `responses_create_params` asks there, too."""
_LATEX = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|limits|[bB]igg?[lr]?|quad|qquad)(?![a-zA-Z])|\\[,;:! ]"
    r"|\\(?:text(?:bf|it|rm|tt)?|mathrm|mathbf|mathit|mathbb|operatorname|boxed|mbox)(?![a-zA-Z])"
    r"|\\[()\[\]]"
)
_NO_SPACES = r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
"""Scripts whose words have no spaces between them: a word per character."""
_WORD = re.compile(rf"[0-9]+(?:\.[0-9]+)?|{_NO_SPACES}|(?:(?!{_NO_SPACES})[^\W\d_])+|[-+*/=<>^!%]")
"""3.5 is not 35, and x + 1 is not x - 1."""
_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_HYPHEN = re.compile(r"(?<=[^\W\d_])-(?=[^\W\d_])")
_ASKS = re.compile(
    r"(?:^|\n)[\s#*]*(?:question|problem|q|task|exercise|user|human|input)\s*\d*\s*[:.][\s*]*", re.IGNORECASE
)
_ANSWERS = re.compile(
    r"\n[\s#*]*(?:answer|solution|a|response|assistant|output)\s*\d*\s*:|\n+\s*(?:please |let'?s |now )?"
    r"(?:reason|think|solve|show|put|give|write|end|provide|answer|respond)\b[^\n]*\s*$",
    re.IGNORECASE,
)


def words_of(text: str) -> list[str]:
    """The words of a text, without case, punctuation and the marks of LaTeX; numbers and operators are words."""
    text = unicodedata.normalize("NFKC", text).casefold()
    text = re.sub(r"\\[dt]frac(?![a-z])", r"\\frac", text)
    text = _LATEX.sub(" ", text).replace("−", "-").replace("–", "-")
    return _WORD.findall(_HYPHEN.sub(" ", _THOUSANDS.sub("", text)))


def prompts_of(row: Json) -> list[str]:
    """The texts in which a row asks: its own fields first, then what the user says in its prompt."""
    texts = [text for field in FIELDS for text in _asked(row.get(field))]
    params = row.get("responses_create_params")
    if isinstance(params, dict):
        texts += _asked(params.get("input"))
    return [text for text in dict.fromkeys(texts) if text.strip()]


def questions_of(text: str) -> Iterator[str]:
    """The text, and what of it may be the question: behind the last `Question:`, before an `Answer:` or a request to
    reason.
    """
    yield text
    starts = [found.end() for found in _ASKS.finditer(text)]
    rest = text[starts[-1] :] if starts else text
    while (end := _ANSWERS.search(rest)) is not None and end.start() > 0:
        rest = rest[: end.start()]
    if rest.strip() and rest != text:
        yield rest


def _asked(value: Any) -> list[str]:
    """The texts of a field: itself, or what the last user message of a conversation says."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Sequence):
        return []
    for item in reversed(value):
        if isinstance(item, dict) and item.get("role", item.get("from")) in ("user", "human"):
            return [_content(item.get("content", item.get("value")))]
    return []


def _content(content: Any) -> str:
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return "\n".join(text for text in texts if isinstance(text, str))
