"""The walk-throughs of docs/: each file is written, each command typed, each program run, as a reader would."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

import rollyard
from tests.support.commands import BIN, DEADLINE_S, command, environment, ng_run
from tests.support.doc_pages import commands, files, page, programs, sections, write_files

ENVIRONMENTS = sections(page("environments.md"))
WALKS = {
    "exact_match": (ENVIRONMENTS["A single turn: exact match"], [1.0] * 4),
    "guess": (ENVIRONMENTS["Tools: number guessing"], [0.0] * 4 + [1.0] * 4),
    "nearest": (ENVIRONMENTS["Turn by turn: the nearest number"], [0.98] * 4 + [1.0] * 4),
    "agents.md": (page("agents.md"), None),
    "model-servers.md": (page("model-servers.md"), [-1.0] * 4 + [10.9]),
}
"""Text of the walk-through, and the rewards that it promises; None: every puzzle is solved."""


@contextlib.asynccontextmanager
async def viewer(*arguments: str, cwd: Path) -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        str(BIN / "ng_viewer"), *arguments, cwd=cwd, env=environment(), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield (await asyncio.wait_for(process.stdout.readline(), DEADLINE_S)).decode().strip()
    finally:
        process.terminate()
        await process.wait()


async def look(*arguments: str, cwd: Path, rollouts: int) -> None:
    """What a reader sees in the viewer: all of the rollouts."""
    async with viewer(*arguments, cwd=cwd) as url, httpx.AsyncClient(base_url=url) as client:
        async with asyncio.timeout(DEADLINE_S):
            while (await client.get("/api/overview")).json()["runs"][0]["measured"] != rollouts:
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("walk", WALKS)
async def test_a_walk_through_ends_in_a_reward_a_look_in_the_viewer_and_a_test(tmp_path: Path, walk: str) -> None:
    text, promised = WALKS[walk]
    write_files(text, tmp_path)
    typed = [words for words in commands(text) if words[0] != "ng_init"]
    assert [words[0] for words in typed] == ["ng_run", "ng_collect_rollouts", "ng_viewer", "python"]
    run, collect, look_at, test = typed
    async with ng_run(*run[1:], cwd=tmp_path):
        collected = await command(*collect, cwd=tmp_path)
    assert collected.status == 0, collected.err
    (output,) = (word.partition("=")[2] for word in collect if word.startswith("+output_jsonl_fpath="))
    rows = list(rollyard.read_rollouts(tmp_path / output))
    if promised is None:
        assert all(row["success"] for row in rows)
    else:
        assert sorted(row["reward"] for row in rows) == pytest.approx(promised)
    await look(*look_at[1:], cwd=tmp_path, rollouts=len(rows))
    tested = await command(*test, cwd=tmp_path)
    assert tested.status == 0, tested.out


@pytest.mark.parametrize(("walk", "most"), [("exact_match", 15), ("guess", 35)])
def test_an_environment_is_so_many_lines_with_its_config_and_its_rows(walk: str, most: int) -> None:
    written = {path: text for path, text in files(WALKS[walk][0]).items() if "/tests/" not in path}
    assert {Path(path).suffix for path in written} == {".py", ".yaml", ".jsonl"}
    lines = [line for text in written.values() for line in text.splitlines() if line.strip()]
    assert len(lines) <= most


async def test_the_pages_init_commands_write_folders(tmp_path: Path) -> None:
    typed = [words for name in ("environments.md", "agents.md", "model-servers.md") for words in commands(page(name))]
    init = [words for words in typed if words[0] == "ng_init"]
    assert len(init) == 3
    for words in init:
        done = await command(*words, cwd=tmp_path)
        assert done.status == 0, done.err
    assert {path.parent.name for path in tmp_path.glob("*/*/app.py")} == {"my_env", "my_agent", "my_model"}


async def test_the_programs_of_the_python_page_run_one_after_the_other(tmp_path: Path) -> None:
    printed = []
    for number, program in enumerate(programs(page("python-api.md"))):
        (tmp_path / f"program{number}.py").write_text(program)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            f"program{number}.py",
            cwd=tmp_path,
            env=environment(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), DEADLINE_S)
        assert process.returncode == 0, err.decode()
        printed.append(out.decode())
    assert re.match(r"complete 10 \d+\.\d+\n", printed[0])
    assert printed[1] == "4 rollouts\n"
    assert printed[2].startswith("The answer is ")
    assert printed[3].startswith("10 of 10\n")
    assert printed[4] == ""
