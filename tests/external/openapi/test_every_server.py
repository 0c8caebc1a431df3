"""Requests that schemathesis makes from the OpenAPI document of every server, valid ones and others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx
import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import strategies
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.every_server import (
    EVERY_SERVER,
    NEEDS,
    SLOW,
    Opened,
    ask,
    close_sessions,
    document,
    faults_of,
    headers_with_session,
)

COVERED, DRAWN = 100, 6
"""Requests to each operation: of those that vary one field after another, evenly chosen, and drawn by Hypothesis."""
CHECKS = [content_type_conformance, response_schema_conformance, status_code_conformance]
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)


def _servers() -> list[Any]:
    smoke = ("head", "turn-based environment", "builtin_model")
    marks = {name: [pytest.mark.smoke] for name in smoke}
    for name in NEEDS:
        marks[name] = [pytest.mark.smoke, pytest.mark.filterwarnings("default")]  # of their packages: not ours to mend
    return [pytest.param(name, marks=marks.get(name, ())) for name in EVERY_SERVER]


class Caller:
    """Sends the cases of one server, each in a session of its own if the server has sessions."""

    def __init__(self, opened: Opened, runner: asyncio.Runner) -> None:
        self._opened = opened
        self._runner = runner
        self.faults: dict[str, str] = {}
        self.sent = 0

    def check(self, case: Any) -> None:
        try:
            prepared: Any = requests.Request(**case.as_transport_kwargs(base_url="http://127.0.0.1")).prepare()
        except (ValueError, UnicodeError):  # what no client can send
            return
        response = self._runner.run(self._send(prepared))
        self.sent += 1
        fault = faults_of(response)
        try:
            case.validate_response(response, checks=CHECKS)
        except BaseExceptionGroup as found:
            fault = fault or "; ".join(str(one) for one in found.exceptions)
        if fault:
            where = f"{case.method} {case.operation.path}: {fault[:120]}"
            self.faults.setdefault(where, f"{fault}\n{prepared.body!r:.1000}")

    async def _send(self, prepared: Any) -> httpx.Response:
        url, body = urlsplit(str(prepared.url)), prepared.body or b""
        own = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in prepared.headers.items()]
        sent = {name for name, _ in own}
        session = await headers_with_session(self._opened) if prepared.method == "POST" else []
        headers = [*own, *(pair for pair in session if pair[0] not in sent)]
        given = body.encode() if isinstance(body, str) else body
        path = unquote(url.path, errors="replace")
        answer = await ask(self._opened.app, prepared.method or "", path, headers, given, url.query.encode())
        await close_sessions(self._opened, session, answer)
        return answer


@pytest.mark.parametrize("name", _servers())
def test_no_request_that_follows_the_document_or_breaks_it_is_answered_with_a_fault(name: str, tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        make = EVERY_SERVER[name](tmp_path)
        opened = runner.run(make.__aenter__())
        try:
            described = runner.run(document(opened))
            schema = schemathesis.openapi.from_dict(described)
            schema.validate()
            caller = Caller(opened, runner)
            for found in schema.get_all_operations():
                _explore(caller, found, *((COVERED // 20, 2) if name in SLOW else (COVERED, DRAWN)))
            assert not caller.faults, "\n\n".join(caller.faults.values())
            assert caller.sent > len(described["paths"])
            assert opened.left() == 0, "sessions are left"
        finally:
            runner.run(make.__aexit__(None, None, None))


def _explore(caller: Caller, found: Any, covered: int, drawn: int) -> None:
    operation = found.ok()
    config = operation.schema.config.generation_for(operation=operation, phase="coverage")
    cases = [*operation.schema.iter_coverage_cases(operation, generation_modes=[*MODES], generation_config=config)]
    for case in cases[:: len(cases) // covered + 1]:
        caller.check(case)

    @hypothesis.settings(
        max_examples=drawn,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(strategies.one_of([operation.as_strategy(generation_mode=mode) for mode in MODES]))
    def explore(case: Any) -> None:
        caller.check(case)

    explore()
