"""Every session ends exactly once, regardless of failures of its caller, its set-up or another session's cleanup."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import Any

import orjson
import pytest

from rollyard.records.errors import Failure
from rollyard.records.run_types import Directory
from rollyard.records.types import Json
from rollyard.resources_servers import sessions
from rollyard.resources_servers.base import BadTask, Environment, EnvironmentSettings, Verdict, Verification, tool
from rollyard.resources_servers.resources_server import OrphanedSessions
from rollyard.services.http.client import OWNER_HEADER, SESSION_HEADER
from rollyard.services.http.request import HttpResponse
from tests.support.in_process import InProcessServers, environment, in_process_servers
from tests.support.waiting import until

NAME = {SESSION_HEADER: "0123456789abcdef0123456789abcdef"}


class Room(Environment[EnvironmentSettings]):
    """Behaves as its row says, and counts instances and closes."""

    made = 0
    closed: list[Any] = []  # noqa: RUF012 - read by tests
    hold = asyncio.Event()

    def __init__(self, task: Any, settings: EnvironmentSettings) -> None:
        super().__init__(task, settings)
        Room.made += 1
        if task.get("init") == "raises":
            raise RuntimeError("no room")
        if task.get("init") == "bad":
            raise BadTask("no such room")

    async def seed(self) -> list[Json]:
        if self.task.get("seed") == "slow":
            await Room.hold.wait()
        if self.task.get("seed") == "cancels":
            raise asyncio.CancelledError
        if self.task.get("seed") == "raises":
            raise RuntimeError("no seed")
        return []

    @tool
    async def work(self) -> str:
        await Room.hold.wait()
        return "done"

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=1.0)

    async def close(self) -> None:
        Room.closed.append(self.task.get("name"))
        how = self.task.get("close")
        if how == "hangs":
            await asyncio.get_running_loop().create_future()
        if how == "raises":
            raise RuntimeError("cannot close")
        if how == "cancels":
            raise asyncio.CancelledError


@pytest.fixture(autouse=True)
def reset_room(monkeypatch: pytest.MonkeyPatch) -> None:
    Room.made, Room.closed, Room.hold = 0, [], asyncio.Event()
    monkeypatch.setattr(sessions, "CLOSE_WAIT_S", 0.1)
    monkeypatch.setattr(sessions, "CLOSE_S", 0.2)


async def seed(stack: InProcessServers, row: Json, headers: dict[str, str] | None = None) -> HttpResponse:
    return await stack.post("environment", "/seed_session", row, headers)


async def cookie(stack: InProcessServers, row: Json) -> dict[str, str]:
    return {"cookie": (await seed(stack, row)).cookies[0].partition(";")[0]}


def open_now(stack: InProcessServers) -> int:
    return stack.servers["environment"].sessions


async def test_a_close_whose_caller_is_cancelled_while_a_call_works_still_ends_the_episode() -> None:
    async with in_process_servers({"environment": environment(Room)}) as stack:
        headers = await cookie(stack, {})
        working = asyncio.create_task(stack.post("environment", "/work", {}, headers))
        await asyncio.sleep(0)
        closing = asyncio.create_task(stack.post("environment", "/close", {}, headers))
        await asyncio.sleep(0.01)
        closing.cancel()
        await asyncio.wait({closing})
        assert Room.closed == []
        Room.hold.set()
        await working
        await until(lambda: Room.closed == [None] and not open_now(stack))


@pytest.mark.parametrize("how", ["hangs", "raises", "cancels"])
async def test_a_close_that_fails_changes_no_verdict_and_keeps_no_other_session_from_being_reaped(how: str) -> None:
    async with in_process_servers({"environment": environment(Room, session_idle_s=0.04)}) as stack:
        headers = {**await cookie(stack, {"close": how, "name": 0}), "x-rollyard-session-end": "1"}
        answer = await stack.post("environment", "/verify", {"response": {"output": []}}, headers)
        assert orjson.loads(answer.body)["reward"] == 1.0
        for number in (1, 2):
            await seed(stack, {"close": how, "name": number})
        await until(lambda: len(Room.closed) == 3)
        await seed(stack, {"name": "later"})
        await until(lambda: Room.closed[-1] == "later" and not open_now(stack))
        assert Room.closed == [0, 1, 2, "later"]


async def test_a_stopping_server_closes_all_sessions_even_if_one_hangs() -> None:
    async with in_process_servers({"environment": environment(Room)}) as stack:
        for number in range(300):
            await seed(stack, {"close": "hangs" if number == 0 else "", "name": number})
    assert sorted(Room.closed) == list(range(300))


async def test_an_environment_is_not_created_if_the_session_limit_is_reached() -> None:
    async with in_process_servers({"environment": environment(Room, max_sessions=1)}) as stack:
        await seed(stack, {})
        answers = [await seed(stack, {}) for _ in range(3)]
        assert [answer.status for answer in answers] == [503] * 3
        assert "max_sessions" in orjson.loads(answers[0].body)["detail"]
        assert Room.made == 1


@pytest.mark.parametrize(
    ("row", "closed"),
    [({"init": "raises"}, 0), ({"init": "bad"}, 0), ({"seed": "raises"}, 1), ({"seed": "cancels"}, 1)],
)
@pytest.mark.parametrize("path", ["/seed_session", "/reset"])
async def test_a_session_whose_set_up_fails_does_not_stay_open(path: str, row: Json, closed: int) -> None:
    async with in_process_servers({"environment": environment(Room)}) as stack:
        assert (await stack.post("environment", path, row)).status >= 400
        assert (open_now(stack), len(Room.closed)) == (0, closed)


async def test_a_close_by_name_during_the_seed_ends_the_seed_at_once() -> None:
    async with in_process_servers({"environment": environment(Room)}) as stack:
        seeding = asyncio.create_task(seed(stack, {"seed": "slow"}, NAME))
        await until(lambda: open_now(stack) == 1)
        assert (await stack.post("environment", "/close", {}, NAME)).status == 200
        assert (await seeding).status == 410
        assert (open_now(stack), Room.closed) == (0, [None])


async def test_a_seed_that_arrives_after_its_close_opens_nothing_and_tombstones_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "TOMBSTONES", 5)
    async with in_process_servers({"environment": environment(Room)}) as stack:
        for number in range(20):
            await stack.post("environment", "/close", {}, {SESSION_HEADER: f"{number:032d}"})
        assert (await seed(stack, {}, {SESSION_HEADER: f"{19:032d}"})).status == 410
        assert (open_now(stack), Room.made) == (0, 0)
        assert (await seed(stack, {}, {SESSION_HEADER: f"{0:032d}"})).status == 200


async def test_a_seed_that_arrives_again_after_the_close_of_its_session_opens_nothing() -> None:
    async with in_process_servers({"environment": environment(Room)}) as stack:
        assert (await seed(stack, {}, NAME)).status == 200
        await stack.post("environment", "/close", {}, NAME)
        assert (await seed(stack, {}, NAME)).status == 410
        assert (open_now(stack), Room.made) == (0, 1)


async def test_a_session_name_can_only_close_its_session_and_must_be_valid() -> None:
    async with in_process_servers({"environment": environment(Room)}) as stack:
        for name in ("short", "a.b" * 10, "x" * 65, "../" * 8):
            assert (await seed(stack, {}, {SESSION_HEADER: name})).status == 400
        assert Room.made == 0
        await seed(stack, {}, NAME)
        for path in ("/work", "/verify", "/step"):
            assert (await stack.post("environment", path, {"response": {}}, NAME)).status == 410
        with contextlib.suppress(Failure):
            assert (await seed(stack, {}, NAME)).status == 410
        assert open_now(stack) == 1
        assert (await stack.post("environment", "/close", {}, NAME)).status == 200
        assert (open_now(stack), Room.closed) == (0, [None])


async def test_only_sessions_of_an_exited_agent_are_closed() -> None:
    present = ["agent#1", "agent#2"]
    looks = 0

    async def directory() -> Directory:
        nonlocal looks
        looks += 1
        return Directory(run_id="test", servers={}, instances=present, families={}, settings={})

    held = sessions.Sessions("secret", idle_s=60.0, limit=10)
    for owner in ("agent#1", "agent#2", ""):
        held.open(lambda owner=owner: Room({"name": owner}, EnvironmentSettings()), owner=owner)  # type: ignore[misc]
    watching = asyncio.create_task(OrphanedSessions(held, directory, 0.04).watch())
    await until(lambda: looks >= 8)
    assert len(held) == 3
    present.remove("agent#1")
    await until(lambda: len(held) == 2)
    assert Room.closed == ["agent#1"]
    seen = looks
    await until(lambda: looks >= seen + 8)
    watching.cancel()
    assert len(held) == 2


async def test_sessions_of_an_agent_that_exited_before_it_was_ever_listed_are_closed() -> None:
    async with in_process_servers({"environment": environment(Room, orphan_s=0.04)}) as stack:
        await seed(stack, {"name": "of a client"})
        await seed(stack, {"name": "of an agent"}, {OWNER_HEADER: "agent#1"})
        await until(lambda: open_now(stack) == 1)
        assert Room.closed == ["of an agent"]


async def test_a_session_that_is_closed_before_its_set_up_begins_leaves_no_coroutine_behind() -> None:
    held = sessions.Sessions("secret", idle_s=60.0, limit=10)
    session = held.open(lambda: Room({"name": "closed early"}, EnvironmentSettings()))
    begun = []

    async def set_up() -> None:
        begun.append(True)

    setting_up = asyncio.create_task(held.set_up(session, set_up))
    while session.setup is None:
        await asyncio.sleep(0)
    ending = held.end(session)
    with pytest.raises(Failure, match="session_lost"):
        await setting_up
    assert ending is not None and not begun
    await ending
    gc.collect()  # a coroutine that was never awaited would raise a warning here
