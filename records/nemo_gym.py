"""NeMo Gym 0.7's names for failures, and its form of a rollout's conversation, `ng_trajectory`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rollyard.records.errors import FailureKind
from rollyard.records.tokens import is_from_model
from rollyard.records.types import TOKEN_FIELDS, Json, items, mapping, number, text_of, whole_number

KINDS = {
    "transport_unreachable": FailureKind.UNREACHABLE,
    "transport_peer_drop": FailureKind.CONNECTION_LOST,
    "transport_timeout": FailureKind.TIMEOUT,
    "transport_local_resource": FailureKind.OVERLOADED,
    "agent_run_error": FailureKind.SERVER_ERROR,
    "agent_request_failed": FailureKind.CONNECTION_LOST,
    "agent_timeout": FailureKind.TIMEOUT,
    "agent_command_not_allowed": FailureKind.FORBIDDEN,
    "judge_failed": FailureKind.UPSTREAM_ERROR,
    "judge_unparseable": FailureKind.MALFORMED_ANSWER,
    "verifier_error": FailureKind.SERVER_ERROR,
    "provider_unavailable": FailureKind.UNREACHABLE,
    "provider_quota_exhausted": FailureKind.RATE_LIMITED,
    "provider_oom_killed": FailureKind.SERVER_ERROR,
    "session_lost": FailureKind.SESSION_LOST,
    "session_expired": FailureKind.SESSION_LOST,
    "session_release_failed": FailureKind.SERVER_ERROR,
    "cancelled": FailureKind.CANCELLED,
    "kill_shaped": FailureKind.CANCELLED,
    "shutdown": FailureKind.CANCELLED,
    "persistence_failed": FailureKind.SERVER_ERROR,
    "cohort_incomplete": FailureKind.CANCELLED,
}
"""The names that all its servers share -> the kind that Rollyard records and retries alike."""
_NAMES: Mapping[str, str] = {
    FailureKind.UNREACHABLE: "transport_unreachable",
    FailureKind.CONNECTION_LOST: "transport_peer_drop",
    FailureKind.TIMEOUT: "transport_timeout",
    FailureKind.SERVER_ERROR: "agent_run_error",
    FailureKind.SESSION_LOST: "session_lost",
    FailureKind.CANCELLED: "cancelled",
}
_OWN = "rollyard:"
"""Begins the name of a kind that NeMo Gym does not have."""
_AGENT = "agent"
_ROLES = ("system", "user", "developer")


def kind_of(name: object) -> FailureKind | None:
    """Return the kind of a failure from NeMo Gym's name for it; None for one that is not shared by its servers."""
    known = text_of(name)
    own = known.removeprefix(_OWN)
    return KINDS.get(known) or (FailureKind(own) if own in FailureKind.__members__.values() else None)


def name_of(kind: str) -> str:
    """Return NeMo Gym's name for a kind of failure: a shared one, or one with the prefix of its producer."""
    return _NAMES.get(kind, f"{_OWN}{kind}")


def trajectory_of(row: Mapping[str, Any]) -> Json:
    """Return the rollout as `ng_trajectory`, which its health check and its export read.

    The token counts of a call are known if there is one call, or if its token ids are recorded. A turn's question
    repeats the conversation before it, as that format demands, so that it grows with the square of the turns.
    """
    params, response = mapping(row.get("responses_create_params")), mapping(row.get("response"))
    given = params.get("input")
    before: list[Any] = [{"role": "user", "content": given}] if isinstance(given, str) else items(given)
    if text_of(instructions := params.get("instructions")):
        before = [{"role": "system", "content": instructions}, *before]
    recorded = [item for item in (*before, *items(response.get("output"))) if isinstance(item, dict)]
    conversation = list(map(_item, recorded))
    task, repeat = row.get("_ng_task_index"), row.get("_ng_rollout_index")
    task_id = next((str(row[key]) for key in ("task_id", "problem_id", "instance_id") if row.get(key)), str(task))
    identity = {"task_id": task_id, "rollout_id": f"{task}-{repeat}"}
    started = number(response.get("created_at"), 0.0)
    turns, calls, tools, steps = list[Json](), list[Json](), list[Json](), 0
    groups = list(_turns(conversation, len(before)))
    for turn, (start, end) in enumerate(groups, 1):
        group, call = conversation[start:end], {"model_call_id": f"{task}-{repeat}-{turn}"}
        reasoning = [item for item in group if item["type"] == "reasoning"]
        answer = [item for item in group if item["type"] != "reasoning"]
        for item in answer:
            if item["type"] == "function_call":
                steps += 1
                named = {"tool_call_id": item.get("call_id"), "tool_name": item.get("name")}
                tools.append({"kind": "tool_call", "invocation_id": _AGENT, **named, "status": "completed"})
        content = {"question": conversation[:start], "answer": answer, "reasoning_content": reasoning or None}
        numbers = {"turn_no": turn, "timestamp": started, "step_count": steps}
        turns.append({"invocation_id": _AGENT, **identity, **numbers, **content, "model_calls": [call]})
        known = {"model": text_of(response.get("model")) or None, "dialect": "responses", "status_code": 200}
        if turn == len(groups) and text_of(status := response.get("status")):
            known["response_status"] = status
        usage = _usage(response.get("usage")) if len(groups) == 1 else _token_counts(recorded[end - 1])
        calls.append({**call, "response_metadata": known, "token_stats": usage})
    references = [{"model_call_id": call["model_call_id"]} for call in calls]
    agent = {"kind": "agent_invocation", "invocation_id": _AGENT, "status": "completed", "model_calls": references}
    invocations = [{**agent, "conversation": conversation}]
    # A call that returned a message and tool calls is two turns there, and one that returned nothing is none.
    is_known = mapping(row.get("timings")).get("model_calls", len(calls)) == len(calls)
    gaps = [] if is_known else [{"code": "turn_model_call_scope_incomplete"}]
    lists = {"invocations": invocations, "turns": turns, "model_calls": calls, "tool_calls": tools, "gaps": gaps}
    return {"schema_version": "1.0", **identity, **lists}


def _turns(conversation: list[Json], start: int) -> Iterator[tuple[int, int]]:
    """Yield where each turn of the model begins and ends: its items up to those of the environment, or its message."""
    first = None
    for index, item in enumerate(conversation):
        if index < start or not is_from_model(item):
            if first is not None:
                yield first, index
            first = None
            continue
        first = index if first is None else first
        if item["type"] == "message":
            yield first, index + 1
            first = None
    if first is not None:
        yield first, len(conversation)


def _item(item: Json) -> Json:
    kept = {key: value for key, value in item.items() if key not in TOKEN_FIELDS}
    kept = {"type": "message", **kept} if "role" in kept else {"type": text_of(kept.get("type")), **kept}
    return {key: value for key, value in kept.items() if key != "id"} if kept.get("role") in _ROLES else kept


def _token_counts(item: Json) -> Json:
    names = {"prompt_tokens": "prompt_token_ids", "completion_tokens": "generation_token_ids"}
    return {name: len(items(item[key])) for name, key in names.items() if key in item}


def _usage(usage: object) -> Json:
    counts = mapping(usage)
    details = {"cached_tokens": "input_tokens_details", "reasoning_tokens": "output_tokens_details"}
    found = {
        "prompt_tokens": whole_number(counts.get("input_tokens"), least=0),
        "completion_tokens": whole_number(counts.get("output_tokens"), least=0),
        "total_tokens": whole_number(counts.get("total_tokens"), least=0),
        **{name: whole_number(mapping(counts.get(key)).get(name), least=0) for name, key in details.items()},
    }
    return {name: count for name, count in found.items() if count is not None}
