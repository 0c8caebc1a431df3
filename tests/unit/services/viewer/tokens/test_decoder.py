"""Texts of token ids, with a tokenizer whose tokens are bytes, and with one that drops the space of a first word."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from rollyard.services.errors import OperatorError
from rollyard.services.io.optional import EXTRAS, missing
from rollyard.services.viewer.api_records import Event, RolloutLine, RolloutView, Tokens
from rollyard.services.viewer.token_texts import TokenDecoder, decoded_rollout, load_tokenizer


class Bytes:
    """Each token is a byte."""

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")


class Words:
    """Like SentencePiece: words begin with a space, which the first word of a text loses."""

    def __init__(self, *words: str) -> None:
        self._words = words

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._words[token] for token in ids).removeprefix(" ")


def test_a_character_of_several_tokens_is_the_text_of_the_last_one() -> None:
    texts = TokenDecoder(Bytes()).texts(list("a🎉é.".encode()))
    assert texts == ["a", "", "", "", "🎉", "", "é", "."]


def test_a_word_in_the_middle_keeps_its_space() -> None:
    assert TokenDecoder(Words(" push", " the", " box")).texts([0, 1, 2, 1]) == ["push", " the", " box", " the"]


@pytest.mark.parametrize("text", ["", "plain", "naïve 🎉🎉 漢字", "🏳️‍🌈 flag", "a\nb\t c"])
def test_the_texts_together_are_the_text_of_the_tokens(text: str) -> None:
    assert "".join(TokenDecoder(Bytes()).texts(list(text.encode()))) == text


def test_bytes_that_are_no_character_do_not_hide_what_follows() -> None:
    texts = TokenDecoder(Bytes()).texts([0xF0] * 100 + list(b"end"))
    assert "".join(texts).endswith("end") and "".join(texts).count("\ufffd") == 100


def test_a_last_incomplete_character_is_shown() -> None:
    assert TokenDecoder(Bytes()).texts([0x61, 0xF0, 0x9F]) == ["a", "", "\ufffd"]


def test_ids_that_the_vocabulary_lacks_are_replaced() -> None:
    decoder = TokenDecoder(Bytes())
    assert decoder.text(2**40) == "\ufffd" and len(decoder.texts([2**40, 0x61])) == 2


def view_of(tokens: Tokens) -> RolloutView:
    line = RolloutLine(
        task=0,
        repeat=0,
        outcome="measured",
        reward=1.0,
        success=None,
        tool_calls=0,
        turns=1,
        output_tokens=1,
        seconds=None,
        end="",
        agent="",
    )
    event = Event(speaker="answer", text="é", turn=1, tokens=tokens)
    return RolloutView(
        run=0, line=line, events=[event], replay=None, charts=[], facts={}, attempts=[], previous=None, next=None
    )


def tokens_with(texts: list[str]) -> Tokens:
    return Tokens(
        prompt=[],
        generated=[0xC3, 0xA9],
        log_probs=[-1.0, -2.0],
        texts=texts,
        alternatives=[],
        trained=True,
        trace=None,
    )


def test_a_rollout_with_ids_only_gets_texts_and_recorded_texts_stay() -> None:
    decoder = TokenDecoder(Bytes())
    [event] = decoded_rollout(view_of(tokens_with([])), decoder).events
    assert event.tokens is not None and event.tokens.texts == ["", "é"]
    [event] = decoded_rollout(view_of(tokens_with(["x", "y"])), decoder).events
    assert event.tokens is not None and event.tokens.texts == ["x", "y"]


@pytest.mark.skipif(not missing(EXTRAS["tokens"]), reason="tokenizers is installed")
def test_without_the_package_the_message_names_the_command_that_installs_it(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"rollyard\[tokens\]"):
        load_tokenizer(str(tmp_path), print)
