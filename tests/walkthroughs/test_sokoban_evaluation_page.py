"""docs/sokoban-evaluation.md: its blocks run as they stand, with fewer repeats, and the built-in policy for vLLM."""

from __future__ import annotations

import subprocess
from pathlib import Path

import orjson
import pytest

from rollyard.records.data_files import INSTALLED
from rollyard.records.types import Json
from tests.support.doc_pages import blocks
from tests.support.processes import free_port
from tests.support.sokoban_page import (
    NOT_RUN,
    REPEATS,
    RUN,
    RUN_IN_FAULTS,
    TEXT,
    Shell,
    block,
    make_clone,
    printed,
)
from tests.support.stacks import keys_of, read_rows


def test_every_block_is_run_or_listed_with_the_reason_why_not() -> None:
    for text in blocks(TEXT):
        assert sum(part in text for part in [*RUN.values(), *RUN_IN_FAULTS.values(), *NOT_RUN]) == 1, text


async def test_the_steps_of_the_page_and_its_resume_by_hand_complete_every_puzzle(tmp_path: Path) -> None:
    shell = Shell(make_clone(tmp_path), free_port())
    assert (await shell.run(block("count"))).out.split()[0] == "200"
    async with shell.started(block("serve")) as served:
        await printed(served, "1 / 1 servers ready!")
        models = await shell.run(block("models"))
        assert orjson.loads(models.out)["data"][0]["id"] == "Qwen/Qwen3-4B"
        async with shell.started(block("servers")) as stack:
            await printed(stack, "All 3 / 3 servers ready!")
            collected = await shell.run(block("collect"))
            assert collected.status == 0, collected.err
            _interrupt(shell.rollouts)
            resumed = await shell.run(block("resume"))
    assert resumed.status == 0, resumed.err
    assert "[INFO] Found 150 existing rollouts (expected 400)" in resumed.out
    assert "[INFO] Creating checkpoint to resume from remaining prompts..." in resumed.out
    assert "400 of 400" in resumed.out
    rows = read_rows(shell.rollouts)
    assert keys_of(rows) == [(task, repeat) for task in range(200) for repeat in range(REPEATS)]
    inputs = read_rows(shell.rollouts.with_name("test_examples_200.jsonl"))
    assert all(row["seed"] == inputs[row["_ng_task_index"]]["seed"] for row in rows)
    await _check_results(shell, rows)


def _interrupt(rollouts: Path) -> None:
    """Leave what a crash leaves after 150 rollouts."""
    lines = rollouts.read_bytes().splitlines(keepends=True)
    rollouts.write_bytes(b"".join(lines[:150]) + lines[150][:100])


async def _check_results(shell: Shell, rows: list[Json]) -> None:
    """Run the blocks that read the finished rollouts."""
    analysis = await shell.run(block("analyze"))
    assert analysis.status == 0, analysis.err
    assert "- **Total Rollouts**: 400" in analysis.out
    by_jq = await shell.run(block("jq"))
    assert by_jq.status == 0, by_jq.err
    numbers = orjson.loads(by_jq.out[: by_jq.out.index("}") + 1])
    assert numbers["count"] == 400 and numbers["max"] == max(row["reward"] for row in rows)
    assert str(sum(row["success"] for row in rows)) in by_jq.out.splitlines()
    assert '"avg"' in by_jq.out[by_jq.out.index("}") :]
    (shell.rollouts.parent / "logs").mkdir(exist_ok=True)
    (shell.rollouts.parent / "logs" / "nemo_gym_servers.log").write_text("All 3 / 3 servers ready!\n")
    contributed = await shell.run(block("contribute"))
    assert contributed.status == 0, contributed.out + contributed.err
    assert len(read_rows(shell.rollouts.with_name("sample_rollouts.jsonl"))) == 5
    assert "400 data/qwen3_4b_eval/rollouts.jsonl" in contributed.out
    assert (await shell.run(block("gpus"))).status == 0
    made = await shell.run(block("generate"))
    assert made.status == 0, made.out + made.err
    committed = "resources_servers/grl_sokoban/data/qwen3_4b_eval/test_examples.jsonl"
    assert (shell.clone / committed).read_bytes() == (INSTALLED / committed).read_bytes()


@pytest.mark.parametrize(
    "script", sorted((INSTALLED / "resources_servers/grl_sokoban").glob("*.sh")), ids=lambda p: p.name
)
def test_a_script_is_valid_bash(script: Path) -> None:
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
