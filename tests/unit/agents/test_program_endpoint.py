"""The server that programs call: a key opens the doors of its own episode, while that is played, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import orjson
import pytest

from rollyard.agents.program_agent.endpoint import ProgramEndpoint, Visitor
from rollyard.agents.tools import ToolAnswer
from rollyard.records.types import Json
from rollyard.services.http.request import HttpResponse
from rollyard.services.http.transport import HttpTransport, LocalTransport
from rollyard.services.server.app import Context
from tests.support.fixtures import KEYS, http_transport, listening, make_client
from tests.unit.services.http.raw_requests import JSON, request

MINE, OTHER = "a" * 32, "b" * 32
KEY, OTHER_KEY = "key-of-mine", "key-of-other"
DIALECTS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens")
BEARER, OTHER_BEARER = f"authorization: Bearer {KEY}", f"authorization: Bearer {OTHER_KEY}"


@dataclass
class Doors:
    """An endpoint with two episodes, and what was asked and used in each."""

    url: str
    endpoint: ProgramEndpoint
    asked: list[tuple[str, str]] = field(default_factory=list)

    def visitor(self, episode: str, key: str) -> Visitor:
        async def ask(path: str, body: bytes) -> HttpResponse:
            self.asked.append((episode, path))
            return HttpResponse(200, {"content-type": "application/json"}, b'{"of": "%b"}' % episode.encode())

        async def use(name: str, arguments: Json) -> ToolAnswer:
            self.asked.append((episode, name))
            return ToolAnswer(f"tool of {episode}", done=False)

        return Visitor(key, ask, [{"type": "function", "name": f"tool_{episode[0]}"}], use)

    async def post(self, path: str, *headers: str, body: Json | None = None) -> tuple[int, Json]:
        sent = orjson.dumps({"input": "Go."} if body is None else body)
        return await request(self.url, JSON, *headers, line=f"POST {path} HTTP/1.1", body=sent)

    async def get(self, path: str, *headers: str, method: str = "GET") -> tuple[int, Json]:
        return await request(self.url, *headers, line=f"{method} {path} HTTP/1.1")


@pytest.fixture
async def doors() -> AsyncIterator[Doors]:
    endpoint = ProgramEndpoint(Context("programs", KEYS, make_client({}, LocalTransport(HttpTransport()))))
    async with listening(endpoint) as hosted:
        made = Doors(hosted.url, endpoint)
        for episode, key in ((MINE, KEY), (OTHER, OTHER_KEY)):
            endpoint.admit(episode, made.visitor(episode, key))
        yield made


@pytest.mark.parametrize("header", [BEARER, f"x-api-key: {KEY}", f"X-Api-Key: {KEY}", f"AUTHORIZATION: Bearer {KEY}"])
async def test_a_key_opens_its_own_episode_in_each_dialect(doors: Doors, header: str) -> None:
    for path in DIALECTS:
        assert await doors.post(f"/{MINE}{path}", header) == (200, {"of": MINE})
    assert doors.asked == [(MINE, path) for path in DIALECTS]


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (BEARER,),
        (f"x-api-key: {KEY}",),
        (f"x-api-key: {KEY}", OTHER_BEARER.replace("Bearer", "Basic")),
        ("authorization: Bearer ",),
        ("authorization: Bearer",),
        ("x-api-key: ",),
        (f"authorization: Bearer {OTHER_KEY[:-1]}",),
        (f"authorization: Bearer {OTHER_KEY}x",),
        (f"authorization: Bearer {OTHER_KEY.upper()}",),
        (f"authorization: Bearer {OTHER}",),
        (f"authorization: Bearer {KEY}, Bearer {OTHER_KEY}",),
        (f"cookie: key={OTHER_KEY}",),
        (f"x-session-id: {OTHER}", BEARER),
        ("authorization: Bearer \xe9\xff",),
        ("x-api-key: guess", BEARER),
        (BEARER, "authorization: Bearer guess"),
        ("authorization: Bearer guess", BEARER),
    ],
)
async def test_no_other_key_opens_an_episode(doors: Doors, headers: tuple[str, ...]) -> None:
    for path in (*DIALECTS, "/mcp"):
        status, error = await doors.post(f"/{OTHER}{path}", *headers, body={"id": 1, "method": "tools/list"})
        assert (status, error["error"]["type"]) == (401, "unauthorized") and not doors.asked


@pytest.mark.parametrize(
    "path",
    [
        f"/{MINE}/../{OTHER}/v1/responses",
        f"/{MINE}/%2e%2e/{OTHER}/v1/responses",
        f"/{MINE}/v1/../../{OTHER}/v1/responses",
        f"/{MINE}//{OTHER}/v1/responses",
        f"//{OTHER}/v1/responses",
        f"/{OTHER}/v1/responses?key={OTHER_KEY}&token={OTHER_KEY}&api_key={OTHER_KEY}",
        f"/{OTHER}/v1/responses#{MINE}",
        f"/{OTHER.upper()}/v1/responses",
        f"/{OTHER[:-1]}%62/v1/responses",
        f"/ng-rollout/{MINE}/{OTHER}/v1/responses",
        f"/ng-rollout/{MINE}/training-token-capture/{OTHER}/v1/responses",
        f"/ng-rollout/{OTHER}/v1/responses",
        f"/{MINE}%2f..%2f{OTHER}/v1/responses",
        f"/{OTHER};{MINE}/v1/responses",
        f"/{OTHER}/{MINE}/v1/responses",
        f"/{MINE}%00{OTHER}/v1/responses",
        f"/{MINE}%0a/v1/responses",
        "/v1/responses",
        "/",
        "/recorded/v1/responses",
        "/recorded/close",
    ],
)
async def test_no_form_of_a_path_leads_to_another_episode(doors: Doors, path: str) -> None:
    status, _ = await doors.post(path, BEARER)
    assert status in (401, 404) and not doors.asked


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/embeddings", "/v1/models", "/recorded/close", "/recorded/open", "/token_check", "/v1/completions"),
        *("/weights/update", "/register", "/heartbeat", "/verify", "/close", "/seed_session", "/run", "/metrics"),
        *("/v1/responses/", "/v1//responses", "/V1/responses", "/v1/messages/../responses", "/mcp/"),
    ],
)
async def test_an_episode_has_no_doors_but_the_policy_and_the_tools(doors: Doors, path: str) -> None:
    status, _ = await doors.post(f"/{MINE}{path}", BEARER)
    assert status == 404 and not doors.asked


@pytest.mark.parametrize(
    "path",
    [
        *("/metrics", "/health", "/ready", "/docs", "/openapi.json", "/redoc", "/docs/oauth2-redirect", "/directory"),
        *("/episodes", "/collections", "/server_instances", "/global_config_dict_yaml", "/weights/status", "/"),
        *(f"/{MINE}/metrics", f"/{MINE}/episodes", f"/{MINE}/v1/responses", f"/{OTHER}/v1/responses"),
    ],
)
async def test_the_endpoint_shows_nothing_of_the_run(doors: Doors, path: str) -> None:
    for method in ("GET", "OPTIONS", "DELETE", "PUT"):
        status, shown = await doors.get(path, BEARER, method=method)
        assert status in (404, 405) and OTHER not in str(shown).replace(path, "") and not doors.asked


async def test_a_key_ends_with_its_episode(doors: Doors) -> None:
    body = {"id": 1, "method": "tools/list", "input": "Go."}
    paths = [f"/{MINE}{path}" for path in (*DIALECTS, "/mcp")]
    assert {(await doors.post(path, BEARER, body=body))[0] for path in paths} == {200}
    doors.endpoint.dismiss(MINE)
    doors.asked.clear()
    assert {(await doors.post(path, BEARER, body=body))[0] for path in paths} == {401}
    assert (await doors.get(f"/{MINE}/v1/models", BEARER))[0] == 401 and not doors.asked


async def test_an_episode_that_was_played_before_has_another_key(doors: Doors) -> None:
    doors.endpoint.dismiss(MINE)
    doors.endpoint.admit(MINE, doors.visitor(MINE, "another-key"))
    assert (await doors.post(f"/{MINE}/v1/responses", BEARER))[0] == 401


async def test_the_models_need_the_key_of_their_episode(doors: Doors) -> None:
    found = [(await doors.get(f"/{episode}/v1/models", BEARER))[0] for episode in (MINE, OTHER, OTHER.upper(), "%2e")]
    assert found == [200, 401, 401, 401]


async def test_the_tools_are_those_of_the_keys_episode(doors: Doors) -> None:
    _, listed = await doors.post(f"/{MINE}/mcp", BEARER, body={"id": 1, "method": "tools/list"})
    assert [tool["name"] for tool in listed["result"]["tools"]] == ["tool_a"]
    called = {"id": 1, "method": "tools/call", "params": {"name": "tool_b", "arguments": {"episode": OTHER}}}
    _, answer = await doors.post(f"/{MINE}/mcp", BEARER, f"mcp-session-id: {OTHER}", body=called)
    assert answer["result"]["content"][0]["text"] == f"tool of {MINE}"
    assert doors.asked == [(MINE, "tool_b")]  # whose environment refuses what it has not


async def test_a_channel_needs_the_key_for_each_of_its_requests(doors: Doors) -> None:
    body = orjson.dumps({"input": "Go."})
    async with http_transport() as transport:
        statuses = []
        for episode, key in ((MINE, KEY), (OTHER, KEY), (OTHER, ""), (MINE, KEY)):
            headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
            url = f"{doors.url}/{episode}/v1/responses"
            statuses.append((await transport.send("POST", url, body, headers, 60.0, True)).status)
        doors.endpoint.dismiss(MINE)
        headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
        url = f"{doors.url}/{MINE}/v1/responses"
        statuses.append((await transport.send("POST", url, body, headers, 60.0, True)).status)
    assert statuses == [200, 401, 401, 200, 401]


async def test_many_guesses_open_nothing(doors: Doors) -> None:
    paths = [f"/{number:032x}/v1/responses" for number in range(100)]
    statuses = await asyncio.gather(*(doors.post(path, BEARER) for path in paths))
    assert {status for status, _ in statuses} == {401} and not doors.asked


async def test_an_error_tells_nothing_of_other_episodes(doors: Doors) -> None:
    for path in (f"/{OTHER}/v1/responses", f"/{'c' * 32}/v1/responses"):
        _, error = await doors.post(path, BEARER)
        assert error["error"]["message"] == (
            "the key is not that of a running episode; expected Authorization: Bearer {api_key}"
        )
