"""Plays an episode with a fixed script: every tool once, then random calls; or fixed messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import orjson

from rollyard.cli.diagnostics.environment.arguments import ArgumentSampler
from rollyard.cli.diagnostics.environment.episode_client import Environment, EpisodeClient, Reply
from rollyard.records.errors import RunError
from rollyard.records.types import Json

RANDOM_CALLS = 3
MESSAGES = ("1", "left", "I do not know.")
"""The actions in turn-based mode."""
GOLD_FIELDS = ("expected_answer", "answer", "target", "solution")
"""Fields in which datasets store the correct answer."""


@dataclass
class Transcript:
    """What an environment showed in one episode."""

    shown: list[Any] = field(default_factory=list)
    """What the model would read, in order: the observation, then the result of each action."""
    items: list[Json] = field(default_factory=list)
    """The episode as Responses items, without the last message."""

    def difference(self, other: Transcript) -> str:
        """Describe the first difference; empty if there is none."""
        for number, (left, right) in enumerate(zip(self.shown, other.shown, strict=False)):
            if left != right:
                where = "the first observation" if number == 0 else f"the result of action {number}"
                return f"{where}: {_excerpt(left, right)}"
        return "" if len(self.shown) == len(other.shown) else "the number of actions until the end"


def is_rejection(name: str, reply: Reply) -> bool:
    """Return whether the environment refused the arguments of a tool call, so that nothing was executed."""
    text = reply.object.get("error")
    return reply.status in (400, 422) or (isinstance(text, str) and text.startswith(f"Invalid call to {name}:"))


def tools_of(row: Mapping[str, Any], opened: Json, listed: Any) -> list[Json]:
    """Return the tools that the model sees: the row's, else those that the environment adds or lists."""
    params = row.get("responses_create_params")
    own = params.get("tools") if isinstance(params, dict) else None
    added = (opened.get("additions") or {}).get("tools") if isinstance(opened.get("additions"), dict) else None
    found = own if own is not None else added or listed or []
    return [one for one in found if isinstance(one, dict) and isinstance(one.get("name"), str)]


async def play(environment: Environment, row: Json, tools: Sequence[Json], seed: str) -> Transcript:
    """Play an episode and close it. Raises RunError if the environment fails."""
    async with environment.episode(row) as (client, opened):
        return await act(environment, client, opened, tools, Random(seed))


async def act(
    environment: Environment, client: EpisodeClient, opened: Json, tools: Sequence[Json], rng: Random
) -> Transcript:
    """Take the scripted actions in an open episode."""
    transcript = Transcript([{key: opened.get(key) for key in ("observation", "additions")}])
    if environment.turn_based:
        await _send_messages(client, transcript)
        return transcript
    samplers = [(str(tool["name"]), ArgumentSampler(tool.get("parameters") or {})) for tool in tools]
    calls = [(name, sampler.smallest()) for name, sampler in samplers]
    for _ in range(RANDOM_CALLS if samplers else 0):
        name, sampler = rng.choice(samplers)
        calls.append((name, sampler.complete(rng)))
    for number, (name, arguments) in enumerate(calls):
        reply = await client.post(f"/{name}", arguments)
        if reply.status >= 500:
            raise RunError(f"the tool {name} failed with {reply}; arguments: {orjson.dumps(arguments).decode():.200}")
        transcript.shown.append(reply.content)
        text = reply.content if isinstance(reply.content, str) else orjson.dumps(reply.content).decode()
        call_id = f"call_{number}"
        written = orjson.dumps(arguments).decode()
        transcript.items += [
            {"type": "function_call", "call_id": call_id, "name": name, "arguments": written, "status": "completed"},
            {"type": "function_call_output", "call_id": call_id, "output": text},
        ]
        if reply.object.get("done") is True:
            break
    return transcript


async def _send_messages(client: EpisodeClient, transcript: Transcript) -> None:
    for text in MESSAGES:
        reply = await client.post("/step", {"response": response_with([message(text)])})
        if reply.status >= 500:
            raise RunError(f"/step failed with {reply}; message: {text!r}")
        transcript.shown.append({key: value for key, value in reply.object.items() if key != "info"})
        transcript.items += [message(text), {"role": "user", "content": str(reply.object.get("observation"))}]
        if reply.object.get("terminated") or reply.object.get("truncated"):
            break


def message(text: str) -> Json:
    """Return a message of the model."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"id": "msg_doctor", "type": "message", "role": "assistant", "status": "completed", "content": content}


def response_with(output: Sequence[Json]) -> Json:
    """Return a complete Response object, because other projects' servers validate every field."""
    return {
        "id": "resp_doctor",
        "object": "response",
        "created_at": 0,
        "model": "ng_doctor",
        "status": "completed",
        "output": list(output),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def verify_body(row: Json, opened: Json, output: Sequence[Json]) -> Json:
    """Return the body of /verify for an episode of the row."""
    params = row.get("responses_create_params")
    params = dict(params) if isinstance(params, dict) else {}
    if params.get("input") is None:
        added = opened.get("additions")
        params["input"] = (added.get("input") if isinstance(added, dict) else None) or []
    return {**row, "responses_create_params": params, "response": response_with(output)}


def answers_for(row: Json) -> list[str]:
    """Return final messages to grade: an empty-handed one, and if the row has a gold answer, one that contains it."""
    gold = next((row[name] for name in GOLD_FIELDS if isinstance(row.get(name), str | int | float)), None)
    return ["I do not know.", *([f"The answer is \\boxed{{{gold}}}."] if gold is not None else [])]


def _excerpt(left: Any, right: Any) -> str:
    """Show both values from shortly before their first difference."""
    first, second = (orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode() for value in (left, right))
    start = next((at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), 0)
    begin = max(start - 20, 0)
    return f"{first[begin : begin + 80]!r} and {second[begin : begin + 80]!r}"
