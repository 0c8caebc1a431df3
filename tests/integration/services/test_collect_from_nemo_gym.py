"""Collecting from a NeMo Gym stack, and its status. tests/external/nemo_gym does the same with the real package."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.responses import JSONResponse

import rollyard
from rollyard.analysis.metrics.load import load
from rollyard.analysis.tracking import RolloutMetrics
from rollyard.collection_summary import CollectionSummary
from rollyard.errors import OperatorError
from rollyard.records.aggregate_metrics import aggregate
from rollyard.records.errors import RunError
from rollyard.records.rewards import is_masked_line
from rollyard.records.types import Json
from rollyard.services.interop.nemo_gym import NemoGymHead, fetch_nemo_gym_snapshot
from rollyard.services.rollouts.collection import CollectionPlan
from rollyard.services.runtime.run_dir import find_run
from rollyard.training.groups import EndingRules, Treatment
from rollyard.training.train import evaluation_metrics
from tests.support.fixtures import http_transport
from tests.support.nemo_gym_stack import NemoGymStack, graded, nemo_gym_stack
from tests.support.stacks import keys_of, read_rows

ROWS: list[Json] = [
    {"responses_create_params": {"input": f"question {number}"}, "gold": "A", "skills_ref": {"hash": "h"}}
    for number in range(3)
]
AGENT = "mcqa_simple_agent"


async def collect(stack: NemoGymStack, folder: Path, **options: Any) -> CollectionSummary:
    async with rollyard.connect(stack.url, folder=folder) as connection:
        return await rollyard.collect(connection, ROWS, folder / "out.jsonl", **{"num_repeats": 2, **options})


async def test_every_rollout_is_stored_once_with_the_fields_of_both_stacks(tmp_path: Path) -> None:
    async with nemo_gym_stack(NemoGymStack()) as stack:
        summary = await collect(stack, tmp_path)
    rows = read_rows(tmp_path / "out.jsonl")
    assert summary.state == "complete"
    assert keys_of(rows) == [(task, repeat) for task in range(3) for repeat in range(2)]
    for row in rows:
        assert row["agent_ref"] == {"name": AGENT}
        assert row["reward"] == 1.0
        assert row["expected_answer"] == "A"
        assert row["skills_ref"] == {"hash": "h"}
        assert row["_ng_attempt_index"] == 0


async def test_the_agent_receives_the_row_as_from_its_own_collector_and_no_header_of_rollyard(tmp_path: Path) -> None:
    async with nemo_gym_stack(NemoGymStack()) as stack:
        await collect(stack, tmp_path, responses_create_params={"temperature": 0.5}, num_repeats=1)
    request = next(one for one in stack.requests if one["_ng_task_index"] == 1)
    assert request["responses_create_params"] == {"input": "question 1", "temperature": 0.5}
    assert (request["agent_ref"], request["_ng_rollout_index"]) == ({"name": AGENT}, 0)
    assert not [name for headers in stack.headers for name in headers if name.startswith(("x-rollyard", "authoriz"))]


async def test_a_trace_that_is_not_the_episode_s_is_ignored(tmp_path: Path) -> None:
    traces = ["x", "", f"00-{'a' * 32}-{'b' * 16}-01"]

    def traced(row: Json, attempt: int) -> JSONResponse:
        return JSONResponse(graded(row, attempt), headers={"traceresponse": traces[row["_ng_task_index"]]})

    async with nemo_gym_stack(NemoGymStack(traced)) as stack:
        summary = await collect(stack, tmp_path, num_repeats=1)
    assert summary.state == "complete"
    assert not any("_ng_trace_id" in row for row in read_rows(tmp_path / "out.jsonl"))


async def test_status_500_is_tried_again_and_becomes_failure_rows_without_a_reward(tmp_path: Path) -> None:
    def broken(row: Json, attempt: int) -> Json | JSONResponse:
        task = row["_ng_task_index"]
        failing = task == 2 or (task == 1 and attempt == 0)
        return JSONResponse("ValueError('bad')", 500) if failing else graded(row, attempt)

    async with nemo_gym_stack(NemoGymStack(broken)) as stack:
        summary = await collect(stack, tmp_path, num_repeats=1, max_attempts=2)
    failures = read_rows(tmp_path / "out_failures.jsonl")
    assert summary.state == "incomplete"
    assert keys_of(read_rows(tmp_path / "out.jsonl")) == [(0, 0), (1, 0)]
    assert keys_of(failures) == [(1, 0), (2, 0), (2, 0)]
    for failure in failures:
        assert failure["failure_kind"] == "server_error"
        assert failure["server"] == AGENT
        assert failure["upstream_status"] == 500
        assert "ValueError('bad')" in failure["detail"]
        assert "reward" not in failure


async def test_a_failure_that_an_agent_reports_with_status_200_is_not_a_reward(tmp_path: Path) -> None:
    def failing(row: Json, attempt: int) -> Json:
        answer = {**graded(row, attempt), "reward": 0.0}
        match row["_ng_task_index"]:
            case 0:
                return {**answer, "_ng_failure_class": "timeout_exceeded", "_ng_failure_terminal": True}
            case 1:
                return {**answer, "_ng_failure_class": "sandbox"} if attempt == 0 else graded(row, attempt)
            case _:
                return {**answer, "_ng_no_persist": True} if attempt == 0 else graded(row, attempt)

    async with nemo_gym_stack(NemoGymStack(failing)) as stack:
        await collect(stack, tmp_path, num_repeats=1)
        again = await collect(stack, tmp_path, num_repeats=1)
    assert keys_of(read_rows(tmp_path / "out.jsonl")) == [(1, 0), (2, 0)]
    assert again.state == "incomplete"
    assert stack.attempts == {(0, 0): 1, (1, 0): 2, (2, 0): 2}


@pytest.mark.parametrize(
    "mask",
    [
        {"mask_sample": True},
        {"judge_failsafe": True},
        {"failure_kind": "judge_failed"},
        {"instance_config": {"mask_sample": True}},
    ],
)
async def test_a_masked_row_is_kept_never_run_again_and_measured_by_nobody(tmp_path: Path, mask: Json) -> None:
    def masking(row: Json, attempt: int) -> Json:
        own = mask if row["_ng_task_index"] == 1 else {"mask_sample": False, "failure_kind": None}
        return {**graded(row, attempt), **own}

    async with nemo_gym_stack(NemoGymStack(masking)) as stack:
        first = await collect(stack, tmp_path, num_repeats=1)
        again = await collect(stack, tmp_path, num_repeats=1)
    output = tmp_path / "out.jsonl"
    rows = read_rows(output)
    assert keys_of(rows) == [(0, 0), (1, 0), (2, 0)]
    for summary in (first, again):
        assert (summary.state, summary.measured, summary.failed, summary.failed_attempts) == ("incomplete", 2, 1, 0)
    assert set(stack.attempts.values()) == {1}
    assert load(output).profile.coverage.measured == 2
    assert evaluation_metrics(iter(rows), 3)["failed_rollouts"] == 1
    assert [is_masked_line(line) for line in output.read_bytes().splitlines()] == [False, True, False]
    assert aggregate(rows)["agent_metrics"]["left_out/rollouts"] == 1
    assert [EndingRules().of_row(row)[1] for row in rows].count(Treatment.LEFT_OUT) == 1
    assert [RolloutMetrics().add(row) for row in rows] == [True, False, True]


async def test_success_that_a_row_brings_along_is_counted_by_nobody_and_said_once(tmp_path: Path) -> None:
    lines: list[str] = []
    async with (
        nemo_gym_stack(NemoGymStack(lambda row, attempt: {**row, **graded(row, attempt)})) as stack,
        rollyard.connect(stack.url, folder=tmp_path) as connection,
    ):
        rows = [{**row, "success": True} for row in ROWS]
        summary = await rollyard.collect(connection, rows, tmp_path / "out.jsonl", print_line=lines.append)
    assert summary.success_rate is None
    assert np.isnan(load(tmp_path / "out.jsonl").columns.success).all()
    assert [row["row_success"] for row in read_rows(tmp_path / "out.jsonl")] == [True] * 3
    assert len([line for line in lines if "success -> row_success" in line]) == 1


@pytest.mark.parametrize(
    ("given", "sent"),
    [({"max_output_tokens": 1e3}, {"max_output_tokens": 1000}), ({"top_k": 10.0, "n": 1.0}, {"top_k": 10, "n": 1})],
)
async def test_a_whole_number_is_sent_as_an_integer(tmp_path: Path, given: Json, sent: Json) -> None:
    async with nemo_gym_stack(NemoGymStack()) as stack:
        await collect(stack, tmp_path, responses_create_params=given, num_repeats=1)
    for request in stack.requests:
        params = request["responses_create_params"]
        assert {name: (type(params[name]), params[name]) for name in sent} == {n: (int, v) for n, v in sent.items()}


@pytest.mark.parametrize("name", ["max_output_tokens", "top_logprobs", "top_k", "n", "seed", "max_tool_calls"])
@pytest.mark.parametrize("value", [1.5, "1000", True, float("inf"), [1]])
def test_a_value_that_is_no_integer_is_refused_where_one_is_expected(name: str, value: Any) -> None:
    with pytest.raises(OperatorError, match=f"responses_create_params.{name} is .*expected an integer"):
        CollectionPlan(Path("out.jsonl"), params={name: value})


@pytest.mark.parametrize("reward", [None, "1", True])
async def test_an_answer_without_a_number_as_reward_is_a_failure(tmp_path: Path, reward: Any) -> None:
    async with nemo_gym_stack(NemoGymStack(lambda row, attempt: {**graded(row, attempt), "reward": reward})) as stack:
        await collect(stack, tmp_path, num_repeats=1, max_attempts=1)
    assert read_rows(tmp_path / "out.jsonl") == []
    assert {row["failure_kind"] for row in read_rows(tmp_path / "out_failures.jsonl")} == {"malformed_answer"}


async def test_a_collection_continues_after_the_stack_was_restarted_on_other_ports(tmp_path: Path) -> None:
    async with nemo_gym_stack(NemoGymStack(hold=asyncio.Event())) as stack:
        collecting = asyncio.create_task(collect(stack, tmp_path))
        while len(stack.requests) < 6:
            await asyncio.sleep(0.01)
        collecting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await collecting
        assert stack.hold is not None
        stack.hold.set()
    assert read_rows(tmp_path / "out.jsonl") == []
    async with nemo_gym_stack(NemoGymStack()) as restarted:
        summary = await collect(restarted, tmp_path)
        repeated = await collect(restarted, tmp_path)
    assert (summary.state, repeated.state) == ("complete", "complete")
    assert len(restarted.requests) == 6


async def test_a_changed_setting_of_a_server_that_the_rows_reach_refuses_the_resume(tmp_path: Path) -> None:
    async with nemo_gym_stack(NemoGymStack()) as stack:
        await collect(stack, tmp_path)
        stack.max_steps = 6
        with pytest.raises(OperatorError, match="max_steps"):
            await collect(stack, tmp_path, num_repeats=3)


async def test_no_secret_of_the_config_reaches_the_files(tmp_path: Path) -> None:
    async with nemo_gym_stack(NemoGymStack()) as stack:
        await collect(stack, tmp_path)
    assert not [path.name for path in tmp_path.rglob("*.json*") if b"sk-of-this-test" in path.read_bytes()]


async def test_a_server_bound_to_all_addresses_is_called_on_the_host_of_the_head() -> None:
    async with nemo_gym_stack(NemoGymStack(host="0.0.0.0")) as stack, http_transport() as transport:
        directory = await NemoGymHead(transport, stack.url).directory()
    assert directory.servers[AGENT] == [stack.agent_url]


async def test_the_status_probes_every_server(tmp_path: Path) -> None:
    async with nemo_gym_stack(NemoGymStack()) as stack, http_transport() as transport:
        head = await find_run(transport, tmp_path, stack.url, None, nemo_gym=True)
        snapshot = await fetch_nemo_gym_snapshot(transport, head)
    found = {one.server_name: (one.server_type, one.ready, one.status) for one in snapshot.servers}
    assert found == {
        AGENT: ("agents", True, "success"),
        "policy_model": ("responses_api_models", False, "connection_error"),
    }


@pytest.mark.parametrize("nemo_gym", [False, True])
async def test_a_head_of_nemo_gym_where_rollyards_is_needed_and_a_server_that_is_no_head_are_refused(
    tmp_path: Path, nemo_gym: bool
) -> None:
    async with nemo_gym_stack(NemoGymStack()) as stack, http_transport() as transport:
        url = stack.agent_url if nemo_gym else stack.url
        with pytest.raises(RunError, match="Rollyard head"):
            await find_run(transport, tmp_path, url, None, nemo_gym=nemo_gym)


async def test_the_default_head_may_be_nemo_gyms(tmp_path: Path) -> None:
    notes: list[str] = []
    async with nemo_gym_stack(NemoGymStack()) as stack, http_transport() as transport:
        head = await find_run(transport, tmp_path, None, "t0ken", notes.append, default=stack.url, nemo_gym=True)
    assert (head.stack, head.token, head.url) == ("nemo_gym", None, stack.url)
    assert len(notes) == 1 and stack.url in notes[0]


async def test_an_environment_server_is_called_instead_of_its_agent_unless_it_only_passes_requests_on() -> None:
    address = {"host": "127.0.0.1", "port": 7}
    front = {"agent_server": {"type": "responses_api_agents", "name": AGENT}, **address}

    class Fronted(NemoGymStack):
        kind = ""

        def config(self) -> Json:
            return {**super().config(), "front": {"environment_servers": {self.kind: front}}}

    for kind, is_called in (("legacy_agent", False), ("single_agent_turn", True), ("single_agent_turn_legacy", True)):
        made = Fronted()
        made.kind = kind
        async with nemo_gym_stack(made) as stack, http_transport() as transport:
            directory = await NemoGymHead(transport, stack.url).directory()
        assert directory.servers[AGENT] == ["http://127.0.0.1:7" if is_called else made.agent_url]
