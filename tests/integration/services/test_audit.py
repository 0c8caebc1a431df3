"""Which acts are in the audit log of a run, and what is in no line of it."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from rollyard.records.run_types import Keys, Registration, play_token
from rollyard.records.types import Json
from rollyard.services.http.client import SECRET_HEADER
from rollyard.services.http.request import RawRequest
from rollyard.services.http.transport import HttpTransport, LocalTransport
from rollyard.services.server.app import Context, Server
from rollyard.services.server.settings import ServerSettings
from tests.support.asgi_requests import call_app
from tests.support.fixtures import http_transport, listening, make_client, send
from tests.support.stacks import AGENT, EXAMPLES, collect, colocated, load_config
from tests.support.weight_engine import WeightEngine, trainer_server

TOKEN = "the-run-token-of-this-test"
CONTROL = {"authorization": f"Bearer {TOKEN}"}
STATUS: Json = {
    **dict.fromkeys(("expected", "measured", "failed", "failed_attempts", "in_flight", "updated", "pid"), 0),
    **dict.fromkeys(("successes", "mean_reward", "reward_stderr", "eta_s")),
    "failures": {},
    "rollouts_per_s": 0.0,
}
"""Of a collection that has just begun."""


async def answered(call: RawRequest) -> bytes:
    return orjson.dumps({"got": call.json()})


def make_server(folder: Path, token: str | None = None) -> Server:
    """A server with one act, /weights/update, and one route that changes nothing."""
    keys = Keys(run_id="r1", secret="s", token=token)
    client = make_client({}, LocalTransport(HttpTransport()))
    server = Server(ServerSettings(), Context("policy", keys, client, folder))
    server.route("/weights/update", answered)
    server.route("/v1/responses", answered)
    server.audit("/weights/update")
    return server


def lines(folder: Path) -> list[Json]:
    path = folder / "audit.jsonl"
    return [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


async def test_a_run_records_its_start_its_servers_and_its_end_but_no_playing(tmp_path: Path) -> None:
    async with colocated(load_config(), tmp_path, token=TOKEN) as stack:
        await collect(stack, tmp_path / "rollouts.jsonl", rows=EXAMPLES, limit=2)
        logs = stack.folder.logs
    acts = [(line["server"], line["act"]) for line in lines(logs)]
    assert acts[0] == ("ng_run", "start") and acts[-1] == ("ng_run", "stop")
    assert set(acts[1:-1]) == {("head", "POST /register")}
    assert AGENT in {line["detail"].get("name") for line in lines(logs)}


async def test_of_the_reports_to_the_head_those_that_only_count_on_are_not_recorded(tmp_path: Path) -> None:
    async with colocated(load_config(), tmp_path, token=TOKEN) as stack, http_transport() as transport:
        before = len(lines(stack.folder.logs))
        for state in ("running", "running", "running", "complete"):
            report = {"output": "/x.jsonl", "status": {**STATUS, "state": state}, "failures": []}
            assert (await send(transport, f"{stack.head_url}/collection", report, headers=CONTROL)).status == 200
        (agent,) = [one for one in stack.registry.instances() if one.server_name == AGENT]
        loading = Registration(name=AGENT, instance=agent.process_name, url=agent.url or "", pid=1, phase="loading 7/9")
        headers = {**CONTROL, SECRET_HEADER: stack.keys.secret}
        assert (
            await send(transport, f"{stack.head_url}/register", loading.model_dump(), headers=headers)
        ).status == 200
        acts = [(line["act"], line["detail"]["state"]) for line in lines(stack.folder.logs)[before:]]
    assert acts == [("POST /collection", "running"), ("POST /collection", "complete")]


@pytest.mark.parametrize("plane", ["", "control"])
async def test_an_act_over_a_socket_has_the_address_the_user_and_the_plane_of_its_caller(
    plane: str, tmp_path: Path
) -> None:
    server = make_server(tmp_path, TOKEN if plane else None)
    async with listening(server) as hosted, http_transport() as transport:
        sent = {"path": "/weights/7", "version": "7"}
        headers = {**CONTROL, "content-type": "application/json"}
        for channel in (False, True):
            url, body = f"{hosted.url}/weights/update?mode=keep", orjson.dumps(sent)
            assert (await transport.send("POST", url, body, headers, 60.0, channel)).status == 200
    for line in lines(tmp_path):
        assert (line["act"], line["status"], line["server"]) == ("POST /weights/update", 200, "policy")
        assert line["detail"] == {**sent, "mode": "keep"}
        assert line["origin"]["address"].startswith("127.0.0.1:") and line["origin"]["plane"] == plane
        assert isinstance(line["origin"]["uid"], int)
    assert len(lines(tmp_path)) == 2


@pytest.mark.parametrize("path", ["/v1/responses", "/nowhere"])
async def test_what_changes_nothing_is_not_recorded(path: str, tmp_path: Path) -> None:
    await call_app(make_server(tmp_path), path)
    assert not lines(tmp_path)


async def test_updates_of_weights_and_control_calls_of_trainers_are_recorded(caplog: pytest.LogCaptureFixture) -> None:
    async with trainer_server(WeightEngine()) as policy:
        for path, body in (("/pause", None), ("/resume", None), ("/weights/update", {"path": "/weights/7"})):
            assert (await policy.post(path, body))[0] == 200
        await policy.get("/weights/status")
        await policy.call_model()
    written = [record.getMessage() for record in caplog.records if record.getMessage().startswith("audit: ")]
    acts = [orjson.loads(line.removeprefix("audit: "))["act"] for line in written]
    assert acts == ["POST /pause", "POST /resume", "POST /weights/update"]


@pytest.mark.parametrize("authorization", ["", "Bearer no", f"Bearer {play_token(TOKEN)}"])
async def test_a_refused_caller_cannot_fill_the_log(authorization: str, tmp_path: Path) -> None:
    server = make_server(tmp_path, TOKEN)
    assert (await call_app(server, "/weights/update", authorization=authorization)).status in (401, 403)
    assert not lines(tmp_path)


async def test_the_head_records_no_registration_without_the_secret_of_the_run(tmp_path: Path) -> None:
    async with colocated(load_config(), tmp_path, token=TOKEN) as stack, http_transport() as transport:
        before = lines(stack.folder.logs)
        assert (await send(transport, f"{stack.head_url}/register", {"p": "x"}, headers=CONTROL)).status == 401
        assert lines(stack.folder.logs) == before


async def test_a_failed_act_is_recorded_with_its_status(tmp_path: Path) -> None:
    await call_app(make_server(tmp_path), "/weights/update", b"not JSON")
    assert [(line["status"], line["detail"]) for line in lines(tmp_path)] == [(400, {})]


async def test_a_prefix_of_a_rollout_does_not_hide_an_act(tmp_path: Path) -> None:
    await call_app(make_server(tmp_path), "/ng-rollout/1-0/weights/update", {"path": "/weights/7"})
    assert [line["act"] for line in lines(tmp_path)] == ["POST /weights/update"]


async def test_no_secret_is_in_a_line(tmp_path: Path) -> None:
    secret = "hunter2-hunter2"
    body = {
        "api_key": secret,
        "token": secret,
        "url": f"http://me:{secret}@engine:1/v1",
        "headers": {"authorization": secret},
        "args": [secret],
        "path": "/weights/7",
    }
    server = make_server(tmp_path, TOKEN)
    await call_app(server, f"/weights/update?hf_token={secret}", body, authorization=f"Bearer {TOKEN}")
    written = (tmp_path / "audit.jsonl").read_text()
    assert "/weights/7" in written and secret not in written and TOKEN not in written


async def test_a_large_act_makes_a_short_line(tmp_path: Path) -> None:
    server = make_server(tmp_path)
    await call_app(server, "/weights/update", {"path": "x" * 50_000})
    await call_app(server, "/weights/update", {"path": "x" * 500_000})
    await call_app(server, "/weights/update", {f"value-{number}": number for number in range(3000)})
    assert all(len(orjson.dumps(line)) < 1000 for line in lines(tmp_path)) and len(lines(tmp_path)) == 3


async def test_of_a_long_text_only_its_length_is_recorded_so_that_it_is_not_searched_for_secrets(
    tmp_path: Path,
) -> None:
    secret = "hunter2-hunter2"
    await call_app(make_server(tmp_path), "/weights/update", {"url": f"http://{secret * 40}@engine", "p": "a-" * 9999})
    (line,) = lines(tmp_path)
    assert line["detail"] == {"url": "(614 characters)", "p": "(19998 characters)"}


async def test_the_secret_of_a_run_is_not_in_its_audit_log(tmp_path: Path) -> None:
    async with colocated(load_config(), tmp_path, token=TOKEN) as stack, http_transport() as transport:
        found = Registration(name=AGENT, instance=f"{AGENT}#9", url="http://127.0.0.1:9", pid=1)
        headers = {**CONTROL, SECRET_HEADER: stack.keys.secret}
        answer = await send(transport, f"{stack.head_url}/register", found.model_dump(), headers=headers)
        assert answer.status != 200  # it was never launched
        written = (stack.folder.logs / "audit.jsonl").read_text()
    assert f"{AGENT}#9" in written and stack.keys.secret not in written and TOKEN not in written
