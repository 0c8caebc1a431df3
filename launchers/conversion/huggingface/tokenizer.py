"""Writes the tokenizer, and checks that the written one does the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from rollyard.launchers.conversion.huggingface.stages import stage
from rollyard.records.errors import RunError

_TEXTS = ("The quick brown fox jumps over 13 lazy dogs.", " x = {'a': [1, 2]}\n\tprint(x)  ", "Žluťoučký kůň 漢字 🙂")
_MESSAGES = ([{"role": "user", "content": "2 + 3?"}],)


def write_tokenizer(name: str, folder: Path) -> None:
    """Write the tokenizer `name` (a folder or a name on the hub) into `folder`. Raises RunError if the copy differs."""
    with stage(f"loading the tokenizer {name}"):
        original = AutoTokenizer.from_pretrained(name)
    with stage(f"writing the tokenizer {name}"):
        original.save_pretrained(folder)
        written = AutoTokenizer.from_pretrained(folder)
    for what, before, after in _properties(original, written):
        if before != after:
            raise RunError(
                f"the tokenizer {name} changes when it is saved: {what} {str(before)[:100]} becomes {str(after)[:100]}"
            )


def require_ids(folder: Path, vocabulary: int) -> None:
    """Raise RunError if the tokenizer has ids for which the model has no embedding."""
    highest = max(AutoTokenizer.from_pretrained(folder).get_vocab().values(), default=-1)
    if highest >= vocabulary:
        raise RunError(
            f"the tokenizer has token ids up to {highest:,}, but the model only has {vocabulary:,} embeddings: it "
            "belongs to another model"
        )


def _properties(one: Any, other: Any) -> list[tuple[str, Any, Any]]:
    """Return name and both values of what determines a tokenizer's output."""
    compared = [
        ("its vocabulary", one.get_vocab(), other.get_vocab()),
        ("its special tokens", one.special_tokens_map, other.special_tokens_map),
        ("its chat template", one.chat_template, other.chat_template),
    ]
    compared += [(f"{text!r}", one(text)["input_ids"], other(text)["input_ids"]) for text in _TEXTS]
    if isinstance(one.chat_template, str):
        compared += [("a rendered chat", _rendered(one, chat), _rendered(other, chat)) for chat in _MESSAGES]
    return compared


def _rendered(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # a template that needs more than a user's message fails for both
        return f"{type(error).__name__}: {error}"
