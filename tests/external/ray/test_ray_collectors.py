"""Several collectors of one command as actors of a Ray cluster."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import orjson

from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.rollout_keys import Shard
from rollyard.services.rollouts.shards import shard_files
from tests.external.ray.clusters import BIN, Run, command_of, end_group
from tests.support.processes import parent_of
from tests.support.stacks import AGENT, PUZZLES, keys_of, read_rows
from tests.support.waiting import deadline_s, eventually

TASKS, REPEATS = 30, 4
SLOW_POLICY = "policy_model.responses_api_models.builtin_model.latency_s=0.05"


def test_collectors_run_in_actors_of_which_one_is_killed_and_one_has_its_actor_killed(
    cluster: str, tmp_path: Path
) -> None:
    output = tmp_path / "rollouts.jsonl"
    options = {
        "agent_name": AGENT,
        "input_jsonl_fpath": PUZZLES,
        "output_jsonl_fpath": output,
        "limit": TASKS,
        "num_repeats": REPEATS,
        "num_samples_in_parallel": 6,
        "num_collectors": 2,
        "ray_head_node_address": cluster,
    }
    shards = [Shard(number, 2).output(output) for number in (1, 2)]
    with Run(tmp_path, cluster, SLOW_POLICY) as run:
        run.until_ready()
        command = [str(BIN / "ng_collect_rollouts"), *(f"+{name}={value}" for name, value in options.items())]
        process = subprocess.Popen(
            command, cwd=tmp_path, env=run.environ, stderr=subprocess.PIPE, start_new_session=True
        )
        try:
            eventually("rollouts of both", lambda: all(path.exists() and path.stat().st_size for path in shards))
            first, second = (orjson.loads(RolloutPaths(path).status.read_bytes())["pid"] for path in shards)
            actor = parent_of(parent_of(second))  # the parent of a collector is its guard
            assert command_of(actor).startswith("ray::ProgramHost")
            os.kill(first, signal.SIGKILL)
            os.kill(actor, signal.SIGKILL)
            printed = process.communicate(timeout=deadline_s())[1].decode()
        finally:
            end_group(process)
    assert process.returncode == 0, printed
    assert printed.count("was killed by signal 9; another one continues its share") == 2
    assert keys_of(read_rows(output)) == [(task, repeat) for task in range(TASKS) for repeat in range(REPEATS)]
    assert shard_files(output) == []
