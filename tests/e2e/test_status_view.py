from __future__ import annotations

import re
from typing import Any

import pytest
from rich.console import Console

from rollyard.cli.status import view
from rollyard.records.activity import Collection, RunningEpisode, StageActivity
from rollyard.records.run_types import ServerInstance
from rollyard.records.types import DatasetStatus
from rollyard.services.head.registry_client import RunSnapshot
from rollyard.services.rollouts.progress import CollectionProgress

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
    where = {"agent": "player", "episode": str(repeat), "task": 123456, "repeat": repeat, "stage": "model"}
    when = {"server": "grl_sokoban_resources_server", "turn": 100, "age_s": 7199.0, "stage_s": 3599.0, "stuck": stuck}
    return RunningEpisode.model_validate({**where, **when})


def busy_run(**more: object) -> RunSnapshot:
    stage = StageActivity(
        stage="model",
        server="grl_sokoban_resources_server",
        episodes=1024,
        median_s=0.25,
        stuck=1,
        slowest=episode(0, stuck=True),
    )
    snapshot = RunSnapshot(
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
    return snapshot.model_copy(update=more)


def render(snapshot: RunSnapshot, width: int) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(view(snapshot, console))
    return capture.get()


@pytest.mark.parametrize("width", [80, 100, 159, 160, 200])
def test_nothing_is_cut_off_or_wrapped_in_the_tables_of_a_busy_run(width: int) -> None:
    text = render(busy_run(), width)
    assert "…" not in text and max(map(len, text.splitlines())) <= width
    assert "grl_sokoban_resources_server" in text and "model, stuck" in text


def test_a_name_with_brackets_is_shown_unchanged() -> None:
    assert "[bold]policy[/]" in render(busy_run(servers=[server("[bold]policy[/]")]), 200)


def test_a_collection_without_updates_is_shown_as_silent_and_not_as_running() -> None:
    collections = [collection("/killed.jsonl", updated=NOW - 75), collection("/done.jsonl", "complete")]
    text = render(busy_run(collections=collections), 200)
    assert re.search(r"/killed.jsonl: silent .*1 min 15 s", text) and "/done.jsonl" not in text


def test_each_dataset_of_a_mixture_has_its_own_line() -> None:
    part: dict[str, Any] = {"tasks": 2, "success_stderr": None, "reward_stderr": None}
    parts = {
        "rooms": DatasetStatus(measured=4, successes=1, mean_reward=-0.5, **part),
        "essays": DatasetStatus(measured=12, successes=None, mean_reward=0.75, **part),
    }
    running = collection()
    mixed = running.model_copy(update={"status": running.status.model_copy(update={"datasets": parts})})
    text = [line.rstrip() for line in render(busy_run(collections=[mixed]), 100).splitlines()]
    assert "  rooms   4 measured, success 25.0%, reward -0.50" in text
    assert "  essays  12 measured, reward 0.75" in text


def test_a_server_that_is_not_rollyards_is_shown_with_where_it_runs() -> None:
    external = server("mcqa").model_copy(update={"origin": "external, http://10.0.0.5:8080"})
    assert "mcqa: external, http://10.0.0.5:8080" in render(busy_run(servers=[external]), 100)


@pytest.mark.parametrize("width", [80, 200])
def test_why_a_server_does_not_respond_has_a_line_of_its_own(width: int) -> None:
    reason = "no connection to http://10.0.0.5:8080/openapi.json: Connection refused"
    changes = {"ready": False, "status": "connection_error", "phase": reason}
    text = render(busy_run(servers=[server("mcqa").model_copy(update=changes)]), width)
    (row,) = [line for line in text.splitlines() if line.startswith("mcqa ")][:1]
    assert "connection_error" in row and reason not in row
    assert re.search(rf"! mcqa [^:]*: {re.escape(reason)}", " ".join(text.split()))
