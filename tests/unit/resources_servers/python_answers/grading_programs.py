"""Helpers that get verdicts of the programming environments, and read the datasets' gold answers."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.records.types import Json, Verdict
from rollyard.resources_servers.answers.programs import ProgramEnvironment, ProgramSettings
from rollyard.resources_servers.environment import bind
from rollyard.resources_servers.humaneval.app import HumanEval
from rollyard.resources_servers.mbpp.app import Mbpp, MbppSettings
from rollyard.services.sandbox.sandbox import Sandbox
from tests.support.stacks import SHARED
from tests.unit.resources_servers.answers.grading import verification_of


def rows(name: str, step: int = 1) -> list[Json]:
    path = SHARED / "data" / name
    if not path.is_file():
        pytest.skip(f"needs {path}")
    with gzip.open(path) as file:
        return [orjson.loads(line) for line in file][::step]


def example(environment: str) -> list[Json]:
    path = Path(__file__).parents[4] / "resources_servers" / environment / "data" / "example.jsonl"
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


async def get_verdict(
    environment: type[ProgramEnvironment[Any]], settings: ProgramSettings, sandbox: Sandbox, row: Json, text: str
) -> Verdict:
    bound = bind(environment, shared=sandbox)
    verdict = await bound(row, settings).verify(verification_of(text))
    assert isinstance(verdict, Verdict)
    return verdict


async def mbpp(sandbox: Sandbox, row: Json, text: str, **settings: Any) -> Verdict:
    return await get_verdict(Mbpp, MbppSettings(**settings), sandbox, row, text)


async def humaneval(sandbox: Sandbox, row: Json, text: str, **settings: Any) -> Verdict:
    return await get_verdict(HumanEval, ProgramSettings(**settings), sandbox, row, text)


def failed(verdicts: Sequence[Verdict], score: str = "lenient_score") -> list[tuple[int, Any]]:
    return [
        (n, verdict.model_dump()["reason"]) for n, verdict in enumerate(verdicts) if not verdict.model_dump()[score]
    ]
