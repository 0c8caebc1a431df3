"""`Environment.lifespan`: values that the episodes of one server share, and models that an environment may call."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import orjson
import pytest

from rollyard.agents.game_agent.app import GameAgent
from rollyard.records.errors import Failure, FailureKind, OperatorError, RunError
from rollyard.records.types import Json
from rollyard.resources_servers import resources_server as lifespan
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Verdict, Verification, serve
from rollyard.services.server.app import Context
from tests.support.in_process import KEYS, InProcessServers, Script, agent, environment, in_process_servers, says

ROW: Json = {"responses_create_params": {"input": "Play."}}


class PoolSettings(EnvironmentSettings):
    size: int = 1
    fails: str = ""
    judge: str | None = None


class Pool:
    def __init__(self, size: int) -> None:
        self.size = size
        self.open = True


class Pooled(Environment[PoolSettings]):
    """Its episodes use their server's pool."""

    shared: ClassVar[Pool]
    pools: ClassVar[list[Pool]] = []

    @classmethod
    @asynccontextmanager
    async def lifespan(cls, settings: PoolSettings) -> AsyncIterator[Pool]:
        if settings.fails == "operator":
            raise OperatorError("pool: found no machines; name some in the setting machines")
        if settings.fails == "bug":
            raise ValueError("the pool is broken")
        if settings.fails == "exit":
            sys.exit("no pool")
        if settings.judge:
            await cls.models.respond(settings.judge, {"input": "Warm up."})
        pool = Pool(settings.size)
        cls.pools.append(pool)
        # A task group must be exited in the task that entered it.
        async with asyncio.TaskGroup():
            yield pool
        pool.open = False

    def __init__(self, task: Any, settings: PoolSettings) -> None:
        super().__init__(task, settings)
        self.size = self.shared.size

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=float(self.size), pool_is_open=self.shared.open)


async def verdict(stack: InProcessServers, server: str) -> Json:
    seeded = await stack.post(server, "/seed_session", ROW)
    headers = {"cookie": seeded.cookies[0].partition(";")[0]}
    answer = await stack.post(server, "/verify", {**ROW, "response": {"output": []}}, headers)
    found: Json = orjson.loads(answer.body)
    return found


async def test_every_episode_gets_the_value_of_its_own_servers_lifespan() -> None:
    async with in_process_servers({"one": environment(Pooled, size=1), "two": environment(Pooled, size=2)}) as stack:
        found = [await verdict(stack, name) for name in ("one", "two", "one")]
    assert [(each["reward"], each["pool_is_open"]) for each in found] == [(1.0, True), (2.0, True), (1.0, True)]
    assert Pooled.shared is None


def _context(stack: InProcessServers) -> Context:
    return Context("environment", KEYS, stack.client)


async def test_a_check_and_a_stop_in_another_task_exit_the_lifespan() -> None:
    Pooled.pools.clear()
    async with in_process_servers({"other": environment(Pooled)}) as stack:
        assert Pooled.pools[0].open
        await asyncio.create_task(stack.servers["other"].stop())
        await environment(Pooled)(_context(stack)).check()
        await environment(Pooled, judge="judge")(_context(stack)).check()  # does not need the models
    assert [pool.open for pool in Pooled.pools] == [False, False]


@pytest.mark.parametrize(
    ("fails", "kind", "message"),
    [
        ("operator", OperatorError, "pool: found no machines; name some in the setting machines"),
        ("bug", RunError, "Pooled.lifespan failed: ValueError: the pool is broken"),
        ("exit", RunError, r"Pooled.lifespan called sys.exit\('no pool'\)"),
    ],
)
async def test_a_failing_lifespan_stops_the_start_with_its_reason(
    fails: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        async with in_process_servers({"environment": environment(Pooled, fails=fails)}):
            pass


async def test_a_lifespan_without_its_decorator_is_rejected_with_the_fix() -> None:
    async def lifespan(cls: Any, settings: EnvironmentSettings) -> AsyncIterator[Any]:
        yield None

    plain = type("Plain", (Environment,), {"lifespan": classmethod(lifespan)})
    with pytest.raises(OperatorError, match="@asynccontextmanager"):
        async with in_process_servers({"environment": environment(plain)}):
            pass


class Slow(Environment[EnvironmentSettings]):
    """Its lifespan never becomes ready."""

    exits: ClassVar[list[str]] = []

    @classmethod
    @asynccontextmanager
    async def lifespan(cls, settings: EnvironmentSettings) -> AsyncIterator[None]:
        try:
            await asyncio.sleep(3600)
            yield None
        finally:
            cls.exits.append("exited")


async def test_a_cancelled_start_and_a_check_that_does_not_wait_exit_a_slow_lifespan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Slow.exits.clear()
    async with in_process_servers({}) as stack:
        server = environment(Slow)(_context(stack))
        starting = asyncio.create_task(server.start())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await server.stop()
        assert Slow.exits == ["exited"]
        monkeypatch.setattr(lifespan, "CHECK_S", 0.01)
        await environment(Slow)(_context(stack)).check()
    assert Slow.exits == ["exited", "exited"]


class Judged(Environment[EnvironmentSettings]):
    """Its reward is a model's answer."""

    async def verify(self, response: Verification) -> Verdict:
        answer = await self.models.respond("judge", {"input": f"Grade: {response.text}"}, timeout_s=5.0)
        return Verdict(reward=float(answer["output"][0]["content"][0]["text"]))


async def test_an_environment_calls_a_model_server_of_its_run_by_name() -> None:
    judge = Script([[says("0.5")]])
    script = Script([[says("It is 4.")]])
    servers = {"environment": environment(Judged), "model": script.model, "agent": agent(GameAgent)}
    servers["judge"] = judge.model
    async with in_process_servers(servers) as stack:
        rollout = await stack.run(ROW)
    assert rollout["reward"] == 0.5
    assert judge.requests[0]["input"] == "Grade: It is 4."


@pytest.mark.parametrize(("status", "kind"), [(None, FailureKind.UNKNOWN_SERVER), ("[]", FailureKind.MALFORMED_ANSWER)])
async def test_a_judge_that_does_not_answer_is_a_failure_and_never_a_reward(status: str, kind: FailureKind) -> None:
    servers = {"environment": environment(Judged), "model": Script([[says("4")]]).model, "agent": agent(GameAgent)}
    if status:
        servers["judge"] = Script([[]], status=status).model
    async with in_process_servers(servers) as stack:
        with pytest.raises(Failure) as raised:
            await stack.run(ROW)
    assert raised.value.kind is kind
    if status:
        assert raised.value.problem.server == "judge"


def test_a_server_takes_its_settings_from_the_nearest_type_argument() -> None:
    class More(Pooled):
        pass

    assert serve(More).Settings is PoolSettings
    assert serve(type("Bare", (Environment,), {})).Settings is EnvironmentSettings
