"""IFEval: prompts with instructions that a program can check."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal

from rollyard.resources_servers.answers.reading.extraction import without_reasoning
from rollyard.resources_servers.base import BadTask, Environment, EnvironmentSettings, Verdict, Verification, serve
from rollyard.resources_servers.ifeval.scoring import Outcome, instructions, outcome
from rollyard.resources_servers.ifeval.sentences import sentence_count
from rollyard.services.io.optional import EXTRAS, require

LONG = 2_000
"""Characters from which on an answer is read in a thread: the sentences of a hostile one cost 15 µs a character."""


class IfevalSettings(EnvironmentSettings):
    """What a config may set."""

    score: Literal["strict", "lenient"] = "strict"
    """Which score is the reward; the lenient one forgives a first line, a last line and asterisks."""
    reward: Literal["prompt", "instruction"] = "prompt"
    """1 when all instructions are followed, else 0; or the share of them that are."""


class Ifeval(Environment[IfevalSettings]):
    """One prompt with its instructions."""

    def __init__(self, task: Mapping[str, Any], settings: IfevalSettings) -> None:
        """Read the row's `instruction_id_list` and `kwargs`. Raises BadTask."""
        super().__init__(task, settings)
        try:
            self.instructions = instructions(task)
        except ValueError as error:
            raise BadTask(f"IFEval row {task.get('id', task.get('key', 'without an id'))}: {error}") from error

    @classmethod
    @asynccontextmanager
    async def lifespan(cls, settings: IfevalSettings) -> AsyncIterator[None]:
        """Load what verdicts need. Raises OperatorError without the extra `ifeval`."""
        for package in EXTRAS["ifeval"].packages:
            require(package, "ifeval", cls.__name__)
        sentence_count("Ready.")  # NLTK takes half a second to import, which the first verdict need not wait for
        yield None

    async def verify(self, response: Verification) -> Verdict:
        """1 when every instruction is followed."""
        spoken = without_reasoning(response.text)
        text = spoken if spoken == response.text else spoken.strip()
        outcomes = self._outcomes(text) if len(text) < LONG else await asyncio.to_thread(self._outcomes, text)
        strict = [found.strict for found in outcomes]
        loose = [found.loose for found in outcomes]
        chosen = strict if self.settings.score == "strict" else loose
        share = sum(chosen) / len(chosen)
        missed = [found.kind for found, followed in zip(outcomes, chosen, strict=True) if not followed]
        return Verdict(
            reward=share if self.settings.reward == "instruction" else float(all(chosen)),
            success=all(chosen),
            strict_score=float(all(strict)),
            lenient_score=float(all(loose)),
            inst_level_strict=sum(strict) / len(strict),
            inst_level_loose=sum(loose) / len(loose),
            follow_instruction_list=strict,
            follow_instruction_list_loose=loose,
            reason=f"not followed: {', '.join(missed)}" if missed else "every instruction is followed",
        )

    def _outcomes(self, text: str) -> list[Outcome]:
        return [outcome(kind, checked, text) for kind, checked in self.instructions]


server = serve(Ifeval)
