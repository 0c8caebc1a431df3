"""inspect_task: a task of inspect_ai. Its solver sets up the conversation, its tools are offered, its scorers grade."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from rollyard.records.types import Json
from rollyard.records.verdict_fields import VerdictField
from rollyard.resources_servers.base import BadTask, ToolResult, Verdict, Verification, serve
from rollyard.resources_servers.episode_tools import EpisodeTools
from rollyard.resources_servers.inspect_task.grader_model import grader_model
from rollyard.resources_servers.inspect_task.inspect_package import InspectPackage
from rollyard.resources_servers.inspect_task.message_items import function_tools, items_of
from rollyard.resources_servers.inspect_task.rehearsal import rehearse
from rollyard.resources_servers.inspect_task.rewards import verdict_of
from rollyard.resources_servers.inspect_task.settings import InspectSettings
from rollyard.resources_servers.inspect_task.solver_episode import SolverEpisode
from rollyard.resources_servers.inspect_task.task_loading import LoadedTask, digest, load_task


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
        return ToolResult(result.text, done=True) if result.done else result.text

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
