"""Calls of an episode: only what a turn adds is parsed, converted and encoded, and the engine sees no difference."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollyard.records.types import Json
from rollyard.responses_api_models.vllm_model.app import VllmModel
from rollyard.services.http.client import EPISODE_HEADER
from rollyard.services.http.transport import LocalTransport
from rollyard.services.server.app import Server
from tests.support.scripted_engine import Engine, engine, model_server
from tests.support.waiting import until

WAIT_S = 120.0
USER: Json = {"role": "user", "content": "go"}
TOKENS: Json = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5], "token_trace": {}}
CALL: Json = {"type": "function", "name": "step", "parameters": {"type": "object"}}

texts = st.sampled_from(["", "a", "]}", '"]},{', "\u2028\\", "<think>b</think>c"])
extras = st.sampled_from([{}, {}, {"odd": {"input": []}}, {"id": "x", "status": "completed"}])
images = st.just({"type": "input_image", "image_url": "data:image/png;base64,AA=="})
prompts = texts | st.lists(st.builds(lambda text: {"type": "input_text", "text": text}, texts) | images, max_size=2)
answers = texts | st.lists(
    st.builds(lambda text: {"type": "output_text", "text": text}, texts)
    | st.just({"type": "refusal", "refusal": "no"}),
    max_size=2,
)
item = st.one_of(
    st.builds(
        lambda role, content, more: {"role": role, "content": content, **more},
        st.sampled_from(["user", "system", "developer"]),
        prompts,
        extras,
    ),
    st.builds(lambda content, more: {"role": "assistant", "content": content, **more}, answers, extras),
    st.builds(lambda content: {"type": "message", "role": "assistant", "content": content, **TOKENS}, answers),
    st.builds(lambda text: {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}, texts),
    st.builds(
        lambda name, arguments, more: {
            "type": "function_call",
            "call_id": "c",
            "name": name,
            "arguments": arguments,
            **more,
        },
        st.sampled_from(["step", "", "an odd name"]),
        st.sampled_from(["{}", '{"a": "]}"}', "not JSON", {"a": 1}, None]),
        extras,
    ),
    st.builds(lambda output: {"type": "function_call_output", "call_id": "c", "output": output}, prompts),
)
turns = st.lists(st.tuples(st.booleans(), st.lists(item, max_size=3), st.booleans()), max_size=6)
"""For each turn: whether the previous one is taken back first, what is added, and whether it is also streamed."""
params = st.sampled_from([{}, {"instructions": "i", "tools": [CALL]}, {"stream": False, "metadata": {"a": "b"}}])


@contextlib.asynccontextmanager
async def served(**options: bool) -> AsyncIterator[tuple[Engine, Server]]:
    async with engine() as fake, model_server(VllmModel, base_url=fake.url, **options) as server:
        yield fake, server


async def post(server: Server, body: bytes, episode: str | None = "e1") -> int:
    local = LocalTransport(server.client.transport)
    local.mount("http://policy", server)
    headers = {"content-type": "application/json", **({EPISODE_HEADER: episode} if episode else {})}
    return (await local.send("POST", "http://policy/v1/responses", body, headers, WAIT_S)).status


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(params, st.booleans(), turns)
async def test_a_conversation_that_grows_reaches_the_engine_as_if_it_was_sent_at_once(
    given_params: Json, strict: bool, grown: list[tuple[bool, list[Json], bool]]
) -> None:
    async with served(strict_tools=strict) as (fake, server):
        conversation, before = [USER], [USER]
        for goes_back, added, streams in [(False, [], False), *grown]:
            before, conversation = conversation, (before if goes_back else conversation) + added
            if streams:
                await post(server, orjson.dumps({**given_params, "stream": True, "input": conversation}))
            body = orjson.dumps({**given_params, "input": conversation})
            statuses = await post(server, body), await post(server, body, None)
            assert statuses == (200, 200)
            of_episode, whole = fake.requests[-2:]
            assert of_episode == whole


@pytest.mark.parametrize("continues", [True, False])
async def test_calls_of_one_episode_at_the_same_time_keep_their_own_conversations(
    continues: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [asyncio.Event() for _ in range(2)]

    async def look_up(body: Json) -> None:
        await held[looked_up.pop()].wait()

    first, second, third = ([{"role": "user", "content": str(number)}] for number in range(3))
    given = [first, [*(first if continues else second), *second]]
    given.append([*given[1], *third])
    async with served() as (fake, server):
        assert isinstance(server, VllmModel)
        if continues:
            await post(server, orjson.dumps({"input": first}))
            given = [[*first, *conversation] for conversation in given]
        fake.requests.clear()
        monkeypatch.setattr(server.trainer, "check_seed", look_up)  # which may have to ask an engine first
        looked_up = [1, 0]  # read from its end
        late = asyncio.create_task(post(server, orjson.dumps({"input": given[0]})))
        await until(lambda: len(looked_up) == 1)
        other = asyncio.create_task(post(server, orjson.dumps({"input": given[1]})))
        held[1].set()
        await other
        held[0].set()
        await late
        looked_up = [0]
        await post(server, orjson.dumps({"input": given[2]}))
        assert [request["messages"] for request in fake.requests] == [given[1], given[0], given[2]]


async def test_what_a_streamed_call_of_the_episode_added_is_not_lost() -> None:
    async with served() as (fake, server):
        conversation = [USER]
        for stream in (False, True, False, False, True):
            await post(server, orjson.dumps({"stream": stream, "input": conversation}))
            assert fake.requests[-1]["messages"] == conversation
            conversation = [*conversation, {"role": "user", "content": str(stream)}]


async def test_an_item_that_cannot_be_converted_is_refused_also_by_later_calls() -> None:
    odd = {"role": "juror", "content": "guilty"}
    async with served() as (fake, server):
        assert await post(server, orjson.dumps({"input": [USER]})) == 200
        for more in ([], [], [USER], []):
            assert await post(server, orjson.dumps({"input": [USER, odd, *more]})) == 400
        assert len(fake.requests) == 1


@pytest.mark.parametrize("cut", ["", "}"])
async def test_a_body_that_ends_too_early_is_refused_although_it_repeats_the_last_one(cut: str) -> None:
    item: Json | list[int] = [1] if cut else {"role": "user", "content": [{"type": "input_text", "text": "a"}]}
    given = orjson.dumps({"input": [USER, item]})
    async with served() as (_, server):
        await post(server, given)
        assert await post(server, given.removesuffix(b"]}") + cut.encode()) == 400
