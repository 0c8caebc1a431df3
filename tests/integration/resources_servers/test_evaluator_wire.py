"""NeMo Evaluator's wire: tasks by index from a served dataset, and verdicts on plain text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Verdict, Verification, tool
from rollyard.resources_servers.grl_sokoban.app import GrlSokoban
from rollyard.resources_servers.gsm8k.app import Gsm8k
from rollyard.services.http.request import HttpResponse
from tests.support.in_process import InProcessServers, Script, agent, environment, in_process_servers, says

EXAMPLES = "resources_servers/gsm8k/data/example.jsonl"
ENTRY: Json = {"name": "example", "type": "example", "jsonl_fpath": EXAMPLES}
SERVED: Json = {"served_dataset": "example", "datasets": [ENTRY], "equality": "numbers"}


async def send(stack: InProcessServers, path: str, body: Json | None = None) -> HttpResponse:
    method, content = ("GET", b"") if body is None else ("POST", orjson.dumps(body))
    return await stack.transport.send(method, f"http://environment:1{path}", content, {}, 5.0)


def serving(**settings: Any) -> Any:
    return in_process_servers({"environment": environment(Gsm8k, **(settings or SERVED))})


async def test_a_task_is_returned_by_its_index_without_opening_a_session() -> None:
    async with serving() as stack:
        assert orjson.loads((await send(stack, "/dataset_size")).body) == {"size": 5}
        answer = await send(stack, "/seed_session", {"idx": 0})
        assert (answer.status, answer.cookies, stack.servers["environment"].sessions) == (200, (), 0)
    task = orjson.loads(answer.body)
    assert task["prompt"].startswith("Natalia sold clips") and task["expected_answer"] == "72"
    assert [message["role"] for message in task["messages"]] == ["system", "user"]
    named = {"problem_idx": 0, "served_dataset": "example"}
    assert task["metadata"] == {"id": "gsm8k_0", "question": task["prompt"], "form": "chat", **named}


@pytest.mark.parametrize(("text", "reward"), [("\\boxed{72}", 1.0), ("\\boxed{71}", 0.0)])
async def test_a_text_is_verified_by_the_metadata_of_its_task_or_else_by_its_expected_answer(
    text: str, reward: float
) -> None:
    async with serving() as stack:
        task = orjson.loads((await send(stack, "/seed_session", {"idx": 0})).body)
        body = {"response": text, "expected": "not used", "metadata": task["metadata"]}
        verdict = orjson.loads((await send(stack, "/verify", body)).body)
        assert stack.servers["environment"].sessions == 0
    assert (verdict["reward"], verdict["extracted_answer"], verdict["metadata"]) == (reward, text[7:-1], {})
    assert verdict["scoring_details"]["expected_answer"] == "72"
    async with serving(equality="numbers") as stack:
        body = {"response": text, "expected": "72", "metadata": {"question": "9 times 8?", "problem_idx": 5}}
        assert orjson.loads((await send(stack, "/verify", body)).body)["reward"] == reward


async def test_a_native_request_without_its_gold_answer_gets_it_from_the_only_row_with_the_same_prompt(
    tmp_path: Path,
) -> None:
    answered = {"response": {"output": [says("\\boxed{10}")]}}
    async with serving() as stack:
        row = orjson.loads(Path(EXAMPLES).read_bytes().splitlines()[1])
        body = {"responses_create_params": row["responses_create_params"], "verifier_metadata": {}, **answered}
        known = orjson.loads((await send(stack, "/verify", body)).body)
        unknown = await send(stack, "/verify", {**body, "responses_create_params": {"input": "10?"}})
    assert (known["reward"], unknown.status) == (1.0, 422)
    rows, line = tmp_path / "rows.jsonl", {"responses_create_params": {"input": "1+1?"}, "question": "1+1?"}
    rows.write_bytes(b"".join(orjson.dumps({**line, "expected_answer": n}) + b"\n" for n in "23"))
    async with serving(equality="numbers", served_dataset=str(rows)) as stack:
        assert (await send(stack, "/verify", {**line, **answered})).status == 422


@pytest.mark.parametrize("index", [None, 5, -1, "0", 1.0, True, [0]])
async def test_an_index_outside_the_dataset_is_rejected(index: Any) -> None:
    async with serving() as stack:
        answer = await send(stack, "/seed_session", {"idx": index})
    assert answer.status == 400
    detail = orjson.loads(answer.body)["detail"]
    assert f"idx is {index!r}" in detail and "5 rows" in detail


async def test_without_a_served_dataset_the_message_names_the_setting() -> None:
    async with serving(equality="numbers") as stack:
        for path, body in (("/seed_session", {"idx": 0}), ("/reset", {"idx": 0}), ("/dataset_size", None)):
            answer = await send(stack, path, body)
            assert answer.status == 400 and "served_dataset" in orjson.loads(answer.body)["detail"]


async def test_a_text_is_rejected_if_the_verdict_depends_on_what_was_played() -> None:
    async with in_process_servers({"environment": environment(GrlSokoban)}) as stack:
        answer = await send(stack, "/verify", {"response": "Up", "expected": "", "metadata": {}})
    problem = orjson.loads(answer.body)
    assert answer.status == 400 and "what was played" in problem["detail"]


class Recall(Environment[EnvironmentSettings]):
    """Has a tool, and a dataset to play."""

    @tool
    async def recall(self) -> str:
        """Return the word."""
        return str(self.task["word"])

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=float(response.text == self.task["word"]))


async def test_an_agent_plays_a_served_row_by_its_index(tmp_path: Path) -> None:
    rows, script = tmp_path / "words.jsonl", Script([["fig"]])
    params = {"input": "Which word?", "instructions": "Be brief."}
    rows.write_bytes(orjson.dumps({"responses_create_params": params, "word": "fig"}))
    made = environment(Recall, served_dataset=str(rows))
    async with in_process_servers({"environment": made, "model": script.model, "agent": agent(SimpleAgent)}) as stack:
        rollout = await stack.run({"idx": 0})
    assert rollout["reward"] == 1.0
    assert [item["content"] for item in script.requests[0]["input"]] == ["Be brief.", "Which word?"]
    assert [offered["name"] for offered in script.requests[0]["tools"]] == ["recall"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"served_dataset": "absent.jsonl"}, "there is no file absent.jsonl"),
        ({"served_dataset": "b", "datasets": [{"name": "a", "jsonl_fpath": "x"}]}, "the entries of `datasets` are a"),
        ({"served_dataset": "a", "datasets": [{"name": "a"}]}, "an entry of `datasets` without jsonl_fpath"),
        ({"served_dataset": "invalid.jsonl"}, "line 2"),
    ],
)
async def test_a_served_dataset_that_cannot_be_read_stops_the_start(settings: Json, message: str, here: Path) -> None:
    Path("invalid.jsonl").write_text('{"word": "fig"}\n{"word": \n')
    with pytest.raises(OperatorError, match=message):
        async with in_process_servers({"environment": environment(Recall, **settings)}):
            pass


async def test_a_row_that_changed_since_the_start_is_a_failure_of_the_server(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"word": "fig"}\n')
    async with in_process_servers({"environment": environment(Recall, served_dataset=str(rows))}) as stack:
        rows.write_text('{"word": "oak"}\n')
        answer = await send(stack, "/seed_session", {"idx": 0})
    assert answer.status == 500 and "changed" in orjson.loads(answer.body)["detail"]
