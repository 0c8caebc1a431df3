"""Checks that the same episode gets the same verdict, and measures what a verdict costs."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import orjson

from rollyard.cli.diagnostics.environment.episode_client import Environment, EpisodeClient, Reply
from rollyard.cli.diagnostics.environment.play import act, answers_for, message, verify_body
from rollyard.cli.diagnostics.environment.process_usage import Usage
from rollyard.cli.diagnostics.findings import Finding, failed, note, ok
from rollyard.records.io.json_values import is_number
from rollyard.records.types import MAX_REWARD, Json
from rollyard.records.verdict_fields import VERDICT_FIELDS, Role, fields_of

GRADED = ("reward", "success", "reward_components", "extracted_answer")
"""Fields that must be the same for the same episode."""
_DURATIONS = ("_s", "_ms", "_seconds", "_time", "timestamp", "latency")
"""Endings of names of fields that may differ."""
COST_S = 2.0
"""How long verdicts are requested to measure their cost."""
MAX_COSTED = 200


@dataclass(frozen=True)
class Graded:
    """The verdicts on one episode of a row."""

    row: int
    answer: str
    verdicts: list[Reply]


async def check_verdicts(
    environment: Environment, rows: Sequence[Json], tools: Sequence[Json]
) -> AsyncIterator[Finding]:
    """Grade each episode three times: twice in one session, if it allows that, and once in a new one."""
    graded: list[Graded] = []
    for number, row in enumerate(rows):
        for answer in answers_for(row):
            first = await _grade(environment, row, tools, number, answer, times=2)
            again = await _grade(environment, row, tools, number, answer, times=1)
            graded.append(Graded(number, answer, first + again))
    if elsewhere := _failed_elsewhere(environment, graded):
        yield note("verify", f"needs another server, which fails: {elsewhere}", "name a working one in --config-paths")
        return
    if broken := next((one for one in graded if any(reply.status != 200 for reply in one.verdicts)), None):
        reply = next(reply for reply in broken.verdicts if reply.status != 200)
        fix = "grade every response; raise an error only if the host or the code is at fault"
        yield failed("verify", f"example {broken.row + 1}, answer {broken.answer!r}: {reply}", fix)
        return
    yield _deterministic(graded)
    if (found := await _right_answer(environment, rows, tools, graded)) is not None:
        yield found
    yield await _empty(environment, rows[0])


def _failed_elsewhere(environment: Environment, graded: Sequence[Graded]) -> str:
    """Return the failure of a model server that the environment calls, such as a judge."""
    for reply in (reply for one in graded for reply in one.verdicts):
        server = reply.object.get("server")
        if reply.status != 200 and isinstance(server, str) and server not in ("", environment.name):
            return str(reply)
    return ""


def _deterministic(graded: Sequence[Graded]) -> Finding:
    varying: set[str] = set()
    for one in graded:
        verdicts = [_verdict(reply.object) for reply in one.verdicts]
        where = f"example {one.row + 1}, answer {one.answer!r}"
        if not all(is_number(verdict.get("reward"), MAX_REWARD) for verdict in verdicts):
            return failed("verify", f"{where}: the reward is {verdicts[0].get('reward')!r}; expected a finite number")
        for name in sorted({name for verdict in verdicts for name in verdict}):
            if any(verdict.get(name) != verdicts[0].get(name) for verdict in verdicts):
                if name in GRADED:
                    values = " and ".join(f"{value!r:.60}" for value in _distinct(verdicts, name))
                    fix = "grade by the row and the response alone"
                    return failed("verify", f"{where}: the same response gets the {name} {values}", fix)
                varying.add(name)
    rewards = sorted({float(_verdict(reply.object)["reward"]) for one in graded for reply in one.verdicts})
    found = f"{len(graded)} responses, each with the same verdict every time; rewards {', '.join(map(str, rewards))}"
    if varying := {name for name in varying if not name.endswith(_DURATIONS)}:
        return note("verify", f"{found}; other fields differ: {', '.join(sorted(varying))}")
    return ok("verify", found)


EXPECTED: tuple[Role, ...] = ("expected",)
FORMS = ("{}", "\\boxed{{{}}}", "The answer is {}.", "#### {}", "<answer>{}</answer>", "```python\n{}\n```")
"""How environments expect the final answer."""


async def _right_answer(
    environment: Environment, rows: Sequence[Json], tools: Sequence[Json], graded: Sequence[Graded]
) -> Finding | None:
    """Try the answer that `verdict_fields` names as the expected one, in the usual forms. None if it names none."""
    tried = 0
    for number, row in enumerate(rows):
        verdict = next((one.verdicts[0].object for one in graded if one.row == number), {})
        declared = [field for field in fields_of(verdict, EXPECTED) if field.exact and VERDICT_FIELDS in verdict]
        golds = [field.value(verdict) if field.is_in(verdict) else field.value(row) for field in declared]
        gold = next((str(gold) for gold in golds if isinstance(gold, str | int | float)), None)
        if gold is None:
            continue
        tried += 1
        for form in FORMS:
            (reply,) = await _grade(environment, row, tools, number, form.format(gold), times=1)
            reward = reply.object.get("reward")
            solved = reply.object.get("success", isinstance(reward, int | float) and reward > 0)
            if reply.status == 200 and solved:
                return ok("right answer", f"example {number + 1}: {form.format(gold)!r:.60} gets the reward {reward}")
    if not tried:
        return None
    return note(
        "right answer",
        f"the expected answers of {tried} examples, which verdict_fields names, are not accepted in any usual form",
        "check that the verifier accepts its own expected answer, unless an episode needs more than that",
    )


def _distinct(verdicts: Sequence[Json], name: str) -> list[Any]:
    found: list[Any] = []
    for verdict in verdicts:
        if verdict.get(name) not in found:
            found.append(verdict.get(name))
    return found


def _verdict(reply: Json) -> Json:
    """Return the fields that the environment added to the request, which the reply may repeat."""
    return {key: value for key, value in reply.items() if key not in ("responses_create_params", "response")}


async def _empty(environment: Environment, row: Json) -> Finding:
    async with environment.episode(row) as (client, opened):
        reply = await client.post("/verify", verify_body(row, opened, []))
    if reply.status == 200:
        return ok("empty answer", f"gets the reward {reply.object.get('reward')}")
    fix = "an empty response is the model's own: it gets a verdict, and no second attempt"
    return failed("empty answer", f"is not graded: {reply}", fix)


async def _grade(
    environment: Environment, row: Json, tools: Sequence[Json], number: int, answer: str, *, times: int
) -> list[Reply]:
    async with environment.episode(row) as (client, opened):
        transcript = await act(environment, client, opened, tools, Random(str(number)))
        body = verify_body(row, opened, [*transcript.items, message(answer)])
        replies = [await client.post("/verify", body)]
        for _ in range(times - 1):
            reply = await client.post("/verify", body)
            if reply.status != 200 and replies[0].status == 200:
                break  # other projects' servers may end the session with its first verdict
            replies.append(reply)
        return replies


async def measure_cost(environment: Environment, row: Json, usage: Callable[[], Usage] | None) -> Finding:
    """Request verdicts on one response for COST_S seconds, each in its own session if a session has only one."""
    body, count = b"", 0
    client: EpisodeClient
    async with environment.episode(row) as (client, opened):
        body = orjson.dumps(verify_body(row, opened, [message(answers_for(row)[-1])]))
        if (first := await client.post("/verify", body)).status != 200:
            return note("cost", f"not measured: {first}")
        cpu_s, started = usage().cpu_s if usage else 0.0, time.perf_counter()
        while time.perf_counter() - started < COST_S and count < MAX_COSTED:
            if (await client.post("/verify", body)).status != 200:
                return note("cost", "not measured: a session gets only one verdict")
            count += 1
        wall_ms = (time.perf_counter() - started) * 1000 / count
        if usage is None:
            return ok(
                "cost", f"{wall_ms:.1f} ms per verdict ({count} verdicts; CPU unknown, as the server is external)"
            )
        cpu_ms = (usage().cpu_s - cpu_s) * 1000 / count
        return ok("cost", f"{cpu_ms:.1f} ms of CPU per verdict, {wall_ms:.1f} ms in total ({count} verdicts)")
