"""What ng_status draws, at the widths of real terminals."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from rollyard.services.cli.status_view import view
from rollyard.services.head.activity import Collection, RunningEpisode, StageActivity
from rollyard.services.head.run_snapshot import RunSnapshot
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.run_types import ServerInstance
from rollyard.services.types import DatasetStatus

NOW = 1_000_000.0


def server(name: str, requests_per_s: float = 12.34) -> ServerInstance:
    return ServerInstance(
        process_name=f"{name}#1",
        server_type="resources_servers",
        name="grl_sokoban",
        server_name=name,
        dir_path="",
        entrypoint="app.py",
        host="127.0.0.1",
        port=40000,
        pid=1,
        config_path="",
        url="http://127.0.0.1:40000",
        status="success",
        start_time=0.0,
        uptime_seconds=200_000.0,
        ready=True,
        requests=1_234_567,
        requests_per_s=requests_per_s,
        in_flight=1024,
        sessions=1024,
        restarts=2,
    )


def collection(output: str = "/out.jsonl", state: str = "running", updated: float = NOW) -> Collection:
    status = CollectionProgress(100).status("running").model_copy(update={"state": state, "updated": updated})
    return Collection(output=output, status=status, failures=[])


def episode(repeat: int, *, stuck: bool = False) -> RunningEpisode:
    return RunningEpisode(
        agent="player",
        episode=str(repeat),
        task=123456,
        repeat=repeat,
        stage="model",
        server="grl_sokoban_resources_server",
        turn=100,
        age_s=7199.0,
        stage_s=3599.0,
        stuck=stuck,
    )


def busy(**more: object) -> RunSnapshot:
    stage = StageActivity(
        stage="model",
        server="grl_sokoban_resources_server",
        episodes=1024,
        median_s=0.25,
        stuck=1,
        slowest=episode(0, stuck=True),
    )
    live = RunSnapshot(
        run_id="r",
        head="http://127.0.0.1:11000",
        time=NOW,
        servers=[server("grl_sokoban_resources_server"), server("policy_model", 1234.5)],
        total=1024,
        stages=[stage],
        episodes=[episode(number, stuck=number == 0) for number in range(50)],
        stuck=["1 of 1024 rollouts are stuck"],
        collections=[collection()],
    )
    return live.model_copy(update=more)


def drawn(live: RunSnapshot, width: int) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(view(live, console))
    return capture.get()


@pytest.mark.parametrize("width", [80, 100, 159, 160, 200])
def test_nothing_is_cut_off_or_wrapped_in_the_tables_of_a_busy_run(width: int) -> None:
    shown = drawn(busy(), width)
    assert "…" not in shown and max(map(len, shown.splitlines())) <= width
    assert "grl_sokoban_resources_server" in shown and "model, stuck" in shown


def test_ten_of_the_oldest_are_shown_and_how_many_there_are() -> None:
    shown = drawn(busy(), 100)
    assert "1024 rollouts running, the oldest 10:" in shown and shown.count("\n123456 ") == 10


def test_a_name_with_brackets_is_shown_as_it_is() -> None:
    assert "[bold]policy[/]" in drawn(busy(servers=[server("[bold]policy[/]")]), 200)


def test_of_the_collections_those_that_run_are_shown() -> None:
    collections = [collection("/done.jsonl", "complete"), collection("/one.jsonl"), collection("/two.jsonl")]
    shown = drawn(busy(collections=collections), 200)
    assert "/done.jsonl" not in shown and "/one.jsonl: running" in shown and "/two.jsonl: running" in shown


def test_without_one_that_runs_the_latest_is_shown_and_one_that_fell_silent_is_not_said_to_run() -> None:
    collections = [collection("/killed.jsonl", updated=NOW - 75), collection("/done.jsonl", "complete")]
    shown = drawn(busy(collections=collections), 200)
    assert "/killed.jsonl: silent for 1 min 15 s" in shown and "/done.jsonl" not in shown


def test_an_idle_run_is_its_servers_and_a_line() -> None:
    shown = drawn(busy(total=0, stages=[], episodes=[], stuck=[], collections=[]), 100)
    assert shown.splitlines()[-1].startswith("run r, head http://127.0.0.1:11000: 2 of 2 ready")


def test_each_data_set_of_a_mixture_has_a_line_of_its_own() -> None:
    part: dict[str, Any] = {"tasks": 2, "success_stderr": None, "reward_stderr": None}
    parts = {
        "rooms": DatasetStatus(measured=4, successes=1, mean_reward=-0.5, **part),
        "essays": DatasetStatus(measured=12, successes=None, mean_reward=0.75, **part),
    }
    one = collection()
    mixed = one.model_copy(update={"status": one.status.model_copy(update={"datasets": parts})})
    shown = [line.rstrip() for line in drawn(busy(collections=[mixed]), 100).splitlines()]
    assert "  rooms   4 measured, success 25.0%, reward -0.50" in shown
    assert "  essays  12 measured, reward 0.75" in shown


def test_servers_that_run_older_code_than_is_on_disk_are_named() -> None:
    old = server("coin").model_copy(update={"changed_files": ["resources_servers/coin/app.py"]})
    shown = drawn(busy().model_copy(update={"servers": [old, server("other")]}), 160)
    assert "! coin runs older code than is on disk: resources_servers/coin/app.py" in shown
    assert "other runs older" not in shown
