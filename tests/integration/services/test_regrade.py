"""Other verdicts on stored rollouts, by the servers of a stack in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

import rollyard
from rollyard.analysis.metrics.load import load
from rollyard.errors import OperatorError
from rollyard.records.rewards import OLD_VERDICT
from rollyard.records.rollout_file import RolloutPaths, read_status
from rollyard.records.rollout_keys import Shard
from rollyard.records.run_types import Directory
from rollyard.records.types import Json, State
from rollyard.services.rollouts.collection import CollectionPlan, OpenCollection
from rollyard.services.rollouts.collector import CollectionLimits
from rollyard.services.rollouts.shards import shard_files
from rollyard.services.rollouts.stored_rollouts import StoredRollout, StoredRollouts, check_replay
from rollyard.services.runtime.running_stack import RunningStack
from tests.support.stacks import keys_of, read_rows

CODE = {
    "resources_servers/lenient": """
from rollyard import BadTask, Environment, Verdict, serve

class Lenient(Environment):
    def __init__(self, task, settings):
        super().__init__(task, settings)
        if "seed" not in task:
            raise BadTask("the row has no seed")

    stateless = True

    async def verify(self, response):
        return Verdict(reward=1.0, success=True, why="lenient")

server = serve(Lenient)
""",
    "resources_servers/judged": """
from rollyard import Environment, Verdict, serve

class Judged(Environment):
    stateless = True

    async def verify(self, response):
        await self.models.respond("judge", {"input": "Is it right?"})
        return Verdict(reward=1.0)

server = serve(Judged)
""",
    "responses_api_models/broken": """
from rollyard.responses_api_models.base import ModelServer
from rollyard.services.server.settings import ServerSettings

class Broken(ModelServer[ServerSettings]):
    async def responses(self, request, call):
        raise RuntimeError("the judge is down")

server = Broken
""",
}
PUZZLE = {"dim_room": [6, 6], "num_boxes": 1, "responses_create_params": {"input": "Solve.", "temperature": 0.8}}
ROWS = [{"seed": seed, **PUZZLE} for seed in range(8)]
REPEATS = 3


def agent(environment: str) -> Json:
    return {"agents": {"game_agent": {"resources_server": {"name": environment}, "model_server": {"name": "policy"}}}}


CONFIG: dict[str, Any] = {
    "policy": {"responses_api_models": {"builtin_model": {}}},
    "judge": {"responses_api_models": {"broken": {}}},
    "sokoban": {"resources_servers": {"grl_sokoban": {}}},
    "lenient": {"resources_servers": {"lenient": {}}},
    "judged": {"resources_servers": {"judged": {}}},
    "player": agent("sokoban"),
    "lenient_player": agent("lenient"),
    "judged_player": agent("judged"),
}


@pytest_asyncio.fixture(scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningStack]:
    folder = tmp_path_factory.mktemp("run")
    for name, code in CODE.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "app.py").write_text(code)
    async with rollyard.stack(CONFIG, colocate=True, folder=folder) as running:
        yield running


@pytest_asyncio.fixture(scope="module")
async def stored(stack: RunningStack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stored") / "rollouts.jsonl"
    found = await rollyard.collect(
        stack, ROWS, out, agent_name="player", num_repeats=REPEATS, num_repeats_add_seed=True
    )
    assert found.state == "complete"
    return out


def written(path: Path, rows: Sequence[Json]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


async def regrade(
    stack: RunningStack, file: Path, out: Path, agent: str | None = None, shard: str | None = None, **more: Any
) -> tuple[State, OpenCollection]:
    tasks = StoredRollouts(file, agent=agent)
    limits = CollectionLimits(parallel=4, max_attempts=2, first_pause_s=0.01, longest_pause_s=0.01)
    plan = CollectionPlan(out, agent, tasks.repeats, limits=limits, shard=Shard.parse(shard))
    async with OpenCollection.opened(plan, tasks, stack.access.clients) as collection:
        state = await collection.run(**more)
    return state, collection


def by_key(path: Path) -> dict[tuple[int, int], Json]:
    return {(row["_ng_task_index"], row["_ng_rollout_index"]): row for row in read_rows(path)}


async def test_the_same_verifier_writes_the_same_rows_with_the_old_verdict(
    stack: RunningStack, stored: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    assert (await regrade(stack, stored, out))[0] == "complete"
    found, before = by_key(out), by_key(stored)
    assert found.keys() == before.keys()
    for key, row in found.items():
        old = row.pop(OLD_VERDICT)
        assert row == before[key]
        assert {"reward", "success", "moves"} <= old.keys()
        assert old == {name: row[name] for name in old}


async def test_another_verifier_keeps_the_episode_and_the_old_verdict(
    stack: RunningStack, stored: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    assert (await regrade(stack, stored, out, "lenient_player"))[0] == "complete"
    before = by_key(stored)
    for key, row in by_key(out).items():
        assert (row["reward"], row["why"], "moves" in row) == (1.0, "lenient", False)
        assert row[OLD_VERDICT]["reward"] == before[key]["reward"]
        same = ("seed", "response", "responses_create_params", "timings", "finish_reason", "_ng_task_key")
        assert {name: row[name] for name in same} == {name: before[key][name] for name in same}
        assert row["agent_ref"]["name"] == "lenient_player"


async def test_verdicts_can_be_given_again_on_rows_with_other_verdicts(
    stack: RunningStack, stored: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    await regrade(stack, stored, first, "lenient_player")
    await regrade(stack, first, second, "player")
    before = by_key(stored)
    for key, row in by_key(second).items():
        assert row.pop(OLD_VERDICT) == {"reward": 1.0, "success": True, "why": "lenient"}
        assert {**row, "agent_ref": before[key]["agent_ref"]} == before[key]


async def test_an_interrupted_command_continues_and_verifies_each_answer_once(
    stack: RunningStack, stored: Path, tmp_path: Path
) -> None:
    out, left = tmp_path / "out.jsonl", 5

    def stop(_: bytes) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise KeyError("stopped")

    with pytest.raises(KeyError):
        await regrade(stack, stored, out, on_rollout=stop)
    assert 5 <= len(read_rows(out)) < len(ROWS) * REPEATS
    state, _ = await regrade(stack, stored, out)
    assert (state, keys_of(read_rows(out))) == ("complete", keys_of(read_rows(stored)))


async def test_a_judge_that_is_down_is_a_failure_and_no_reward(
    stack: RunningStack, stored: Path, tmp_path: Path
) -> None:
    file = written(tmp_path / "in.jsonl", read_rows(stored)[:4])
    out = tmp_path / "out.jsonl"
    state, collection = await regrade(stack, file, out, "judged_player")
    failures = read_rows(RolloutPaths(out).failures)
    assert (state, read_rows(out), collection.progress.failed) == ("incomplete", [], 4)
    assert {(row["server"], row["status"]) for row in failures} == {("judge", 500)}
    assert len(failures) == 8  # two attempts each
    assert not any("reward" in row for row in failures)
    assert (await regrade(stack, file, out, "judged_player"))[1].progress.newly_failed == 4  # the next command tries


async def test_rows_without_a_response_are_recorded_as_failed_and_the_others_verified(
    stack: RunningStack, stored: Path, tmp_path: Path
) -> None:
    rows = read_rows(stored)[:6]
    del rows[0]["response"]
    rows[1]["response"] = {"choices": []}
    rows[2]["responses_create_params"] = 7
    file, out = written(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    state, collection = await regrade(stack, file, out)
    assert (state, collection.refused, len(read_rows(out))) == ("incomplete", 3, 3)
    assert {row["failure_kind"] for row in read_rows(RolloutPaths(out).failures)} == {"bad_task"}


async def test_a_verifier_for_other_rows_gives_no_verdict(stack: RunningStack, stored: Path, tmp_path: Path) -> None:
    rows = [{name: value for name, value in row.items() if name != "seed"} for row in read_rows(stored)[:3]]
    out = tmp_path / "out.jsonl"
    _, collection = await regrade(stack, written(tmp_path / "in.jsonl", rows), out, "lenient_player")
    assert (collection.refused, read_rows(out)) == (3, [])


async def test_an_input_with_missing_rollouts_is_complete_when_all_of_its_rollouts_are(
    stack: RunningStack, stored: Path, tmp_path: Path
) -> None:
    rows = read_rows(stored)
    kept = [row for row in rows if (row["_ng_task_index"], row["_ng_rollout_index"]) not in ((0, 0), (7, 1), (7, 2))]
    out = tmp_path / "out.jsonl"
    state, collection = await regrade(stack, written(tmp_path / "in.jsonl", kept), out, "lenient_player")
    assert (state, collection.progress.expected, keys_of(read_rows(out))) == ("complete", 21, keys_of(kept))
    assert load(out).profile.coverage.expected == 21


async def test_a_report_counts_what_the_original_collection_lacks_as_missing(
    stack: RunningStack, stored: Path, tmp_path: Path
) -> None:
    file, out = written(tmp_path / "in.jsonl", read_rows(stored)[:-3]), tmp_path / "out.jsonl"
    RolloutPaths(file).manifest.write_bytes(RolloutPaths(stored).manifest.read_bytes())
    state, _ = await regrade(stack, file, out, "lenient_player")
    again = tmp_path / "again.jsonl"
    await regrade(stack, out, again, "lenient_player")
    assert state == "complete"
    for path in (out, again):
        coverage = load(path).profile.coverage
        assert (coverage.measured, coverage.expected, coverage.missing) == (21, 24, 3)


async def test_several_jobs_share_an_input_with_missing_rollouts(
    stack: RunningStack, stored: Path, tmp_path: Path
) -> None:
    rows = read_rows(stored)[:-5]
    file, out = written(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    await regrade(stack, file, out, "lenient_player", "1/2")
    state, _ = await regrade(stack, file, out, "lenient_player", "2/2")
    assert (state, keys_of(read_rows(out)), shard_files(out)) == ("complete", keys_of(rows), [])
    status = read_status(out)
    assert status is not None and (status.state, status.measured, status.expected) == ("complete", 19, 19)


async def test_rows_of_another_program_without_indexes_are_numbered_by_their_places(
    stack: RunningStack, stored: Path, tmp_path: Path
) -> None:
    rows = [{name: row[name] for name in row if not name.startswith("_ng_")} for row in read_rows(stored)[:4]]
    out = tmp_path / "out.jsonl"
    state, _ = await regrade(stack, written(tmp_path / "in.jsonl", rows), out, "lenient_player")
    assert (state, keys_of(read_rows(out))) == ("complete", [(0, 0), (1, 0), (2, 0), (3, 0)])


async def test_masked_rows_get_a_verdict_too(stack: RunningStack, stored: Path, tmp_path: Path) -> None:
    rows = [{**row, "mask_sample": True, "failure_kind": "judge_failed"} for row in read_rows(stored)[:2]]
    out = tmp_path / "out.jsonl"
    state, collection = await regrade(stack, written(tmp_path / "in.jsonl", rows), out, "lenient_player")
    assert (state, collection.progress.measured) == ("complete", 2)
    assert [row[OLD_VERDICT]["failure_kind"] for row in read_rows(out)] == ["judge_failed"] * 2
    assert not any("mask_sample" in row or "failure_kind" in row for row in read_rows(out))


async def test_an_output_of_another_input_or_verifier_is_not_continued(
    stack: RunningStack, stored: Path, tmp_path: Path
) -> None:
    file, out = written(tmp_path / "in.jsonl", read_rows(stored)[:3]), tmp_path / "out.jsonl"
    await regrade(stack, file, out)
    with pytest.raises(OperatorError, match="different parameters"):
        await regrade(stack, file, out, "lenient_player")
    written(file, read_rows(stored)[:4])
    with pytest.raises(OperatorError, match=r"input_sha256|rollouts"):
        await regrade(stack, file, out)


async def test_an_input_that_changes_meanwhile_stops_the_command(
    stack: RunningStack, stored: Path, tmp_path: Path
) -> None:
    file, out = written(tmp_path / "in.jsonl", read_rows(stored)), tmp_path / "out.jsonl"
    tasks = StoredRollouts(file)
    rows = read_rows(stored)
    rows[6]["reward"] = 77.0
    written(file, rows)
    plan = CollectionPlan(out, None, tasks.repeats)
    async with OpenCollection.opened(plan, tasks, stack.access.clients) as collection:
        assert await collection.run() == "stopped"
    assert "changed while it was in use" in collection.stopped_because


def refused(path: Path, data: bytes, match: str) -> None:
    path.write_bytes(data)
    with pytest.raises(OperatorError, match=match):
        StoredRollouts(path)


async def test_lines_that_are_no_rollouts_are_refused_before_anything_starts(stored: Path, tmp_path: Path) -> None:
    file, lines = tmp_path / "in.jsonl", stored.read_bytes().splitlines(keepends=True)
    refused(file, b"", "has no rollouts")
    refused(file, lines[0] + b'{"a": \n' + lines[1], r"line 2 is not JSON.*restore or delete that line")
    refused(file, lines[0] + lines[1][:-20], r"line 2.*repeat that first")
    refused(file, lines[0] + b"[1]\n", "line 2")
    refused(file, lines[0] + lines[1] + lines[0], r"line 3 is task \d+, repeat \d+ again, after line 1")
    refused(file, lines[0][:-2] + b',"reward":1.0}\n', "has the key reward twice")
    refused(file, lines[0] + b'{"response": {}, "agent_ref": {"name": "a"}}\n', "line 2 has no _ng_task_index")
    refused(file, b'{"response": {}, "agent_ref": {"name": "a"}}\n' + lines[0], "line 2 has _ng_task_index, unlike")
    refused(file, b'{"response": {}}\n', "line 1 has no agent_ref")
    refused(file, b'{"failure_kind": "timeout", "terminal": false, "_ng_task_index": 0}\n', "is a failed attempt")


def test_an_agent_of_another_framework_is_refused() -> None:
    directory = Directory(
        run_id="r", servers={"theirs": ["http://a:1"]}, families={}, settings={}, foreign={"http://a:1": "x"}
    )
    with pytest.raises(OperatorError, match="would play again"):
        check_replay({"theirs"}, directory)
    check_replay({"ours"}, directory)


class Unanswered(StoredRollout):
    @property
    def headers(self) -> Mapping[str, str]:
        return {"x-rollyard-unknown": "1"}


class UnansweredRollouts(StoredRollouts):
    def rollouts(self, repeats: int) -> Iterator[StoredRollout]:
        return (Unanswered(*astuple(one)) for one in super().rollouts(repeats))


async def test_an_agent_that_ignores_the_request_is_not_believed(
    stack: RunningStack, stored: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    tasks = UnansweredRollouts(written(tmp_path / "in.jsonl", read_rows(stored)[:2]))
    async with OpenCollection.opened(CollectionPlan(out, None, tasks.repeats), tasks, stack.access.clients) as found:
        assert await found.run() == "incomplete"
    assert read_rows(out) == []
    assert {row["failure_kind"] for row in read_rows(RolloutPaths(out).failures)} == {"bad_request"}
