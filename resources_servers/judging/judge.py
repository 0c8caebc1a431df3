"""Judge: a model of the run grades answers.

    judge = Judge(models, settings.judge)          # one for all episodes of a server
    score = await judge.grade(question=..., response=response.text, reference=self.task["answer"])
    return Verdict(reward=score.value, success=score.value == 1.0, **score.fields)

A judge that cannot be reached is a Failure, never a reward: the rollout is tried again. So is one whose answers cannot
be read, unless `on_unreadable` says otherwise.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Protocol

from rollyard.resources_servers.judging.question import Question
from rollyard.resources_servers.judging.reading import UnreadableGrade, judge_text, read_score
from rollyard.resources_servers.judging.settings import JudgeSettings
from rollyard.resources_servers.rubric import Score
from rollyard.services.errors import Failure, FailureKind
from rollyard.services.types import Json


class Models(Protocol):
    """The model servers of the run."""

    async def respond(self, server: str, request: Json, *, timeout_s: float) -> Json:
        """POST /v1/responses of the named model server. Raises Failure."""


@dataclass(frozen=True, slots=True)
class Vote:
    """One answer of the judge."""

    score: float | None
    """None: no try could be read, and it counts as 0."""
    text: str


class Judge:
    """Grades answers. One per server process: its limit on parallel requests and its cache are shared."""

    def __init__(self, models: Models, settings: JudgeSettings, *, name: str = "judge") -> None:
        """`name` begins the names of the fields on the rollout; two judges of one rubric need two names."""
        self._models = models
        self._settings = settings
        self._name = name
        self._slots = asyncio.Semaphore(settings.parallel)
        self._cache: OrderedDict[str, Score] = OrderedDict()

    async def grade(self, *, question: str, response: str, reference: str = "") -> Score:
        """The combined score from 0 to 1, with the votes and the judge's texts as fields for the verdict.

        Raises Failure, naming the judge's model server.
        """
        if len(response) > self._settings.max_response_chars:
            return self._refused(f"the answer has {len(response)} characters: too long to be graded")
        asked = Question(question, response, reference)
        key = asked.digest(self._settings)
        if (known := self._cache.get(key)) is not None:
            self._cache.move_to_end(key)
            return known
        try:
            votes = await self._votes(asked, key[:8])
        except Failure as failure:
            # The answer's length is the model's choice; as a failure it would buy a second try.
            if failure.kind is not FailureKind.CONTEXT_OVERFLOW:
                raise
            return self._refused("the answer does not fit the judge's context")
        score = self._combined(votes)
        if self._settings.cache_size and all(vote.score is not None for vote in votes):
            self._cache[key] = score
            if len(self._cache) > self._settings.cache_size:
                self._cache.popitem(last=False)
        return score

    async def _votes(self, asked: Question, code: str) -> list[Vote]:
        request = {**self._settings.params, "input": asked.prompt(code, self._settings)}
        until = time.monotonic() + self._settings.timeout_s
        tasks: list[asyncio.Task[Vote]] = []
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                tasks.extend(asyncio.create_task(self._vote(request, code, until)) for _ in range(self._settings.votes))
                return await asyncio.gather(*tasks)
        except TimeoutError as error:
            detail = f"the judge gave no grade within {self._settings.timeout_s:g} s"
            raise Failure(FailureKind.TIMEOUT, detail, server=self._settings.model_server.name) from error
        finally:
            for task in tasks:
                task.cancel()

    async def _vote(self, request: Json, code: str, until: float) -> Vote:
        server, text, found = self._settings.model_server.name, "", ""
        for _ in range(self._settings.tries):
            async with self._slots:
                left_s = max(until - time.monotonic(), 0.001)
                answer = await self._models.respond(server, request, timeout_s=left_s)
            try:
                text = judge_text(answer)
                return Vote(read_score(text, code, self._settings), self._shortened(text))
            except UnreadableGrade as error:
                found = str(error)
        if self._settings.on_unreadable == "zero":
            return Vote(None, self._shortened(text))
        detail = f"the judge's answer holds no grade after {self._settings.tries} tries: {found}"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=server)

    def _combined(self, votes: list[Vote]) -> Score:
        scores = [vote.score or 0.0 for vote in votes]
        if self._settings.combine == "mean":
            value = sum(scores) / len(scores)
        else:
            counts = Counter(scores)
            value = min(score for score, count in counts.items() if count == max(counts.values()))
        texts = [vote.text for vote in votes] if self._settings.text_chars else []
        return self._score(value, votes=[vote.score for vote in votes], texts=texts)

    def _refused(self, note: str) -> Score:
        return self._score(0.0, votes=[], texts=[], note=note)

    def _score(self, value: float, **fields: object) -> Score:
        return Score(value, {f"{self._name}_{key}": found for key, found in fields.items()})

    def _shortened(self, text: str) -> str:
        most, text = self._settings.text_chars, text.strip()
        return text if len(text) <= most else f"... {text[-most:]}" if most else ""
