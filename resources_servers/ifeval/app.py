"""IFEval: prompts with instructions that can be verified automatically."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from rollyard.records.optional import EXTRAS, require
from rollyard.records.rewards import VerdictField
from rollyard.resources_servers.answers.extraction import without_reasoning
from rollyard.resources_servers.base import BadTask, Environment, EnvironmentSettings, Verdict, Verification, serve
from rollyard.resources_servers.ifeval import rlvr
from rollyard.resources_servers.ifeval.instruction import Instruction, instruction, shown
from rollyard.resources_servers.ifeval.sentences import sentence_count

LONG = 2_000
"""Answers of at least this many characters are checked in a thread, because splitting text into sentences can take 15
µs per character."""


class IfevalSettings(EnvironmentSettings):
    score: Literal["strict", "lenient"] = "strict"
    """Which score becomes the reward. The lenient score may ignore the first line, the last line and asterisks."""
    reward: Literal["prompt", "instruction"] = "prompt"
    """prompt: 1 if all instructions are followed, otherwise 0; instruction: the fraction of instructions that are
    followed."""


class Ifeval(Environment[IfevalSettings]):
    verdict_fields = (
        VerdictField(path="instruction_id_list", role="expected", label="instructions", exact=False),
        VerdictField(path="reason", role="reason"),
        VerdictField(path="follow_instruction_list", role="tests", label="followed (strict)"),
        VerdictField(path="follow_instruction_list_loose", role="tests", label="followed (loose)"),
    )

    def __init__(self, task: Mapping[str, Any], settings: IfevalSettings) -> None:
        """Raises BadTask if the row's `instruction_id_list` and `kwargs`, or its `ground_truth`, are invalid."""
        super().__init__(task, settings)
        try:
            self.instructions = instructions(task)
        except ValueError as error:
            raise BadTask(f"IFEval row {task.get('id', task.get('key', 'without an id'))}: {error}") from error

    @classmethod
    @asynccontextmanager
    async def lifespan(cls, settings: IfevalSettings) -> AsyncIterator[None]:
        """Load NLTK. Raises OperatorError if the `ifeval` extra is not installed."""
        for package in EXTRAS["ifeval"].packages:
            require(package, "ifeval", cls.__name__)
        sentence_count("Ready.")  # imports NLTK, which takes half a second, before the first verdict
        yield None

    async def verify(self, response: Verification) -> Verdict:
        """Score the response. By default, the reward is 1 if it follows every instruction."""
        # Engines that take the reasoning out leave the empty lines between it and the answer.
        text = without_reasoning(response.text).strip()
        outcomes = self._outcomes(text) if len(text) < LONG else await asyncio.to_thread(self._outcomes, text)
        strict = [each.strict for each in outcomes]
        loose = [each.loose for each in outcomes]
        chosen = strict if self.settings.score == "strict" else loose
        share = sum(chosen) / len(chosen)
        violated = [each.kind for each, followed in zip(outcomes, chosen, strict=True) if not followed]
        return Verdict(
            reward=share if self.settings.reward == "instruction" else float(all(chosen)),
            success=all(chosen),
            strict_score=float(all(strict)),
            lenient_score=float(all(loose)),
            inst_level_strict=sum(strict) / len(strict),
            inst_level_loose=sum(loose) / len(loose),
            follow_instruction_list=strict,
            follow_instruction_list_loose=loose,
            reason=f"not followed: {', '.join(violated)}" if violated else "every instruction is followed",
        )

    def _outcomes(self, text: str) -> list[InstructionOutcome]:
        return [outcome(kind, checked, text) for kind, checked in self.instructions]


@dataclass(frozen=True)
class InstructionOutcome:
    kind: str
    strict: bool
    loose: bool


def instructions(row: Mapping[str, Any]) -> list[tuple[str, Instruction]]:
    """Return a row's instructions, each with its kind. Raises ValueError for an invalid row."""
    if row.get("ground_truth") is not None:
        return [rlvr.instruction(row["ground_truth"])]
    kinds, arguments = row.get("instruction_id_list"), row.get("kwargs")
    if not isinstance(kinds, list) or not isinstance(arguments, list) or not kinds or len(kinds) != len(arguments):
        raise ValueError(
            f"found instruction_id_list {shown(kinds)} and kwargs {shown(arguments)}; expected two non-empty lists of"
            " equal length"
        )
    return [(kind, instruction(kind, kwargs)) for kind, kwargs in zip(kinds, arguments, strict=True)]


def outcome(kind: str, checked: Instruction, text: str) -> InstructionOutcome:
    strict = checked.followed(text)
    return InstructionOutcome(kind, strict, strict or any(map(checked.followed, variants(text)[1:])))


def variants(text: str) -> list[str]:
    """Return the text as it is, without its first line, last line, and both; and each of them without asterisks."""
    lines = text.split("\n")
    cuts = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return list(dict.fromkeys([*cuts, *(part.replace("*", "") for part in cuts)]))


server = serve(Ifeval)
