"""The texts of tokens, and characters that are spread over several tokens."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from rollyard.services.types import Json
from rollyard.services.viewer.conversation import events_of
from rollyard.services.viewer.single_file_page import STATIC
from rollyard.services.viewer.token_texts import joined_texts

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


def test_vendored_libraries_are_those_that_their_readme_names() -> None:
    vendor: Path = STATIC / "vendor"
    sums = dict(re.findall(r"^\| `([^`]+)` .* `([0-9a-f]{64})` \|$", (vendor / "README.md").read_text(), re.MULTILINE))
    found = {path.relative_to(vendor).as_posix(): path for path in vendor.rglob("*.js")}
    assert sums == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in found.items()}
