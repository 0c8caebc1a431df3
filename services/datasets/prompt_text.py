"""Extracts the question from a row in any common format, as a list of normalized words.

A row of GSM8K may be `{"question": ...}`, a chat with a system prompt, or text with worked examples before the
question. Comparing the words of questions instead of prompts finds the same question in all of them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

from rollyard.records.types import Json

FIELDS = ("question", "problem", "query", "instruction", "prompt", "text", "messages", "conversations", "input")
"""Top-level keys that contain the prompt in published datasets, in addition to `responses_create_params`."""
_LATEX = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|limits|[bB]igg?[lr]?|quad|qquad)(?![a-zA-Z])|\\[,;:! ]"
    r"|\\(?:text(?:bf|it|rm|tt)?|mathrm|mathbf|mathit|mathbb|operatorname|boxed|mbox)(?![a-zA-Z])"
    r"|\\[()\[\]]"
)
_UNSPACED_SCRIPTS = r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
"""Characters of scripts that are written without spaces. Each character counts as a word."""
_WORD = re.compile(rf"[0-9]+(?:\.[0-9]+)?|{_UNSPACED_SCRIPTS}|(?:(?!{_UNSPACED_SCRIPTS})[^\W\d_])+|[-+*/=<>^!%]")
"""Matches one word. Decimal numbers and operators are words, so 3.5 differs from 35, and x + 1 from x - 1."""
_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_HYPHEN = re.compile(r"(?<=[^\W\d_])-(?=[^\W\d_])")
_QUESTION_PREFIX = re.compile(
    r"(?:^|\n)[\s#*]*(?:question|problem|q|task|exercise|user|human|input)\s*\d*\s*[:.][\s*]*", re.IGNORECASE
)
_QUESTION_END = re.compile(
    r"\n[\s#*]*(?:answer|solution|a|response|assistant|output)\s*\d*\s*:|\n+\s*(?:please |let'?s |now )?"
    r"(?:reason|think|solve|show|put|give|write|end|provide|answer|respond)\b[^\n]*\s*$",
    re.IGNORECASE,
)


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation and LaTeX markup.

    Numbers and operators count as words.
    """
    text = unicodedata.normalize("NFKC", text).casefold()
    text = re.sub(r"\\[dt]frac(?![a-z])", r"\\frac", text)
    text = _LATEX.sub(" ", text).replace("−", "-").replace("–", "-")
    return _WORD.findall(_HYPHEN.sub(" ", _THOUSANDS.sub("", text)))


def prompts_of(row: Json) -> list[str]:
    """Return the row's prompts: first the text of its own fields, then that of `responses_create_params.input`."""
    texts = [text for field in FIELDS for text in _field_texts(row.get(field))]
    params = row.get("responses_create_params")
    if isinstance(params, dict):
        texts += _field_texts(params.get("input"))
    return [text for text in dict.fromkeys(texts) if text.strip()]


def questions_of(text: str) -> Iterator[str]:
    """Yield the text, followed by the part of it that is probably the question, if that is shorter.

    This part starts after the last `Question:` and ends before an `Answer:` or an instruction to reason.
    """
    yield text
    starts = [found.end() for found in _QUESTION_PREFIX.finditer(text)]
    rest = text[starts[-1] :] if starts else text
    while (end := _QUESTION_END.search(rest)) is not None and end.start() > 0:
        rest = rest[: end.start()]
    if rest.strip() and rest != text:
        yield rest


def _field_texts(value: Any) -> list[str]:
    """Return the text of a field: the string itself, or the last user message of a conversation."""
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
