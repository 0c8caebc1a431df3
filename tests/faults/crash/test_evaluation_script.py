"""The scripts of the Sokoban evaluation survive kill -9, and adopt rollouts that have no manifest."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path

import orjson

from tests.support.commands import DEADLINE_S, Finished
from tests.support.sokoban_page import Shell, block, make_clone
from tests.support.stacks import keys_of, read_rows

LOOP = """cd resources_servers/grl_sokoban
export MODEL_NAME=builtin
./run_qwen3_4b_eval_loop.sh colocate=true pause_s=0.1 num_repeats=4
"""
SAMPLED_TASKS = 8
"""Four of the five committed samples are rollouts of the first eight tasks."""


def check_folder(folder: Path, tasks: int, repeats: int) -> None:
    """Every rollout exactly once, a report, and logs without errors."""
    rows = read_rows(folder / "rollouts.jsonl")
    assert keys_of(rows) == [(task, repeat) for task in range(tasks) for repeat in range(repeats)]
    assert (folder / "reward_analysis.md").is_file()
    names = {"nemo_gym_servers.log", "rollout_collection.log", "reward_analysis.log"}
    assert {path.name for path in (folder / "logs").iterdir()} >= names


async def run_script(shell: Shell, folder: Path, options: str) -> Finished:
    line = block("script").splitlines()[-1].replace("/tmp/sokoban_eval", f'"{folder}"')
    return await shell.run(f"cd resources_servers/grl_sokoban\n{line.replace('limit=5 num_repeats=2', options)}")


async def test_the_script_adopts_and_completes_rollouts_without_errors_in_its_logs(tmp_path: Path) -> None:
    """The rollouts of the folder are some of the committed samples, without a manifest, two of them without keys."""
    shell = Shell(make_clone(tmp_path), 1)
    folder = tmp_path / "sokoban eval"
    folder.mkdir()
    samples = read_rows(shell.rollouts.with_name("sample_rollouts.jsonl"))
    known = [sample for sample in samples if sample["_ng_task_index"] < SAMPLED_TASKS]
    for sample in known[:2]:
        del sample["_ng_task_index"], sample["_ng_task_key"]
    (folder / "rollouts.jsonl").write_bytes(b"".join(orjson.dumps(sample) + b"\n" for sample in known))
    done = await run_script(shell, folder, f"limit={SAMPLED_TASKS} colocate=true")
    assert done.status == 0, done.err
    assert "[INFO] Found 4 existing rollouts (expected 128)" in done.out
    assert "[INFO] Creating checkpoint to resume from remaining prompts..." in done.out
    assert "[INFO] Resuming collection with 8 remaining prompts" in done.out
    check_folder(folder, SAMPLED_TASKS, 16)
    assert not [path.name for path in (folder / "logs").iterdir() if "error" in path.read_text().lower()]
    manifest = orjson.loads((folder / "rollouts_manifest.json").read_bytes())
    assert (manifest["adopted"]["rollouts"], manifest["adopted"]["new_keys"]) == (4, 2)
    status = await shell.run(block("status"))
    assert status.status == 0 and "128" in status.out, status.err


async def test_the_loop_that_is_killed_twice_completes_every_rollout_once(tmp_path: Path) -> None:
    shell = Shell(make_clone(tmp_path), 1)
    for killed_at in (75, 375):
        async with shell.started(LOOP) as process:
            async with asyncio.timeout(DEADLINE_S):
                while not shell.rollouts.exists() or shell.rollouts.read_bytes().count(b"\n") < killed_at:
                    assert process.returncode is None, (await process.communicate())[1]
                    await asyncio.sleep(0.02)
            shell.send(process, signal.SIGKILL)
    done = await shell.run(LOOP)
    assert done.status == 0, done.err
    found = re.search(r"\[INFO\] Found (\d+) existing rollouts \(expected 800\)", done.out)
    assert found is not None and int(found[1]) >= 375
    check_folder(shell.rollouts.parent, 200, 4)
