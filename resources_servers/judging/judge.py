"""Grades answers with one of the run's models (LLM-as-a-judge).

    judge = Judge(models, settings.judge)          # one per server, shared by its episodes
    score = await judge.grade(question=..., response=response.text, reference=self.task["answer"])
    return Verdict(reward=score.value, success=score.value == 1.0, **score.fields)

If the judge is unreachable, a Failure is raised, and the rollout is retried. A judge's reply that cannot be parsed is
handled differently, because the graded answer may have caused it: the judge is asked up to `tries` times about the same
answer, and then the vote counts as 0. A Failure would give the policy a second try.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Protocol

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.resources_servers.judging.question import Question
from rollyard.resources_servers.judging.reading import UnreadableGrade, judge_text, read_score
from rollyard.resources_servers.judging.settings import JudgeSettings
from rollyard.resources_servers.rubric import Score

log = logging.getLogger(__name__)


class Models(Protocol):
    """The model servers of the run."""

    async def respond(self, server: str, request: Json, *, timeout_s: float) -> Json:
        """Send the request to /v1/responses on the model server `server`. Raises Failure if the call fails."""


@dataclass(frozen=True, slots=True)
class Vote:
    """One reply from the judge."""

    score: float | None
    """The score; None if no grade could be parsed, which counts as 0, or as 1 if the score is used as a penalty."""
    text: str


class Judge:
    """Grades answers. Create one per server process: episodes share its limit on parallel requests and its cache."""

    def __init__(self, models: Models, settings: JudgeSettings, *, name: str = "judge") -> None:
        """`name` is the prefix of the judge's fields on the rollout; two judges in one rubric need different names."""
        self._models = models
        self._settings = settings
        self._name = name
        self._slots = asyncio.Semaphore(settings.parallel)
        self._cache: OrderedDict[str, Score] = OrderedDict()
        self._unreadable = 0

    async def grade(self, *, question: str, response: str, reference: str = "") -> Score:
        """Return the combined score from 0 to 1, with the votes and the judge's texts as fields for the verdict.

        If the judge cannot grade the answer, raises Failure with the name of its model server.
        """
        for name, text in {"question": question, "response": response, "reference": reference}.items():
            if not isinstance(text, str):
                raise TypeError(f"grade was given {name}={text!r:.100} ({type(text).__name__}); expected a string")
        if len(response) > self._settings.max_response_chars:
            return self._zero(f"the answer has {len(response)} characters: too long to be graded")
        item = Question(question, response, reference)
        key = item.digest(self._settings)
        if (cached := self._cache.get(key)) is not None:
            self._cache.move_to_end(key)
            return cached
        try:
            votes = await self._votes(item, key[:8])
        except Failure as failure:
            # The model determines the length of its answer. A failure would give it a second attempt.
            if failure.kind is not FailureKind.CONTEXT_OVERFLOW:
                raise
            return self._zero("the answer does not fit the judge's context")
        score = self._combined(votes)
        if self._settings.cache_size and all(vote.score is not None for vote in votes):
            self._cache[key] = score
            if len(self._cache) > self._settings.cache_size:
                self._cache.popitem(last=False)
        return score

    async def _votes(self, item: Question, code: str) -> list[Vote]:
        request = {**self._settings.params, "input": item.prompt(code, self._settings)}
        deadline = time.monotonic() + self._settings.timeout_s
        tasks: list[asyncio.Task[Vote]] = []
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                tasks.extend(
                    asyncio.create_task(self._vote(request, code, item.response, deadline))
                    for _ in range(self._settings.votes)
                )
                return await asyncio.gather(*tasks)
        except TimeoutError as error:
            detail = f"the judge returned no grade within {self._settings.timeout_s:g} s"
            raise Failure(FailureKind.TIMEOUT, detail, server=self._settings.model_server.name) from error
        finally:
            for task in tasks:
                task.cancel()

    async def _vote(self, request: Json, code: str, response: str, deadline: float) -> Vote:
        server, text, reason = self._settings.model_server.name, "", ""
        for _ in range(self._settings.tries):
            async with self._slots:
                remaining_s = max(deadline - time.monotonic(), 0.001)
                answer = await self._models.respond(server, request, timeout_s=remaining_s)
            try:
                text = judge_text(answer)
                # In a thread, because matching may take a second.
                score = await asyncio.to_thread(read_score, text, code, self._settings, response)
                return Vote(score, self._shortened(text))
            except UnreadableGrade as error:
                reason = str(error)
        detail = f"the judge's answer contains no grade after {self._settings.tries} tries: {reason}"
        if self._settings.on_unreadable == "zero":
            self._unreadable += 1
            if self._unreadable == 10 ** (len(str(self._unreadable)) - 1):  # the 1st, 10th, 100th, ...
                log.warning("%s: %s. The vote counts as 0 (occurrence %d)", server, detail, self._unreadable)
            return Vote(None, self._shortened(text))
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=server)

    def _combined(self, votes: list[Vote]) -> Score:
        value, as_penalty = (
            self._value([unread if vote.score is None else vote.score for vote in votes]) for unread in (0.0, 1.0)
        )
        texts = [vote.text for vote in votes] if self._settings.text_chars else []
        unreadable = sum(vote.score is None for vote in votes)
        scores = [vote.score for vote in votes]
        return self._score(value, as_penalty, votes=scores, texts=texts, unreadable=unreadable)

    def _value(self, scores: list[float]) -> float:
        if self._settings.combine == "mean":
            return sum(scores) / len(scores)
        counts = Counter(scores)
        return min(score for score, count in counts.items() if count == max(counts.values()))

    def _zero(self, note: str) -> Score:
        return self._score(0.0, 1.0, votes=[], texts=[], note=note)

    def _score(self, value: float, as_penalty: float, **fields: object) -> Score:
        return Score(value, {f"{self._name}_{key}": value for key, value in fields.items()}, as_penalty)

    def _shortened(self, text: str) -> str:
        limit, text = self._settings.text_chars, text.strip()
        return text if len(text) <= limit else f"... {text[-limit:]}" if limit else ""
