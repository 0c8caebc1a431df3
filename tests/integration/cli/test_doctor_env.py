"""ng_doctor env: each fault of an environment fails its check, and a correct environment passes all of them."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import threading
from pathlib import Path
from typing import Annotated, Any, ClassVar

import orjson
import pytest
from pydantic import Field

from rollyard.cli.diagnostics.environment import checks, verdict_checks
from rollyard.cli.diagnostics.environment.target import Target
from rollyard.cli.diagnostics.findings import Finding
from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Turn, Verdict, Verification, tool
from tests.support.in_process import environment, in_process_servers
from tests.support.waiting import deadline_s

ROWS: list[Json] = [{"seed": number, "question": "?", "expected_answer": str(number)} for number in range(3)]
CLOSED = "http://server:1"


class Dice(Environment[EnvironmentSettings]):
    """A correct environment: everything follows from the row."""

    user_template = "{question}"

    def __init__(self, task: Any, settings: EnvironmentSettings) -> None:
        super().__init__(task, settings)
        self.random = random.Random(task["seed"])

    @tool
    async def roll(self, sides: Annotated[int, Field(ge=2, le=1000)], times: int = 1) -> list[int]:
        """Roll dice."""
        return [self.random.randrange(10**9) % sides for _ in range(min(abs(times), 10))]

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=float(self.task["expected_answer"] in response.text))


@pytest.fixture(autouse=True)
def short_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict_checks, "MAX_COSTED", 5)


async def findings(
    kind: type[Environment[Any]], tmp_path: Path, rows: list[Json] = ROWS, episodes: int = 8, pid: int | None = None
) -> dict[str, list[Finding]]:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    found: dict[str, list[Finding]] = {}
    async with in_process_servers({"server": environment(kind)}) as servers:
        target = Target("server", CLOSED, servers.transport, pid)
        async for finding in checks.findings(
            target, rows_file=file, examples=5, episodes=episodes, timeout_s=deadline_s(), progress=lambda _: None
        ):
            found.setdefault(finding.name, []).append(finding)
    return found


def failed(found: dict[str, list[Finding]]) -> set[str]:
    return {finding.name for findings in found.values() for finding in findings if finding.status == "failed"}


async def test_a_correct_environment_passes_every_check(tmp_path: Path) -> None:
    found = await findings(Dice, tmp_path, pid=os.getpid())
    assert failed(found) == set()
    assert {"start", "tools", "same seed", "other seeds", "verify", "empty answer", "cost"} <= found.keys()
    assert {"sessions", "close", "tasks", "files", "processes", "memory"} <= found.keys()
    assert "rewards 0.0, 1.0" in found["verify"][0].found


async def test_an_ignored_seed_fails(tmp_path: Path) -> None:
    class Fixed(Dice):
        def __init__(self, task: Any, settings: EnvironmentSettings) -> None:
            super().__init__(task, settings)
            self.random = random.Random(7)

    found = await findings(Fixed, tmp_path)
    assert failed(found) == {"other seeds"} and "ignored" in found["other seeds"][0].found


async def test_a_nested_seed_is_found_and_must_have_an_effect(tmp_path: Path) -> None:
    class Nested(Dice):
        def __init__(self, task: Any, settings: EnvironmentSettings) -> None:
            super().__init__({**task, "seed": 1}, settings)

    rows: list[Json] = [{"metadata": {"seed": 3}, "question": "?", "expected_answer": "1"}]
    found = await findings(Nested, tmp_path, rows)
    assert failed(found) == {"other seeds"} and "metadata.seed" in found["other seeds"][0].found


async def test_randomness_that_the_seed_does_not_determine_fails(tmp_path: Path) -> None:
    class Unseeded(Dice):
        def __init__(self, task: Any, settings: EnvironmentSettings) -> None:
            super().__init__(task, settings)
            self.random = random.SystemRandom()

    found = await findings(Unseeded, tmp_path)
    assert failed(found) == {"same seed"} and "action" in found["same seed"][0].found


async def test_a_first_observation_that_differs_for_the_same_row_fails(tmp_path: Path) -> None:
    class Numbered(Dice):
        numbers: ClassVar[Any] = itertools.count()

        async def seed(self) -> list[Json]:
            return [{"role": "user", "content": f"episode {next(self.numbers)}"}]

    found = await findings(Numbered, tmp_path)
    assert "same seed" in failed(found) and "observation" in found["same seed"][0].found


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"properties": {"faces": {"type": "integer"}}, "required": ["faces"]}, "argument faces"),
        ({"properties": {"sides": {"type": "integer"}}, "required": ["sides"]}, "argument times"),
        ({"properties": {"sides": {}, "times": {}}, "required": []}, "requires sides"),
        ({"properties": {"sides": {"type": "string"}, "times": {}}, "required": ["sides"]}, "is rejected"),
    ],
)
async def test_a_schema_that_the_method_does_not_accept_fails(tmp_path: Path, parameters: Json, problem: str) -> None:
    tools = [{"type": "function", "name": "roll", "parameters": {"type": "object", **parameters}}]
    rows = [{**row, "responses_create_params": {"input": "?", "tools": tools}} for row in ROWS]
    found = await findings(Dice, tmp_path, rows)
    assert "tools" in failed(found) and problem in found["tools"][0].found


async def test_a_tool_that_the_row_offers_and_the_environment_lacks_fails(tmp_path: Path) -> None:
    tools = [{"type": "function", "name": "throw", "parameters": {"type": "object", "properties": {}}}]
    found = await findings(Dice, tmp_path, [{**ROWS[0], "responses_create_params": {"input": "?", "tools": tools}}])
    assert "it has roll" in found["tools"][0].found


async def test_a_verdict_that_changes_for_the_same_response_fails(tmp_path: Path) -> None:
    class Moody(Dice):
        verdicts: ClassVar[Any] = itertools.count()

        async def verify(self, response: Verification) -> Verdict:
            return Verdict(reward=float(next(self.verdicts) % 2))

    found = await findings(Moody, tmp_path)
    assert failed(found) == {"verify"} and "same response" in found["verify"][0].found


async def test_durations_in_a_verdict_may_differ(tmp_path: Path) -> None:
    class Timed(Dice):
        verdicts: ClassVar[Any] = itertools.count()

        async def verify(self, response: Verification) -> Verdict:
            return Verdict(reward=1.0, cpu_s=float(next(self.verdicts)))

    found = await findings(Timed, tmp_path)
    assert found["verify"][0].status == "ok"


async def test_a_verify_that_fails_on_an_empty_response_fails(tmp_path: Path) -> None:
    class Strict(Dice):
        async def verify(self, response: Verification) -> Verdict:
            return Verdict(reward=float(len(response.response["output"][-1]["content"])))

    found = await findings(Strict, tmp_path)
    assert failed(found) == {"empty answer"} and "status 500" in found["empty answer"][0].found


async def test_a_close_that_raises_fails(tmp_path: Path) -> None:
    class Unclosable(Dice):
        async def close(self) -> None:
            raise RuntimeError("the door is stuck")

    found = await findings(Unclosable, tmp_path)
    assert failed(found) == {"close"}


async def test_tasks_that_outlive_their_episode_fail(tmp_path: Path) -> None:
    class Watched(Dice):
        watchers: ClassVar[list[asyncio.Task[Any]]] = []

        async def seed(self) -> list[Json]:
            self.watchers.append(asyncio.create_task(asyncio.Event().wait()))
            return []

    found = await findings(Watched, tmp_path)
    assert failed(found) == {"tasks"}
    for task in Watched.watchers:
        task.cancel()


async def test_files_that_outlive_their_episode_fail(tmp_path: Path) -> None:
    class Reader(Dice):
        opened: ClassVar[list[Any]] = []

        async def seed(self) -> list[Json]:
            self.opened.append(open(os.devnull))  # noqa: PTH123, SIM115 (the fault of this test)
            return []

    found = await findings(Reader, tmp_path, pid=os.getpid())
    for file in Reader.opened:
        file.close()
    assert "files" in failed(found)


async def test_threads_that_outlive_their_episode_fail(tmp_path: Path) -> None:
    stop = threading.Event()

    class Leaky(Dice):
        async def seed(self) -> list[Json]:
            threading.Thread(target=stop.wait, daemon=True).start()
            return []

    try:
        assert failed(await findings(Leaky, tmp_path, pid=os.getpid())) == {"threads"}
    finally:
        stop.set()


async def test_an_answer_in_the_prompt_is_named_with_its_example(tmp_path: Path) -> None:
    questions = zip(ROWS, ("?", "Lisbon or?", "?"), strict=True)
    rows = [{**row, "question": question, "expected_answer": "Lisbon"} for row, question in questions]
    (found,) = (await findings(Dice, tmp_path, rows))["gold"]
    assert found.status == "note"
    assert "1 of 3 examples: example 2 (expected_answer: 'Lisbon')" in found.found


async def test_memory_that_grows_with_every_episode_fails(tmp_path: Path) -> None:
    class Hoarder(Dice):
        kept: ClassVar[list[bytearray]] = []

        async def seed(self) -> list[Json]:
            self.kept.append(bytearray(os.urandom(1 << 16) * 32))
            return []

    found = await findings(Hoarder, tmp_path, pid=os.getpid())
    Hoarder.kept.clear()
    assert "memory" in failed(found)


async def test_a_tool_that_raises_fails_and_the_other_checks_run(tmp_path: Path) -> None:
    class Broken(Dice):
        @tool
        async def roll(self, sides: int, times: int = 1) -> list[int]:
            raise RuntimeError("no dice")

    found = await findings(Broken, tmp_path)
    assert {"tools", "same seed", "verify"} <= failed(found) and "no dice" in found["tools"][0].found


async def test_a_turn_based_environment_is_played_with_messages(tmp_path: Path) -> None:
    class Count(Environment[EnvironmentSettings]):
        async def reset(self) -> tuple[str, Json]:
            self.left = random.Random(self.task["seed"]).randrange(1000)
            return f"{self.left} left", {}

        async def turn(self, text: str) -> Turn:
            self.left -= 1
            return Turn(f"{self.left} left", terminated=len(text) > 5)

        async def verify(self, response: Verification) -> Verdict:
            return Verdict(reward=1.0)

    found = await findings(Count, tmp_path)
    assert failed(found) == set() and "turns" in found["start"][0].found


async def test_rows_without_a_seed_are_compared_with_themselves_only(tmp_path: Path) -> None:
    class Plain(Environment[EnvironmentSettings]):
        async def verify(self, response: Verification) -> Verdict:
            return Verdict(reward=0.0)

    found = await findings(Plain, tmp_path, [{"question": "?"}])
    assert failed(found) == set() and "no seed" in found["other seeds"][0].found


async def test_a_missing_file_of_rows_is_a_usage_error(tmp_path: Path) -> None:
    async with in_process_servers({"server": environment(Dice)}) as servers:
        with pytest.raises(OperatorError, match=r"rows\.jsonl"):
            async for _ in checks.findings(
                Target("server", CLOSED, servers.transport),
                rows_file=tmp_path / "rows.jsonl",
                examples=1,
                episodes=4,
                timeout_s=deadline_s(),
                progress=lambda _: None,
            ):
                pass
