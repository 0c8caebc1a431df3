"""Rollout files for the page: collected from a real stack, or written by hand for what no stack records."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import orjson

from rollyard.records.types import Json
from tests.external.browser.attacks import attacks, failures
from tests.support.commands import command, config, ng_run
from tests.support.stacks import AGENT, PUZZLES, SOKOBAN, read_rows

TASKS = 12
REPEATS = 4


@dataclass(frozen=True)
class Recordings:
    """The files, in the order in which they are passed to the viewer."""

    played: Path
    again: Path
    tokens: Path
    nemo: Path
    attacks: Path

    @classmethod
    def of(cls, folder: Path) -> Recordings:
        """The files in a folder, whether they exist or not."""
        return cls(*(folder / f"{name}.jsonl" for name in ("played", "again", "tokens", "nemo", "attacks")))

    @property
    def paths(self) -> list[Path]:
        return [self.played, self.again, self.tokens, self.nemo, self.attacks]


def record(folder: Path) -> Recordings:
    """Collect Sokoban twice with the commands of `make demo`, and write the other files."""
    recordings = Recordings.of(folder)
    # In another thread, because Playwright keeps an event loop running in this one.
    with ThreadPoolExecutor(1) as thread:
        temperatures = {recordings.played: 0.8, recordings.again: 0.2}
        thread.submit(asyncio.run, play(folder, temperatures)).result()
    rows = read_rows(recordings.played)
    _write(recordings.tokens, [with_tokens(row) for row in rows[:REPEATS]])
    _write(recordings.nemo, [as_nemo_gym(row) for row in rows[: 2 * REPEATS]])
    _write(recordings.attacks, attacks())
    _write(recordings.attacks.with_name("attacks_failures.jsonl"), failures())
    return recordings


async def play(folder: Path, temperatures: Mapping[Path, float]) -> None:
    """Collect Sokoban into files in `folder`, each with its temperature."""
    async with ng_run(config(SOKOBAN), "+colocate=true", cwd=folder):
        for path, temperature in temperatures.items():
            done = await command(
                "ng_collect_rollouts",
                f"+agent_name={AGENT}",
                f"+input_jsonl_fpath={PUZZLES}",
                f"+output_jsonl_fpath={path}",
                f"+limit={TASKS}",
                f"+num_repeats={REPEATS}",
                "+num_repeats_add_seed=true",
                f"+responses_create_params.temperature={temperature}",
                cwd=folder,
            )
            assert done.status == 0, done.err


def _write(path: Path, rows: list[Json]) -> None:
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))


def with_tokens(row: Json) -> Json:
    """The row with tokens in its model calls; each prompt continues the previous turn, except for the third."""
    seen: list[int] = []
    output, turn = [], 0
    for item in row["response"]["output"]:
        if item["type"] != "function_call_output":
            turn += 1
            prompt = [*(seen if turn != 3 else [*seen[:15], 9, *seen[16:]]), *range(1000 * turn, 1000 * turn + 12)]
            generated = list(range(500 * turn, 500 * turn + 8))
            tokens = {
                "prompt_token_ids": prompt,
                "generation_token_ids": generated,
                "generation_log_probs": [-0.01, -0.2, -1.5, -3.0, -6.0, -0.05, -0.4, -0.001],
            }
            item = {**item, **tokens}
            seen = [*prompt, *generated]
        output.append(item)
    return {**row, "response": {**row["response"], "output": output}}


def as_nemo_gym(row: Json) -> Json:
    """The row as NeMo Gym writes it: no timings, no finish reason, no task index."""
    return {key: row[key] for key in ("responses_create_params", "response", "reward")}
