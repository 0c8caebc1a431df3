"""What the base class does for every environment: cookies, error messages for the model, reserved names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.resources_servers.base import (
    Environment,
    EnvironmentSettings,
    InvalidToolCall,
    Verdict,
    Verification,
    tool,
)
from rollyard.resources_servers.grl_sokoban.app import GrlSokoban
from rollyard.resources_servers.tools import tools_of
from rollyard.services.http.client import Session
from tests.support.in_process import InProcessServers, environment, in_process_servers
from tests.support.stacks import EXAMPLES


class Notes(Environment[EnvironmentSettings]):
    """Keeps notes."""

    @tool
    async def note(self, text: str, times: int = 1) -> str:
        """Write something down."""
        if not text:
            raise InvalidToolCall("an empty note says nothing: give it a text")
        return f"noted {text!r} {times} times"

    @tool
    async def look_up(self, text: str) -> int:
        """Find a note."""
        return ["nothing"].index(text)

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


async def session(stack: InProcessServers) -> dict[str, str]:
    answer = await stack.post("environment", "/seed_session", {})
    return {"cookie": answer.cookies[0].partition(";")[0]}


async def test_an_invalid_tool_call_returns_a_message_for_the_model() -> None:
    async with in_process_servers({"environment": environment(Notes)}) as stack:
        answer = await stack.post("environment", "/note", {"text": ""}, await session(stack))
    assert orjson.loads(answer.body) == {"error": "an empty note says nothing: give it a text"}


async def test_metrics_are_statistics_of_a_list_of_responses() -> None:
    async with in_process_servers({"environment": environment(Notes)}) as stack:
        for body in ({"verify_responses": [1]}, {"verify_responses": {}}, {}):
            assert (await stack.post("environment", "/aggregate_metrics", body)).status == 400
        rows = [{"reward": 1.0, "success": True, "_x": 3}, {"reward": 0.0, "success": False}]
        answer = await stack.post("environment", "/aggregate_metrics", {"verify_responses": rows})
    metrics = orjson.loads(answer.body)["agent_metrics"]
    assert (metrics["mean/reward"], metrics["max/success"], "mean/_x" in metrics) == (0.5, 1.0, False)


@pytest.mark.parametrize("name", ["close", "verify", "reset", "seed_session", "Close"])
def test_a_tool_may_not_use_a_reserved_name(name: str) -> None:
    async def method(self: Any) -> str:
        return "never"

    method.__name__ = name
    with pytest.raises(TypeError, match=f"POST /{name} is part of the wire format"):
        tools_of(type("World", (), {name: tool(method)}))


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
