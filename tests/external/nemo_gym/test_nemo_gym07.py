"""NeMo Gym 0.7's commands and servers with a run of Rollyard, and with its files."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from rollyard.records.data_files import INSTALLED
from rollyard.records.nemo_gym import KINDS
from rollyard.records.types import Json
from tests.external.nemo_gym.gym_stack import gym_stack
from tests.support.coming_from import MODEL, endpoint, last_text, our_rewards, pair, run_lines
from tests.support.commands import BIN, Finished, command, ng_run
from tests.support.processes import free_port
from tests.support.scripted_engine import listening
from tests.support.stacks import keys_of, read_rows
from tests.support.token_engine import TokenEngine
from tests.support.toy_tokenizer import END, encode_letters

VENV = INSTALLED / ".venv-nemo-gym07"
EXAMPLES = INSTALLED / "resources_servers" / "grl_sokoban" / "data" / "example.jsonl"
AGENT, ENVIRONMENT = "grl_sokoban_game_agent", "grl_sokoban_resources_server"
CONFIG = """
policy_model: {responses_api_models: {builtin_model: {}}}
grl_sokoban_resources_server: {resources_servers: {grl_sokoban: {}}}
grl_sokoban_game_agent:
  agents:
    game_agent:
      max_steps: 5
      failures_as_rows: true
      resources_server: {name: grl_sokoban_resources_server}
      model_server: {name: policy_model}
"""
CAPTURING = """
token_id_capture: {{enabled: true, all_agents: true, dir: {captures}}}
policy_model:
  responses_api_models:
    vllm_model:
      base_url: {url}/v1
      api_key: none
      model: tiny
      return_token_id_information: true
      logprobs_mode: processed_logprobs
      token_id_capture_non_generating_requests: [{{method: GET, path: /v1/models}}]
grl_sokoban_resources_server: {{resources_servers: {{grl_sokoban: {{entrypoint: app.py}}}}}}
grl_sokoban_game_agent:
  responses_api_agents:
    game_agent:
      token_id_capture: true
      max_steps: 5
      resources_server: {{type: resources_servers, name: grl_sokoban_resources_server}}
      model_server: {{type: responses_api_models, name: policy_model}}
"""
TASKS, REPEATS = 3, 2
EXPECTED = [(task, repeat) for task in range(TASKS) for repeat in range(REPEATS)]


@dataclass
class Run:
    folder: Path
    port: int

    async def gym(self, *arguments: str) -> Finished:
        home = {"HOME": str(self.folder), "WANDB_MODE": "offline"}
        done = await command(str(VENV / "bin" / "gym"), "eval", *arguments, cwd=self.folder, env=home)
        assert done.status == 0, done.out + done.err
        return done

    async def collect(self, rows: str, output: str, *options: str) -> list[Json]:
        """Let NeMo Gym's collector play the rows. Returns what it has stored."""
        files = ("--input", rows, "--output", output, "--num-repeats", str(REPEATS), "--concurrency", "4")
        head = ("++head_server.host=127.0.0.1", f"++head_server.port={self.port}")
        await self.gym("run", "--no-serve", *files, *options, *head)
        return read_rows(self.folder / output)

    async def ours(self, *arguments: str) -> Finished:
        done = await command(str(BIN / arguments[0]), *arguments[1:], cwd=self.folder)
        assert done.status == 0, done.out + done.err
        return done


@pytest.fixture(scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Run]:
    folder = tmp_path_factory.mktemp("gym07")
    (folder / "run.yaml").write_text(CONFIG)
    rows = [orjson.loads(line) for line in EXAMPLES.read_bytes().splitlines()[:TASKS]]
    tasks = [{"task_id": {"taskset": "s", "task_id": str(at)}, "task_input": row} for at, row in enumerate(rows)]
    for name, found in (("rows", rows), ("tasks", tasks), ("bad", [rows[0], {**rows[0], "dim_room": "x"}])):
        (folder / f"{name}.jsonl").write_bytes(b"\n".join(map(orjson.dumps, found)))
    port = free_port()
    async with ng_run("+config_paths=[run.yaml]", f"+head_port={port}", cwd=folder):
        yield Run(folder, port)


@pytest.mark.smoke
async def test_its_collector_plays_on_a_run_of_rollyard(run: Run) -> None:
    found = await run.collect("rows.jsonl", "theirs/rollouts.jsonl", "--agent", AGENT)
    assert keys_of(found) == EXPECTED
    assert {row["_ng_environment_server"] for row in found} == {"grl_sokoban_environment_server"}
    [entry] = orjson.loads((run.folder / "theirs" / "rollouts_aggregate_metrics.json").read_bytes())
    assert entry["agent_metrics"]["mean/reward"] == pytest.approx(sum(row["reward"] for row in found) / len(found))


async def test_its_collector_plays_materialized_tasks_and_rollyards_does_so_too(run: Run) -> None:
    route = "++environment_server_routes={s: grl_sokoban_environment_server}"
    theirs = await run.collect("tasks.jsonl", "tasks/theirs.jsonl", route)
    files = ("--input", "tasks.jsonl", "--output", "tasks/ours.jsonl", "--num-repeats", str(REPEATS))
    await run.ours("ng_collect_rollouts", "--agent", AGENT, *files, "--head", f"127.0.0.1:{run.port}")
    for found in (theirs, read_rows(run.folder / "tasks" / "ours.jsonl")):
        assert keys_of(found) == EXPECTED
        assert all(row["level_id"] and isinstance(row["reward"], float) for row in found)


async def test_a_failure_of_rollyard_has_a_name_of_its_vocabulary_and_no_reward(run: Run) -> None:
    found = await run.collect("bad.jsonl", "failed/rollouts.jsonl", "--agent", AGENT)
    assert keys_of(found) == EXPECTED[:REPEATS]
    failures = read_rows(run.folder / "failed" / "rollouts_failures.jsonl")
    assert {failure["failure_kind"] for failure in failures} == {"rollyard:bad_task"}
    assert all("dim_room" in failure["failure_reason"] and "reward" not in failure for failure in failures)


async def test_its_commands_read_and_continue_an_exported_collection(run: Run) -> None:
    files = ("--input", "rows.jsonl", "--output", "ours/x.jsonl", "--num-repeats", str(REPEATS))
    await run.ours("ng_collect_rollouts", "--agent", AGENT, *files, "--head", f"127.0.0.1:{run.port}")
    exported = await run.ours("ng_export", "ours/x.jsonl", "--format", "nemo_gym", "--output-dir", "whole")
    assert "6 rollouts" in exported.out
    rollouts, inputs = "whole/rollouts.jsonl", "whole/rollouts_materialized_inputs.jsonl"
    assert "6/6 rollout rows" in (await run.gym("profile", "--inputs", inputs, "--rollouts", rollouts)).out
    assert "Agents compared" in (await run.gym("compare", "--baseline", rollouts, "--candidates", rollouts)).out
    health = await run.gym("health-check", "whole", "--ignore-checks", "model_call_missing_token_counts")
    assert "6 checked" in health.out and " 0 unhealthy" in health.out
    # Its exporter knows no developer messages, and no invalid arguments, which the built-in model writes now and then.
    lines = (run.folder / rollouts).read_bytes().replace(b'"role":"developer"', b'"role":"system"').splitlines()
    valid = [line for line in lines if all(map(_is_object, _arguments(orjson.loads(line))))]
    (run.folder / "valid.jsonl").write_bytes(b"\n".join(valid))
    identity = ("--session-id", "s", "--agent-version", "1")
    await run.gym("export", "--rollouts", "valid.jsonl", "--output-dir", "atif", *identity)
    assert len(list((run.folder / "atif").glob("?-?.json"))) == len(valid) > 0

    source = run.folder / "ours"
    kept = (source / "x.jsonl").read_bytes().splitlines(keepends=True)[:2]
    (source / "part.jsonl").write_bytes(b"".join(kept))
    shutil.copy(source / "x_manifest.json", source / "part_manifest.json")
    await run.ours("ng_export", "ours/part.jsonl", "--format", "nemo_gym", "--output-dir", "part")
    found = await run.collect("rows.jsonl", "part/rollouts.jsonl", "--agent", AGENT, "--resume")
    assert sorted(keys_of(found)) == EXPECTED
    assert sum("_ng_task_key" in row for row in found) == len(kept)  # only Rollyard's collector writes this key


def _arguments(row: Json) -> list[str]:
    return [item["arguments"] for item in row["response"]["output"] if item.get("type") == "function_call"]


def _is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


async def test_its_environment_server_plays_with_rollyards_agent_and_environment(run: Run) -> None:
    program = str(Path(__file__).with_name("episode_program.py"))
    arguments = (str(run.port), AGENT, ENVIRONMENT, "rows.jsonl")
    home = {"HOME": str(run.folder)}
    done = await command(str(VENV / "bin" / "python"), program, *arguments, cwd=run.folder, env=home)
    lines = [line for line in done.out.splitlines() if line.startswith("found: ")]
    assert lines, done.err
    found = orjson.loads(lines[0].removeprefix("found: "))
    assert found["failures"] == [None] * TASKS
    assert all(isinstance(reward, float) for reward in found["rewards"])
    assert set(found["kinds"]) == set(KINDS)


async def test_a_config_of_it_with_an_environment_server_starts_under_ng_run_and_is_played_by_both(
    tmp_path: Path,
) -> None:
    [packages] = (VENV / "lib").glob("python3*/site-packages")
    name, port = "example_single_tool_call", free_port()
    shutil.copy(packages / "resources_servers" / name / "data" / "example.jsonl", tmp_path / "rows.jsonl")
    config = f"resources_servers/{name}/configs/{name}_single_agent_turn.yaml"
    model = "responses_api_models/builtin_model/configs/builtin_model.yaml"
    words = (f"+config_paths=[{config},{model}]", "--venv", str(VENV), f"+head_port={port}")
    async with ng_run(*words, cwd=tmp_path) as started:
        assert "single_agent_turn_legacy itself" in started.printed
        run, agent = Run(tmp_path, port), f"{name}_session_agent"
        theirs = await run.collect("rows.jsonl", "theirs.jsonl", "--agent", agent)
        files = ("--input", "rows.jsonl", "--output", "ours.jsonl", "--num-repeats", str(REPEATS))
        await run.ours("ng_collect_rollouts", "--agent", agent, *files, "--head", f"127.0.0.1:{port}")
    assert {row["_ng_environment_server"] for row in theirs} == {f"{name}_single_agent_turn"}
    assert keys_of(theirs) == keys_of(read_rows(tmp_path / "ours.jsonl"))


async def test_a_run_whose_config_captures_training_tokens_gives_its_collector_the_tokens_unmasked(
    tmp_path: Path,
) -> None:
    rows = EXAMPLES.read_bytes().splitlines(keepends=True)[:TASKS]
    (tmp_path / "rows.jsonl").write_bytes(b"".join(rows))
    turn, port = [*encode_letters("I do not know."), END], free_port()
    async with listening(TokenEngine([turn])) as url:
        (tmp_path / "run.yaml").write_text(CAPTURING.format(url=url, captures=tmp_path / "captures"))
        async with ng_run("+config_paths=[run.yaml]", f"+head_port={port}", cwd=tmp_path):
            found = await Run(tmp_path, port).collect("rows.jsonl", "theirs.jsonl", "--agent", AGENT)
    assert keys_of(found) == EXPECTED
    assert not [row for row in found if row.get("mask_sample")]
    items = [row["response"]["output"][-1] for row in found]
    assert [item["generation_token_ids"] for item in items] == [turn] * len(EXPECTED)
    assert {len(item["generation_log_probs"]) for item in items} == {len(turn)}
    assert all(item["prompt_token_ids"] for item in items)


async def test_the_pair_of_the_page_gives_as_many_rollouts_with_the_same_rewards(tmp_path: Path) -> None:
    [packages] = (VENV / "lib").glob("python3*/site-packages")
    (tmp_path / "gym").symlink_to(VENV)
    rows = read_rows(packages / "resources_servers" / "mcqa" / "data" / "example.jsonl")
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
    answers = {last_text(row["responses_create_params"]): row["expected_answer"] for row in rows[1:]}
    answer = endpoint(lambda request: f"Answer: \\boxed{{{answers.get(last_text(request), 'none')}}}")
    run = Run(tmp_path, free_port())
    async with listening(answer) as url:
        found = pair("NeMo Gym", {MODEL: url, "python3.13": packages.parent.name})
        start, (program, command_name, *collect) = found.theirs
        assert (program, command_name) == ("gym", "eval")  # with which `Run.gym` begins
        async with gym_stack(tmp_path, VENV, url, run.port, start=start):
            head = ("++head_server.host=127.0.0.1", f"++head_server.port={run.port}")
            await run.gym(*collect, *head)
        await run_lines(found.ours, tmp_path, BIN)
    theirs = read_rows(tmp_path / "results" / "theirs" / "rollouts.jsonl")
    assert sorted(row["reward"] for row in theirs) == our_rewards(tmp_path)
    assert our_rewards(tmp_path) == [0.0] * REPEATS + [1.0] * REPEATS * (len(rows) - 1)
