"""ng_regrade is killed: repeating it ends with one verdict on every answer."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from rollyard.cli import regrade
from rollyard.records.rewards import OLD_VERDICT
from rollyard.services.runtime.stack import Stack
from tests.faults.forked import Forked, forked_command
from tests.support.stacks import PUZZLES, keys_of, load_config, read_rows
from tests.support.waiting import until

from .harness import collect_arguments, forked, forked_collect, status

TASKS, REPEATS = 40, 4


def verify_again(stack: Stack, stored: Path, output: Path) -> Forked:
    options = {
        "head": stack.head_url.removeprefix("http://"),
        "output_jsonl_fpath": output,
        "num_samples_in_parallel": 2,
    }
    arguments = [str(stored), *(f"+{name}={value}" for name, value in options.items())]
    return forked_command(regrade.main, arguments, output.with_suffix(".log"), output.parent)


async def test_a_command_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    stored, output = tmp_path / "rollouts.jsonl", tmp_path / "verdicts.jsonl"
    async with forked(load_config(), tmp_path) as stack:
        options = {"limit": TASKS, "num_repeats": REPEATS, "responses_create_params.temperature": 0.8}
        arguments = collect_arguments(stack, PUZZLES, stored, **options)
        assert await forked_collect(arguments, tmp_path / "collect.log").wait() == 0
        first = verify_again(stack, stored, output)
        await until(lambda: output.exists() and len(output.read_bytes().splitlines()) > 5, "some verdicts are stored")
        os.kill(first.pid, signal.SIGKILL)
        assert await first.wait() != 0
        output.write_bytes(output.read_bytes()[:-30])  # as if it had been killed within a line
        assert await verify_again(stack, stored, output).wait() == 0
    before = {(row["_ng_task_index"], row["_ng_rollout_index"]): row for row in read_rows(stored)}
    found = read_rows(output)
    assert keys_of(found) == sorted(before)
    assert (status(output)["state"], status(output)["measured"]) == ("complete", TASKS * REPEATS)
    for row in found:
        old = before[row["_ng_task_index"], row["_ng_rollout_index"]]
        assert (row["reward"], row["response"]) == (old["reward"], old["response"])
        assert row[OLD_VERDICT]["reward"] == old["reward"]
