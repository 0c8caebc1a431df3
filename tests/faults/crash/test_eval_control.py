"""`ng_eval --detach`, and pause, resume and stop of a running evaluation."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import BIN, command_environ
from tests.support.evaluations import ng_eval
from tests.support.waiting import deadline_s, eventually

CONFIG = "configs/sokoban_eval.yaml"
SLOW = ("policy_model.responses_api_models.builtin_model.latency_s=0.05", "num_samples_in_parallel=2")
"""An episode lasts about half a second, the evaluation ten minutes, and a command seconds on a busy machine."""


def test_in_the_background_one_json_line_is_printed_and_the_evaluation_is_controllable(tmp_path: Path) -> None:
    with ng_eval(CONFIG, "--detach", "colocate=true", *SLOW, cwd=tmp_path, output="out") as running:
        assert running.wait() == 0
        (line,) = running.printed.splitlines()
        shown = json.loads(line)
        assert sorted(shown) == ["address", "folder", "id"] and shown["folder"] == str(running.output)
        assert running.pids("ng_eval")
        (tmp_path / "below").mkdir()
        status = control("status", shown["id"], cwd=tmp_path / "below")
        assert status["running"] is True
        paused = control("pause", cwd=tmp_path)
        assert paused["state"] == "paused" and paused["running"] is True
        rows = running.rows()
        assert running.pids("ng_run") and not running.pids("ng_collect_rollouts")
        assert control("resume", cwd=tmp_path)["running"] is True
        eventually("the collection continues", lambda: running.rows() > rows)
        stopped = control("stop", "out", cwd=tmp_path)
        assert (stopped["state"], stopped["running"]) == ("stopped", False)
        running.leaves_nothing()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1], ids=lambda n: n.name)
def test_a_signal_lets_the_episodes_in_flight_finish_and_stops_everything(tmp_path: Path, number: int) -> None:
    with ng_eval(CONFIG, "colocate=true", *SLOW, cwd=tmp_path, output="out") as running:
        running.collects()
        before = running.rows()
        running.process.send_signal(number)
        assert running.wait() == 130, running.printed
        assert running.state["state"] == "interrupted" and "finishing the episodes" in running.printed
        assert before < running.rows() < 3200, "episodes in flight are finished, and no others are started"
        running.leaves_nothing()


def test_episodes_that_take_longer_than_the_bound_are_abandoned(tmp_path: Path) -> None:
    hanging = "policy_model.responses_api_models.builtin_model.latency_s=1000"
    with ng_eval(CONFIG, "colocate=true", hanging, "drain_timeout_s=0.5", cwd=tmp_path, output="out") as running:
        eventually("it collects", lambda: running.state.get("stage") == "collection")
        eventually("the collector runs", lambda: running.pids("ng_collect_rollouts"))
        running.process.send_signal(signal.SIGTERM)
        assert running.wait() == 130, running.printed
        running.leaves_nothing()


def test_a_second_evaluation_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    with ng_eval(CONFIG, "colocate=true", *SLOW, cwd=tmp_path, output="out") as first:
        first.collects()
        with ng_eval(CONFIG, "colocate=true", *SLOW, cwd=tmp_path, output="out") as second:
            assert second.wait() == 1
            assert "another ng_eval is running" in second.printed and str(first.state["id"]) in second.printed
        assert first.process.poll() is None and first.state["state"] == "running"


def control(*arguments: str, cwd: Path) -> dict[str, object]:
    """Run `ng_eval status|pause|resume|stop` and return its JSON."""
    command = [str(BIN / "ng_eval"), *arguments, "+json=true"]
    printed = subprocess.check_output(command, cwd=cwd, env=command_environ(), timeout=deadline_s())
    shown: dict[str, object] = json.loads(printed)
    return shown
