from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import orjson
import pytest

from rollyard.cli.viewer import FIRST_PORT
from rollyard.services.http.listener import bind
from tests.support.commands import Command, announced
from tests.support.rollout_files import grid, random_rows, write
from tests.support.waiting import deadline_s, eventually


@pytest.fixture(scope="module")
def first_port_taken() -> Iterator[None]:
    """Hold the default port, unless another process already does."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(bind("127.0.0.1", FIRST_PORT))
        yield


@pytest.fixture(scope="module")
async def viewer(
    tmp_path_factory: pytest.TempPathFactory, first_port_taken: None
) -> AsyncIterator[tuple[Path, httpx.Client]]:
    folder: Path = tmp_path_factory.mktemp("viewer")
    file = write(folder / "x.jsonl", grid([1], 1))
    async with announced("ng_viewer", "+jsonl_fpath=x.jsonl", "+names=[mine]", cwd=folder) as (_, url):
        with httpx.Client(base_url=url, timeout=deadline_s()) as client:
            yield file, client


def shows(client: httpx.Client, measured: int) -> None:
    """Wait until the viewer shows this number of rollouts."""

    def shown() -> int:
        return int(client.get("/api/overview").json()["runs"][0]["measured"])

    eventually(f"{measured} rollouts are shown", lambda: shown() == measured)


def test_the_printed_address_is_the_next_free_port_and_shows_the_page(viewer: tuple[Path, httpx.Client]) -> None:
    _, client = viewer
    url = str(client.base_url)
    assert re.fullmatch(r"http://127\.0\.0\.1:8\d\d\d/", url) and str(FIRST_PORT) not in url
    assert '<div id="app">' in client.get("/").text
    assert "run_id" in client.get("/api/live").json()
    assert client.get("/api/overview").json()["runs"][0]["name"] == "mine"


def test_rollouts_appear_while_they_are_collected(viewer: tuple[Path, httpx.Client]) -> None:
    file, client = viewer
    shows(client, 1)
    with file.open("ab") as growing:
        growing.writelines(orjson.dumps(row) + b"\n" for row in grid([1, 1], 2)[1:])
    shows(client, 4)


async def test_on_other_addresses_than_loopback_the_page_needs_the_token_and_ctrl_c_ends_it_with_0(
    tmp_path: Path,
) -> None:
    write(tmp_path / "x.jsonl", grid([1], 1))
    arguments = ("+jsonl_fpath=x.jsonl", "+host=0.0.0.0", "+port=0", "+token=s3cret")
    async with (
        announced("ng_viewer", *arguments, cwd=tmp_path) as (process, url),
        httpx.AsyncClient(timeout=deadline_s()) as client,
    ):
        assert "s3cret" not in url
        port = url.split(":")[2].partition("/")[0]
        bare = await client.get(f"http://127.0.0.1:{port}/")
        opened = await client.get(f"http://127.0.0.1:{port}/?token=s3cret", follow_redirects=True)
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), deadline_s()) == 0
    assert (bare.status_code, opened.status_code) == (401, 200)


def test_a_requested_port_that_is_in_use_is_named_with_its_owner(here: Path, ng: Command) -> None:
    write(here / "x.jsonl", grid([1], 1))
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        done = ng("ng_viewer", "x.jsonl", f"+port={port}")
    assert (done.status, f"127.0.0.1:{port}" in done.err) == (1, True), done.err
    assert f"process {os.getpid()}" in done.err


def test_export_writes_one_file_and_exits(here: Path, ng: Command) -> None:
    write(here / "x.jsonl", random_rows(3, 2))
    done = ng("ng_viewer", "+jsonl_fpath=x.jsonl", "+export=out.html", "+export_limit=4")
    assert (done.status, done.err) == (0, "")
    assert "4 of 6 rollouts" in (here / "out.html").read_text()
