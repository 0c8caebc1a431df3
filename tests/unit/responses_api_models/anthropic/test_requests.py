"""Create requests of Anthropic's Messages API become Responses create requests, or are refused with their place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.responses_api_models.anthropic_api import StopSequences, messages_to_responses, response_to_message

HELLO: Json = {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}
IMAGE: Json = {"type": "image", "source": {"type": "url", "url": "https://example.com/cat.png"}}

DOCUMENT: Json = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVB="}}
INLINE: Json = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}}


def user(*blocks: Json) -> Json:
    return {**HELLO, "messages": [{"role": "user", "content": list(blocks)}]}


def test_a_conversation_with_tools_keeps_its_order() -> None:
    messages: list[Json] = [
        {"role": "user", "content": "Up?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "I go."},
                {"type": "tool_use", "id": "t1", "name": "step", "input": {"x": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "a wall"}]},
                {"type": "text", "text": "And now?"},
            ],
        },
    ]
    converted = messages_to_responses({**HELLO, "system": "Be brief.", "messages": messages})
    assert (converted["instructions"], converted["max_output_tokens"]) == ("Be brief.", 64)
    assert converted["input"] == [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Up?"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I go."}]},
        {"type": "function_call", "call_id": "t1", "name": "step", "arguments": '{"x":1}'},
        {"type": "function_call_output", "call_id": "t1", "output": "a wall"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And now?"}]},
    ]


def test_a_tool_and_its_choice_are_converted() -> None:
    tool = {"name": "step", "description": "Moves.", "input_schema": {"type": "object"}, "cache_control": {"type": "x"}}
    choice = {"type": "tool", "name": "step", "disable_parallel_tool_use": True}
    converted = messages_to_responses({**HELLO, "tools": [tool], "tool_choice": choice})
    assert converted["tools"] == [
        {"type": "function", "name": "step", "parameters": {"type": "object"}, "description": "Moves."}
    ]
    assert converted["tool_choice"] == {"type": "function", "name": "step"}
    assert converted["parallel_tool_calls"] is False


@pytest.mark.parametrize(("given", "expected"), [("auto", "auto"), ("any", "required"), ("none", "none")])
def test_each_choice_has_its_counterpart(given: str, expected: str) -> None:
    assert messages_to_responses({**HELLO, "tool_choice": {"type": given}})["tool_choice"] == expected


def test_a_failed_tool_is_marked_in_its_output() -> None:
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "no such door", "is_error": True}
    assert messages_to_responses(user(result))["input"][0]["output"] == '{"error":"no such door"}'


def test_an_image_of_the_user_becomes_an_image_part() -> None:
    given = messages_to_responses(user(IMAGE, INLINE))["input"]
    assert [item["content"][0]["image_url"] for item in given] == [
        "https://example.com/cat.png",
        "data:image/png;base64,iVBO",
    ]


def test_an_image_among_the_output_of_a_tool_keeps_its_place() -> None:
    content = [{"type": "text", "text": "before"}, INLINE, {"type": "text", "text": "after"}]
    result = {"type": "tool_result", "tool_use_id": "t1", "content": content}
    output = messages_to_responses(user(result))["input"][0]["output"]
    assert [part.get("text") or part["image_url"] for part in output] == [
        "before",
        "data:image/png;base64,iVBO",
        "after",
    ]


def test_a_failed_tool_with_an_image_is_marked_too() -> None:
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [INLINE], "is_error": True}
    assert messages_to_responses(user(result))["input"][0]["output"][0] == {"type": "input_text", "text": "error:"}


def test_a_field_of_neither_api_is_passed_on() -> None:
    converted = messages_to_responses({**HELLO, "top_k": 5, "chat_template_kwargs": {"a": 1}, "temperature": 0.5})
    assert (converted["top_k"], converted["chat_template_kwargs"], converted["temperature"]) == (5, {"a": 1}, 0.5)


def test_a_schema_for_the_answer_becomes_a_text_format() -> None:
    wanted = {"format": {"type": "json_schema", "schema": {"type": "object"}}, "effort": "low"}
    converted = messages_to_responses({**HELLO, "output_config": wanted})
    assert converted["text"]["format"]["schema"] == {"type": "object"}
    assert converted["reasoning"] == {"effort": "low"}


REFUSED: list[tuple[Json, str]] = [
    ({"max_tokens": None}, "max_tokens: found None"),
    ({"max_tokens": 0}, "max_tokens: found 0"),
    ({"max_tokens": True}, "max_tokens: found True"),
    ({"messages": []}, "messages: found []"),
    ({"messages": "hi"}, "messages: found 'hi'"),
    ({"messages": ["hi"]}, "messages[0]: found 'hi'; expected an object"),
    ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role: found 'system'"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content: found None"),
    ({"messages": [{"role": "user", "content": [DOCUMENT]}]}, "'document'"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}]}]},
        "messages[0].content[0].source: found",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].source: found 'None'"),
    (
        {
            "messages": [
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [DOCUMENT, IMAGE]}]}
            ]
        },
        "messages[0].content[0].content[0]: ",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text: found None"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id: found None"),
    (
        {"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}]},
        "'redacted_thinking'",
    ),
    (
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "n", "input": "x"}]}]},
        "messages[0].content[0].input: found 'x'; expected an object",
    ),
    ({"messages": [*HELLO["messages"], {"role": "assistant", "content": "The"}]}, "unfinished"),
    ({"system": [IMAGE]}, "system[0]: "),
    ({"system": 1}, "system: found 1"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type: found 'bash_20250124'"),
    ({"tools": [{"name": "x"}]}, "tools[0].input_schema: found None"),
    ({"tools": {}}, "tools: found {}"),
    ({"tool_choice": {"type": "sometimes"}}, "tool_choice: found {'type': 'sometimes'}"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name: found None"),
    ({"stop_sequences": [""]}, "stop_sequences: found ['']"),
    ({"mcp_servers": [{"url": "x"}]}, "mcp_servers: "),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_what_cannot_be_converted_is_refused_with_its_place(change: Json, message: str) -> None:
    with pytest.raises(Failure) as raised:
        messages_to_responses({**HELLO, **change})
    assert raised.value.kind is FailureKind.BAD_REQUEST and message in raised.value.problem.detail


@pytest.mark.parametrize("arguments", ["{not json", "[1]", "5", '{"x": NaN}', '{"x": 1, }'])
def test_invalid_arguments_of_the_model_survive_the_way_to_the_client_and_back(arguments: str) -> None:
    call: Any = {"type": "function_call", "call_id": "t1", "name": "step", "arguments": arguments}
    message = response_to_message({"status": "completed", "output": [call]}, StopSequences(()))
    conversation = [*HELLO["messages"], {"role": "assistant", "content": message["content"]}, HELLO["messages"][0]]
    returned = messages_to_responses({**HELLO, "messages": conversation})["input"][1]
    assert message["content"][0]["input"] == {"invalid_arguments": arguments}
    assert returned == call


TEXT = st.text(alphabet="ab ", max_size=20)
SEQUENCES = st.lists(st.text(alphabet="ab ", min_size=1, max_size=4), max_size=3)


def cut(pieces: list[str], sequences: list[str]) -> tuple[str, str | None]:
    stop = StopSequences(sequences)
    shown = "".join(stop.feed(piece) for piece in pieces)
    return (shown if stop.matched is not None else shown + stop.rest()), stop.matched


@given(TEXT, SEQUENCES)
def test_the_division_into_pieces_does_not_change_the_result(text: str, sequences: list[str]) -> None:
    assert cut([text], sequences) == cut(list(text), sequences)


@given(TEXT, SEQUENCES)
def test_the_text_before_the_sequence_contains_no_sequence(text: str, sequences: list[str]) -> None:
    shown, matched = cut([text], sequences)
    assert not any(sequence in shown for sequence in sequences)
    assert text.startswith(shown + (matched or "")) and (matched is not None or shown == text)


@pytest.mark.parametrize(
    ("text", "sequences", "expected"),
    [
        ("one END two", ["END"], ("one ", "END")),
        ("aab", ["ab"], ("a", "ab")),
        ("abcd", ["bcd", "c"], ("ab", "c")),
        ("no", ["x"], ("no", None)),
        ("almost EN", ["END"], ("almost EN", None)),
    ],
)
def test_the_text_ends_at_the_sequence_that_is_complete_first(
    text: str, sequences: list[str], expected: tuple[str, str | None]
) -> None:
    assert cut([text], sequences) == expected
