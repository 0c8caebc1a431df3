"""The viewer's endpoints as a browser uses them."""

from __future__ import annotations

from pathlib import Path

import httpx
import orjson
import pytest

from rollyard.analysis.viewer.responses import HEADERS
from tests.support.rollout_files import grid, random_rows, row, write, write_failures, write_manifest
from tests.unit.analysis.viewer.opened_runs import get_json, open_index, viewer_client

PATHS = [
    "/",
    "/static/main.js",
    "/api/overview",
    "/api/runs/0/profile",
    "/api/runs/0/rollouts",
    "/api/runs/0/rollouts/0/0",
    "/api/runs/0/rollouts/0/0/raw",
    "/api/compare",
    "/api/nothing",
    "/api/runs/0/rollouts?sort=colour",
]
RUNNING = {
    "state": "running", "expected": 9, "measured": 1, "failed": 0, "failed_attempts": 2, "in_flight": 1,
    "successes": None, "mean_reward": None, "reward_stderr": None, "rollouts_per_s": 1.0, "eta_s": None,
    "failures": {}, "updated": 4e9, "pid": 1,
}  # fmt: skip
"""A status file of a running collection."""


def write_two_runs(folder: Path) -> list[Path]:
    """Two runs on the same tasks; the second solves them more often."""
    files = [
        write(folder / "first.jsonl", grid([0, 1, 2], 2)),
        write(folder / "second.jsonl", grid([2, 1, 2, 2], 2)),
    ]
    for path in files:
        write_manifest(path, 4, 2)  # from the same input
    return files


@pytest.fixture
def two_runs(tmp_path: Path) -> list[Path]:
    return write_two_runs(tmp_path)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> httpx.AsyncClient:
    """A client of a viewer of two runs, for tests that change neither."""
    return viewer_client(open_index(*write_two_runs(tmp_path_factory.mktemp("viewer"))))


async def test_the_overview_lists_the_opened_runs(two_runs: list[Path]) -> None:
    async with viewer_client(open_index(*two_runs)) as client:
        overview = await get_json(client, "/api/overview")
    assert [(run["run"], run["name"], run["measured"]) for run in overview["runs"]] == [
        (0, "first", 6),
        (1, "second", 8),
    ]


async def test_the_profile_matches_ng_reward_profile(two_runs: list[Path]) -> None:
    async with viewer_client(open_index(*two_runs)) as client:
        profile = await get_json(client, "/api/runs/1/profile")
    assert profile["indexed"] == two_runs[1].stat().st_size
    assert profile["profile"]["solved"]["rollouts"] == 7


async def test_a_rollout_links_to_its_neighbours_and_its_raw_row(two_runs: list[Path]) -> None:
    async with viewer_client(open_index(*two_runs)) as client:
        rollout = await get_json(client, "/api/runs/0/rollouts/1/0")
        raw = await client.get("/api/runs/0/rollouts/1/0/raw")
    assert (rollout["previous"], rollout["next"]) == ([0, 1], [1, 1])
    assert raw.content == two_runs[0].read_bytes().split(b"\n")[2]
    assert raw.headers["content-type"] == "application/json"


async def test_two_runs_are_compared_task_by_task(two_runs: list[Path]) -> None:
    async with viewer_client(open_index(*two_runs)) as client:
        compared = await get_json(client, "/api/compare?first=0&second=1&sort=-change")
    assert compared["total"] == 4
    assert [pair["task"] for pair in compared["tasks"]] == [0, 1, 2, 3]
    assert compared["tasks"][0]["solved"] == [0.0, 1.0]
    assert compared["tasks"][3]["rewards"] == [None, 1.0]
    assert compared["difference"]["better"] == 1


async def test_runs_on_different_inputs_show_their_common_tasks_with_both_indices(tmp_path: Path) -> None:
    def run(name: str, first_key: int, counts: list[int]) -> Path:
        rows = grid(counts, 2)
        keyed_rows = [{**row, "_ng_task_key": f"{first_key + row['_ng_task_index']:016x}"} for row in rows]
        return write(tmp_path / f"{name}.jsonl", keyed_rows)

    async with viewer_client(open_index(run("first", 1, [0, 1, 2]), run("second", 3, [0, 2, 2]))) as client:
        compared = await get_json(client, "/api/compare?first=0&second=1&sort=task")
    (only,) = compared["tasks"]
    assert (only["task"], only["task_in_second"], only["solved"]) == (2, 0, [1.0, 0.0])
    assert compared["difference"]["tasks"] == 1


async def test_a_rollout_with_only_failed_attempts_lists_them(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", grid([1], 1))
    write_failures(path, [(5, 0, "unreachable"), (5, 0, "timeout"), (0, 0, "timeout")])
    async with viewer_client(open_index(path)) as client:
        lost, recovered = (
            await get_json(client, "/api/runs/0/rollouts/5/0"),
            await get_json(client, "/api/runs/0/rollouts/0/0"),
        )
        raw = await get_json(client, "/api/runs/0/rollouts/5/0/raw", 404)
    assert (lost["line"]["outcome"], lost["line"]["end"], lost["events"]) == ("failed", "timeout", [])
    assert [attempt["kind"] for attempt in lost["attempts"]] == ["unreachable", "timeout"]
    assert (recovered["line"]["outcome"], len(recovered["attempts"])) == ("measured", 1)
    assert "attempts failed" in raw["detail"]


async def test_during_a_collection_only_abandoned_rollouts_count_as_failed(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", grid([1], 1))
    lines = [{"_ng_task_index": task, "_ng_rollout_index": 0, "failure_kind": "timeout"} for task in (5, 6)]
    write(tmp_path / "x_failures.jsonl", [{**lines[0], "terminal": False}, {**lines[1], "terminal": True}])
    (tmp_path / "x_status.json").write_bytes(orjson.dumps(RUNNING))
    file_index = open_index(path)
    async with viewer_client(file_index) as client:
        running = await get_json(client, "/api/runs/0/rollouts?outcome=failed")
        (tmp_path / "x_status.json").write_bytes(orjson.dumps({**RUNNING, "state": "incomplete"}))
        file_index.read_through()
        finished = await get_json(client, "/api/runs/0/rollouts?outcome=failed")
    assert [line["task"] for line in running["lines"]] == [6]
    assert [line["task"] for line in finished["lines"]] == [5, 6]


async def test_a_rollout_without_attempts_left_counts_as_failed_until_a_later_command_retries_it(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "x.jsonl", grid([1], 1))
    kind = {"_ng_task_index": 5, "_ng_rollout_index": 0, "failure_kind": "timeout", "terminal": False}
    attempts = [{**kind, "abandoned": False, "time": 11.0}, {**kind, "abandoned": True, "time": 12.0}]
    (state := tmp_path / "x_status.json").write_bytes(orjson.dumps({**RUNNING, "started": 10.0}))
    file_index, outcomes = open_index(path), []
    async with viewer_client(file_index) as client:

        async def read() -> None:
            file_index.read_through()
            found = await get_json(client, "/api/overview")
            outcomes.append([(run["measured"], run["failed"]) for run in found["runs"]])

        for count in (1, 2):
            write(tmp_path / "x_failures.jsonl", attempts[:count])
            await read()
        state.write_bytes(orjson.dumps({**RUNNING, "started": 20.0}))
        await read()
        write(path, [*grid([1], 1), row(5, 0, 1.0)])
        await read()
    assert outcomes == [[(1, 0)], [(1, 1)], [(1, 0)], [(2, 0)]]


async def test_the_list_can_be_searched_for_text(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [row(0, repeat, 1.0, note=f"word{repeat}") for repeat in range(3)])
    async with viewer_client(open_index(path)) as client:
        page = await get_json(client, "/api/runs/0/rollouts?q=WORD1")
    assert ([line["repeat"] for line in page["lines"]], page["total"], page["searched"]) == ([1], 1, 1.0)


async def test_a_row_that_moved_is_not_confused_with_another(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", random_rows(3, 2))
    file_index = open_index(path)
    write(path, random_rows(3, 2, seed=1)[::-1])
    async with viewer_client(file_index) as client:
        response = await client.get("/api/runs/0/rollouts/1/1")
        file_index.read_through()
        rollout = await get_json(client, "/api/runs/0/rollouts/1/1")
    assert response.status_code == 409 or response.json()["line"] == rollout["line"]
    assert (rollout["line"]["task"], rollout["line"]["repeat"]) == (1, 1)


@pytest.mark.parametrize("path", PATHS)
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
        ("/static/../app.py", 404, ""),
        ("/static/%2e%2e/app.py", 404, ""),
    ],
)
async def test_errors_are_problem_documents(client: httpx.AsyncClient, path: str, status: int, message: str) -> None:
    response = await client.get(path)
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
    problem = response.json()
    assert problem["status"] == status
    assert message in f"{problem['title']} {problem['detail']}"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("[::1]:8080", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example:8080", 421),
        ("10.0.0.1", 421),
        ("", 421),
    ],
)
async def test_only_loopback_host_names_are_accepted(client: httpx.AsyncClient, host: str, status: int) -> None:
    assert (await client.get("/api/overview", headers={"host": host})).status_code == status


async def test_bound_to_all_addresses_any_ip_is_accepted_but_no_foreign_name(two_runs: list[Path]) -> None:
    async with viewer_client(open_index(*two_runs), any_address=True) as client:
        statuses = [
            (await client.get("/", headers={"host": host})).status_code for host in ("10.0.0.1:80", "evil.example")
        ]
    assert statuses == [200, 421]


async def test_the_token_is_required_and_then_replaced_by_a_cookie(two_runs: list[Path]) -> None:
    async with viewer_client(open_index(*two_runs), token="s3cret") as client:
        assert (await client.get("/api/overview")).status_code == 401
        assert (await client.get("/api/overview?token=wrong")).status_code == 401
        redirect = await client.get("/?token=s3cret&x=1")
        assert (redirect.status_code, redirect.headers["location"]) == (303, "/?x=1")
        assert "HttpOnly" in redirect.headers["set-cookie"] and "s3cret" not in redirect.headers["set-cookie"]
        assert (await client.get("/api/overview")).status_code == 200


async def test_a_program_may_send_the_token_in_a_header(two_runs: list[Path]) -> None:
    async with viewer_client(open_index(*two_runs), token="s3cret") as client:
        response = await client.get("/api/overview", headers={"authorization": "Bearer s3cret"})
    assert response.status_code == 200


async def test_the_redirect_after_the_token_stays_on_this_host(two_runs: list[Path]) -> None:
    async with viewer_client(open_index(*two_runs), token="s3cret") as client:
        response = await client.get("http://127.0.0.1:8080//evil.example/?token=s3cret")
    assert response.headers["location"].startswith("/evil")
