"""What the play token of a run opens, and what it does not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from rollyard.records.errors import FailureKind
from rollyard.records.run_types import Registration, play_token
from rollyard.records.types import Json
from rollyard.responses_api_models.chat_engine.vllm_control import FORWARDED, GETS, LOG_PROBS, POSTS, STATUS, UPDATE
from rollyard.services.head.registry_client import RegistryClient
from rollyard.services.http.client import SECRET_HEADER
from rollyard.services.http.request import HttpResponse
from rollyard.services.http.transport import HttpTransport
from rollyard.services.runtime.stack import Stack
from tests.support.fixtures import failure_of, http_transport, send
from tests.support.stacks import AGENT, EXAMPLES, colocated, load_config, read_rows
from tests.support.weight_engine import WeightEngine, trainer_server

TOKEN = "the-run-token-of-this-test"
PLAY = {"authorization": f"Bearer {play_token(TOKEN)}"}
ENVIRONMENT = "grl_sokoban_resources_server"
OPEN = {
    "head": {"/directory"},
    AGENT: {"/run", "/v1/responses", "/aggregate_metrics", "/v1/agent_sessions", "/v1/agent_sessions/close"},
    "policy_model": {
        *("/v1/responses", "/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"),
        *("/v1/models", "/v1/models/{name}"),
    },
    ENVIRONMENT: {
        *("/seed_session", "/reset", "/step", "/verify", "/close", "/close_session", "/aggregate_metrics"),
        *("/{tool}", "/tools", "/dataset_size", "/reverify_mode"),
    },
}
"""What a player may call, besides /health and /ready."""


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with colocated(load_config(), tmp_path, token=TOKEN) as started:
        yield started


async def urls(stack: Stack) -> dict[str, str]:
    servers = (await stack.registry_client().directory()).servers
    return {"head": stack.head_url, **{name: found[0] for name, found in servers.items()}}


async def routes(transport: HttpTransport, url: str) -> list[tuple[str, str]]:
    """The method and path of each route that the server documents."""
    answer = await send(transport, f"{url}/openapi.json", b"", "GET", {"authorization": f"Bearer {TOKEN}"})
    paths = orjson.loads(answer.body)["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


async def test_the_play_token_opens_the_routes_for_playing_and_no_other(stack: Stack) -> None:
    async with http_transport() as transport:
        for name, url in (await urls(stack)).items():
            opened = set()
            for method, path in await routes(transport, url):
                filled = path.replace("{name}", "x").replace("{episode}", "0" * 32)
                answer = await send(transport, url + filled, b"{}" if method == "POST" else b"", method, PLAY)
                assert answer.status != 401, path
                if answer.status != 403:
                    opened.add(path)
            assert opened - {"/health", "/ready"} == OPEN[name], name


async def post(transport: HttpTransport, url: str, body: Json, **headers: str) -> HttpResponse:
    return await send(transport, url, body, headers={**PLAY, **headers})


async def test_a_player_finds_the_servers_and_plays_with_the_play_token_alone(stack: Stack) -> None:
    row = read_rows(EXAMPLES)[0]
    async with http_transport() as transport:
        found = await urls(stack)
        played = orjson.loads((await post(transport, f"{found[AGENT]}/run", row)).body)
        assert played["reward"] is not None and played["response"]["output"]
        opened = await post(transport, f"{found[ENVIRONMENT]}/seed_session", row)
        cookie = opened.cookies[0].partition(";")[0]
        closed = await post(transport, f"{found[ENVIRONMENT]}/close", {}, cookie=cookie)
        assert (opened.status, closed.status) == (200, 200)


async def test_the_directory_of_a_player_has_no_settings(stack: Stack) -> None:
    async with http_transport() as transport:
        own, its = [
            orjson.loads((await send(transport, f"{stack.head_url}/directory", b"", "GET", headers)).body)
            for headers in ({"authorization": f"Bearer {TOKEN}"}, PLAY)
        ]
    assert own["settings"] and own["code"] and its["servers"] == own["servers"]
    assert (its["settings"], its["code"], its["changed_code"]) == ({}, {}, {})


async def test_a_player_cannot_register_a_server_although_it_knows_the_secret(stack: Stack) -> None:
    found = Registration(name=AGENT, instance=f"{AGENT}#2", url="http://127.0.0.1:9", pid=1, ready=True)
    stack.registry.expect(found.instance)
    headers = {**PLAY, SECRET_HEADER: stack.keys.secret}
    async with http_transport() as transport:
        answer = await send(transport, f"{stack.head_url}/register", found.model_dump(), headers=headers)
    assert (answer.status, orjson.loads(answer.body)["type"]) == (403, "urn:rollyard:forbidden")
    assert f"{AGENT}#2" not in stack.registry.directory().instances


async def test_the_refusal_names_the_plane_and_not_the_token(stack: Stack) -> None:
    async with http_transport() as transport:
        answer = await send(transport, f"{stack.head_url}/global_config_dict_yaml", b"", "GET", PLAY)
    detail = orjson.loads(answer.body)["detail"]
    assert "GET /global_config_dict_yaml belongs to the control plane" in detail
    assert TOKEN not in detail and play_token(TOKEN) not in detail


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/metrics", 403),
        ("GET", "//metrics", 403),
        ("GET", "/metrics/", 403),
        ("GET", "/METRICS", 403),
        ("GET", "/%6detrics", 403),
        ("GET", "/health/../metrics", 403),
        ("GET", "/health/%2e%2e/metrics", 403),
        ("GET", "/metrics?path=/health", 403),
        ("GET", "/ng-rollout/1-0/metrics", 403),
        ("HEAD", "/metrics", 403),
        ("POST", "/policy/responses", 403),
        ("POST", "/%70olicy/responses", 403),
        ("POST", "/ng-rollout/1-0/policy/responses", 403),
        ("POST", "/ng-rollout/1-0/training-token-capture/policy/responses", 403),
        ("POST", "/recorded/close", 403),
        ("POST", "/recorded/v1/responses", 403),
        ("PUT", "/v1/responses", 403),
    ],
)
async def test_no_form_of_a_path_leads_a_player_into_the_control_plane(
    stack: Stack, method: str, path: str, status: int
) -> None:
    url = (await urls(stack))["policy_model"]
    async with http_transport() as transport:
        answer = await send(transport, url + path, b"{}" if method == "POST" else b"", method, PLAY)
    assert answer.status == status


async def test_a_channel_that_a_player_opens_does_not_lead_into_the_control_plane(stack: Stack) -> None:
    async with http_transport() as transport:
        url = (await urls(stack))["policy_model"]
        headers = {"content-type": "application/json", **PLAY}
        for path, status in (("/v1/responses", 200), ("/recorded/open", 403)):
            body = orjson.dumps({"input": "Go.", "keep_s": 1.0})
            answer = await transport.send("POST", url + path, body, headers, 60.0, True)
            assert answer.status == status, path


async def test_a_player_cannot_touch_the_weights_or_the_settings_of_engines() -> None:
    engine = WeightEngine()
    async with trainer_server(engine, token=TOKEN) as policy:
        for path in (UPDATE, LOG_PROBS, *POSTS, *FORWARDED):
            assert (await policy.send("POST", path, {}, PLAY))[0].status == 403, path
        for path in (STATUS, *GETS, "/policy_version"):
            assert (await policy.send("GET", path, None, PLAY))[0].status == 403, path
        assert (await policy.send("POST", "/v1/responses", {"input": "Go."}, PLAY))[0].status == 200
    assert engine.paths == ["/v1/chat/completions"]


async def test_a_wrong_token_that_looks_like_a_play_token_is_401(stack: Stack) -> None:
    wrong = {"authorization": f"Bearer {play_token(TOKEN + '!')}"}
    async with http_transport() as transport:
        answer = await send(transport, f"{stack.head_url}/directory", b"", "GET", wrong)
    assert answer.status == 401


async def test_a_short_run_token_has_no_play_token(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the run token has 5 characters"):
        play_token("short")
    async with colocated(load_config(), tmp_path, token="short") as started, http_transport() as transport:
        headers = {"authorization": "Bearer "}
        assert (await send(transport, f"{started.head_url}/health", b"", "GET", headers)).status == 401


async def test_a_collection_with_the_play_token_ends_before_it_writes_anything(stack: Stack) -> None:
    keys = stack.keys.model_copy(update={"token": play_token(TOKEN)})
    async with http_transport() as transport:
        registry = RegistryClient(transport, stack.head_url, keys)
        failure = await failure_of(registry.code())
    assert failure.kind is FailureKind.FORBIDDEN and "the control plane" in failure.problem.detail
