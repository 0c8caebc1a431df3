"""docs/nemo-gym.md as a reader follows it, with the real NeMo Gym."""

from __future__ import annotations

from pathlib import Path

import orjson

from rollyard.records.data_files import INSTALLED
from tests.support.commands import command, ng_run
from tests.support.doc_pages import commands, page, sections
from tests.support.stacks import read_rows
from tests.support.waiting import deadline_s

VENV = INSTALLED / ".venv-nemo-gym"
START_S = 5 * deadline_s()
"""Importing NeMo Gym takes seconds on a free machine, and minutes on a busy one."""


def lines(program: str) -> list[list[str]]:
    text = sections(page("nemo-gym.md"))["NeMo Gym's environments, as they are"]
    return [words for words in commands(text) if words[0] == program]


def with_this_python(word: str) -> str:
    """The word with the folder of this environment's packages, whose name contains the version of Python."""
    (packages,) = (VENV / "lib").glob("python3*")
    return word.replace("gym/lib/python3.12", f"gym/lib/{packages.name}")


async def test_the_page_starts_nemo_gyms_environment_and_plays_it(tmp_path: Path) -> None:
    (tmp_path / "gym").symlink_to(VENV)
    (start,), (collect,), (status,) = lines("ng_run"), lines("ng_collect_rollouts"), lines("ng_status")
    given = (*start[1:], "+head_port=0", f"+ready_timeout_s={START_S}")
    async with ng_run(*given, cwd=tmp_path, ready_s=START_S) as running:
        shown = await command(*status, cwd=tmp_path)
        collected = await command(*map(with_this_python, collect), cwd=tmp_path)
        assert shown.status == 0 and f"mcqa: NeMo Gym, {tmp_path}/gym/bin/python" in shown.out
        assert collected.status == 0, collected.out + collected.err
    rows = read_rows(tmp_path / "results" / "mcqa.jsonl")
    inputs = Path(with_this_python(collect[collect.index("--input") + 1]))
    assert len(rows) == len((tmp_path / inputs).read_bytes().splitlines())
    assert all(row["expected_answer"] and row["reward"] in (0.0, 1.0) for row in rows)
    assert "servers ready!" in running.printed


async def test_nemo_gyms_own_agent_plays_with_rollyards_model_server(tmp_path: Path) -> None:
    (tmp_path / "gym").symlink_to(VENV)
    own_agent = "++mcqa_simple_agent.responses_api_agents.simple_agent.venv=gym"
    (start,), (collect,) = lines("ng_run"), lines("ng_collect_rollouts")
    given = (*start[1:], own_agent, "+head_port=0", f"+ready_timeout_s={START_S}")
    async with ng_run(*given, cwd=tmp_path, ready_s=START_S):
        shown = await command("ng_status", "+json=true", cwd=tmp_path)
        collected = await command(*map(with_this_python, collect), cwd=tmp_path)
        assert collected.status == 0, collected.out + collected.err
    origins = {server["server_name"]: server["origin"] for server in orjson.loads(shown.out)}
    assert origins["mcqa_simple_agent"].startswith("NeMo Gym, ") and origins["policy_model"] == ""
    assert all("reward" in row for row in read_rows(tmp_path / "results" / "mcqa.jsonl"))
