"""Malformed requests to every route of every server: the answer says what is wrong, and nothing is left behind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.records.data_files import INSTALLED
from rollyard.records.types import Json
from tests.support.every_server import (
    ENVIRONMENTS,
    EPISODE,
    EVERY_SERVER,
    SLOW,
    ask,
    close_sessions,
    document,
    faults_of,
    headers_with_session,
)
from tests.support.waiting import until

NESTED = b"[" * 5000 + b"]" * 5000
BODIES = (
    *(b"", b"{", b"null", b"[]", b"7", b'"x"', b"\xff\xfe", b"{}", b'{"a": NaN}', b'{"a": 1e999}'),
    *(NESTED, b'{"input": %b}' % NESTED, b'{"input": "\\ud800"}', b"a=b"),
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    1.5,
    10**30,
    "",
    [],
    [None],
    [[]],
    {},
    [{"type": 7}],
    [{"role": "user", "content": [7]}],
)
OF_EPISODES = ("response", "responses_create_params")
OF_MODELS = ("input", "messages", "tools")
SERVERS = [name for name in EVERY_SERVER if name not in SLOW]
DOCUMENTS = [name for name in EVERY_SERVER if name not in ENVIRONMENTS or name == "gymnasium_text"]
"""Of the environments, one with a tool; the turn-based one has none."""
SHARED = ("/aggregate_metrics", "/run_program", "/close", "/close_session", "/{tool}")
"""Routes that no environment has of its own."""
WITHOUT_A_BODY = {"/create_session", "/delete_session", "/delete", "/ping"}
"""POST routes of ORS that read only headers."""


def malformed(name: str, row: Json) -> Iterator[bytes]:
    """Bodies that are no JSON object, and rows of which one field has another type.

    The turn-based environment stands for all in what is read before the row of a task.
    """
    fields = (*OF_EPISODES, *row)
    if name not in ENVIRONMENTS:
        yield from BODIES
        fields = (*OF_MODELS, *fields)
    base = {"input": "hello", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, **row}
    for number, field in enumerate(dict.fromkeys(fields)):
        for value in VALUES[number % 2 :: 2]:
            yield orjson.dumps({**base, field: value}) if value != 10**30 else b'{"%b": %d}' % (field.encode(), value)


def concrete(path: str) -> str:
    return re.sub(r"{\w+}", "0", path.replace("{episode}", EPISODE))


@pytest.mark.parametrize("name", SERVERS)
async def test_a_malformed_request_is_refused_with_words_and_leaves_no_session(name: str, tmp_path: Path) -> None:
    async with EVERY_SERVER[name](tmp_path) as opened:
        for path, item in (await document(opened))["paths"].items():
            is_asked = "post" in item and not (name in ENVIRONMENTS and path in SHARED)
            for body in malformed(name, opened.row) if is_asked else ():
                headers = await headers_with_session(opened)
                answer = await ask(opened.app, "POST", concrete(path), headers, body)
                assert not (fault := faults_of(answer)), f"POST {path} {body[:300]!r}: {fault}"
                await close_sessions(opened, headers, answer)
        await until(lambda: opened.left() == 0)


@pytest.mark.parametrize("name", DOCUMENTS)
async def test_the_document_has_a_body_for_every_post_and_a_method_that_is_not_in_it_is_refused(
    name: str, tmp_path: Path
) -> None:
    async with EVERY_SERVER[name](tmp_path) as opened:
        found = await document(opened)
        own = [(key.encode(), value.encode()) for key, value in opened.headers.items()]
        assert found["openapi"].startswith("3.1")
        for path, item in found["paths"].items():
            assert "requestBody" in item.get("post", {"requestBody": {}}) or path in WITHOUT_A_BODY, path
            if path == "/{tool}" or ("{episode}" in path and "post" in item):
                continue  # any path: only the handler knows which exist
            answer = await ask(opened.app, "PATCH", concrete(path), own)
            assert (answer.status_code, faults_of(answer)) == (405, ""), path
            assert {method.upper() for method in item} & {*answer.headers["allow"].split(", ")}, path


@pytest.mark.parametrize("name", DOCUMENTS)
async def test_only_the_viewer_has_a_page_for_browsers(name: str, tmp_path: Path) -> None:
    async with EVERY_SERVER[name](tmp_path) as opened:
        own = [(key.encode(), value.encode()) for key, value in opened.headers.items()]
        answers = [await ask(opened.app, "GET", path, own) for path in ("/", "/docs", "/redoc", "/openapi.json")]
        pages = [answer for answer in answers if "html" in answer.headers["content-type"]]
        assert bool(pages) is (name == "viewer")


def test_every_environment_is_among_the_servers() -> None:
    assert list(ENVIRONMENTS) == sorted(path.parent.name for path in (INSTALLED / "resources_servers").glob("*/app.py"))
