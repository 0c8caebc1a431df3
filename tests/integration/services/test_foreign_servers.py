"""Runs with servers that are not Rollyard's: programs of NeMo Gym, and servers that run elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest
import uvicorn
from fastapi import FastAPI, Request, Response

from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import Failure, FailureKind, RunError
from rollyard.records.run_types import ServerInstance
from rollyard.records.types import Json
from rollyard.services.config.load import load
from rollyard.services.config.run_config import RunConfig
from rollyard.services.http.client import Session
from rollyard.services.http.listener import bind
from rollyard.services.runtime.stack import Stack
from tests.support.foreign_folders import SCRIPTED_MODEL, entry, make_root, program_entry
from tests.support.processes import alive, free_port, processes_with
from tests.support.stacks import colocated, processes
from tests.support.waiting import deadline_s, until


@dataclass(frozen=True)
class Both:
    """A running stack, its folder, and the URL of its server that runs elsewhere."""

    stack: Stack
    folder: Path
    url: str


ROW = {"responses_create_params": {"input": [{"role": "user", "content": "count"}]}, "wanted": 4}


def run_config(root: Path, counter: Json, elsewhere: Json | None = None) -> RunConfig:
    """A run of `agent` with `counter`, and of `agent_elsewhere` with the other counter if there is one."""
    model = root / "responses_api_models" / "scripted_model"
    model.mkdir(parents=True)
    (model / "app.py").write_text(SCRIPTED_MODEL)
    tree = {"counter": counter, "policy_model": entry("responses_api_models", "scripted_model"), "agent": _agent()}
    if elsewhere is not None:
        tree |= {"elsewhere": elsewhere, "agent_elsewhere": _agent("elsewhere")}
    return load([tree], [], [root, INSTALLED], {})


def _agent(environment: str = "counter") -> Json:
    references = {
        "resources_server": {"type": "resources_servers", "name": environment},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    return entry("responses_api_agents", "simple_agent", entrypoint="app.py", **references)


async def play(stack: Stack, agent: str = "agent") -> Json:
    answer: Json = orjson.loads((await stack.client.post(agent, "/run", orjson.dumps(ROW), deadline_s())).body)
    return answer


def shown(stack: Stack, name: str = "counter") -> ServerInstance:
    return next(one for one in stack.registry.instances() if one.server_name == name)


def external_app(broken: Mapping[str, tuple[int, bytes]]) -> FastAPI:
    """The counter as a server that someone else runs. It sets a cookie, and has only /openapi.json.

    `broken`: path -> status and body with which it responds instead.
    """
    app, totals = FastAPI(), dict[str, int]()

    @app.middleware("http")
    async def respond(request: Request, proceed: Callable[[Request], Awaitable[Response]]) -> Response:
        if request.url.path in broken:
            status, body = broken[request.url.path]
            return Response(body, status)
        return await proceed(request)

    @app.post("/seed_session")
    async def seed(response: Response) -> Json:
        totals["s"] = 0
        response.set_cookie("elsewhere", "s")
        return {}

    @app.post("/add")
    async def add(request: Request) -> Json:
        totals[request.cookies["elsewhere"]] += (await request.json())["x"]
        return {"total": totals["s"]}

    @app.post("/verify")
    async def verify(request: Request) -> Json:
        body = await request.json()
        seen = {"cookies": sorted(request.cookies), "headers": sorted(request.headers)}
        return {**body, "reward": float(totals["s"] == body["wanted"]), "seen": seen}

    return app


@contextlib.asynccontextmanager
async def served(port: int = 0, broken: Mapping[str, tuple[int, bytes]] | None = None) -> AsyncIterator[int]:
    """Serve the external counter; yields its port. A later change of `broken` counts, too."""
    sock = bind("127.0.0.1", port)
    app = external_app({} if broken is None else broken)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    await until(lambda: server.started)
    try:
        yield int(sock.getsockname()[1])
    finally:
        server.should_exit = True
        await serving


@pytest.fixture(scope="module", params=[colocated, processes])
async def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Both]:
    """A run with a token, a program of NeMo Gym and a server that runs elsewhere."""
    folder = tmp_path_factory.mktemp("both")
    make_root(folder)
    async with served() as port:
        url = f"http://127.0.0.1:{port}"
        config = run_config(folder, program_entry(), entry("resources_servers", "elsewhere", url=url))
        async with request.param(config, folder, token="secret") as stack:
            yield Both(stack, folder, url)


async def test_an_agent_plays_a_program_of_nemo_gym(both: Both) -> None:
    assert shown(both.stack).ready and not shown(both.stack).phase
    rollout = await play(both.stack)
    assert rollout["reward"] == 1.0
    assert rollout["seen"]["cookies"] == ["counter_session"]
    assert not [name for name in rollout["seen"]["headers"] if name.startswith("x-rollyard")]
    assert shown(both.stack).origin.startswith("NeMo Gym, ")


async def test_a_program_starts_ray_only_when_it_uses_it(both: Both) -> None:
    await play(both.stack)
    assert not (both.folder / "nemo_gym" / "ray_started").exists()


async def test_an_agent_plays_a_server_that_runs_elsewhere(both: Both) -> None:
    rollout = await play(both.stack, "agent_elsewhere")
    assert rollout["reward"] == 1.0 and rollout["seen"]["cookies"] == ["elsewhere"]
    server = shown(both.stack, "elsewhere")
    assert (server.origin, server.status) == (f"external, {both.url}", "success")


async def test_the_runs_token_is_not_sent_to_a_server_that_runs_elsewhere(both: Both) -> None:
    headers = (await play(both.stack, "agent_elsewhere"))["seen"]["headers"]
    assert "cookie" in headers and "authorization" not in headers


async def test_a_program_with_its_own_ray_cluster_connects_to_it(tmp_path: Path) -> None:
    make_root(tmp_path)
    async with colocated(run_config(tmp_path, program_entry(ray_head_node_address="127.0.0.1:1")), tmp_path):
        assert (tmp_path / "nemo_gym" / "ray_started").exists()


async def test_a_killed_program_starts_again_and_open_sessions_are_lost(tmp_path: Path) -> None:
    make_root(tmp_path)
    async with colocated(run_config(tmp_path, program_entry()), tmp_path) as stack:
        session = Session(stack.client, "counter")
        await session.post("/seed_session", b"{}", deadline_s())
        killed = shown(stack).pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        await until(lambda: shown(stack).ready and shown(stack).pid != killed)
        await stack.client.book.refresh()
        with pytest.raises(Failure) as raised:
            await session.post("/verify", orjson.dumps(ROW), deadline_s())
        assert raised.value.kind is FailureKind.SESSION_LOST
        assert (await play(stack))["reward"] == 1.0 and shown(stack).restarts == 1


async def test_a_program_whose_code_changed_does_not_join_the_run_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_root(tmp_path)
    async with colocated(run_config(tmp_path, program_entry()), tmp_path) as stack:
        killed = shown(stack).pid
        assert killed is not None and stack.registry.code["counter"].files
        (folder / "app.py").write_text((folder / "app.py").read_text() + "\n# changed\n")
        os.kill(killed, signal.SIGKILL)
        await until(lambda: "code of counter changed" in caplog.text)
        assert not shown(stack).ready


async def test_a_program_that_ends_during_the_start_fails_it_with_the_end_of_its_log(tmp_path: Path) -> None:
    make_root(tmp_path)
    with pytest.raises(RunError, match=r"(?s)counter exited .*the counter refuses"):
        async with colocated(run_config(tmp_path, program_entry(refuses=True)), tmp_path):
            pass


async def test_what_a_program_started_ends_with_the_run(tmp_path: Path) -> None:
    orphan = "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
    folder = make_root(tmp_path)
    (folder / "app.py").write_text(orphan + (folder / "app.py").read_text())
    async with colocated(run_config(tmp_path, program_entry()), tmp_path) as stack:
        assert list(processes_with("NEMO_GYM_CONFIG_PATH", "counter"))
        pid = shown(stack).pid
    assert pid is not None and not alive(pid)
    assert not [pid for pid in processes_with("NEMO_GYM_CONFIG_PATH", "counter") if _belongs_to(pid, tmp_path)]


def _belongs_to(pid: int, folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return f"PYTHONPATH={folder}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    return False


async def test_a_server_that_goes_down_and_comes_back_is_noticed(tmp_path: Path) -> None:
    messages: list[str] = []
    async with contextlib.AsyncExitStack() as first:
        port = await first.enter_async_context(served(free_port()))  # where it comes back
        counter = entry("resources_servers", "counter", host="127.0.0.1", port=port)
        async with colocated(run_config(tmp_path, counter), tmp_path, messages=messages) as stack:
            session = Session(stack.client, "counter")
            await session.post("/seed_session", b"{}", deadline_s())
            await first.aclose()
            await until(lambda: shown(stack).status == "connection_error")
            assert not stack.registry.directory().servers["counter"]
            async with served(port):
                await until(lambda: shown(stack).ready)
                await stack.client.book.refresh()
                with pytest.raises(Failure) as raised:
                    await session.post("/verify", orjson.dumps(ROW), deadline_s())
                assert raised.value.kind is FailureKind.SESSION_LOST
                assert (await play(stack))["reward"] == 1.0
    url = f"http://127.0.0.1:{port}"
    assert ["again" in line for line in messages if "counter" in line and url in line][-2:] == [False, True]


async def test_a_server_that_never_responds_fails_the_start_with_its_address(tmp_path: Path) -> None:
    port = free_port()
    counter = entry("resources_servers", "counter", host="127.0.0.1", port=port, start_timeout_s=0.5)
    with pytest.raises(RunError, match=rf"counter .*http://127.0.0.1:{port} within 0.5 s"):
        async with colocated(run_config(tmp_path, counter), tmp_path):
            pass


BROKEN = [
    ("/seed_session", 500, b"boom", FailureKind.SERVER_ERROR),
    ("/verify", 500, b'"boom"', FailureKind.SERVER_ERROR),
    ("/verify", 200, b"<html>", FailureKind.MALFORMED_ANSWER),
    ("/verify", 200, b'{"reward": "high"}', FailureKind.MALFORMED_ANSWER),
]


async def test_a_broken_response_of_a_foreign_server_is_a_failure_that_names_it(tmp_path: Path) -> None:
    broken: dict[str, tuple[int, bytes]] = {}
    async with served(broken=broken) as port:
        counter = entry("resources_servers", "counter", host="127.0.0.1", port=port)
        async with colocated(run_config(tmp_path, counter), tmp_path) as stack:
            for path, status, body, kind in BROKEN:
                broken.clear()
                broken[path] = (status, body)
                with pytest.raises(Failure) as raised:
                    await play(stack)
                assert (raised.value.kind, raised.value.problem.server) == (kind, "counter"), (path, body)
