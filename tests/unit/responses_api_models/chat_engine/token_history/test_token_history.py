"""The token history: which edits change a conversation, and where two prompts differ."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rollyard.records.types import Json
from rollyard.responses_api_models.chat_engine.token_history.fingerprint import Fingerprint
from rollyard.responses_api_models.chat_engine.token_history.history import TokenHistory, last_turn
from rollyard.responses_api_models.chat_engine.token_history.prefix_mismatch import (
    find_prefix_mismatch,
    first_difference,
)
from rollyard.responses_api_models.convert.conversion import Dialect, chat_to_response, request_to_chat

ids = st.lists(st.integers(0, 3), max_size=6)
texts = (
    st.none()
    | st.text("ab \n<think/>{", max_size=20)
    | st.sampled_from(["<think>a</think>b", "a</think>b", "<think>a"])
)
arguments = st.sampled_from(["{}", '{"a": 1}', "{not json", ""]) | st.just({"a": 1})


def calls(written: list[Any]) -> list[Json]:
    functions = [{"name": "push", "arguments": one} for one in written]
    return [{"id": f"c{at}", "type": "function", "function": one} for at, one in enumerate(functions)]


messages = st.builds(
    lambda content, thought, written: {
        "role": "assistant",
        "content": content,
        "reasoning": thought,
        "tool_calls": calls(written),
    },
    texts,
    st.none() | st.just("hm"),
    st.lists(arguments, max_size=2),
)


@given(messages, st.booleans())
def test_a_message_keeps_its_fingerprint_through_the_responses_api(message: Json, think_tags: bool) -> None:
    dialect = Dialect(think_tags=think_tags)
    answer = {
        "id": "1",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"completion_tokens": 1},
    }
    output = chat_to_response(answer, {}, dialect)["output"]
    (again,) = request_to_chat({"input": output}, dialect)["messages"]
    assert Fingerprint({}).add([again]) == Fingerprint({}).add([message])


@given(messages, messages, messages)
def test_messages_added_one_by_one_give_the_fingerprint_of_all_at_once(one: Json, two: Json, three: Json) -> None:
    grown = Fingerprint({"tools": []})
    grown.add([one])
    assert grown.add([two, three]) == Fingerprint({"tools": []}).add([one, two, three])


@given(ids, ids)
def test_the_first_difference_is_the_first_position_with_other_ids(expected: list[int], found: list[int]) -> None:
    at = first_difference(expected, found)
    if at is None:
        assert found[: len(expected)] == expected
    else:
        assert expected[:at] == found[:at]
        assert expected[at : at + 1] != found[at : at + 1]


def test_a_prompt_shorter_than_the_turn_before_differs_at_its_end() -> None:
    broken = find_prefix_mismatch([1, 2, 3], [1, 2], "retokenized")
    assert broken is not None
    assert (broken["position"], broken["expected"], broken["found"]) == (2, [3], [])


def test_the_last_turn_with_tokens_is_found_before_later_messages() -> None:
    turn = {"role": "assistant", "content": "a", "prompt_token_ids": [1], "generation_token_ids": [2]}
    found = last_turn([turn, {"role": "user", "content": "x"}, turn, {"role": "user", "content": "y"}])
    assert found is not None
    assert (found.index, found.ids, found.trace) == (2, [1, 2], {})


def recorded_turn(text: str, context: str) -> Json:
    trace = {"segment": 3, "context": context}
    return {
        "role": "assistant",
        "content": text,
        "prompt_token_ids": [1],
        "generation_token_ids": [2],
        "token_trace": trace,
    }


def test_a_turn_that_continues_an_unchanged_history_stays_in_its_segment() -> None:
    question: Json = {"role": "user", "content": "q"}
    first = {"role": "assistant", "content": "a", "prompt_token_ids": [1], "generation_token_ids": [2]}
    trace = TokenHistory({}, [question]).trace(first, "")
    history = TokenHistory({}, [question, recorded_turn("a", trace["context"]), question])
    assert not history.is_changed
    assert history.trace({"content": "b", "prompt_token_ids": [1, 2, 5]}, "retokenized")["segment"] == 3


def test_an_edited_message_before_the_last_turn_changes_the_history() -> None:
    trace = TokenHistory({}, [{"role": "user", "content": "q"}]).trace({"role": "assistant", "content": "a"}, "")
    edited = [{"role": "user", "content": "other"}, recorded_turn("a", trace["context"])]
    assert TokenHistory({}, edited).is_changed


def test_a_prompt_that_differs_from_the_recorded_ids_starts_a_new_segment() -> None:
    history = TokenHistory({}, [recorded_turn("a", "unknown")])
    trace = history.trace({"content": "b", "prompt_token_ids": [1, 7]}, "retokenized")
    assert (trace["segment"], trace["break"]["position"]) == (4, 1)
