"""Rollouts as trajectories in ATIF, and back."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollyard.records.atif import (
    Identity,
    dump,
    failure_of,
    is_same,
    parse,
    patch_between,
    patched,
    row_of,
    trajectory_of,
    trajectory_of_failure,
)
from rollyard.records.types import Json
from tests.support.rollout_kinds import FAILURE, KINDS, NO_UNICODE, PARTIAL, PNG, answer, call, result, rollout, thought

RUN = Identity("run", "1.0")


def steps(row: Json) -> list[Json]:
    found: list[Json] = dump(trajectory_of(row, RUN).trajectory)["steps"]
    return [{key: value for key, value in step.items() if key not in ("step_id", "extra")} for step in found]


def round_trip(row: Json) -> Any:
    export = trajectory_of(row, RUN)
    written = orjson.loads(orjson.dumps(dump(export.trajectory)))
    return row_of(parse(written), export.images.get)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_round_trip_loses_nothing(kind: str) -> None:
    assert is_same(round_trip(KINDS[kind]), KINDS[kind])


def test_a_text_that_is_no_unicode_is_kept_beside_its_replacement() -> None:
    export = trajectory_of(NO_UNICODE, RUN)
    assert export.trajectory.steps[-1].message == "?"
    assert row_of(export.trajectory, export.images.get) == NO_UNICODE


def test_a_model_call_with_its_results_is_one_step() -> None:
    conversation = (thought("so"), answer("I add."), call("a"), call("b"), result("b", "4"), result("a"), answer("3"))
    prompt, first, last = steps(rollout(*conversation))
    assert prompt == {"source": "user", "message": "Add 1 and 2."}
    assert first == {
        "source": "agent",
        "message": "I add.",
        "reasoning_content": "so",
        "tool_calls": [{"tool_call_id": name, "function_name": "add", "arguments": {"x": 1}} for name in ("a", "b")],
        "observation": {"results": [{"source_call_id": "b", "content": "4"}, {"source_call_id": "a", "content": "3"}]},
    }
    assert last == {"source": "agent", "message": "3"}


@pytest.mark.parametrize("kind", ["everything in a turn", "parts of a prompt", "a reasoning that is not revealed"])
def test_what_atif_has_a_field_for_is_not_repeated_in_the_extension(kind: str) -> None:
    document = dump(trajectory_of(KINDS[kind], RUN).trajectory)
    patches = [step.get("extra", {}).get("rollyard", {}).get("patch", ()) for step in document["steps"]]
    values = [operation.get("value") for patch in patches for operation in patch if operation["path"] != "/0/arguments"]
    assert not {"so", "I add.", "3", "Add.", "add"} & {value for value in values if isinstance(value, str)}
    assert not any(isinstance(value, list) and value for value in values)


def test_tokens_are_the_metrics_of_their_model_call() -> None:
    _, first, last = steps(KINDS["tokens"])
    assert first["metrics"] == {
        "prompt_tokens": 2,
        "completion_tokens": 2,
        "prompt_token_ids": [1, 2],
        "completion_token_ids": [5, 6],
        "logprobs": [0.0, -0.5],
    }
    assert last["metrics"]["completion_token_ids"] == [7, 8, 9]


def test_the_document_has_the_agent_its_tools_and_the_sums_of_tokens() -> None:
    tool = {"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object"}}
    row = rollout(answer("3"))
    row["responses_create_params"]["tools"] = [tool]
    document = dump(trajectory_of(row, RUN).trajectory)
    function = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}
    assert document["schema_version"] == "ATIF-v1.7"
    assert (document["session_id"], document["trajectory_id"]) == ("run", "run:3:1")
    assert document["agent"] == {
        "name": "simple_agent",
        "version": "1.0",
        "model_name": "tiny",
        "tool_definitions": [{"type": "function", "function": function}],
    }
    assert document["final_metrics"] == {
        "total_prompt_tokens": 20,
        "total_completion_tokens": 5,
        "total_cached_tokens": 4,
        "total_steps": 2,
    }
    assert document["extra"]["rollyard"]["fields"]["reward"] == 1.0
    assert is_same(round_trip(row), row)


def test_examples_in_the_prompt_are_marked_as_copied() -> None:
    _, _, example, _, last = steps(KINDS["instructions and examples"])
    assert (example["source"], example["is_copied_context"]) == ("agent", True)
    assert "is_copied_context" not in last


def test_images_are_files_beside_the_document() -> None:
    export = trajectory_of(KINDS["images"], RUN)
    ((path, content),) = export.images.items()
    assert (path.partition("/")[0], content) == ("images", b"\x89PNG pixels")
    source = {"media_type": "image/png", "path": path}
    assert steps(KINDS["images"])[0]["message"] == [{"type": "image", "source": source}]


def test_an_image_that_is_gone_stays_a_path() -> None:
    export = trajectory_of(KINDS["images"], RUN)
    params = row_of(export.trajectory, lambda path: None)["responses_create_params"]
    assert next(iter(export.images)) in str(params["input"])


@pytest.mark.parametrize(("kind", "raw"), [("an invalid call", "{x"), ("a number beyond those of JSON", '{"x":1e400}')])
def test_arguments_that_are_no_object_are_shown_as_they_were_written(kind: str, raw: str) -> None:
    assert steps(KINDS[kind])[1]["tool_calls"][0]["arguments"] == {"raw": raw}


@pytest.mark.parametrize("failure", [FAILURE, {**FAILURE, "partial": PARTIAL}], ids=["alone", "with its conversation"])
def test_a_failed_attempt_survives_the_round_trip(failure: Json) -> None:
    export = trajectory_of_failure(failure, RUN)
    row = row_of(export.trajectory, export.images.get)
    assert failure_of(export.trajectory, row) == failure
    assert export.trajectory.trajectory_id == "run:3:1:2"


def test_a_failed_attempt_without_conversation_says_why() -> None:
    (step,) = trajectory_of_failure(FAILURE, RUN).trajectory.steps
    assert (step.source, step.message) == ("system", "no answer in 60 s")


# --- documents of other programs --------------------------------------------------------------------------------------

FOREIGN: Json = {
    "schema_version": "ATIF-v1.8",
    "session_id": "s",
    "agent": {"name": "terminus-2", "version": "2.0", "model_name": "m", "extra": {"parser": "json"}},
    "notes": "by hand",
    "steps": [
        {"step_id": 1, "source": "user", "message": "Say hi.", "timestamp": "2026-11-29T10:00:00Z"},
        {
            "step_id": 2,
            "source": "agent",
            "message": "ls",
            "reasoning_content": "I look.",
            "reasoning_effort": 0.5,
            "observation": {"results": [{"content": "a.txt", "extra": {"exit": 0}}]},
            "metrics": {"prompt_tokens": 9, "completion_tokens": 3, "cost_usd": 0.01},
        },
        {
            "step_id": 3,
            "source": "agent",
            "message": [{"type": "audio", "source": {"media_type": "audio/wav", "path": "a.wav", "duration_sec": 1.5}}],
            "tool_calls": [{"tool_call_id": "c", "function_name": "sub", "arguments": {"n": None}}],
            "observation": {"results": [{"source_call_id": "c", "subagent_trajectory_ref": [{"trajectory_id": "t"}]}]},
        },
        {"step_id": 4, "source": "agent", "message": "hi"},
        {"step_id": 5, "source": "agent", "message": "bye", "llm_call_count": 0},
    ],
    "continued_trajectory_ref": "next.json",
    "final_metrics": {"total_cost_usd": 0.01},
    "subagent_trajectories": [
        {
            "schema_version": "ATIF-v1.7",
            "trajectory_id": "t",
            "agent": {"name": "sub", "version": "1"},
            "steps": [{"step_id": 1, "source": "system", "message": ""}],
        }
    ],
}


def without_ours(document: Json) -> Json:
    extra = {key: value for key, value in document.get("extra", {}).items() if key != "rollyard"}
    return {**{key: value for key, value in document.items() if key != "extra"}, **({"extra": extra} if extra else {})}


def test_a_trajectory_of_another_program_survives_the_round_trip() -> None:
    row = row_of(parse(FOREIGN), lambda path: None)
    assert without_ours(dump(trajectory_of(row, Identity()).trajectory)) == FOREIGN


def test_a_trajectory_of_another_program_is_a_rollout_without_a_reward() -> None:
    row = row_of(parse(FOREIGN), lambda path: None)
    assert row["responses_create_params"]["input"] == [{"role": "user", "content": "Say hi."}]
    output = row["response"]["output"]
    kinds = ["reasoning", "message", "function_call_output", "message", "function_call", "function_call_output"]
    assert [item["type"] for item in output] == [*kinds, "message", "message"]
    assert output[2]["output"] == "a.txt"
    assert row["agent_ref"]["name"] == "terminus-2"
    assert "reward" not in row


def test_counts_of_steps_are_summed_if_the_document_has_no_total() -> None:
    answers = [
        {"step_id": 2, "source": "agent", "message": "a", "metrics": {"prompt_tokens": 9, "completion_tokens": 3}}
    ]
    document = {**FOREIGN, "steps": [FOREIGN["steps"][0], *answers]}
    document.pop("final_metrics")
    usage = row_of(parse(document), lambda path: None)["response"]["usage"]
    assert usage == {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12}


def test_what_another_program_adds_to_our_document_is_kept() -> None:
    document = {**dump(trajectory_of(KINDS["text"], RUN).trajectory), "notes": "looked at"}
    document["steps"][1]["message"] = "4"
    row = row_of(parse(document), lambda path: None)
    (said,) = row["response"]["output"]
    assert said["content"] == [{"type": "output_text", "text": "4", "annotations": [], "logprobs": None}]
    assert dump(trajectory_of(row, RUN).trajectory) == document


# --- malformed documents ----------------------------------------------------------------------------------------------


def changed(path: str, value: Any) -> Json:
    document: Json = patched(
        FOREIGN, [{"op": "replace" if value is not None else "remove", "path": path, "value": value}]
    )
    return document


@pytest.mark.parametrize(
    ("document", "place", "expected"),
    [
        (changed("/schema_version", "ATIF-v2.0"), "schema_version", "ATIF-v1.0 to ATIF-v1.8"),
        (changed("/agent/name", None), "agent.name", "required"),
        (changed("/steps", []), "steps", "at least 1"),
        (changed("/steps/1/step_id", 3), "steps.1", "expected 2"),
        (changed("/steps/1/source", "assistant"), "steps.1.source", "'agent'"),
        ({**FOREIGN, "steps": [{"step_id": 1, "source": "user", "message": 1}]}, "^steps.0.message: ", "found 1"),
        (changed("/steps/0/timestamp", "today"), "steps.0", "isoformat"),
        (changed("/steps/2/tool_calls/0/arguments", "{}"), "steps.2.tool_calls.0.arguments", "dictionary, found '{}'"),
        (changed("/steps/2/observation/results/0/source_call_id", "d"), "steps.2", "'d'"),
        (changed("/steps/4/llm_call_count", -1), "steps.4.llm_call_count", "greater than or equal to 0, found -1"),
        ({**FOREIGN, "step": []}, "step", "not permitted"),
        (changed("/subagent_trajectories/0/trajectory_id", None), "subagent_trajectories", "trajectory_id"),
    ],
)
def test_an_error_names_the_field_and_what_was_expected(document: Json, place: str, expected: str) -> None:
    with pytest.raises(ValueError, match=place) as raised:
        parse(document)
    assert expected in str(raised.value)


def test_a_document_that_was_cut_after_its_export_is_refused_with_advice() -> None:
    document = dump(trajectory_of(KINDS["parallel calls"], RUN).trajectory)
    del document["steps"][1]["tool_calls"], document["steps"][1]["observation"]
    with pytest.raises(ValueError, match=r"steps\.1\.extra\.rollyard\.patch.*remove this rollyard"):
        row_of(parse(document), lambda path: None)


# --- properties -------------------------------------------------------------------------------------------------------

text = st.text(max_size=8)
scalars = (
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | text
)
json = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=8
)
urls = st.sampled_from([PNG, "data:image/png;base64,AA", "https://example.org/a.webp", "data:text/plain,hi", ""])
parts = st.one_of(
    st.builds(lambda kind, value: {"type": kind, "text": value}, st.sampled_from(["input_text", "output_text"]), text),
    st.builds(lambda url: {"type": "input_image", "image_url": url}, urls),
    st.builds(lambda value: {"type": "refusal", "refusal": value}, text),
    json,
)
contents = text | st.lists(parts, max_size=3) | st.none()
names = st.sampled_from(["a", "b", ""])
history = st.fixed_dictionaries(
    {},
    optional={
        "prompt_token_ids": st.lists(st.integers(0, 9), max_size=3),
        "generation_token_ids": st.lists(st.integers(0, 9), max_size=3),
        "generation_log_probs": st.lists(st.floats(-9, 0) | st.integers(-9, 0), max_size=3),
        "token_trace": json,
    },
)
bodies = st.one_of(
    st.builds(
        lambda role, value: {"role": role, "content": value}, st.sampled_from(["user", "system", "developer"]), contents
    ),
    st.builds(lambda value: {"type": "message", "role": "assistant", "content": value}, contents),
    st.builds(lambda value: {"type": "reasoning", "summary": value}, st.lists(parts, max_size=2)),
    st.builds(call, names, text | json.map(lambda value: orjson.dumps(value).decode())),
    st.builds(result, names, contents),
    st.dictionaries(st.sampled_from(["type", "role", "id", "x"]), json, max_size=3),
    json,
)
conversation_items = st.builds(lambda body, more: {**body, **more} if isinstance(body, dict) else body, bodies, history)
conversations = st.lists(conversation_items, max_size=6)
rows = st.builds(
    lambda params, response, fields: {**fields, "responses_create_params": params, "response": response},
    st.fixed_dictionaries({}, optional={"input": conversations | text | json, "instructions": text, "tools": json}),
    st.fixed_dictionaries({}, optional={"output": conversations | json, "model": text, "usage": json, "status": json}),
    st.dictionaries(st.sampled_from(["reward", "agent_ref", "timings", "_ng_task_index", "scores"]), json, max_size=3),
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(rows)
def test_any_row_survives_the_round_trip(row: Json) -> None:
    assert is_same(round_trip(row), row)


objects = st.dictionaries(text, json, max_size=2)
counts = st.integers(0, 99)
source_parts = st.one_of(
    st.builds(lambda value: {"type": "text", "text": value}, text),
    st.builds(lambda path: {"type": "image", "source": {"media_type": "image/png", "path": path}}, text),
)
said = text | st.lists(source_parts, max_size=2)
results = st.lists(
    st.fixed_dictionaries({}, optional={"source_call_id": st.just("a"), "content": said, "extra": objects}), max_size=2
).map(lambda found: {"results": found})
metrics = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("prompt_tokens", "completion_tokens", "cached_tokens"), counts),
        **{name: st.lists(counts, max_size=2) for name in ("prompt_token_ids", "completion_token_ids")},
        "logprobs": st.lists(st.floats(-9, 0), max_size=2),
        "cost_usd": st.floats(0, 9),
        "extra": objects,
    },
)
common = {"timestamp": st.just("2026-11-29T10:00:00Z"), "extra": objects, "is_copied_context": st.booleans()}
calls = st.builds(
    lambda arguments, more: [{"tool_call_id": "a", "function_name": "f", "arguments": arguments, **more}],
    objects,
    st.fixed_dictionaries({}, optional={"extra": objects}),
)
answers = st.fixed_dictionaries(
    {"source": st.just("agent"), "message": said, "tool_calls": calls},
    optional={**common, "reasoning_content": text, "observation": results, "metrics": metrics, "model_name": text},
)
others = st.fixed_dictionaries(
    {"source": st.sampled_from(["user", "system"]), "message": said},
    optional={**common, "observation": st.just({"results": [{"content": "late"}]})},
)
texts = st.fixed_dictionaries(
    {"source": st.just("agent"), "message": said}, optional={**common, "reasoning_content": text, "metrics": metrics}
)
documents = st.builds(
    lambda found, more: {
        "schema_version": "ATIF-v1.7",
        "agent": {"name": "a", "version": "1"},
        "steps": [{"step_id": number, **step} for number, step in enumerate(found, 1)],
        **more,
    },
    st.lists(answers | others | texts, min_size=1, max_size=5),
    st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(("session_id", "trajectory_id", "notes", "continued_trajectory_ref"), text),
            "extra": objects,
            "final_metrics": st.fixed_dictionaries({}, optional={"total_steps": counts}),
        },
    ),
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(documents)
def test_any_document_of_another_program_survives_the_round_trip(document: Json) -> None:
    read = row_of(parse(document), lambda path: None)
    written = dump(trajectory_of(orjson.loads(orjson.dumps(read)), Identity()).trajectory)
    assert is_same(bare(written), bare(document))


def bare(document: Json) -> Json:
    """Without Rollyard's extensions, and without an `extra` that is empty."""
    steps = [without_ours(step) for step in document["steps"]]
    return {**without_ours(document), "steps": steps}


@given(json, json)
def test_a_patch_makes_any_value_of_any_other(before: Any, after: Any) -> None:
    assert is_same(patched(before, list(patch_between(before, after))), after)
