"""How many segments programs make of their episodes, as agents of a scripted engine that records tokens.

    make environments test-programs    # once: installs the programs
    python -m tests.external.programs.drift --write docs/tokens.md

plays an episode of each case. The engine's tokenizer takes about one token per letter.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.tables import host, markdown, table, write_between
from rollyard.agents.program_agent.app import ProgramAgent
from rollyard.records.types import Json
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Verdict, Verification
from rollyard.training.training_sequence import SequenceRules, training_sequences
from tests.external.programs.test_coding_agents import BIN, documented
from tests.support import mini_swe_agent
from tests.support.in_process import episode_servers
from tests.support.mini_swe_agent import model
from tests.support.token_engine import TokenEngine
from tests.support.toy_tokenizer import END, decode, encode_letters
from tests.support.waiting import deadline_s

ENVIRONMENT = Path(".venv-envs")
"""That of test-envs."""
BEGIN, END_MARK = "<!-- drift: begin -->", "<!-- drift: end -->"
COLUMNS = ("program", "case", "turns", "segments", "breaks", "trained on", "continue exactly")
TURNS = 10
"""Commands of an episode."""
LOOK = "seq 1 1000"
"""A command with about 4,000 letters of output."""


class Task(Environment[EnvironmentSettings]):
    user_template = "{question}"

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=1.0)


def turn(text: str, name: str = "", **arguments: Any) -> list[int]:
    call = f"\n<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>" if name else ""
    return [*encode_letters(text + call), END]


@dataclass
class Player(TokenEngine):
    """Plays the script, and answers requests for a summary, which take no turn of it."""

    is_summary: bool = False
    """Whether the last turn was one: the next prompt contains it, and what asks to go on."""

    def _turn(self, prompt: list[int]) -> tuple[list[int], str]:
        asked = decode(prompt).rpartition("<|im_start|>user")[2]
        self.is_summary = not self.is_summary and "<tool_response>" not in asked and "summary" in asked.lower()
        return (turn("I have looked at the numbers."), "stop") if self.is_summary else super()._turn(prompt)


@dataclass(frozen=True)
class Case:
    program: str
    name: str
    settings: Json
    script: list[list[int]]


def cases(mini: Path) -> Iterator[Case]:
    looks = [turn("I look.", "bash", command=LOOK) for _ in range(TURNS)]
    submit = turn("Done.", "bash", command=mini_swe_agent.SUBMIT)
    settings = mini_swe_agent.program(mini)
    yield Case("mini-swe-agent", "plain", settings, [*looks, submit])
    silent = [one for look in looks[::2] for one in (look, turn("I think."))]
    yield Case("mini-swe-agent", "half of the turns without a command", settings, [*silent, submit])

    looks = [turn("I look.", "Bash", command=LOOK, description="look") for _ in range(TURNS)]
    done = turn("Done.")
    claude = documented("claude")
    yield Case("Claude Code", "plain", claude, [*looks, done])
    ask = turn("I ask.", "Agent", description="look", prompt="Look.", subagent_type="general-purpose")
    yield Case("Claude Code", "two sub-agents", claude, [looks[0], *2 * [ask, *looks[:3], done], done])
    window = {"CLAUDE_CODE_AUTO_COMPACT_WINDOW": "150000", "CLAUDE_AUTOCOMPACT_PCT_OVERRIDE": "66"}
    small = {**claude, "env": {**claude["env"], **window}}
    yield Case("Claude Code", "compaction", small, [*looks, done])

    looks = [turn("I look.", "exec_command", cmd=LOOK) for _ in range(TURNS)]
    codex = documented("codex")
    yield Case("Codex", "plain", codex, [*looks, done])
    limit = ["-c", "model_auto_compact_token_limit=60000"]
    small = {**codex, "program": [*codex["program"][:-2], *limit, *codex["program"][-2:]]}
    yield Case("Codex", "compaction", small, [*looks, done])

    looks = [turn("I look.", "bash", command=LOOK, description="look") for _ in range(TURNS)]
    opencode = documented("opencode")
    yield Case("OpenCode", "plain", opencode, [*looks, done])
    config = json.loads(opencode["env"]["OPENCODE_CONFIG_CONTENT"])
    config["provider"]["policy"]["models"]["policy"] = {"limit": {"context": 50_000, "output": 8_000}}
    small = {**opencode, "env": {**opencode["env"], "OPENCODE_CONFIG_CONTENT": json.dumps(config)}}
    yield Case("OpenCode", "compaction", small, [*looks, done])


async def played(case: Case) -> Json:
    engine = Player(case.script, max_model_len=1_000_000)
    async with episode_servers(Task, model, ProgramAgent, **case.settings) as servers:
        servers.transport.mount("http://engine:1", engine)
        body = json.dumps({"question": "Look at the numbers."}).encode()
        answer = await servers.client.post("agent", "/run", body, 5 * deadline_s())
    row: Json = json.loads(answer.body)
    return row


def figures(row: Json) -> tuple[object, ...]:
    """Of an episode: turns, segments, breaks, sampled tokens with a loss, and the share of the prompts' tokens, after
    the first turn, in prompts that begin exactly with their segment so far.
    """
    turns = [item for item in row["response"]["output"] if "prompt_token_ids" in item]
    sampled = sum(len(item["generation_token_ids"]) for item in turns)
    trained = sum(sequence.loss_tokens for sequence in training_sequences(row, SequenceRules()))
    exact = read = 0
    for before, now in pairwise(turns):
        known, prompt = before["prompt_token_ids"] + before["generation_token_ids"], now["prompt_token_ids"]
        exact += len(prompt) if prompt[: len(known)] == known else 0
        read += len(prompt)
    trail = row["token_trail"]
    shares = f"{trained:,} of {sampled:,}", f"{exact / read:.0%}"
    return len(turns), trail["segments"], trail["breaks"], *shares


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mini", type=Path, default=ENVIRONMENT, help="virtual environment with mini-swe-agent")
    parser.add_argument("--write", type=Path, help="page whose table to replace")
    options = parser.parse_args(arguments)
    os.environ["PATH"] = f"{BIN}:{os.environ['PATH']}"
    lines = []
    for case in cases(options.mini.absolute()):
        lines.append((case.program, case.name, *figures(asyncio.run(played(case)))))
        print(f"{case.program}, {case.name}: played", flush=True)
    table("Segments of programs", COLUMNS, lines)
    if options.write:
        write_between(
            options.write, BEGIN, END_MARK, "\n".join([f"Measured on {host()}.", "", *markdown(COLUMNS, lines), ""])
        )
        print(f"wrote the table to {options.write}")


if __name__ == "__main__":
    main()
