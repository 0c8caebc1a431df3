"""The trail of tokens: what counts as the same conversation, and where two prompts part."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rollyard.responses_api_models.chat_engine.token_history import history
from rollyard.responses_api_models.convert.conversion import Dialect, chat_to_response, request_to_chat
from rollyard.services.types import Json

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
def test_a_message_is_the_same_after_its_way_through_the_responses_api(message: Json, think_tags: bool) -> None:
    dialect = Dialect(think_tags=think_tags)
    answer = {
        "id": "1",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"completion_tokens": 1},
    }
    output = chat_to_response(answer, {}, dialect)["output"]
    (again,) = request_to_chat({"input": output}, dialect)["messages"]
    assert history.Fingerprint({}).add([again]) == history.Fingerprint({}).add([message])


@given(messages, messages, messages)
def test_a_fingerprint_grows_by_messages_as_if_all_had_come_at_once(one: Json, two: Json, three: Json) -> None:
    grown = history.Fingerprint({"tools": []})
    grown.add([one])
    assert grown.add([two, three]) == history.Fingerprint({"tools": []}).add([one, two, three])


@given(ids, ids)
def test_the_first_difference_is_where_the_two_part(expected: list[int], found: list[int]) -> None:
    at = history.first_difference(expected, found)
    if at is None:
        assert found[: len(expected)] == expected
    else:
        assert expected[:at] == found[:at]
        assert expected[at : at + 1] != found[at : at + 1]


def test_a_prompt_that_ends_within_the_turn_before_breaks_at_its_end() -> None:
    broken = history.find_prefix_mismatch([1, 2, 3], [1, 2], "retokenized")
    assert broken is not None
    assert (broken["position"], broken["expected"], broken["found"]) == (2, [3], [])


def test_the_last_turn_with_tokens_counts_wherever_it_stands() -> None:
    turn = {"role": "assistant", "content": "a", "prompt_token_ids": [1], "generation_token_ids": [2]}
    found = history.last_turn([turn, {"role": "user", "content": "x"}, turn, {"role": "user", "content": "y"}])
    assert found is not None
    assert (found.index, found.ids, found.trace) == (2, [1, 2], {})
