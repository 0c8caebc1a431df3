"""An agent with arbitrary responses: each bad rollout is recorded as one failure, the others are collected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from rollyard.records.errors import OperatorError
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.run_types import Directory, Keys
from rollyard.records.types import Json, State
from rollyard.services.datasets.mixture import TaskFile
from rollyard.services.http.client import RUN_HEADER, AddressBook, ServerClient
from rollyard.services.http.request import HttpResponse, Receive, Scope, Send
from rollyard.services.http.transport import HttpTransport, LocalTransport
from rollyard.services.rollouts.collector import CollectionLimits, Collector
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.rollouts.run_answer import RESPONSE_BYTES_HEADER
from rollyard.services.rollouts.store import RolloutStore
from tests.support.stacks import keys_of, read_rows

from .harness import failures

PROBLEM = "application/problem+json"
GOOD = orjson.dumps({"reward": 1.0, "response": {"output": []}})
TASKS = 5

BAD = {
    "nothing": HttpResponse(200, {}, b""),
    "no JSON": HttpResponse(200, {}, b"<html>"),
    "torn JSON": HttpResponse(200, {}, GOOD[:-1]),
    "a list": HttpResponse(200, {}, b"[]"),
    "no reward": HttpResponse(200, {}, b"{}"),
    "null reward": HttpResponse(200, {}, b'{"reward": null}'),
    "true as reward": HttpResponse(200, {}, b'{"reward": true}'),
    "text as reward": HttpResponse(200, {}, b'{"reward": "1.0"}'),
    "NaN as reward": HttpResponse(200, {}, b'{"reward": NaN}'),
    "infinite reward": HttpResponse(200, {}, b'{"reward": 1e999}'),
    "deep JSON": HttpResponse(200, {}, b'{"reward": 1.0, "deep": ' + b"[" * 600 + b"]" * 600 + b"}"),
    "a lone surrogate": HttpResponse(200, {}, rb'{"reward": 1.0, "text": "\ud83d"}'),
    "plain 500": HttpResponse(500, {}, b"Internal Server Error"),
    "plain 429": HttpResponse(429, {}, b"slow down"),
    "a problem without status": HttpResponse(500, {"content-type": PROBLEM}, b'{"title": "oh"}'),
    "a problem that is none": HttpResponse(500, {"content-type": PROBLEM}, b"oops"),
    "a problem of a foreign type": HttpResponse(500, {"content-type": PROBLEM}, b'{"type": "urn:x", "status": 500}'),
    "a redirect": HttpResponse(302, {"location": "http://127.0.0.1:1/"}, b""),
}


def rows(folder: Path, first: Json | None = None) -> Path:
    path = folder / "input.jsonl"
    params: list[Json] = [{"input": "play"}] * TASKS
    if first is not None:
        params[0] = first
    path.write_bytes(b"".join(orjson.dumps({"responses_create_params": each}) + b"\n" for each in params))
    return path


async def collected(
    output: Path, input_file: Path, answer: Callable[[int], HttpResponse], *, failed_before: int = 0
) -> tuple[State, CollectionProgress]:
    """Collect `input_file` from an agent that responds to task n with `answer(n)`."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        response = answer(orjson.loads((await receive())["body"])["_ng_task_index"])
        headers = [(name.encode(), value.encode()) for name, value in {**response.headers, RUN_HEADER: "run"}.items()]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": response.body})

    async def directory() -> Directory:
        return Directory(run_id="run", servers={"agent": ["http://agent"]}, families={"agent": "agents"}, settings={})

    transport = LocalTransport(HttpTransport())
    transport.mount("http://agent", app)
    client = ServerClient(transport, Keys(run_id="run", secret=""), AddressBook(directory))
    tasks = TaskFile(input_file, agent="agent", limit=None)
    store = RolloutStore(RolloutPaths(output), {}, {}, resume=True, overwrite=False)
    progress = CollectionProgress(tasks.count)
    progress.failed = failed_before
    progress.resumed()
    limits = CollectionLimits(parallel=1, max_attempts=2, first_pause_s=0.0, longest_pause_s=0.0)
    try:
        return await Collector(tasks.rollouts(1), {}, client, store, progress, limits, seeded=True).run(), progress
    finally:
        store.close()


def announced(answer: HttpResponse, response: bytes) -> HttpResponse:
    return HttpResponse(answer.status, {**answer.headers, RESPONSE_BYTES_HEADER: str(len(response))}, answer.body)


@pytest.mark.parametrize("has_length", [False, True], ids=["no header", "with the length of the response"])
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
async def test_a_bad_response_is_one_failed_rollout_without_reward(
    bad: HttpResponse, has_length: bool, tmp_path: Path
) -> None:
    output, good = tmp_path / "rollouts.jsonl", HttpResponse(200, {}, GOOD)
    if has_length:
        good, bad = announced(good, b'{"output":[]}'), announced(bad, b"{}")
    state, _ = await collected(output, rows(tmp_path), lambda task: good if task else bad)
    assert state == "incomplete"
    assert keys_of(read_rows(output)) == [(task, 0) for task in range(1, TASKS)]
    assert {(row["_ng_task_index"], row["server"]) for row in failures(output)} == {(0, "agent")}


OTHERS_KEYS = b'"_ng_task_index":3,"_ng_rollout_index":9,"_ng_attempt_index":7,"_ng_task_key":"x","_ng_code":"y"'
FORGED = {
    "the keys of another task": (b'{"reward":1.0,' + OTHERS_KEYS + b',"response":', b'{"output":[]}'),
    "its keys twice": (b'{"reward":0.5,"reward":1.0,' + OTHERS_KEYS + b"," + OTHERS_KEYS + b',"response":', b"{}"),
    "a second line": (b'{"reward":1.0,"response":', b'{}}\n{"_ng_task_index":4,"reward":9.0}'),
    "a line break in the response": (b'{"reward":1.0,"response":', b'{"output":\n[]}'),
    "a reward behind the response": (b'{"reward":null,"response":', b'{},"reward":9.0,"x":{}'),
    "no reward but in the response": (b'{"a":1,"response":', b'{"reward":1.0}'),
}


@pytest.mark.parametrize(("head", "response"), FORGED.values(), ids=FORGED.keys())
async def test_an_agent_writes_one_line_with_the_keys_of_its_own_rollout(
    head: bytes, response: bytes, tmp_path: Path
) -> None:
    output = tmp_path / "rollouts.jsonl"
    forged = announced(HttpResponse(200, {}, head + response + b"}"), response)
    await collected(output, rows(tmp_path), lambda task: HttpResponse(200, {}, GOOD) if task else forged)
    lines = output.read_bytes().splitlines()
    first = [line for line in lines if orjson.loads(line)["_ng_task_index"] == 0]
    assert keys_of(read_rows(output)) == [(task, 0) for task in range(1 - len(first), TASKS)]
    for line in lines:
        assert all(line.count(key) == 1 for key in (b'"_ng_task_index"', b'"_ng_rollout_index"', b'"reward"'))
        assert b'"_ng_code"' not in line and b'"_ng_attempt_index":0' in line


@pytest.mark.parametrize(
    "metadata", [{"extra_body": "not json"}, {"extra_body": "[1]"}, {"extra_body": {"seed": 1}}, ["a list"]], ids=str
)
async def test_a_row_that_cannot_be_seeded_does_not_abort_a_collection(metadata: object, tmp_path: Path) -> None:
    output = tmp_path / "rollouts.jsonl"
    input_file = rows(tmp_path, {"input": "play", "metadata": metadata})
    try:
        state, _ = await collected(output, input_file, lambda task: HttpResponse(200, {}, GOOD))
    except OperatorError as refused:
        assert "row 1" in str(refused) or "line 1" in str(refused)
        assert not output.exists()
        return
    assert state == "incomplete"
    assert keys_of(read_rows(output)) == [(task, 0) for task in range(1, TASKS)]
    assert [row["failure_kind"] for row in failures(output)] == ["bad_task"]


async def test_permanently_failed_rollouts_do_not_stop_a_resume_at_its_first_failure(tmp_path: Path) -> None:
    """A resume counts them as failed; the failure rate only covers what it collects itself."""
    requests: list[int] = []

    def answer(task: int) -> HttpResponse:
        requests.append(task)
        return HttpResponse(200, {}, GOOD) if len(requests) > 1 else HttpResponse(500, {}, b"once")

    state, progress = await collected(tmp_path / "rollouts.jsonl", rows(tmp_path), answer, failed_before=25)
    assert (state, progress.measured) == ("complete", TASKS)
