"""The viewer's endpoints as a browser uses them."""

from __future__ import annotations

from pathlib import Path

import httpx
import orjson
import pytest

from rollyard.analysis.viewer.responses import HEADERS
from tests.support.rollout_files import grid, random_rows, row, write, write_failures, write_manifest
from tests.unit.analysis.viewer.opened_runs import get_json, open_index, viewer_client

RUNNING = {
    "state": "running", "expected": 9, "measured": 1, "failed": 0, "failed_attempts": 2, "in_flight": 1,
    "successes": None, "mean_reward": None, "reward_stderr": None, "rollouts_per_s": 1.0, "eta_s": None,
    "failures": {}, "updated": 4e9, "pid": 1, "started": 10.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs from the same input; the second solves its tasks more often."""
    folder = tmp_path_factory.mktemp("viewer")
    files = [
        write(folder / f"{name}.jsonl", grid(counts, 2))
        for name, counts in (("first", [0, 1, 2]), ("second", [2, 1, 2, 2]))
    ]
    for path in files:
        write_manifest(path, 4, 2)
    return files


@pytest.fixture(scope="module")
def client(two_runs: list[Path]) -> httpx.AsyncClient:
    return viewer_client(open_index(*two_runs))


async def test_the_overview_lists_the_opened_runs(client: httpx.AsyncClient) -> None:
    runs = (await get_json(client, "/api/overview"))["runs"]
    assert [(run["run"], run["name"], run["measured"]) for run in runs] == [(0, "first", 6), (1, "second", 8)]


async def test_the_profile_covers_the_whole_file(client: httpx.AsyncClient, two_runs: list[Path]) -> None:
    profile = await get_json(client, "/api/runs/1/profile")
    assert (profile["indexed"], profile["profile"]["solved"]["rollouts"]) == (two_runs[1].stat().st_size, 7)


async def test_a_rollout_links_to_its_neighbours_and_its_raw_row(
    client: httpx.AsyncClient, two_runs: list[Path]
) -> None:
    rollout = await get_json(client, "/api/runs/0/rollouts/1/0")
    raw = await client.get("/api/runs/0/rollouts/1/0/raw")
    assert (rollout["previous"], rollout["next"]) == ([0, 1], [1, 1])
    assert (raw.content, raw.headers["content-type"]) == (two_runs[0].read_bytes().split(b"\n")[2], "application/json")


async def test_two_runs_are_compared_task_by_task(client: httpx.AsyncClient) -> None:
    compared = await get_json(client, "/api/compare?first=0&second=1&sort=-change")
    tasks = compared["tasks"]
    assert [pair["task"] for pair in tasks] == [0, 1, 2, 3]
    assert (tasks[0]["solved"], tasks[3]["rewards"]) == ([0.0, 1.0], [None, 1.0])
    assert (compared["total"], compared["difference"]["better"]) == (4, 1)


async def test_runs_on_different_inputs_show_their_common_tasks_with_both_indices(tmp_path: Path) -> None:
    def run(name: str, first_key: int, counts: list[int]) -> Path:
        rows = [{**row, "_ng_task_key": f"{first_key + row['_ng_task_index']:016x}"} for row in grid(counts, 2)]
        return write(tmp_path / f"{name}.jsonl", rows)

    client = viewer_client(open_index(run("first", 1, [0, 1, 2]), run("second", 3, [0, 2, 2])))
    compared = await get_json(client, "/api/compare?first=0&second=1&sort=task")
    (only,) = compared["tasks"]
    assert (only["task"], only["task_in_second"], only["solved"]) == (2, 0, [1.0, 0.0])
    assert compared["difference"]["tasks"] == 1


async def test_a_rollout_with_only_failed_attempts_lists_them(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", grid([1], 1))
    write_failures(path, [(5, 0, "unreachable"), (5, 0, "timeout"), (0, 0, "timeout")])
    client = viewer_client(open_index(path))
    lost = await get_json(client, "/api/runs/0/rollouts/5/0")
    recovered = await get_json(client, "/api/runs/0/rollouts/0/0")
    await get_json(client, "/api/runs/0/rollouts/5/0/raw", 404)
    assert (lost["line"]["outcome"], lost["line"]["end"], lost["events"]) == ("failed", "timeout", [])
    assert [attempt["kind"] for attempt in lost["attempts"]] == ["unreachable", "timeout"]
    assert (recovered["line"]["outcome"], len(recovered["attempts"])) == ("measured", 1)


async def test_during_a_collection_only_abandoned_rollouts_count_as_failed(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", grid([1], 1))
    lines = [
        {"_ng_task_index": task, "_ng_rollout_index": 0, "failure_kind": "timeout", "terminal": terminal}
        for task, terminal in ((5, False), (6, True))
    ]
    write(tmp_path / "x_failures.jsonl", lines)
    found = []
    for state in ("running", "incomplete"):
        (tmp_path / "x_status.json").write_bytes(orjson.dumps({**RUNNING, "state": state}))
        page = await get_json(viewer_client(open_index(path)), "/api/runs/0/rollouts?outcome=failed")
        found.append([line["task"] for line in page["lines"]])
    assert found == [[6], [5, 6]]


async def test_a_rollout_without_attempts_left_counts_as_failed_until_a_later_command_retries_it(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "x.jsonl", grid([1], 1))
    kind = {"_ng_task_index": 5, "_ng_rollout_index": 0, "failure_kind": "timeout", "terminal": False}
    attempts = [{**kind, "abandoned": False, "time": 11.0}, {**kind, "abandoned": True, "time": 12.0}]
    (state := tmp_path / "x_status.json").write_bytes(orjson.dumps(RUNNING))
    file_index, outcomes = open_index(path), []

    def read() -> None:
        file_index.read_through()
        outcomes.append([(run.measured, run.failed) for run in file_index.overview().runs])

    for count in (1, 2):
        write(tmp_path / "x_failures.jsonl", attempts[:count])
        read()
    state.write_bytes(orjson.dumps({**RUNNING, "started": 20.0}))
    read()
    write(path, [*grid([1], 1), row(5, 0, 1.0)])
    read()
    assert outcomes == [[(1, 0)], [(1, 1)], [(1, 0)], [(2, 0)]]


async def test_a_row_that_moved_is_not_confused_with_another(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", random_rows(3, 2))
    file_index = open_index(path)
    write(path, random_rows(3, 2, seed=1)[::-1])
    client = viewer_client(file_index)
    response = await client.get("/api/runs/0/rollouts/1/1")
    file_index.read_through()
    rollout = await get_json(client, "/api/runs/0/rollouts/1/1")
    assert response.status_code == 409 or response.json()["line"] == rollout["line"]
    assert (rollout["line"]["task"], rollout["line"]["repeat"]) == (1, 1)


@pytest.mark.parametrize(
    "path", ["/", "/static/app.js", "/api/overview", "/api/nothing", "/api/runs/0/rollouts?sort=-"]
)
async def test_every_response_has_the_security_headers(client: httpx.AsyncClient, path: str) -> None:
    response = await client.get(path)
    assert {name: response.headers[name] for name in HEADERS} == HEADERS


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/api/nothing", 404, "not found"),
        ("/api/runs/2/profile", 404, "from 0 to 1"),
        ("/api/runs/-1/profile", 404, "run -1 "),
        ("/api/runs/0/rollouts/9/9", 404, "task 9, repeat 9"),
        ("/api/runs/0/rollouts/x/9", 422, "task: "),
        ("/api/runs/0/rollouts?limit=501", 422, "limit: "),
        ("/api/runs/0/rollouts?colour=red", 422, "colour: "),
        ("/api/compare?first=0&second=7", 404, "run 7 "),
        ("/static/%2e%2e/app.py", 404, ""),
    ],
)
async def test_errors_are_problem_documents(client: httpx.AsyncClient, path: str, status: int, message: str) -> None:
    response = await client.get(path)
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
    problem = response.json()
    assert problem["status"] == status and message in f"{problem['title']} {problem['detail']}"


@pytest.mark.parametrize(
    ("host", "any_address", "status"),
    [("localhost:1", False, 200), ("evil.example", False, 421), ("10.0.0.1:80", False, 421), ("10.0.0.1:80", True, 200),
     ("evil.example", True, 421)],
)  # fmt: skip
async def test_the_host_of_a_request_is_checked(
    two_runs: list[Path], host: str, any_address: bool, status: int
) -> None:
    client = viewer_client(open_index(*two_runs), any_address=any_address)
    assert (await client.get("/api/overview", headers={"host": host})).status_code == status


async def test_the_token_is_required_in_the_address_or_a_header_and_replaced_by_a_cookie(two_runs: list[Path]) -> None:
    async with viewer_client(open_index(*two_runs), token="s3cret") as client:
        for path in ("/api/overview", "/api/overview?token=wrong"):
            assert (await client.get(path)).status_code == 401
        assert (await client.get("/", headers={"authorization": "Bearer s3cret"})).status_code == 200
        redirect = await client.get("/?token=s3cret&x=1")
        assert (redirect.status_code, redirect.headers["location"]) == (303, "/?x=1")
        assert "HttpOnly" in redirect.headers["set-cookie"] and "s3cret" not in redirect.headers["set-cookie"]
        assert (await client.get("/api/overview")).status_code == 200


async def test_the_redirect_after_the_token_stays_on_this_host(two_runs: list[Path]) -> None:
    client = viewer_client(open_index(*two_runs), token="s3cret")
    response = await client.get("http://127.0.0.1:8080//evil.example/?token=s3cret")
    assert response.headers["location"].startswith("/evil")
