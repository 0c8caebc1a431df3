"""ng_doctor env: a fault of an environment fails its check, and a correct environment passes all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import orjson
import pytest
from pydantic import Field

from rollyard.cli.doctor_environment import Target, findings
from rollyard.cli.doctor_machine import MachineFinding
from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Turn, Verdict, Verification, tool
from tests.support.in_process import environment, in_process_servers
from tests.support.waiting import deadline_s

ROW: Json = {"question": "?", "expected_answer": "Paris"}


class Capital(Environment[EnvironmentSettings]):
    """A correct environment."""

    user_template = "{question}"

    @tool
    async def look_up(self, page: Annotated[int, Field(ge=2, le=1000)], times: int = 1) -> str:
        """Read a page."""
        return f"page {page}"

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=float(self.task["expected_answer"] in response.text))


async def checked(kind: type[Environment[Any]], tmp_path: Path, row: Json = ROW) -> dict[str, MachineFinding]:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(orjson.dumps(row) + b"\n")
    async with in_process_servers({"server": environment(kind)}) as servers:
        target = Target("server", "http://server:1", servers.transport, deadline_s())
        return {finding.name: finding async for finding in findings(target, file)}


def statuses(found: dict[str, MachineFinding]) -> list[tuple[str, str]]:
    return [(name, finding.status) for name, finding in found.items()]


async def test_a_correct_environment_passes_every_check(tmp_path: Path) -> None:
    found = await checked(Capital, tmp_path)
    names = ["start", "episode", "right answer", "wrong answer"]
    assert statuses(found) == [(name, "ok") for name in names]
    assert "1.0" in found["right answer"].found and "0.0" in found["wrong answer"].found


async def test_an_environment_that_rewards_every_answer_fails(tmp_path: Path) -> None:
    class Generous(Capital):
        async def verify(self, response: Verification) -> Verdict:
            return Verdict(reward=1.0)

    assert statuses(await checked(Generous, tmp_path))[-1] == ("wrong answer", "failed")


async def test_an_expected_answer_that_is_not_rewarded_is_noted(tmp_path: Path) -> None:
    class Strict(Capital):
        async def verify(self, response: Verification) -> Verdict:
            return Verdict(reward=0.0)

    found = await checked(Strict, tmp_path)
    assert found["right answer"].status == "note" and "Paris" in found["right answer"].found


async def test_a_tool_that_raises_fails(tmp_path: Path) -> None:
    class Broken(Capital):
        @tool
        async def look_up(self, page: int, times: int = 1) -> str:
            raise RuntimeError("no paper")

    found = await checked(Broken, tmp_path)
    assert statuses(found) == [("start", "ok"), ("episode", "failed")] and "no paper" in found["episode"].found


async def test_a_verify_that_raises_fails(tmp_path: Path) -> None:
    class Raising(Capital):
        async def verify(self, response: Verification) -> Verdict:
            raise RuntimeError("no verdict")

    found = await checked(Raising, tmp_path)
    assert found["episode"].status == "failed" and "no verdict" in found["episode"].found


async def test_a_turn_based_environment_is_played_with_messages(tmp_path: Path) -> None:
    class Count(Environment[EnvironmentSettings]):
        async def reset(self) -> tuple[str, Json]:
            self.left = 3
            return "3 left", {}

        async def turn(self, text: str) -> Turn:
            self.left -= 1
            return Turn(f"{self.left} left", terminated=len(text) > 5)

        async def verify(self, response: Verification) -> Verdict:
            return Verdict(reward=float(self.left == 0))

    found = await checked(Count, tmp_path, {"question": "?"})
    assert "/reset" in found["start"].found and "reward 1.0" in found["episode"].found


async def test_a_missing_file_of_rows_is_a_usage_error(tmp_path: Path) -> None:
    async with in_process_servers({"server": environment(Capital)}) as servers:
        target = Target("server", "http://server:1", servers.transport, deadline_s())
        with pytest.raises(OperatorError, match=r"rows\.jsonl"):
            async for _ in findings(target, tmp_path / "rows.jsonl"):
                pass
