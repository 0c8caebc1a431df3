"""A row's conversation as events, for rows of any writer and with any content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.analysis.viewer.api_records import Event
from rollyard.analysis.viewer.conversation import events_of
from rollyard.analysis.viewer.run_file import rollout_view
from rollyard.analysis.viewer.untrusted_values import row_facts
from rollyard.records.types import Json
from tests.support.rollout_files import row, write
from tests.unit.analysis.viewer.opened_runs import no_replay, open_index

CALL: Json = {"type": "function_call", "name": "step", "arguments": '{"actions":["Up"]}', "call_id": "c1"}
RESULT: Json = {"type": "function_call_output", "call_id": "c1", "output": '{"observation":"#P#","reward":-0.1}'}


def message(text: str, role: str = "assistant") -> Json:
    return {"type": "message", "role": role, "content": [{"type": "output_text", "text": text}]}


def events(*output: Any, prompt: Any = "play", **more: Any) -> list[Event]:
    return events_of({"responses_create_params": {"input": prompt, **more}, "response": {"output": list(output)}})


def texts(found: list[Event]) -> list[tuple[str, str]]:
    return [(event.speaker, event.text) for event in found]


def test_events_distinguish_their_speakers() -> None:
    user = {"role": "user", "content": [{"type": "input_text", "text": "go"}]}
    prompt = [{"role": "developer", "content": "rules"}, user]
    reasoning = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    found = events(reasoning, CALL, RESULT, message("done"), prompt=prompt, instructions="be brief")
    assert texts(found) == [
        ("system", "be brief"),
        ("system", "rules"),
        ("user", "go"),
        ("reasoning", "hm"),
        ("call", '{\n  "actions": [\n    "Up"\n  ]\n}'),
        ("result", RESULT["output"]),
        ("answer", "done"),
    ]


def test_a_result_has_the_turn_of_its_call_and_the_reward_of_the_step() -> None:
    found = events(CALL, {**CALL, "call_id": "c2"}, {**RESULT, "call_id": "c2"}, RESULT, CALL, RESULT)
    assert [event.turn for event in found] == [0, 1, 1, 1, 1, 2, 2]
    assert [event.reward for event in found if event.speaker == "result"] == [-0.1] * 3
    assert {event.name for event in found if event.speaker == "call"} == {"step"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>a\nb</think>\n\nc", [("reasoning", "a\nb"), ("answer", "c")]),
        ("a</think>c", [("reasoning", "a"), ("answer", "c")]),
        ("<think>never ended", [("reasoning", "never ended")]),
        ("c <think>a</think> d", [("answer", "c "), ("reasoning", "a"), ("answer", " d")]),
        ("\n\n  no thought\n", [("answer", "\n\n  no thought\n")]),
        ("", [("answer", "")]),
    ],
)
def test_reasoning_in_a_message_is_separated_from_the_answer(text: str, expected: list[tuple[str, str]]) -> None:
    assert texts(events(message(text)))[1:] == expected


@pytest.mark.parametrize(
    ("item", "speaker", "text"),
    [
        ({"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}]}, "reasoning", "short"),
        ({"type": "reasoning", "summary": [], "encrypted_content": "x"}, "reasoning", "(encrypted)"),
        ({"type": "custom_tool_call", "name": "sh", "input": "ls -l", "call_id": "c"}, "call", "ls -l"),
        ({"type": "custom_tool_call_output", "call_id": "c", "output": "files"}, "result", "files"),
        ({"type": "web_search_call", "action": {"type": "search"}}, "call", '{\n  "type": "search"\n}'),
        ({"type": "code_interpreter_call", "code": "1+1"}, "call", "1+1"),
        ({**CALL, "arguments": f'{{"id": {10**30}, "n": [1]}}'}, "call", f'{{"id": {10**30}, "n": [1]}}'),
        ({"type": "item_reference", "id": "i"}, "other", '{\n  "type": "item_reference",\n  "id": "i"\n}'),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, "answer", "no"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]}, "user",
         "[image: image/png;base64, 4 characters]"),
        ("only text", "other", "only text"),
        (7, "other", "7"),
        ({"type": "reasoning", "content": 7}, "reasoning", "7"),
        ({"role": "user", "content": [[1], {"type": "x"}]}, "user", '[\n  1\n]\n{\n  "type": "x"\n}'),
    ],
)  # fmt: skip
def test_items_of_every_kind_are_shown(item: Any, speaker: str, text: str) -> None:
    assert texts(events(item))[1:] == [(speaker, text)]


def test_a_tool_run_by_the_endpoint_is_a_call_and_its_result() -> None:
    item = {"type": "mcp_call", "name": "find", "arguments": '{"q":1}', "output": "found", "id": "m"}
    assert [event.speaker for event in events(item)] == ["user", "call", "result"]


def test_recorded_tokens_are_on_the_last_event_of_their_model_call() -> None:
    tokens = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}
    call = {**CALL, **tokens, "token_trace": {"segment": 0}}
    found = events({"type": "reasoning", "content": "hm"}, call, message("x"))
    assert [(event.turn, event.tokens is not None) for event in found] == [
        (0, False),
        (1, False),
        (1, True),
        (2, False),
    ]
    recorded = found[2].tokens
    assert recorded is not None and recorded.trained and recorded.trace == {"segment": 0}
    assert (recorded.prompt, recorded.generated, recorded.log_probs) == ([1, 2], [3], [-0.5])


@pytest.mark.parametrize("ids", [None, "1,2", [1, "2"], [1.5], [True], {"0": 1}])
def test_invalid_token_ids_are_ignored(ids: Any) -> None:
    assert all(event.tokens is None for event in events({**CALL, "generation_token_ids": ids}))


def test_facts_exclude_the_conversation_and_abbreviate_long_values() -> None:
    facts = row_facts({**row(3, 1, 0.5), "seed": 7, "long": ["x" * 100] * 100, "prompt_token_ids": [1]})
    assert (facts["seed"], facts["reward"], facts["_ng_task_index"]) == (7, 0.5, 3)
    assert facts["long"].startswith("(a list of 100, ")
    assert facts["response"] == {"usage": {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}}
    assert "responses_create_params" not in facts and "prompt_token_ids" not in facts


@pytest.mark.parametrize(
    "text",
    [
        '{"a": NaN, "b": [Infinity, -Infinity], "c": "\\ud800", "d": 123456789012345678901234567890}',
        '{"a": ' + "[" * 900 + "]" * 900 + "}",
        '{"response": {"output": [' + '{"type": "function_call", "arguments": ' * 60 + "1" + "}" * 60 + "]}}",
        '{"__proto__": {"polluted": true}, "constructor": 1, "x": 1e400, "\\u0000": "\\u0000\\u202e</script>"}',
    ],
)
def test_extreme_json_values_do_not_break_the_view(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.jsonl"
    key = '{"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 1, '
    path.write_text(key + text[1:] + "\n")
    run = open_index(path).runs[0]
    view = rollout_view(run, run.table, 0, no_replay)
    assert orjson.loads(view.model_dump_json())["line"]["reward"] == 1


def test_rows_of_nemo_gym_without_indices_are_numbered(tmp_path: Path) -> None:
    plain = {key: value for key, value in row(0, 0, 1.0).items() if not key.startswith("_ng_")}
    run = open_index(write(tmp_path / "x.jsonl", [plain, plain])).runs[0]
    views = [rollout_view(run, run.table, index, no_replay) for index in range(2)]
    found = [(view.line.task, view.line.repeat, view.previous, view.next) for view in views]
    assert found == [(0, 0, None, (1, 0)), (1, 0, (0, 0), None)]
