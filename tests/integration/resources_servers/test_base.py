"""What the base class does for every environment: cookies, error messages for the model, reserved names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.resources_servers.base import (
    BadTask,
    Environment,
    EnvironmentSettings,
    InvalidToolCall,
    Turn,
    Verdict,
    Verification,
    tool,
)
from rollyard.resources_servers.grl_sokoban.app import GrlSokoban
from rollyard.services.http.client import Session
from tests.support.in_process import InProcessServers, environment, in_process_servers, says
from tests.support.stacks import EXAMPLES


class Notes(Environment[EnvironmentSettings]):
    """Keeps notes."""

    @tool
    async def note(self, text: str, times: int = 1) -> str:
        """Write something down."""
        if not text:
            raise InvalidToolCall("an empty note says nothing: give it a text")
        return f"noted {text!r} {times} times"

    async def verify(self, response: Verification) -> Verdict:
        """Accepts every note."""
        return Verdict(reward=1.0)


async def foreign_post(
    stack: InProcessServers, path: str, body: Json, cookies: tuple[str, ...] = ()
) -> tuple[Any, tuple[str, ...]]:
    """A request of a foreign client: without Rollyard's headers, and only with the cookies that it received."""
    headers = {"cookie": "; ".join(cookie.partition(";")[0] for cookie in cookies)} if cookies else {}
    answer = await stack.transport.send("POST", f"http://environment:1{path}", orjson.dumps(body), headers, 5.0)
    assert answer.status == 200, answer.body
    return orjson.loads(answer.body), answer.cookies


async def test_a_client_that_keeps_only_the_last_answers_cookies_stays_in_its_session() -> None:
    async with in_process_servers({"environment": environment(Notes)}) as stack:
        _, cookies = await foreign_post(stack, "/seed_session", {})
        for path, body in (("/note", {"text": "a"}), ("/nothing", {}), ("/note", {"text": ""})):
            _, cookies = await foreign_post(stack, path, body, cookies)
        verdict, cookies = await foreign_post(stack, "/verify", {"response": {"output": []}}, cookies)
        assert verdict["reward"] == 1.0
        await foreign_post(stack, "/close", {}, cookies)
        assert stack.servers["environment"].sessions == 0


async def test_an_invalid_tool_call_returns_a_message_for_the_model() -> None:
    async with in_process_servers({"environment": environment(Notes)}) as stack:
        answer = await stack.post("environment", "/note", {"text": ""}, await open_session(stack, "/seed_session"))
    assert orjson.loads(answer.body) == {"error": "an empty note says nothing: give it a text"}


async def test_metrics_are_statistics_of_a_list_of_responses() -> None:
    async with in_process_servers({"environment": environment(Notes)}) as stack:
        bodies: list[Json] = [{"verify_responses": [1]}, {"verify_responses": {}}, {}]
        for body in bodies:
            assert (await stack.post("environment", "/aggregate_metrics", body)).status == 400
        rows = [{"reward": 1.0, "success": True, "_x": 3}, {"reward": 0.0, "success": False}]
        answer = await stack.post("environment", "/aggregate_metrics", {"verify_responses": rows})
    metrics = orjson.loads(answer.body)["agent_metrics"]
    assert (metrics["mean/reward"], metrics["max/success"], "mean/_x" in metrics) == (0.5, 1.0, False)


async def test_a_turn_based_session_gets_the_system_prompt_and_no_tools() -> None:
    async def reset(self: Any) -> tuple[str, Json]:
        return "Your turn.", {}

    rounds = type("Rounds", (Notes,), {"system_prompt": "Be brief.", "reset": reset})
    async with in_process_servers({"environment": environment(rounds)}) as stack:
        answer = await stack.post("environment", "/reset", {"responses_create_params": {"input": []}})
    assert orjson.loads(answer.body)["additions"] == {"input": [{"role": "system", "content": "Be brief."}]}


async def test_example_rows_are_those_of_the_folder_that_defines_the_environment() -> None:
    async with in_process_servers({"environment": environment(GrlSokoban), "none": environment(Notes)}) as stack:
        answer = await stack.transport.send("GET", "http://environment:1/examples", b"", {}, 5.0)
        missing = await stack.transport.send("GET", "http://none:1/examples", b"", {}, 5.0)
    assert len(orjson.loads(answer.body)) == len(EXAMPLES.read_bytes().splitlines())
    assert missing.status == 404
    assert str(Path(__file__).parent / "data" / "example.jsonl") in orjson.loads(missing.body)["detail"]


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no")


ODD_ERRORS: dict[str, BaseException] = {
    "unprintable": Unprintable(),
    "exit": SystemExit(3),
    "interrupt": KeyboardInterrupt(),
    "generator": GeneratorExit("bye"),
}


class Odd(Environment[EnvironmentSettings]):
    """Raises what the row says, where the row says."""

    def _raise_in(self, place: str) -> None:
        if self.task.get("place") == place:
            raise ODD_ERRORS[self.task["error"]]

    async def seed(self) -> list[Json]:
        self._raise_in("seed")
        return []

    @tool
    async def look(self) -> str:
        """Look."""
        self._raise_in("tool")
        return "seen"

    async def verify(self, response: Verification) -> Verdict:
        self._raise_in("verify")
        return Verdict(reward=1.0)

    async def close(self) -> None:
        self._raise_in("close")


@pytest.mark.parametrize("error", ODD_ERRORS)
@pytest.mark.parametrize("place", ["seed", "tool", "verify", "close"])
async def test_whatever_an_environment_raises_is_its_own_failure_and_loses_no_other_session(
    place: str, error: str
) -> None:
    async with in_process_servers({"environment": environment(Odd)}) as stack:
        neighbour, ours = Session(stack.client, "environment"), Session(stack.client, "environment")
        await neighbour.post("/seed_session", b"{}", 5.0)
        caught: Failure | None = None
        try:
            await ours.post("/seed_session", orjson.dumps({"place": place, "error": error}), 5.0)
            for path in ("/look", "/verify", "/close"):
                await ours.post(path, b'{"response": {"output": []}}' if path == "/verify" else b"{}", 5.0)
        except Failure as failure:
            caught = failure
        assert await neighbour.post("/look", b"{}", 5.0) == b'"seen"'
    if place == "close":  # it is logged: the episode has its verdict
        assert caught is None
        return
    assert caught is not None
    assert (caught.kind, caught.problem.server) == (FailureKind.SERVER_ERROR, "environment")
    shown = "sys.exit" if (error, place) in {("exit", "seed"), ("exit", "verify")} else type(ODD_ERRORS[error]).__name__
    assert shown in caught.problem.detail


REPLY: Json = {"response": {"output": [{"type": "message", "content": "go on"}]}}


class Both(Environment[EnvironmentSettings]):
    """Has a tool `step` and supports turn-based mode."""

    @tool
    async def step(self, response: Json | None = None, amount: int = 0) -> Json:
        return {"stepped": amount, "response": response}

    @tool
    async def refuse(self, how: str) -> str:
        if how == "bad_task":
            raise BadTask("there is no such level")
        if how in list(FailureKind):
            raise Failure(FailureKind(how), "a tool's own call failed")
        errors = {"recursion": RecursionError, "memory": MemoryError, "overflow": OverflowError}
        raise errors.get(how, RuntimeError)(how)

    @tool
    async def twice(self, numbers: list[int]) -> list[Any]:
        return [number * 2**40 for number in numbers]

    @tool
    async def power(self, exponent: int) -> int:
        return int(10**exponent)

    async def reset(self) -> tuple[str, Json]:
        return "begin", {}

    async def turn(self, text: str) -> Turn:
        if text == "odd":
            raise BadTask("this text is odd")
        return Turn(f"you wrote {text}", 1.0, text == "end", False, {})

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=1.0, text=response.text)


async def open_session(stack: InProcessServers, path: str) -> dict[str, str]:
    return {"cookie": (await stack.post("environment", path, {})).cookies[0].partition(";")[0]}


async def post(stack: InProcessServers, cookie: dict[str, str], path: str, body: Json | bytes) -> tuple[int, Any]:
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    answer = await stack.client.send("http://environment:1", path, content, 30.0, cookie)
    return answer.status, orjson.loads(answer.body)


@pytest.mark.parametrize(
    "body",
    [REPLY, {"response": {}}, {"response": "x"}, b'{"response": {', b'"response"', b'{"response": {"output": NaN}}'],
)
async def test_a_session_opened_by_seed_session_takes_every_step_for_the_tool(body: Json | bytes) -> None:
    async with in_process_servers({"environment": environment(Both)}) as stack:
        cookie = await open_session(stack, "/seed_session")
        status, answer = await post(stack, cookie, "/step", body)
        assert status == 200 and ("stepped" in answer or "call to step" in answer["error"])
        assert (await post(stack, cookie, "/verify", {"response": {"output": []}}))[1]["reward"] == 1.0


@pytest.mark.parametrize("path", ["/power", "/fly", "/step"])
async def test_a_session_opened_by_reset_has_no_tools_and_a_message_that_is_rejected_is_an_observation(
    path: str,
) -> None:
    async with in_process_servers({"environment": environment(Both)}) as stack:
        cookie = await open_session(stack, "/reset")
        status, answer = await post(stack, cookie, path, {"exponent": 1, "amount": 1})
        assert (status, answer["type"]) == (400, "urn:rollyard:bad_request")
        odd = (await post(stack, cookie, "/step", {"response": {"output": [{"type": "message", "content": "odd"}]}}))[1]
        assert (odd["observation"], odd["terminated"]) == ("this text is odd", False)
        assert (await post(stack, cookie, "/step", REPLY))[1]["observation"] == "you wrote go on"
        assert (await post(stack, cookie, "/verify", {"response": {"output": []}}))[0] == 200
        assert (await post(stack, cookie, "/close", {}))[1] == {"closed": True}


@pytest.mark.parametrize(
    "name", ["health", "tools", "openapi.json", "Close", "RESET", "v1/responses", "run", "", ".", "%63lose"]
)
async def test_an_unknown_tool_returns_a_message_and_leaves_the_session_open(name: str) -> None:
    async with in_process_servers({"environment": environment(Both)}) as stack:
        cookie = await open_session(stack, "/seed_session")
        status, answer = await post(stack, cookie, f"/{name}", {})
        assert (status, "no tool" in answer["error"]) == (200, True)
        assert stack.servers["environment"].sessions == 1


@pytest.mark.parametrize(
    ("how", "is_failure"),
    [
        *((how, False) for how in ("bad_task", "bad_request", "recursion", "memory", "overflow")),
        *((how, True) for how in ("upstream_error", "timeout", "bug")),
    ],
)
async def test_arguments_that_a_tool_rejects_are_words_and_any_other_error_is_a_failure(
    how: str, is_failure: bool
) -> None:
    async with in_process_servers({"environment": environment(Both)}) as stack:
        status, answer = await post(stack, await open_session(stack, "/seed_session"), "/refuse", {"how": how})
    assert (
        (status >= 500, answer["server"]) == (True, "environment")
        if is_failure
        else (status, [*answer]) == (200, ["error"])
    )


async def test_a_result_beyond_64_bits_is_sent_and_one_with_too_many_digits_returns_a_message() -> None:
    async with in_process_servers({"environment": environment(Both)}) as stack:
        cookie = await open_session(stack, "/seed_session")
        numbers = b'{"numbers": [4611686018427387904]}'
        answer = await stack.client.send("http://environment:1", "/twice", numbers, 30.0, cookie)
        error = await post(stack, cookie, "/power", {"exponent": 5000})
    assert answer.body == b"[%d]" % 2**102
    assert error[0] == 200 and "too large" in error[1]["error"]


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ([], ""),
        ([{"type": "message"}], ""),
        ([{"type": "message", "content": [{"type": "output_text", "text": None}]}], ""),
        ([{"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}], ""),
        ([{"role": "assistant", "content": "42"}], "42"),
        ([{"type": None, "role": "assistant", "content": [{"type": None, "text": "42"}]}], "42"),
        ([{"content": [{"type": "text", "text": "4"}, {"text": "2"}]}], "42"),
        ([{"type": "message", "role": "assistant", "content": [{"type": "input_text", "text": "42"}]}], "42"),
        ([{"type": "message", "role": "assistant", "content": ["4", "2"]}], "42"),
        ([says("42"), {"role": "user", "content": "the next observation"}], "42"),
    ],
)
@pytest.mark.parametrize(
    "status", [{}, {"status": "completed"}, {"status": "incomplete", "usage": {"output_tokens": 1}}]
)
async def test_what_is_readable_in_a_response_is_read(output: Any, text: str, status: Json) -> None:
    async with in_process_servers({"environment": environment(Both)}) as stack:
        cookie = await open_session(stack, "/seed_session")
        found, answer = await post(stack, cookie, "/verify", {"response": {"output": output, **status}})
    assert (found, answer["text"]) == (200, text)


CHAT: Json = {"object": "chat.completion", "choices": [{"message": {"role": "assistant", "content": "42"}}]}
UNREADABLE_ITEMS: list[Json] = [
    *({**says("42"), "role": role} for role in ("model", "Assistant", 5, ["assistant"])),
    *({**says("42"), "type": kind} for kind in ("Message", "chat", 5, ["message"])),
    *({"type": kind, "text": "42"} for kind in ("output_text", "text")),
    {},
    {"text": "42"},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": "{}"}}]},
    {"type": "error", "message": "the engine died"},
]
UNREADABLE_PARTS: list[Json] = [
    {"type": "markdown", "text": "42"},
    {"type": "tool_use", "name": "add", "input": {}},
    {"type": ["text"], "text": "42"},
    {"type": "text", "content": "42"},
    {"type": "text", "text": {"value": "42"}},
    {"type": "output_text", "text": ["42"]},
]


@pytest.mark.parametrize(
    "response",
    [
        *(None, "42", 42, [], {}, CHAT, {"choices": CHAT["choices"]}),
        *({"output": output} for output in (None, "42", {"text": "42"}, [1], [{"type": "message", "content": 42}])),
        *({"output": [says("42")], "status": status} for status in ("failed", "in_progress", "cancelled", "queued", 7)),
        {"output": [says("42")], "status": "completed", "error": {"message": "the engine died"}},
        {"output": [says("42")], "incomplete_details": {"reason": "aborted"}},
        {"output": [], "status": "incomplete"},
        {"output": [says("42")], "finish_reason": "tool_calls"},
        {"output": [], "choices": CHAT["choices"]},
        {"output": [], "output_text": "42"},
        {"output": [], "type": "message", "role": "assistant", "content": [{"type": "text", "text": "42"}]},
        {"output": [{**says("42"), "status": "in_progress"}]},
        *({"output": [item]} for item in UNREADABLE_ITEMS),
        *({"output": [{"role": "assistant", "content": [part]}]} for part in UNREADABLE_PARTS),
    ],
)
async def test_what_is_no_finished_response_is_never_scored(response: Any) -> None:
    async with in_process_servers({"environment": environment(Both)}) as stack:
        cookie = await open_session(stack, "/seed_session")
        for body in ({"response": response}, {"response": response, "responses_create_params": {"input": "x"}}):
            status, answer = await post(stack, cookie, "/verify", body)
            assert (status, answer["type"]) == (400, "urn:rollyard:bad_request")
        assert (await post(stack, cookie, "/verify", {}))[0] == 400
        cookie = await open_session(stack, "/reset")
        assert (await post(stack, cookie, "/step", {"response": response}))[0] == 400
