"""The texts of tokens: characters that are spread over several tokens, and ids that a tokenizer decodes.

One tokenizer here has bytes as tokens, the other drops the space of a first word.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from rollyard.analysis.viewer.api_records import Event, RolloutLine, RolloutView, Tokens
from rollyard.analysis.viewer.conversation import events_of
from rollyard.analysis.viewer.token_texts import TokenDecoder, decoded_rollout, joined_texts, load_tokenizer
from rollyard.records.errors import OperatorError
from rollyard.records.optional import EXTRAS, missing
from rollyard.records.types import Json

PARTS = ["\ufffd", "\ufffd", "\ufffd"]


@pytest.mark.parametrize(
    ("texts", "written", "joined"),
    [
        (["Hi ", *PARTS, "!"], ["Hi 🎉!"], ["Hi ", "", "", "🎉", "!"]),
        (["Hi ", *PARTS], ["Hi 🎉"], ["Hi ", "", "", "🎉"]),
        (["Hi ", *PARTS, "</think>"], ["other", "Hi 🎉"], ["Hi ", "", "", "🎉", "</think>"]),
        (["Hi", " \ufffd", "\ufffd", "!"], ["Hi é!"], ["Hi", "", " é", "!"]),
        (["Hi ", *PARTS, "!"], ["unrelated"], ["Hi ", "", "", "\ufffd", "!"]),
    ],
)
def test_parts_of_a_character_are_joined(texts: list[str], written: list[str], joined: list[str]) -> None:
    assert joined_texts(texts, written) == joined


def item(**more: object) -> Json:
    content = [{"type": "output_text", "text": "a b", "logprobs": more.pop("logprobs", [])}]
    return {"type": "message", "role": "assistant", "content": content, **more}


def tokens(output: Json) -> Json:
    event = events_of({"response": {"output": [output]}})[-1]
    assert event.tokens is not None
    return event.tokens.model_dump()


def test_recorded_texts_are_shown_and_are_not_part_of_the_trace() -> None:
    found = tokens(item(generation_token_ids=[1, 2], token_trace={"segment": 0, "texts": ["a", " b"]}))
    assert (found["texts"], found["trace"]) == (["a", " b"], {"segment": 0})


def test_an_answer_with_logprobs_of_the_responses_api_has_texts_and_alternatives() -> None:
    top = {"token": "x", "logprob": -2.0}
    found = tokens(
        item(logprobs=[{"token": "a", "logprob": -0.5, "top_logprobs": [top]}, {"token": " b", "logprob": -1}])
    )
    assert found["generated"] == []
    assert (found["texts"], found["log_probs"]) == (["a", " b"], [-0.5, -1.0])
    assert found["alternatives"] == [[("x", -2.0)], []]


def test_texts_of_another_length_are_ignored() -> None:
    assert tokens(item(generation_token_ids=[1, 2], token_trace={"texts": ["a"]}))["texts"] == []


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
    texts = TokenDecoder(Bytes().decode).texts(list("a🎉é.".encode()))
    assert texts == ["a", "", "", "", "🎉", "", "é", "."]


def test_a_word_in_the_middle_keeps_its_space() -> None:
    assert TokenDecoder(Words(" push", " the", " box").decode).texts([0, 1, 2, 1]) == ["push", " the", " box", " the"]


@pytest.mark.parametrize("text", ["", "plain", "naïve 🎉🎉 漢字", "🏳️‍🌈 flag", "a\nb\t c"])
def test_the_texts_together_are_the_text_of_the_tokens(text: str) -> None:
    assert "".join(TokenDecoder(Bytes().decode).texts(list(text.encode()))) == text


def test_bytes_that_are_no_character_do_not_hide_what_follows() -> None:
    texts = TokenDecoder(Bytes().decode).texts([0xF0] * 100 + list(b"end"))
    assert "".join(texts).endswith("end") and "".join(texts).count("\ufffd") == 100


def test_a_last_incomplete_character_is_shown() -> None:
    assert TokenDecoder(Bytes().decode).texts([0x61, 0xF0, 0x9F]) == ["a", "", "\ufffd"]


def test_ids_that_the_vocabulary_lacks_are_replaced() -> None:
    decoder = TokenDecoder(Bytes().decode)
    assert decoder.texts([2**40]) == ["\ufffd"] and len(decoder.texts([2**40, 0x61])) == 2


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
    decoder = TokenDecoder(Bytes().decode)
    [event] = decoded_rollout(view_of(tokens_with([])), decoder).events
    assert event.tokens is not None and event.tokens.texts == ["", "é"]
    [event] = decoded_rollout(view_of(tokens_with(["x", "y"])), decoder).events
    assert event.tokens is not None and event.tokens.texts == ["x", "y"]


@pytest.mark.skipif(not missing(EXTRAS["tokens"]), reason="tokenizers is installed")
def test_without_the_package_the_message_names_the_command_that_installs_it(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"rollyard\[tokens\]"):
        load_tokenizer(str(tmp_path), print)
