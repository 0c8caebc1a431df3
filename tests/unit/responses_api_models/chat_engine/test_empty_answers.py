"""What counts as a model turn: a broken engine's empty answer is a failed attempt, a genuinely empty turn is not."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from openai.types.chat import ChatCompletion

from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.records.errors import Failure
from rollyard.records.types import Json, Verdict
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Verification, tool
from rollyard.responses_api_models.conversion import chat_to_response, response_to_chat
from rollyard.responses_api_models.openai_model.app import OpenaiModel
from rollyard.responses_api_models.vllm_model.app import VllmModel, VllmModelSettings
from rollyard.services.http.request import RawRequest
from rollyard.services.server.app import Context, Server
from rollyard.services.server.settings import ServerSettings
from tests.support.in_process import agent, environment, in_process_servers
from tests.support.scripted_engine import COMPLETION, DONE, Step, completion, engine, model_server, post_json
from tests.support.token_clients import CALL_TURN, TEXT_TURN, open_episode, user_message
from tests.support.token_engine import TokenEngine

FAILURE_TYPES = {"urn:rollyard:malformed_answer", "urn:rollyard:upstream_error"}
MESSAGE: Json = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hello"}]}
RESPONSE: Json = {"id": "resp_1", "object": "response", "status": "completed", "output": [MESSAGE]}
ONE_TOKEN: Json = {"usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}}


class LookEnvironment(Environment[EnvironmentSettings]):
    @tool
    async def look(self) -> str:
        """Look around."""
        return "nothing"

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=1.0)


def empty(finish_reason: Any = "stop", content: Any = "", **more: Any) -> Json:
    return completion({"content": content}, finish_reason, usage=None) | more


NO_CHOICES: list[Any] = [[{"message": {}}], [], None, [None], [{"message": None}]]
EMPTY_COMPLETIONS: list[Json] = [
    *({"choices": choices} for choices in NO_CHOICES),
    {"error": {"message": "no engine"}},
    empty(None, **ONE_TOKEN),
    empty(None, None, **ONE_TOKEN),
    empty("mystery", **ONE_TOKEN),
    empty("tool_calls", **ONE_TOKEN),
    empty({"type": "abort"}, **ONE_TOKEN),
    empty("engine_error", "half a text", **ONE_TOKEN),
    empty("abort", "half a text"),
    empty("stop"),
    empty("stop", usage={"prompt_tokens": 5, "completion_tokens": 0}),
    empty("length", usage={}),
    empty(None, " \n", **ONE_TOKEN),
    empty("stop", []),
    empty("stop", usage={"completion_tokens": True}),
    empty(None, None) | {"choices": [{"message": {"reasoning_content": " \n"}, "finish_reason": None}]},
    {**completion({"content": "half a text"}), "error": {"message": "the provider died", "code": 502}},
    {**completion({"content": "half a text"}), "object": "error", "message": "the provider died"},
    {"choices": [{**completion({"content": "half a text"})["choices"][0], "error": {"message": "the provider died"}}]},
]
CALL: Json = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def split(first: Json, second: Json, finish_reason: str = "stop") -> Json:
    pair = [completion(message, finish_reason)["choices"][0] for message in (first, second)]
    return {**COMPLETION, "choices": [choice | {"index": number} for number, choice in enumerate(pair)]}


LOST_CALLS: list[Json] = [
    split({"content": "I look."}, {"content": None, "tool_calls": [CALL]}),
    split({"content": "I look."}, {"content": None, "tool_calls": [CALL]}, "tool_calls"),
    split({"content": "I look."}, {"content": None, "function_call": CALL["function"]}),
    split({"tool_calls": [CALL]}, {"tool_calls": [CALL | {"id": "c2"}]}, "tool_calls"),
    *(completion({"content": "I look."}, reason) for reason in ("tool_calls", "function_call", "tool_use")),
    *(completion({"content": "I look."}, reason) for reason in ("TOOL_CALLS", "tool_call", "MALFORMED_FUNCTION_CALL")),
    completion({"content": "I look.", "tool_calls": []}, "tool_calls"),
    completion({"content": [{"type": "text", "text": "I look."}, {"type": "tool_use", "name": "look"}]}, "stop"),
    completion({"content": [{"type": "text", "text": "I look."}, {"type": "tool_use", "name": "look"}]}, "tool_calls"),
]
EMPTY_COMPLETIONS += LOST_CALLS
GENUINE_COMPLETIONS: list[Json] = [
    empty("stop", **ONE_TOKEN),
    empty("stop", None, **ONE_TOKEN),
    empty("length", **ONE_TOKEN),
    empty("content_filter"),
    empty("stop", " \n"),
    empty(None, "text without a finish"),
]


def said(*parts: Json, **more: Any) -> Json:
    return {**RESPONSE, "output": [{**MESSAGE, "content": [*parts]}], **more}


EMPTY_RESPONSES: list[Json] = [
    {**RESPONSE, "output": []},
    {**RESPONSE, "output": None},
    {**RESPONSE, "output": [], "status": None},
    *({**RESPONSE, "status": status} for status in ("failed", "in_progress", "queued", "cancelled", "error")),
    said(),
    said({"type": "output_text", "text": ""}, usage={"output_tokens": 0}),
    {"error": "no engine"},
    {**RESPONSE, "output": [], "status": "incomplete", "usage": {"output_tokens": 3}},
    {**RESPONSE, "status": "incomplete", "incomplete_details": {"reason": "engine_error"}},
    {**RESPONSE, "error": {"code": "server_error", "message": "the provider died"}},
    {**RESPONSE, "object": "error", "message": "the provider died"},
    *({**RESPONSE, "output": [item]} for item in ("text", {"type": None}, {"type": ["message"]}, {"type": "banana"})),
    {**RESPONSE, "output": [{"type": "error", "message": "the provider died"}]},
]
CUT: Json = {"output": [], "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
GENUINE_RESPONSES: list[Json] = [
    {**RESPONSE, "output": [], "usage": {"output_tokens": 1}},
    {**RESPONSE, **CUT, "usage": {"output_tokens": 4}},
    {**RESPONSE, **CUT, "incomplete_details": {"reason": "content_filter"}},
]
CHAT: Json = {"messages": [{"role": "user", "content": "hi"}]}
HI: Json = {"input": "hi"}


@pytest.mark.parametrize("kind", [VllmModel, OpenaiModel])
async def test_an_empty_completion_of_a_broken_engine_is_retried_and_then_a_failure(kind: type[Server]) -> None:
    script = [step for broken in EMPTY_COMPLETIONS for step in (broken, COMPLETION, broken, broken)]
    async with engine(*script) as fake, model_server(kind, base_url=fake.url, max_attempts=2) as server:
        for number, broken in enumerate(EMPTY_COMPLETIONS, 1):
            answer, body = await post_json(server, "/v1/chat/completions", CHAT)
            assert (answer.status, body["choices"][0]["message"]["content"]) == (200, "hello"), broken
            path = "/v1/responses" if kind is VllmModel else "/v1/chat/completions"
            _, problem = await post_json(server, path, {**CHAT, **HI})
            assert (problem.get("type") in FAILURE_TYPES, len(fake.requests)) == (True, 4 * number), broken


async def test_a_genuinely_empty_completion_counts_as_a_model_turn() -> None:
    for path in ("/v1/responses", "/v1/chat/completions"):
        async with engine(*GENUINE_COMPLETIONS) as fake, model_server(VllmModel, base_url=fake.url) as server:
            for number, genuine in enumerate(GENUINE_COMPLETIONS, 1):
                answer, _ = await post_json(server, path, {**CHAT, **HI})
                assert (answer.status, len(fake.requests)) == (200, number), genuine


async def test_an_empty_response_of_a_broken_endpoint_is_retried_and_a_genuinely_empty_one_is_returned() -> None:
    script = [step for broken in EMPTY_RESPONSES for step in (broken, RESPONSE)]
    async with engine(*script, *GENUINE_RESPONSES) as fake, model_server(OpenaiModel, base_url=fake.url) as server:
        for number, broken in enumerate(EMPTY_RESPONSES, 1):
            answer, body = await post_json(server, "/v1/responses", dict(HI))
            assert (answer.status, body, len(fake.requests)) == (200, RESPONSE, 2 * number), broken
        for genuine in GENUINE_RESPONSES:
            assert (await post_json(server, "/v1/responses", dict(HI)))[1] == genuine


class Foreign(Server):
    """Another project's model server, which forwards whatever its engine returns."""

    answer: Json

    def __init__(self, context: Context) -> None:
        super().__init__(ServerSettings(), context)
        self.route("/v1/responses", self.__respond)

    async def __respond(self, call: RawRequest) -> bytes:
        return orjson.dumps(self.answer)


async def test_an_agent_does_not_score_an_empty_response_of_a_foreign_model_server() -> None:
    servers: Any = {"environment": environment(LookEnvironment), "agent": agent(SimpleAgent), "model": Foreign}
    async with in_process_servers(servers) as stack:
        for broken in EMPTY_RESPONSES:
            Foreign.answer = broken
            with pytest.raises(Failure) as caught:
                await stack.run({"responses_create_params": {"input": "hi"}})
            assert caught.value.problem.type in FAILURE_TYPES, broken
            assert (caught.value.problem.server, caught.value.terminal) == ("model", False), broken


def chunk(delta: Json, finish_reason: str | None = None, index: int = 0) -> Json:
    choice = {"index": index, "delta": delta, "finish_reason": finish_reason}
    return {**COMPLETION, "usage": None, "choices": [choice]}


ROLE = chunk({"role": "assistant", "content": ""})
USAGE: Json = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 1}}
COMPLETE_STREAM = (ROLE, chunk({"content": "hello"}), chunk({}, "stop"), DONE)
EMPTY_STREAMS: dict[str, tuple[Json | bytes, ...]] = {
    "no events": (),
    "done at once": (DONE,),
    "a role": (ROLE, DONE),
    "a role and the end of the connection": (ROLE,),
    "comments": (b": waiting\n\n", b": waiting\n\n"),
    "no finish": (ROLE, chunk({}), USAGE, DONE),
    "no tokens": (ROLE, chunk({}, "stop"), DONE),
    "a broken generation": (ROLE, chunk({}, "engine_error"), USAGE, DONE),
    "an error": (ROLE, {"error": {"message": "EngineCore died"}}, DONE),
}


TEXT = chunk({"content": "I look."})
DELTA: Json = {"tool_calls": [CALL | {"index": 0}]}
LOST_IN_STREAMS: dict[str, tuple[Json | bytes, ...]] = {
    "a call in a second choice": (ROLE, TEXT, chunk(DELTA, index=1), chunk({}, "stop"), DONE),
    "an older call in a second choice": (ROLE, TEXT, chunk({"function_call": CALL["function"]}, index=1), DONE),
    "no call": (ROLE, TEXT, chunk({}, "tool_calls"), DONE),
    "a call in the content": (
        ROLE,
        chunk({"content": [{"type": "tool_use", "name": "look"}]}),
        chunk({}, "stop"),
        DONE,
    ),
    "no call in capitals": (ROLE, TEXT, chunk({}, "TOOL_CALLS"), DONE),
    "no older call": (ROLE, TEXT, chunk({}, "function_call"), DONE),
    "an empty list of calls": (ROLE, TEXT, chunk({"tool_calls": []}, "tool_calls"), DONE),
}


@pytest.mark.parametrize("kind", [VllmModel, OpenaiModel])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize("case", LOST_IN_STREAMS)
async def test_a_stream_that_loses_a_call_ends_with_an_error(path: str, case: str, kind: type[Server]) -> None:
    if kind is OpenaiModel and path == "/v1/responses":
        return  # its endpoint streams Responses itself
    async with (
        engine(Step(events=LOST_IN_STREAMS[case])) as fake,
        model_server(kind, base_url=fake.url, max_attempts=1) as server,
    ):
        answer, _ = await post_json(server, path, {**CHAT, **HI, "stream": True})
    assert b"malformed_answer" in answer.body
    assert b"[DONE]" not in answer.body and b"response.completed" not in answer.body


async def test_calls_in_all_choices_that_were_requested_are_forwarded() -> None:
    whole = split({"content": "I look."}, {"content": None, "tool_calls": [CALL]})
    events = (ROLE, TEXT, chunk(DELTA, index=1), chunk({}, "stop"), chunk({}, "tool_calls", 1), DONE)
    async with engine(whole, Step(events=events)) as fake, model_server(VllmModel, base_url=fake.url) as server:
        _, body = await post_json(server, "/v1/chat/completions", {**CHAT, "n": 2})
        answer, _ = await post_json(server, "/v1/chat/completions", {**CHAT, "n": 2, "stream": True})
    assert body["choices"][1]["message"]["tool_calls"] == [CALL]
    assert b"[DONE]" in answer.body and b"error" not in answer.body.replace(b'"error":null', b"")


async def test_a_call_in_the_older_field_is_read() -> None:
    older = {"content": None, "function_call": CALL["function"]}
    events = (ROLE, chunk({"function_call": CALL["function"]}), chunk({}, "function_call"), DONE)
    steps = (completion(older, "function_call"), Step(events=events))
    async with engine(*steps) as fake, model_server(VllmModel, base_url=fake.url) as server:
        _, body = await post_json(server, "/v1/responses", dict(HI))
        answer, _ = await post_json(server, "/v1/responses", {**HI, "stream": True})
    assert [(item["type"], item["name"]) for item in body["output"]] == [("function_call", "look")]
    assert b"response.function_call_arguments.done" in answer.body


@pytest.mark.parametrize("kind", [VllmModel, OpenaiModel])
@pytest.mark.parametrize(("given", "sent"), [(None, "{}"), ({"a": 1}, '{"a":1}'), (" ", " ")])
async def test_arguments_of_a_forwarded_call_are_text(kind: type[Server], given: Any, sent: str) -> None:
    called = CALL | {"function": {"name": "look", "arguments": given}}
    events = (ROLE, chunk({"tool_calls": [called | {"index": 0}]}), chunk({}, "tool_calls"), DONE)
    steps = (completion({"content": None, "tool_calls": [called]}, "tool_calls"), Step(events=events))
    async with engine(*steps) as fake, model_server(kind, base_url=fake.url) as server:
        _, body = await post_json(server, "/v1/chat/completions", CHAT)
        answer, _ = await post_json(server, "/v1/chat/completions", {**CHAT, "stream": True})
    assert body["choices"][0]["message"]["tool_calls"][0]["function"] == {"name": "look", "arguments": sent}
    assert b'"arguments":null' not in answer.body.replace(b" ", b"") and b'"arguments":{' not in answer.body


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_stream_that_ends_before_any_output_is_requested_again(path: str) -> None:
    steps = [Step(events=events) for broken in EMPTY_STREAMS.values() for events in (broken, COMPLETE_STREAM)]
    async with engine(*steps) as fake, model_server(VllmModel, base_url=fake.url) as server:
        for number, case in enumerate(EMPTY_STREAMS, 1):
            answer, _ = await post_json(server, path, {**CHAT, **HI, "stream": True})
            assert (answer.status, len(fake.requests), b"hello" in answer.body) == (200, 2 * number, True), case
            assert b"error" not in answer.body.replace(b'"error":null', b""), case


async def test_a_genuinely_empty_stream_counts_as_a_model_turn() -> None:
    step = Step(events=(ROLE, chunk({}, "stop"), USAGE, DONE))
    async with engine(step) as fake, model_server(VllmModel, base_url=fake.url) as server:
        answer, _ = await post_json(server, "/v1/responses", {**HI, "stream": True})
    assert (len(fake.requests), b"response.completed" in answer.body) == (1, True)


async def test_with_recorded_tokens_a_generation_without_tokens_is_a_failed_attempt() -> None:
    for backend in ["generate", "completions", "off"]:
        engine_with_gap = TokenEngine([CALL_TURN, [], TEXT_TURN])
        async with open_episode(engine_with_gap, token_in=backend, logprobs_mode="processed_logprobs") as client:
            await client.ask()
            assert (await client.ask(user_message("on")))["generation_token_ids"] == TEXT_TURN


def call(name: Any = "look", arguments: Any = "{}", **more: Any) -> Json:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def deep(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"a": value}
    return value


ODD_NAMES: list[Any] = [call(name) for name in ("", None, 7, {"a": 1}, "x" * 5000, "look at\nit", "..", "смотри")]
ODD_ARGUMENTS: list[Any] = [
    *(call(arguments=value) for value in (None, {"a": 1}, [1], "7", '{"a": ', '{"a": NaN}', '{"a": "\\ud800"}')),
    *(call(arguments=value) for value in ("[" * 20_000, deep(300))),
]
ODD_CALLS: list[Any] = [
    call(id=None),
    call(id=3),
    {"id": "c1", "type": "custom", "custom": {"name": "look", "input": "free text"}},
    {"id": "c1", "type": "function"},
    {"id": "c1", "type": "function", "function": None},
    "look",
]


def check_calls(body: Json) -> None:
    for message in body["messages"]:
        for one in message.get("tool_calls") or ():
            assert isinstance(one["id"], str)
            assert one["id"]
            assert isinstance(one["function"]["name"], str)
            assert one["function"]["name"]
            assert isinstance(orjson.loads(one["function"]["arguments"] or "{}"), dict)


async def play_rollout(*steps: Step) -> tuple[Json, list[Json]]:
    async with engine(*steps) as fake:
        settings = VllmModelSettings(base_url=fake.url, model="engine-model", retry_pause_s=0.01)

        def policy(context: Context) -> Server:
            return VllmModel(settings, context)

        async with in_process_servers(
            {"environment": environment(LookEnvironment), "agent": agent(SimpleAgent), "model": policy}
        ) as stack:
            rollout = await stack.run({"responses_create_params": {"input": "hi"}})
    for request in fake.requests:
        check_calls(request)
    return rollout, fake.requests


@pytest.mark.parametrize("odd", [ODD_NAMES, ODD_ARGUMENTS, ODD_CALLS], ids=["names", "arguments", "calls"])
async def test_a_mistake_in_a_call_is_answered_and_the_rollout_continues(odd: list[Any]) -> None:
    """Each mistake is in a turn of its own, before a correct call."""
    turns = [completion({"content": None, "tool_calls": [one, call(id="c2")]}, "tool_calls") for one in odd]
    steps = [Step(json.dumps(turn).encode()) for turn in turns]
    rollout, requests = await play_rollout(*steps, Step(COMPLETION))
    assert (rollout["finish_reason"], len(requests)) == ("answered", len(odd) + 1)
    outputs = [item for item in rollout["response"]["output"] if item["type"] == "function_call_output"]
    assert len(outputs) == 2 * len(odd)
    orjson.dumps(rollout)


@pytest.mark.parametrize(
    "message",
    [
        rb'{"role": "assistant", "content": "a \ud800 b"}',
        rb'{"role": "assistant", "content": null, "reasoning_content": "\udfff", "tool_calls": []}',
        rb'{"content": null, "tool_calls": [{"id": "\ud800", "function": {"name": "look\ud800", "arguments": "{}"}}]}',
        rb'{"tool_calls": [{"id": "c", "function": {"name": "look", "arguments": "{\"a\": \"\ud800\"}"}}]}',
        rb'{"content": null, "tool_calls": [{"id": "c", "function": {"name": "look", "arguments": {"a": NaN}}}]}',
        b'{"role": "assistant", "content": "a \xed\xa0\x80 b"}',
    ],
)
async def test_half_a_surrogate_pair_in_an_answer_does_not_fail_the_rollout(message: bytes) -> None:
    body = b'{"model": "engine-model", "choices": [{"index": 0, "message": %b, "finish_reason": "stop"}]}' % message
    rollout, requests = await play_rollout(Step(body), Step(COMPLETION))
    assert rollout["finish_reason"] == "answered"
    assert requests[0]["messages"]
    orjson.dumps(rollout)


NO_LISTS: list[Json] = [
    *({"tool_calls": calls} for calls in (call(arguments=None), "look()", [None], [], None)),
    {"tool_calls": [{"function": {"name": "look", "arguments": "{}"}}]},
    {"tool_calls": [{"id": "c1", "function": {"name": "look"}}]},
    {"tool_calls": [{"id": "c1", "type": "function", "name": "look", "arguments": {}}]},
    {"function_call": {"name": "look", "arguments": {}}},
    {"function_call": {"name": "look", "arguments": None}},
]


@pytest.mark.parametrize("message", [*NO_LISTS, *({"tool_calls": [one]} for one in ODD_NAMES)])
@pytest.mark.parametrize("kind", [VllmModel, OpenaiModel])
async def test_every_call_has_the_form_that_chat_clients_read(message: Json, kind: type[Server]) -> None:
    answer = completion({"content": "a", **message}, "stop")
    async with engine(answer) as fake, model_server(kind, base_url=fake.url) as server:
        _, body = await post_json(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
    read = ChatCompletion.model_validate(body).choices[0].message
    assert read.tool_calls != []
    for one in read.tool_calls or ():
        assert one.type == "function" and one.id
        assert isinstance(one.function.name, str) and isinstance(one.function.arguments, str)


async def test_calls_of_one_turn_never_share_an_id() -> None:
    answer = completion({"content": None, "tool_calls": [call(), call(), call()]}, "tool_calls")
    rollout, _ = await play_rollout(Step(answer), Step(COMPLETION))
    output = rollout["response"]["output"]
    ids = [item["call_id"] for item in output if item["type"] == "function_call"]
    answered = [item["call_id"] for item in output if item["type"] == "function_call_output"]
    assert (len(set(ids)), sorted(answered)) == (3, sorted(ids))


async def test_the_record_keeps_what_the_model_wrote() -> None:
    odd = call("look at it", '{"a": ')
    rollout, requests = await play_rollout(Step(completion({"tool_calls": [odd]}, "tool_calls")), Step(COMPLETION))
    (recorded,) = [item for item in rollout["response"]["output"] if item["type"] == "function_call"]
    assert (recorded["name"], recorded["arguments"]) == ("look at it", '{"a": ')
    (sent,) = requests[1]["messages"][1]["tool_calls"]
    assert sent["function"] == {"name": "look_at_it", "arguments": '{"invalid_arguments":"{\\"a\\": "}'}


def test_unknown_fields_of_calls_and_annotations_survive_both_conversions() -> None:
    cited: Json = {"type": "url_citation", "url_citation": {"url": "http://x", "start_index": 0}}
    signed = call(extra_content={"google": {"thought_signature": "abc"}})
    message = {"content": "text", "annotations": [cited], "tool_calls": [signed], "reasoning_details": [{"data": "e"}]}
    again = response_to_chat(chat_to_response(completion(message), {"input": "x"}))["choices"][0]["message"]
    assert again["tool_calls"][0]["extra_content"] == signed["extra_content"]
    assert again["annotations"] == [cited]
