"""Resuming an output: changes are refused with the difference, missing rollouts are collected, disks fill up."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from rollyard.services.runtime.stack import Stack
from tests.support.stacks import AGENT, EXAMPLES, SOKOBAN, keys_of, load_config, read_rows

from .harness import COLLECT, collect_arguments, command, essences, failures, forked, forked_collect, status

OTHER_AGENT = "other_agent"
CONFIG_WITH_TWO_AGENTS = [
    f"+{OTHER_AGENT}.agents.game_agent.resources_server.name=grl_sokoban_resources_server",
    f"+{OTHER_AGENT}.agents.game_agent.model_server.name=policy_model",
]
ROLLOUTS = 10
LIMITED = ("sh", "-c", 'ulimit -f "$1"; shift; exec "$@"', "sh")
"""Runs a command with a limit of so many blocks per file, which acts like a full disk; Python ignores SIGXFSZ."""


@pytest_asyncio.fixture(scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    async with forked(load_config(*CONFIG_WITH_TWO_AGENTS, config=SOKOBAN), folder) as running:
        yield running


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "rollouts.jsonl"


@pytest_asyncio.fixture(scope="module")
async def finished(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of a complete collection."""
    folder = tmp_path_factory.mktemp("finished")
    exit_status, output_text = await run_collect(stack, folder / "rollouts.jsonl")
    assert exit_status == 0, output_text
    return folder


@pytest.fixture
def collection(finished: Path, output: Path) -> Path:
    """A copy of the output of a complete collection."""
    shutil.copytree(finished, output.parent, dirs_exist_ok=True)
    return output


def arguments(stack: Stack, output: Path, input_jsonl_fpath: Path = EXAMPLES, **changed: object) -> list[str]:
    options = {"num_repeats": 2, "responses_create_params.temperature": 0.8, **changed}
    return collect_arguments(stack, input_jsonl_fpath, output, **options)


async def run_collect(stack: Stack, output: Path, **changed: Any) -> tuple[int, str]:
    log = output.with_name("collect.log")
    log.unlink(missing_ok=True)
    exit_status = await forked_collect(arguments(stack, output, **changed), log).wait()
    return exit_status, log.read_text()


async def test_the_shortest_command_collects_and_resumes(stack: Stack, output: Path) -> None:
    """A row without create parameters."""
    shortest = [text for text in arguments(stack, output) if "temperature" not in text and "seed" not in text]
    log = output.with_name("collect.log")
    for _ in range(2):
        assert await forked_collect(shortest, log).wait() == 0, log.read_text()
        assert len(essences(output)) == ROLLOUTS


CHANGES: dict[str, dict[str, object]] = {
    "num_repeats: 2 in the file, 3 now": {"num_repeats": 3},
    f"agent_name: '{AGENT}' in the file, '{OTHER_AGENT}' now": {"agent_name": OTHER_AGENT},
    "temperature: 0.8 in the file, 0.5 now": {"responses_create_params.temperature": 0.5},
    "top_p: not set in the file, 0.9 now": {"responses_create_params.top_p": 0.9},
    "num_repeats_add_seed: True in the file, False now": {"num_repeats_add_seed": "false"},
    "rows: 5 in the file, 4 now": {"limit": 4},
}


@pytest.mark.parametrize("difference", CHANGES)
async def test_a_changed_command_is_refused_with_the_difference(
    stack: Stack, collection: Path, difference: str
) -> None:
    before = collection.read_bytes()
    exit_status, output_text = await run_collect(stack, collection, **CHANGES[difference])
    assert exit_status == 2
    assert difference in output_text
    assert "--overwrite" in output_text
    assert collection.read_bytes() == before


async def test_a_changed_row_of_the_input_is_refused(stack: Stack, output: Path) -> None:
    rows = output.with_name("input.jsonl")
    rows.write_bytes(EXAMPLES.read_bytes())
    assert (await run_collect(stack, output, input_jsonl_fpath=rows))[0] == 0
    changed = read_rows(rows)
    changed[2]["seed"] += 1
    rows.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in changed))
    exit_status, output_text = await run_collect(stack, output, input_jsonl_fpath=rows)
    assert exit_status == 2
    assert "input_sha256" in output_text


async def test_a_changed_config_is_refused(stack: Stack, collection: Path, tmp_path: Path) -> None:
    max_steps = f"{AGENT}.agents.game_agent.max_steps=11"
    async with forked(load_config(*CONFIG_WITH_TWO_AGENTS, max_steps), tmp_path) as other:
        exit_status, output_text = await run_collect(other, collection)
    assert exit_status == 2
    assert "settings.grl_sokoban_game_agent.max_steps: " in output_text


async def test_a_collection_whose_manifest_was_lost_is_adopted_and_completed(stack: Stack, collection: Path) -> None:
    whole = essences(collection)
    collection.with_name("rollouts_manifest.json").unlink()
    lines = collection.read_bytes().splitlines(keepends=True)
    collection.write_bytes(b"".join(lines[:7]) + lines[7][:50])
    exit_status, output_text = await run_collect(stack, collection)
    assert exit_status == 0, output_text
    assert "7 rollouts" in output_text
    assert essences(collection) == whole
    assert (await run_collect(stack, collection, num_repeats=3))[0] == 2


async def test_a_full_disk_stops_with_one_message_and_the_same_command_completes_later(
    stack: Stack, collection: Path
) -> None:
    # The limit holds for every file: the manifest must fit, and some rollouts.
    whole, blocks = essences(collection), collection.stat().st_size * 3 // 4 // 1024
    assert collection.with_name("rollouts_manifest.json").stat().st_size < blocks * 1024
    undisturbed = collection.with_name("undisturbed.jsonl")
    collection.rename(undisturbed)
    collection.with_name("rollouts_manifest.json").unlink()
    exit_status, output_text = await command(
        *LIMITED, str(blocks), *COLLECT, *arguments(stack, collection), here=collection.parent
    )
    assert exit_status == 1
    assert output_text.splitlines()[-1].startswith(f"ng_collect_rollouts: cannot write {collection}: File too large")
    assert "Traceback" not in output_text
    assert collection.read_bytes().endswith(b"\n")
    kept = essences(collection)
    assert 0 < len(kept) < ROLLOUTS
    assert (status(collection)["state"], status(collection)["measured"]) == ("stopped", len(kept))
    exit_status, output_text = await run_collect(stack, collection)
    assert exit_status == 0, output_text
    assert essences(collection) == whole
    assert failures(collection) == []


async def test_a_disk_that_is_full_from_the_start_is_reported_with_the_file_name_and_leaves_no_files(
    stack: Stack, output: Path
) -> None:
    exit_status, output_text = await command(*LIMITED, "0", *COLLECT, *arguments(stack, output), here=output.parent)
    assert exit_status == 1
    assert "Traceback" not in output_text
    assert "rollouts_manifest.json" in output_text
    assert not list(output.parent.glob(".*"))
    exit_status, output_text = await run_collect(stack, output)
    assert exit_status == 0, output_text
    assert keys_of(read_rows(output)) == [(task, repeat) for task in range(5) for repeat in range(2)]
