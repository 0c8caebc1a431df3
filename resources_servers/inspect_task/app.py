"""inspect_task: a task of inspect_ai. Its solver sets up the conversation, its tools are offered, its scorers grade."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.records.verdict_fields import VerdictField
from rollyard.resources_servers.base import BadTask, ToolResult, Verdict, Verification, serve
from rollyard.resources_servers.inspect_task.inspect_package import (
    InspectPackage,
    InspectSettings,
    LoadedTask,
    digest,
    load_task,
)
from rollyard.resources_servers.inspect_task.solver_episode import (
    SolverEpisode,
    function_tools,
    grader_model,
    items_of,
    rehearse,
)
from rollyard.resources_servers.tools import EpisodeTools


@dataclass(frozen=True)
class Loaded:
    """What all episodes share."""

    package: InspectPackage
    task: LoadedTask
    grader: Any


class InspectTask(EpisodeTools[InspectSettings]):
    verdict_fields = (
        VerdictField(path="extracted_answer", role="extracted"),
        VerdictField(path="scores", role="reason"),
        VerdictField(path="solver_finished", role="reason"),
    )
    stateless = False
    shared: ClassVar[Loaded]

    @classmethod
    @asynccontextmanager
    async def lifespan(cls, settings: InspectSettings) -> AsyncIterator[Loaded]:
        """Load and rehearse the task. Raises OperatorError if it does not exist or cannot be an environment."""
        package = InspectPackage()
        task = load_task(settings, package)
        grader = None
        if settings.grader is not None:
            grader = grader_model(package, cls.models, settings.grader.name, settings.grader_timeout_s)
        elif settings.rehearse:
            await rehearse(package, task)
        yield Loaded(package, task, grader)

    def __init__(self, task: Mapping[str, Any], settings: InspectSettings) -> None:
        """Find the row's sample. Raises BadTask if the task has no such sample, or another version of it."""
        super().__init__(task, settings)
        loaded = self.shared
        sample_id = str(task.get("sample"))
        sample = loaded.task.samples.get(sample_id)
        if sample is None:
            known = ", ".join(list(loaded.task.samples)[:3])
            raise BadTask(f"the row's `sample` is {sample_id!r}; {loaded.task.name} has {known}, ...")
        if (expected := task.get("sample_sha256")) is not None and expected != digest(sample):
            raise BadTask(f"sample {sample_id} has changed since the row was written: prepare the rows again")
        self._solver = SolverEpisode(loaded.package, loaded.task, sample, sample_id, loaded.grader)

    async def seed(self) -> list[Json]:
        """Run the solver until it calls the model, and return the messages of that call."""
        await self._solver.start()
        return items_of(self._solver.request.messages)

    def episode_tools(self) -> list[Json]:
        return function_tools(self._solver.request.tools)

    async def call_episode_tool(self, name: str, arguments: Json) -> ToolResult | str:
        """Let the solver call the tool. inspect_ai reports unknown tools and invalid arguments to the model."""
        result = await self._solver.call(name, arguments)
        return result if result.done else str(result.output)

    async def verify(self, response: Verification) -> Verdict:
        """Give the solver the last message, and grade with all scorers of the task."""
        await self._solver.finish(response.text)
        loaded = self.shared
        scores = {name: await self._solver.score(scorer) for name, scorer in loaded.task.scorers.items()}
        to_float = loaded.package.scorer.value_to_float()
        return verdict_of(scores, self.settings, to_float, finished=self._solver.finished)

    async def close(self) -> None:
        """Stop the solver and clean up."""
        await self._solver.close()


server = serve(InspectTask)


_RIGHT, _WRONG = "C", "I"


def verdict_of(
    scores: Mapping[str, Any], settings: InspectSettings, to_float: Callable[[Any], float], *, finished: bool
) -> Verdict:
    """Return the verdict. Raises Failure if the scorer that gives the reward could not score the episode."""
    name = settings.scorer or next(iter(scores))
    score = scores[name]
    if score is None:
        raise Failure(FailureKind.MALFORMED_ANSWER, f"the scorer {name} gave no score (None), which is not a reward")
    reward = _number(score.value, name, settings.score_key, to_float)
    more: Json = {} if score.answer is None else {"extracted_answer": score.answer}
    if score.value in (_RIGHT, _WRONG) or isinstance(score.value, bool):
        more["success"] = reward == 1.0
    recorded = {key: _recorded(value) for key, value in scores.items() if value is not None}
    return Verdict(reward=reward, scores=recorded, solver_finished=finished, **more)


def _number(value: Any, name: str, key: str | None, to_float: Callable[[Any], float]) -> float:
    if isinstance(value, Mapping):
        if key is not None and key not in value:
            found = ", ".join(map(str, value)) or "none"
            raise Failure(FailureKind.BAD_TASK, f"the score of {name} has no key {key!r} (score_key); found {found}")
        values = [value[key]] if key is not None else list(value.values())
    else:
        values = list(value) if isinstance(value, list | tuple) else [value]
    numbers = [to_float(each) for each in values]
    if not numbers or not all(map(math.isfinite, numbers)):
        detail = f"the scorer {name} gave no score ({value!r:.100}), which is not a reward"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail)
    return sum(numbers) / len(numbers)


def _recorded(score: Any) -> Json:
    fields = {"value": score.value, "answer": score.answer, "explanation": score.explanation}
    if isinstance(score.value, float) and not math.isfinite(score.value):
        fields["value"] = None
    return {key: value for key, value in fields.items() if value is not None}
