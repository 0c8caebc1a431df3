"""Several collectors of one command as actors of a Ray cluster."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import orjson
import pytest

from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.rollout_keys import Shard
from rollyard.services.rollouts.shards import shard_files
from tests.external.ray.clusters import BIN, Node, Run, command_of, end_group, short_folder
from tests.support.machines import CAN_SIMULATE, simulated_machines
from tests.support.processes import parent_of
from tests.support.stacks import AGENT, PUZZLES, keys_of, read_rows
from tests.support.waiting import deadline_s, eventually

TASKS, REPEATS = 30, 4
EVERY = [(task, repeat) for task in range(TASKS) for repeat in range(REPEATS)]
SLOW_POLICY = "policy_model.responses_api_models.builtin_model.latency_s=0.05"
REPLICAS = (
    "policy_model.responses_api_models.builtin_model.replicas=2",
    "grl_sokoban_resources_server.resources_servers.grl_sokoban.replicas=2",
    "grl_sokoban_game_agent.agents.game_agent.replicas=2",
)


class Command:
    """ng_collect_rollouts with two collectors on a cluster, while both collect."""

    def __init__(self, run: Run, address: str, output: Path) -> None:
        options = {
            "agent_name": AGENT,
            "input_jsonl_fpath": PUZZLES,
            "output_jsonl_fpath": output,
            "limit": TASKS,
            "num_repeats": REPEATS,
            "num_samples_in_parallel": 6,
            "num_collectors": 2,
            "ray_head_node_address": address,
        }
        words = [str(BIN / "ng_collect_rollouts"), *(f"+{name}={value}" for name, value in options.items())]
        self._log = output.with_suffix(".log")
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*run.prefix, *words], cwd=run.folder, env=run.environ, stdout=log, stderr=log, start_new_session=True
            )
        self._shards = [Shard(number, 2).output(output) for number in (1, 2)]

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *exc: object) -> None:
        end_group(self.process)

    def pids(self) -> list[int]:
        """Wait until both collectors have stored rollouts, and return their process ids.

        The one that is first is stopped meanwhile: Ray may take longer to start the other than it has rollouts for.
        """
        found: dict[Path, int] = {}

        def have_rollouts() -> bool:
            assert self.process.poll() is None, self._log.read_text()
            for path in self._shards:
                status = RolloutPaths(path).status
                if path not in found and path.exists() and path.stat().st_size and status.exists():
                    found[path] = orjson.loads(status.read_bytes())["pid"]
                    os.kill(found[path], signal.SIGSTOP)
            return len(found) == len(self._shards)

        eventually("rollouts of both", have_rollouts)
        for pid in found.values():
            os.kill(pid, signal.SIGCONT)
        return [found[path] for path in self._shards]

    def printed(self) -> str:
        assert self.process.wait(deadline_s()) == 0, self._log.read_text()
        return self._log.read_text()


def actor_of(pid: int) -> int:
    return parent_of(parent_of(pid))  # the parent of a collector is its guard


def test_a_collector_that_is_killed_and_one_whose_actor_is_killed_continue(cluster: str, tmp_path: Path) -> None:
    output = tmp_path / "rollouts.jsonl"
    with Run(tmp_path, cluster, SLOW_POLICY) as run, Command(run.until_ready(), cluster, output) as command:
        first, second = command.pids()
        actor = actor_of(second)
        assert command_of(actor).startswith("ray::ProgramHost")
        os.kill(first, signal.SIGKILL)
        os.kill(actor, signal.SIGKILL)
        assert command.printed().count("was killed by signal 9; another one continues its share") == 2
    assert keys_of(read_rows(output)) == EVERY
    assert shard_files(output) == []


@pytest.mark.skipif(not CAN_SIMULATE, reason="making network namespaces needs root and iproute2")
def test_the_collector_of_a_machine_that_is_lost_continues_on_another(tmp_path: Path) -> None:
    output = tmp_path / "rollouts.jsonl"
    with simulated_machines("rc") as machines, short_folder() as folder:
        (first_address, on_first), (second_address, on_second) = machines.prefixes.items()
        with (
            Node.head(folder, first_address, on_first) as head,
            Node.member(folder, head, second_address, on_second) as second,
            Run(tmp_path, head.address, SLOW_POLICY, *REPLICAS, prefix=on_first) as run,
            Command(run.until_ready(), head.address, output) as command,
        ):
            namespaces = {Path(f"/proc/{pid}/ns/net").readlink() for pid in command.pids()}
            assert len(namespaces) == 2
            os.killpg(second.process.pid, signal.SIGKILL)
            assert "another one continues its share" in command.printed()
    assert keys_of(read_rows(output)) == EVERY
    assert shard_files(output) == []
