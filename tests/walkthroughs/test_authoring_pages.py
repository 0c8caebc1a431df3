"""The walk-throughs of docs/: write each file, run each command and each program like a reader."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import httpx
import pytest

import rollyard
from tests.support.commands import DEADLINE_S, command, ng_run, ng_viewer
from tests.support.doc_pages import commands, files, page, programs, sections, write_files

ENVIRONMENTS = sections(page("environments.md"))
WALKS = {
    "exact_match": (ENVIRONMENTS["A single turn: exact match"], [1.0] * 4),
    "guess": (ENVIRONMENTS["Tools: number guessing"], [0.0] * 4 + [1.0] * 4),
    "nearest": (ENVIRONMENTS["Turn by turn: the nearest number"], [0.98] * 4 + [1.0] * 4),
    "agents.md": (page("agents.md"), None),
    "model-servers.md": (page("model-servers.md"), [-1.0] * 4 + [10.9]),
}
"""Text of the walk-through and the rewards that it states; None: every puzzle is solved."""


async def view(*arguments: str, cwd: Path, rollouts: int) -> None:
    """Wait until the viewer shows all rollouts."""
    async with ng_viewer(*arguments, cwd=cwd) as (_, url), httpx.AsyncClient(base_url=url) as client:
        async with asyncio.timeout(DEADLINE_S):
            while (await client.get("/api/overview")).json()["runs"][0]["measured"] != rollouts:
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("walk", WALKS)
async def test_the_commands_of_a_walk_through_give_its_rewards_show_them_in_the_viewer_and_pass_its_test(
    tmp_path: Path, walk: str
) -> None:
    text, rewards = WALKS[walk]
    write_files(text, tmp_path)
    typed = [words for words in commands(text) if words[0] != "ng_init"]
    assert [words[0] for words in typed] == ["ng_run", "ng_collect_rollouts", "ng_viewer", "python"]
    run, collect, viewer, test = typed
    testing = asyncio.create_task(command(*test, cwd=tmp_path))  # it needs no run
    async with ng_run(*run[1:], cwd=tmp_path):
        collected = await command(*collect, cwd=tmp_path)
    assert collected.status == 0, collected.err
    (output,) = (word.partition("=")[2] for word in collect if word.startswith("+output_jsonl_fpath="))
    rows = list(rollyard.read_rollouts(tmp_path / output))
    if rewards is None:
        assert all(row["success"] for row in rows)
    else:
        assert sorted(row["reward"] for row in rows) == pytest.approx(rewards)
    await view(*viewer[1:], cwd=tmp_path, rollouts=len(rows))
    tested = await testing
    assert tested.status == 0, tested.out


@pytest.mark.parametrize(("walk", "limit"), [("exact_match", 15), ("guess", 35)])
def test_an_environment_with_config_and_rows_has_few_lines(walk: str, limit: int) -> None:
    written = {path: text for path, text in files(WALKS[walk][0]).items() if "/tests/" not in path}
    assert {Path(path).suffix for path in written} == {".py", ".yaml", ".jsonl"}
    lines = [line for text in written.values() for line in text.splitlines() if line.strip()]
    assert len(lines) <= limit


async def test_the_init_commands_of_the_pages_create_folders(tmp_path: Path) -> None:
    typed = [words for name in ("environments.md", "agents.md", "model-servers.md") for words in commands(page(name))]
    init = [words for words in typed if words[0] == "ng_init"]
    assert len(init) == 3
    for done in await asyncio.gather(*(command(*words, cwd=tmp_path) for words in init)):
        assert done.status == 0, done.err
    assert {path.parent.name for path in tmp_path.glob("*/*/app.py")} == {"my_env", "my_agent", "my_model"}


async def test_the_programs_of_the_python_page_run(tmp_path: Path) -> None:
    start, rows_in_memory, openai_client, read, group, test = programs(page("python-api.md"))

    async def run(program: str) -> str:
        done = await command("python", "-c", program, cwd=tmp_path)
        assert done.status == 0, done.err
        return done.out

    async def start_and_read() -> list[str]:
        return [await run(start), await run(read), await run(group)]  # both read the rollouts of the first

    first, *printed = await asyncio.gather(start_and_read(), run(rows_in_memory), run(openai_client), run(test))
    assert re.match(r"complete 10 \d+\.\d+\n", first[0])
    assert first[1].startswith("10 of 10\n")
    assert first[2] == "0 of 10 failed\n"
    assert printed[0] == "4 rollouts\n"
    assert printed[1].startswith("The answer is ")
    assert printed[2] == ""
