"""The texts of tokens: characters that are spread over several tokens, and ids that a tokenizer decodes.

One tokenizer here has bytes as tokens, the other drops the space of a first word.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from rollyard.analysis.viewer.conversation import events_of
from rollyard.analysis.viewer.run_file import rollout_view
from rollyard.analysis.viewer.token_texts import TokenDecoder, decoded_rollout, joined_texts, load_tokenizer
from rollyard.records.errors import OperatorError
from rollyard.records.optional import EXTRAS, missing
from rollyard.records.types import Json
from tests.support.rollout_files import row, write
from tests.unit.analysis.viewer.opened_runs import no_replay, open_index

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


@pytest.mark.parametrize(
    ("recorded", "texts", "trace"), [(["a", " b"], ["a", " b"], {"segment": 0}), (["a"], [], {"segment": 0})]
)
def test_recorded_texts_are_shown_if_there_is_one_for_each_token(
    recorded: list[str], texts: list[str], trace: Json
) -> None:
    found = tokens(item(generation_token_ids=[1, 2], token_trace={"segment": 0, "texts": recorded}))
    assert (found["texts"], found["trace"]) == (texts, trace)


def test_an_answer_with_logprobs_of_the_responses_api_has_texts_and_alternatives() -> None:
    first = {"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "x", "logprob": -2.0}]}
    found = tokens(item(logprobs=[first, {"token": " b", "logprob": -1}]))
    assert (found["generated"], found["texts"], found["log_probs"]) == ([], ["a", " b"], [-0.5, -1.0])
    assert found["alternatives"] == [[("x", -2.0)], []]


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


BYTES = TokenDecoder(Bytes().decode)


@pytest.mark.parametrize(
    ("ids", "texts"),
    [
        (list("a🎉é.".encode()), ["a", "", "", "", "🎉", "", "é", "."]),
        ([0x61, 0xF0, 0x9F], ["a", "", "\ufffd"]),
        ([2**40], ["\ufffd"]),
    ],
    ids=["several tokens", "incomplete at the end", "not in the vocabulary"],
)
def test_a_character_of_several_tokens_is_the_text_of_the_last_one(ids: list[int], texts: list[str]) -> None:
    assert BYTES.texts(ids) == texts


def test_a_word_in_the_middle_keeps_its_space() -> None:
    assert TokenDecoder(Words(" push", " the", " box").decode).texts([0, 1, 2, 1]) == ["push", " the", " box", " the"]


@pytest.mark.parametrize("text", ["", "plain", "naïve 🎉🎉 漢字", "🏳️‍🌈 flag", "a\nb\t c"])
def test_the_texts_together_are_the_text_of_the_tokens(text: str) -> None:
    assert "".join(BYTES.texts(list(text.encode()))) == text


def test_bytes_that_are_no_character_do_not_hide_what_follows() -> None:
    text = "".join(BYTES.texts([0xF0] * 100 + list(b"end")))
    assert text.endswith("end") and text.count("\ufffd") == 100


@pytest.mark.parametrize(("recorded", "shown"), [([], ["", "é"]), (["x", "y"], ["x", "y"])])
def test_a_rollout_with_ids_only_gets_texts_and_recorded_texts_stay(
    tmp_path: Path, recorded: list[str], shown: list[str]
) -> None:
    trace = {"token_trace": {"texts": recorded}} if recorded else {}
    output = [item(generation_token_ids=[0xC3, 0xA9], generation_log_probs=[-1.0, -2.0], **trace)]
    rollout = {**row(0, 0, 1.0), "response": {"output": output}}
    run = open_index(write(tmp_path / "x.jsonl", [rollout])).runs[0]
    tokens_shown = decoded_rollout(rollout_view(run, run.table, 0, no_replay), BYTES).events[-1].tokens
    assert tokens_shown is not None and tokens_shown.texts == shown


@pytest.mark.skipif(not missing(EXTRAS["tokens"]), reason="tokenizers is installed")
def test_without_the_package_the_message_names_the_command_that_installs_it(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"rollyard\[tokens\]"):
        load_tokenizer(str(tmp_path), print)
