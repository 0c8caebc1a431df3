"""ng_run on a single-machine Ray cluster: the specified commands, and behaviour under failures."""

from __future__ import annotations

import os
import signal
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.external.ray.clusters import MODEL_ONLY, Node, Run, command_of, short_folder
from tests.support.processes import free_port, parent_of
from tests.support.waiting import eventually

MODEL = "policy_model"


def test_the_specified_commands_run_and_ctrl_c_leaves_only_the_cluster(cluster: str, tmp_path: Path) -> None:
    with Run(tmp_path, cluster) as run:
        run.until_ready()
        assert "All 3 / 3 servers ready!" in run.output.splitlines()
        for instance in run.instances():
            assert instance["host"] == "127.0.0.1"
            assert command_of(parent_of(instance["pid"])).startswith("ray::ServerHost")
            eventually("its log in the run folder", partial(is_logged, run, instance))  # fetched every second
        with run.collecting(tmp_path / "rollouts.jsonl", num_repeats=2):
            pass
        run.process.send_signal(signal.SIGINT)
        assert run.ended() == 0
        assert run.output.endswith("stopping ...\nstopped\n")
        assert run.left() == []
    with socket.create_connection(("127.0.0.1", int(cluster.rpartition(":")[2])), 5):
        pass  # the cluster must keep running


def test_a_cluster_that_requires_the_users_token_gets_it(tmp_path: Path) -> None:
    token = tmp_path / "home" / ".ray" / "auth_token"
    token.parent.mkdir(parents=True)
    token.write_text("0123456789abcdef0123456789abcdef")
    environ = {"HOME": str(tmp_path / "home")}
    with (
        short_folder() as folder,
        Node.head(folder, "127.0.0.1", environ=environ) as node,
        Run(tmp_path, node.address, config=MODEL_ONLY, environ=environ) as run,
    ):
        run.until_ready()
        assert "InvalidAuthToken" not in run.output


def is_logged(run: Run, instance: dict[str, Any]) -> bool:
    return f"Started server process [{instance['pid']}]" in run.log(instance["server_name"])


def is_restarted(run: Run, times: int) -> bool:
    models = [instance for instance in run.instances() if instance["server_name"] == MODEL]
    return [(instance["ready"], instance["restarts"]) for instance in models] == [(True, times)]


def test_a_killed_server_and_a_killed_actor_are_restarted(cluster: str, tmp_path: Path) -> None:
    with Run(tmp_path, cluster, config=MODEL_ONLY) as run:
        run.until_ready()
        for restarts, victim in enumerate(("server", "actor"), start=1):
            instance = run.server(MODEL)
            pid = instance["pid"]
            # Its log is fetched through the actor every second: what was not yet fetched is lost with the actor.
            eventually("its log in the run folder", partial(is_logged, run, instance))
            os.kill(pid if victim == "server" else parent_of(pid), signal.SIGKILL)
            restarted = partial(is_restarted, run, restarts)
            eventually(f"another {MODEL} after its {victim} was killed", restarted)
            assert pid not in run.left()
        assert run.output.count(f"{MODEL} exited (signal 9)") == 2
        assert "Ray actor" in run.log(MODEL)
        eventually("all three starts in one log", lambda: run.log(MODEL).count("Started server process") == 3)


@pytest.mark.smoke
def test_a_killed_ng_run_leaves_no_server(cluster: str, tmp_path: Path) -> None:
    with Run(tmp_path, cluster, config=MODEL_ONLY) as run:
        (pid,) = run.until_ready().left()
        assert command_of(parent_of(pid)).startswith("ray::ServerHost")
        run.process.kill()
        run.ended()
        eventually("no server left", lambda: not run.left())


def test_a_server_that_cannot_start_is_named_with_the_end_of_its_log(cluster: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        override = f"{MODEL}.responses_api_models.builtin_model.port={port}"
        with Run(tmp_path, cluster, override, config=MODEL_ONLY) as run:
            assert run.ended() == 1
            assert f"ng_run: {MODEL} exited" in run.output
            assert f"127.0.0.1:{port}" in run.output


@pytest.mark.parametrize(
    ("address", "status", "named"),
    [("127.0.0.1:{free}", 1, "--ray-head-node-address"), ("ray://a:1", 2, "HOST:PORT")],
)
def test_an_address_without_a_cluster_is_one_line(address: str, status: int, named: str, tmp_path: Path) -> None:
    with Run(tmp_path, address.format(free=free_port())) as run:
        assert run.ended() == status
        assert named in run.output.splitlines()[0]
        assert "Traceback" not in run.output
