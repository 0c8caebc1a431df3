"""ng_run on a cluster of two machines, simulated by network namespaces on a bridge. Needs root and `ip`."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.external.ray.clusters import NO_TOKEN, Node, Run, end_group, short_folder
from tests.support.machines import CAN_SIMULATE, Machines, simulated_machines
from tests.support.stacks import read_rows
from tests.support.waiting import deadline_s, eventually

pytestmark = pytest.mark.skipif(not CAN_SIMULATE, reason="making network namespaces needs root and iproute2")


ENVIRONMENT = "grl_sokoban_resources_server.resources_servers.grl_sokoban"
REPLICAS = (
    "policy_model.responses_api_models.builtin_model.replicas=2",
    f"{ENVIRONMENT}.replicas=2",
    "grl_sokoban_game_agent.agents.game_agent.replicas=auto",
    f"+{ENVIRONMENT}.resources={{num_cpus: 0.5}}",  # so that Ray places them
)
EPISODES = 600
"""Rollouts of each example row: about a minute of playing, so that it goes on while a machine is lost."""


@pytest.fixture
def machines() -> Iterator[Machines]:
    with simulated_machines("ry") as simulated:
        yield simulated


def test_servers_of_a_machine_that_is_cut_off_for_a_moment_are_kept_and_of_one_that_stays_cut_off_move(
    machines: Machines, tmp_path: Path
) -> None:
    (first_address, on_first), (second_address, on_second) = machines.prefixes.items()
    with (
        short_folder() as folder,
        Node.head(folder, first_address, on_first) as head,
        Node.member(folder, head, second_address, on_second),
        Run(tmp_path, head.address, *REPLICAS, prefix=on_first) as run,
    ):
        run.until_ready()
        before = {instance["pid"] for instance in run.instances()}
        with run.collecting(tmp_path / "rollouts.jsonl", num_repeats=EPISODES):
            with machines.cut(second_address):
                time.sleep(15)  # shorter than what makes Ray count the machine as lost
            eventually("all servers ready", lambda: all_ready_on(run, {first_address, second_address}))
        assert {instance["pid"] for instance in run.instances()} == before
        with machines.cut(second_address):
            eventually("all servers ready on the reachable machine", lambda: all_ready_on(run, {first_address}))
        assert "Traceback" not in run.output


def all_ready_on(run: Run, hosts: set[str]) -> bool:
    found = run.instances()
    return [instance["ready"] for instance in found] == [True] * 5 and {one["host"] for one in found} == hosts


def test_servers_are_spread_need_a_token_and_survive_a_lost_machine(machines: Machines, tmp_path: Path) -> None:
    (first_address, on_first), (second_address, on_second) = machines.prefixes.items()
    with (
        short_folder() as folder,
        Node.head(folder, first_address, on_first) as head,
        Node.member(folder, head, second_address, on_second) as second,
        Run(tmp_path, head.address, *REPLICAS, prefix=on_first) as run,
    ):
        run.until_ready()
        hosts = Counter(instance["host"] for instance in run.instances())
        assert sorted(hosts) == [first_address, second_address]
        assert sorted(hosts.values()) == [2, 3]
        assert "grl_sokoban_game_agent: 1 replica (auto: 2 cores for 3 servers)" in run.output  # one core on each
        assert stat.S_IMODE(run.head_file().stat().st_mode) == 0o600

        url = run.instances()[0]["url"]
        status_of_url = [*on_second, "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", f"{url}/metrics"]
        assert subprocess.run(status_of_url, capture_output=True, text=True, check=True).stdout == "401"

        lost = [instance for instance in run.instances() if instance["host"] == second_address]
        output = tmp_path / "rollouts.jsonl"
        with run.collecting(output, num_repeats=EPISODES):
            os.killpg(second.process.pid, signal.SIGKILL)
            eventually("all servers ready on the remaining machine", lambda: all_ready_on(run, {first_address}))
        failures = read_rows(output.with_name("rollouts_failures.jsonl"))
        assert failures and not any("reward" in row for row in failures)
        assert not {instance["pid"] for instance in lost} & set(run.left())
        run.process.send_signal(signal.SIGINT)
        assert run.ended() == 0
        assert run.left() == []


TRAINER = """
import os, sys
from pathlib import Path
from rollyard.training.ray_trainer import run_on_ray

address, folder, program = sys.argv[1:]
status = run_on_ray(
    address, [sys.executable, "-c", program], 1, Path(folder), os.environ,
    write=lambda text: print(text.decode(), end="", flush=True), print_line=print,
)
raise SystemExit(status)
"""
PROGRAM = """
import pathlib, time
print("trains", flush=True)
while not pathlib.Path("end").exists():
    time.sleep(0.1)
print("trained", flush=True)
"""
PATIENT = {"RAY_health_check_failure_threshold": "20"}
"""Variables of a head that counts no machine as lost in the time of a test."""


def test_a_trainer_that_is_cut_off_goes_on_while_ray_does_not_count_its_machine_as_lost(
    machines: Machines, tmp_path: Path
) -> None:
    (first_address, on_first), (second_address, on_second) = machines.prefixes.items()
    output = tmp_path / "trainer.out"
    with (
        short_folder() as folder,
        Node.head(folder, first_address, on_first, environ={**NO_TOKEN, **PATIENT}) as head,
        Node.member(folder, head, second_address, on_second, "--num-gpus=1"),
        output.open("wb") as file,
    ):
        command = [*on_first, sys.executable, "-c", TRAINER, head.address, str(tmp_path), PROGRAM]
        environ = {**os.environ, **NO_TOKEN}
        process = subprocess.Popen(command, env=environ, stdout=file, stderr=file, start_new_session=True)
        try:
            eventually("the trainer's first line", lambda: "trains" in output.read_text())
            with machines.cut(second_address):
                time.sleep(30)  # calls to the actor fail from about 20 s on
            (tmp_path / "end").touch()
            assert process.wait(deadline_s()) == 0, output.read_text()
        finally:
            end_group(process)
    assert output.read_text().splitlines() == ["trains", "trained"]
