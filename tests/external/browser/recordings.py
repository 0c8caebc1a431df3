"""Rollout files for the page: played by the real stack, written by hand where it records nothing of the kind."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import orjson

from rollyard.services.types import Json
from tests.external.browser.attacks import attacks, failures
from tests.support.commands import command, config, ng_run
from tests.support.stacks import AGENT, PUZZLES, SOKOBAN, read_rows

TASKS = 12
REPEATS = 4


@dataclass(frozen=True)
class Recordings:
    """The files, in the order in which the viewer is given them."""

    played: Path
    again: Path
    tokens: Path
    nemo: Path
    attacks: Path

    @property
    def paths(self) -> list[Path]:
        """All of them."""
        return [self.played, self.again, self.tokens, self.nemo, self.attacks]


def record(folder: Path) -> Recordings:
    """Play Sokoban twice by the commands of `make demo`, and write the rest."""
    made = Recordings(*(folder / f"{name}.jsonl" for name in ("played", "again", "tokens", "nemo", "attacks")))
    # Not in this thread: Playwright keeps a loop running in it.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, _play(folder, made)).result()
    rows = read_rows(made.played)
    _write(made.tokens, [with_tokens(row) for row in rows[:REPEATS]])
    _write(made.nemo, [as_nemo_gym(row) for row in rows[: 2 * REPEATS]])
    _write(made.attacks, attacks())
    _write(made.attacks.with_name("attacks_failures.jsonl"), failures())
    return made


async def _play(folder: Path, made: Recordings) -> None:
    async with ng_run(config(SOKOBAN), "+colocate=true", cwd=folder):
        for path, temperature in ((made.played, "0.8"), (made.again, "0.2")):
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
    """The row with tokens on its model calls; each prompt goes on from the turn before, but for the third."""
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
    """The row as NeMo Gym writes one: no timings, no reason to end, no index of its task."""
    return {key: row[key] for key in ("responses_create_params", "response", "reward")}
