"""Helpers that get verdicts from environments as an agent does, or from graders directly if there are thousands."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from rollyard.records.data_files import INSTALLED
from rollyard.records.types import Json
from rollyard.resources_servers.answers.equality import Comparison, compare_without_algebra
from rollyard.resources_servers.answers.grader import AnswerForm, AnswerGrader, Grade
from rollyard.resources_servers.answers.worker_pool import WorkerPool
from rollyard.resources_servers.environment import Verification
from rollyard.services.http.request import HttpResponse
from rollyard.services.server.app import Server
from tests.support.in_process import InProcessServers, in_process_servers

DATA = INSTALLED.parent / "shared" / "data"


def response(text: str, status: str = "completed") -> Json:
    """A completed Response with `text`."""
    message = {"type": "message", "content": [{"type": "output_text", "text": text}]}
    return {"status": status, "output": [message]}


def rows_of(path: Path) -> list[Json]:
    """Read every row of a JSON Lines file, gzipped or not."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return [orjson.loads(line) for line in file]


@dataclass
class EnvironmentClient:
    """A client of a running environment server."""

    stack: InProcessServers

    async def verdict(self, row: Json, text: str, status: str = "completed") -> Json:
        """Return the verdict on `text`."""
        answer = await self.ask(row, text, status)
        assert answer.status == 200, answer.body
        content: Json = orjson.loads(answer.body)
        return content

    async def ask(self, row: Json, text: str, status: str = "completed") -> HttpResponse:
        """Return the response, regardless of its status."""
        seeded = await self.stack.post("environment", "/seed_session", row)
        if seeded.status != 200:
            return seeded
        cookie = {"cookie": seeded.cookies[0].partition(";")[0]}
        answer = await self.stack.post("environment", "/verify", {**row, "response": response(text, status)}, cookie)
        await self.stack.post("environment", "/close", {}, cookie)
        return answer


@contextlib.asynccontextmanager
async def in_process_server(server: type[Server], **settings: Any) -> AsyncIterator[EnvironmentClient]:
    """Run an environment's server in this process."""
    async with in_process_servers(
        {"environment": lambda context: server(server.Settings(**settings), context)}
    ) as stack:
        yield EnvironmentClient(stack)


@contextlib.asynccontextmanager
async def running_grader(workers: int, cpu_s: float) -> AsyncIterator[AnswerGrader]:
    """Run a grader with this number of worker processes (0: one per CPU) and CPU time per comparison."""
    pool = WorkerPool(workers, cpu_s)
    try:
        yield AnswerGrader(pool)
    finally:
        await pool.close()


async def compare_answers(workers: WorkerPool, gold: str, answer: str, problem: str = "") -> Comparison:
    """Return whether `answer` is equivalent to `gold`, using a worker process if it requires algebra."""
    return compare_without_algebra(gold, answer, problem=problem) or await workers.compare(gold, answer, problem)


async def grade_all(grader: AnswerGrader, form: AnswerForm, pairs: Iterable[tuple[str, str]]) -> list[Grade]:
    """Grade each (gold, text) sequentially."""
    return [await grader.grade(gold, verification_of(text), form) for gold, text in pairs]


def verification_of(text: str, status: str = "completed") -> Verification:
    """A verification request for `text`."""
    return Verification(orjson.dumps({"response": response(text, status)}))
