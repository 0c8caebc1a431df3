"""All environments in one run and one file: the example of docs/data.md."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rollyard.records.data_files import INSTALLED
from tests.e2e.test_docs import documented_lines
from tests.support.commands import command, ng_run
from tests.support.stacks import read_rows

REPEATS = 8


async def test_every_rollout_of_all_environments_is_measured_once(tmp_path: Path) -> None:
    lines = documented_lines(INSTALLED / "docs" / "data.md")
    (run,) = (words for words in lines if words[0] == "ng_run")
    (collect,) = (words for words in lines if "configs/environment_mixture.yaml" in words)
    repeats = f"+num_repeats={REPEATS}"
    async with ng_run(*run[1:], "+colocate=true", cwd=tmp_path):
        done = await command(*collect[:-2], repeats, "+num_samples_in_parallel=64", cwd=tmp_path)
    assert done.status == 0, done.err
    rows = read_rows(tmp_path / "results/environments.jsonl")
    assert len({(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows}) == len(rows)
    by_environment = Counter(row["dataset_name"] for row in rows)
    assert set(by_environment.values()) == {5 * REPEATS}
    assert len(by_environment) == 6
    rewards = {name: {row["reward"] for row in rows if row["dataset_name"] == name} for name in by_environment}
    # The built-in policy plays Sokoban; elsewhere it only answers with text.
    assert max(rewards.pop("grl_sokoban")) > 10
    assert all(found <= {0.0, 1.0} for found in rewards.values()), rewards
    assert not read_rows(tmp_path / "results/environments_failures.jsonl")
