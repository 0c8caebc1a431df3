"""Worlds asked for verdicts as an agent asks them, and judges asked directly where thousands are wanted."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from rollyard.resources_servers.answers.equality import Comparison, compare_without_algebra
from rollyard.resources_servers.answers.grader import AnswerForm, AnswerGrader, Grade
from rollyard.resources_servers.answers.worker_pool import WorkerPool
from rollyard.resources_servers.environment import Verification
from rollyard.services.http.transport import HttpResponse
from rollyard.services.io.search_path import INSTALLED
from rollyard.services.server.app import Server
from rollyard.services.types import Json
from tests.support.in_process import Wired, wired

DATA = INSTALLED.parent / "shared" / "data"


def response(text: str, status: str = "completed") -> Json:
    """A finished Responses object that says `text`."""
    message = {"type": "message", "content": [{"type": "output_text", "text": text}]}
    return {"status": status, "output": [message]}


def rows_of(path: Path) -> list[Json]:
    """Every row of a JSON Lines file, gzipped or not."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return [orjson.loads(line) for line in file]


@dataclass
class World:
    """A running world."""

    stack: Wired

    async def verdict(self, row: Json, text: str, status: str = "completed") -> Json:
        """What the world says of `text`."""
        answer = await self.ask(row, text, status)
        assert answer.status == 200, answer.body
        found: Json = orjson.loads(answer.body)
        return found

    async def ask(self, row: Json, text: str, status: str = "completed") -> HttpResponse:
        """Its answer, whatever its status."""
        seeded = await self.stack.post("world", "/seed_session", row)
        if seeded.status != 200:
            return seeded
        cookie = {"cookie": seeded.cookies[0].partition(";")[0]}
        answer = await self.stack.post("world", "/verify", {**row, "response": response(text, status)}, cookie)
        await self.stack.post("world", "/close", {}, cookie)
        return answer


@contextlib.asynccontextmanager
async def serving(server: type[Server], **settings: Any) -> AsyncIterator[World]:
    """A world's server in this process."""
    async with wired({"world": lambda context: server(server.Settings(**settings), context)}) as stack:
        yield World(stack)


@contextlib.asynccontextmanager
async def judging(cpu_s: float = 5.0) -> AsyncIterator[AnswerGrader]:
    """A judge with workers."""
    workers = WorkerPool(0, cpu_s)
    try:
        yield AnswerGrader(workers)
    finally:
        await workers.close()


async def compared(workers: WorkerPool, gold: str, answer: str, problem: str = "") -> Comparison:
    """Whether `answer` means `gold`, in a process where it takes algebra."""
    return compare_without_algebra(gold, answer, problem=problem) or await workers.compare(gold, answer, problem)


async def judged(judge: AnswerGrader, reading: AnswerForm, pairs: Iterable[tuple[str, str]]) -> list[Grade]:
    """The judgement on each (gold, text), one after another."""
    return [await judge.judge(gold, said(text), reading) for gold, text in pairs]


def said(text: str, status: str = "completed") -> Verification:
    """A verification request for `text`."""
    return Verification(orjson.dumps({"response": response(text, status)}))
