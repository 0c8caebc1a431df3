"""Helpers that get verdicts of the programming environments, and read the datasets' gold answers."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.resources_servers.base import Verification
from rollyard.resources_servers.environment import bind
from rollyard.resources_servers.humaneval.app import HumanEval
from rollyard.resources_servers.mbpp.app import Mbpp, MbppSettings
from rollyard.resources_servers.python_answers.environment import ProgramEnvironment, ProgramSettings
from rollyard.services.sandbox.sandbox import Sandbox
from rollyard.services.types import Json, Verdict
from tests.support.in_process import says
from tests.support.stacks import SHARED


def rows(name: str, step: int = 1) -> list[Json]:
    """Every `step`-th row of a file of shared/data; without the data, the test is skipped."""
    path = SHARED / "data" / name
    if not path.is_file():
        pytest.skip(f"needs {path}")
    with gzip.open(path) as file:
        return [orjson.loads(line) for line in file][::step]


def example(world: str) -> list[Json]:
    """Read the example rows of an environment."""
    path = Path(__file__).parents[4] / "resources_servers" / world / "data" / "example.jsonl"
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def said(text: str) -> Verification:
    """Build a verification request for `text`."""
    return Verification(orjson.dumps({"response": {"output": [says(text)]}}))


async def verdict(
    world: type[ProgramEnvironment[Any]], settings: ProgramSettings, sandbox: Sandbox, row: Json, text: str
) -> Verdict:
    """Return the verdict on an episode in which the model answers `text`."""
    bound = bind(world, shared=sandbox)
    found = await bound(row, settings).verify(said(text))
    assert isinstance(found, Verdict)
    return found


async def mbpp(sandbox: Sandbox, row: Json, text: str, **settings: Any) -> Verdict:
    """Return MBPP's verdict."""
    return await verdict(Mbpp, MbppSettings(**settings), sandbox, row, text)


async def humaneval(sandbox: Sandbox, row: Json, text: str, **settings: Any) -> Verdict:
    """Return HumanEval's verdict."""
    return await verdict(HumanEval, ProgramSettings(**settings), sandbox, row, text)


def failed(verdicts: Sequence[Verdict], score: str = "lenient_score") -> list[tuple[int, Any]]:
    """Return the answers that did not pass, with the reasons."""
    return [(n, found.model_dump()["reason"]) for n, found in enumerate(verdicts) if not found.model_dump()[score]]
