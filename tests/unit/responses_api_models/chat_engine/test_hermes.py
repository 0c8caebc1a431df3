"""Hermes tool calls are parsed from text as vLLM's own parser does."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollyard.records.types import Json
from rollyard.responses_api_models.chat_engine.token_backends import read_hermes, read_plain

CALL = '<tool_call>\n{"name": "push", "arguments": {"to": "up"}}\n</tool_call>'


def functions(message: Json) -> list[tuple[str, str]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]


@settings(max_examples=40)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=4), st.text(min_size=1))
def test_a_call_keeps_its_name_and_arguments(value: object, name: str) -> None:
    arguments = {"value": value}
    text = f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
    ((found, arguments_text),) = functions(read_hermes(text))
    assert (found, json.loads(arguments_text)) == (name, arguments)


def test_arguments_are_spaced_as_vllm_does_and_not_escaped() -> None:
    text = '<tool_call>{"name":"push","arguments":{"to":"√","far":[1,2]}}</tool_call>'
    assert functions(read_hermes(text)) == [("push", '{"to": "√", "far": [1, 2]}')]


def test_several_calls_stay_in_order_and_the_text_before_the_first_is_the_content() -> None:
    message = read_hermes(f"I go. {CALL}\n{CALL.replace('up', 'left')} behind")
    assert [arguments_text for _, arguments_text in functions(message)] == ['{"to": "up"}', '{"to": "left"}']
    assert message["content"] == "I go. "
    assert len({call["id"] for call in message["tool_calls"]}) == 2


def test_a_call_alone_has_no_content() -> None:
    assert read_hermes(CALL)["content"] is None


def test_a_call_without_its_closing_tag_is_parsed() -> None:
    assert functions(read_hermes(CALL.removesuffix("\n</tool_call>"))) == [("push", '{"to": "up"}')]


UNREADABLE = ("not json", '{"name": "push"', "[]", '"push"', '{"arguments": {}}', "", "[" * 2000)
HALF_SURROGATE = '{"name": "push", "arguments": {"a": "\\ud800"}}'


@pytest.mark.parametrize("inside", [*UNREADABLE, HALF_SURROGATE, '{"name": 3, "arguments": {}}'])
def test_unreadable_calls_stay_in_the_content_and_good_ones_beside_them_are_calls(inside: str) -> None:
    bad = f"<tool_call>{inside}</tool_call>"
    assert read_hermes(f"I go. {bad} so") == {"role": "assistant", "content": f"I go. {bad} so"}
    for text in (f"I go. {CALL}{bad}", f"I go. {bad}\n{CALL}"):
        message = read_hermes(text)
        assert functions(message) == [("push", '{"to": "up"}')]
        assert message["content"] == f"I go. {bad}"


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (
            '<tool_call>{"name": "note", "arguments": {"text": "a </tool_call> b <tool_call> c"}}</tool_call>',
            [("note", {"text": "a </tool_call> b <tool_call> c"})],
        ),
        (
            '<tool_call>{"name": "note", "arguments": {"text": "one\ntwo\tthree"}}</tool_call>',
            [("note", {"text": "one\ntwo\tthree"})],
        ),
        ('<tool_call>{"name":"now"}</tool_call>', [("now", {})]),
        ('<tool_call>{"name":"now", "arguments": null}</tool_call>', [("now", {})]),
        ('<tool_call>{"name":"a", "parameters": {"x": 1}}</tool_call>', [("a", {"x": 1})]),
        ('<tool_call>{"name": "a"}\n{"name": "b", "arguments": {"x": 1}}</tool_call>', [("a", {}), ("b", {"x": 1})]),
        ('<tool_call>{"name": "a"}, {"name": "b"}</tool_call>', [("a", {}), ("b", {})]),
        ('<tool_call>[{"name": "a"}, {"name": "b"}]</tool_call>', [("a", {}), ("b", {})]),
        ('<tool_call>{"name": "a"}\n<tool_call>{"name": "b"}</tool_call>', [("a", {}), ("b", {})]),
        ('<tool_call>{"name": "a"}\n{"name": broken}</tool_call><tool_call>{"name": "b"}', [("a", {}), ("b", {})]),
        ('<tool_call>{"name": "a"}<|im_end|>', [("a", {})]),
    ],
)
def test_every_call_that_can_be_read_is_read(text: str, calls: list[tuple[str, Json]]) -> None:
    found = functions(read_hermes(text))
    assert [(name, json.loads(arguments)) for name, arguments in found] == calls


def test_a_malformed_object_after_a_good_one_in_the_same_tag_stays_in_the_content() -> None:
    message = read_hermes('Go. <tool_call>{"name": "a"}\n{"name": broken}</tool_call>')
    assert message["content"] == 'Go. <tool_call>\n{"name": broken}</tool_call>'


def test_reasoning_is_not_content_whether_the_prompt_or_the_model_opened_it() -> None:
    for text in ["<think>\nhm\n</think>\n\nI go.", "\nhm\n</think>\n\nI go."]:
        message = {"role": "assistant", "content": "\n\nI go.", "reasoning_content": "\nhm\n"}
        assert read_plain(text) == read_hermes(text) == message


def test_truncated_reasoning_is_not_content() -> None:
    assert read_plain("<think>hm") == {"role": "assistant", "content": "", "reasoning_content": "hm"}


def test_a_call_inside_reasoning_is_ignored() -> None:
    assert functions(read_hermes(f"<think>{CALL}</think>no")) == []
