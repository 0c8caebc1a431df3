"""ng_viewer as a user starts it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from rollyard.services.cli.options import read_options, run_command
from rollyard.services.cli.viewer import EXAMPLE, FIRST_PORT, ViewerOptions, run
from rollyard.services.runtime.hosting import bind
from tests.e2e.test_docs import every
from tests.support.commands import BIN, DEADLINE_S, command, environment
from tests.support.rollout_files import grid, varied, write


@contextlib.asynccontextmanager
async def viewer(*arguments: str, cwd: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """`ng_viewer` in the foreground, and the address it printed."""
    process = await asyncio.create_subprocess_exec(
        str(BIN / "ng_viewer"), *arguments, cwd=cwd, env=environment(), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), DEADLINE_S)
        yield process, line.decode().strip()
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        await asyncio.wait_for(process.communicate(), DEADLINE_S)


@pytest.fixture
def first_port_taken() -> Iterator[None]:
    """By us, or by whoever has it."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(bind("127.0.0.1", FIRST_PORT))
        yield


@pytest.mark.usefixtures("first_port_taken")
async def test_the_printed_address_shows_the_file_and_ctrl_c_is_an_orderly_end(tmp_path: Path) -> None:
    write(tmp_path / "x.jsonl", varied(3, 2))
    async with viewer("+jsonl_fpath=x.jsonl", "+names=[mine]", cwd=tmp_path) as (process, url):
        async with httpx.AsyncClient(base_url=url) as client:
            page = await client.get("/")
            async with asyncio.timeout(DEADLINE_S):
                while not (run := (await client.get("/api/overview")).json()["runs"][0])["measured"]:
                    await asyncio.sleep(0.02)
            live = (await client.get("/api/live")).json()
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), DEADLINE_S) == 0
    assert re.fullmatch(r"http://127\.0\.0\.1:8\d\d\d/", url) and str(FIRST_PORT) not in url
    assert '<div id="app">' in page.text
    assert (run["name"], run["measured"]) == ("mine", 6)
    assert "run_id" in live


async def test_rollouts_that_are_being_collected_are_seen_as_they_come(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", grid([1], 1))
    async with viewer("+jsonl_fpath=x.jsonl", "+port=0", cwd=tmp_path) as (_, url), httpx.AsyncClient() as client:

        async def measured(count: int) -> None:
            async with asyncio.timeout(DEADLINE_S):
                while (await client.get(f"{url}api/overview")).json()["runs"][0]["measured"] != count:
                    await asyncio.sleep(0.05)

        await measured(1)
        path.write_bytes(path.read_bytes() + write(tmp_path / "y.jsonl", grid([1, 1], 2)[1:]).read_bytes())
        await measured(4)


async def test_a_port_that_was_asked_for_and_is_taken_is_named_with_its_owner(tmp_path: Path) -> None:
    write(tmp_path / "x.jsonl", grid([1], 1))
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        done = await command("ng_viewer", "+jsonl_fpath=x.jsonl", f"+port={port}", cwd=tmp_path)
    assert done.status == 1
    assert f"cannot listen on 127.0.0.1:{port}, held by process" in done.err


async def test_export_writes_one_file_and_ends(tmp_path: Path) -> None:
    write(tmp_path / "x.jsonl", varied(3, 2))
    done = await command("ng_viewer", "+jsonl_fpath=x.jsonl", "+export=out.html", "+export_limit=4", cwd=tmp_path)
    assert (done.status, done.err) == (0, "")
    page = (tmp_path / "out.html").read_text()
    assert "This page contains 4 of 6 rollouts" in page


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "expected +jsonl_fpath="),
        (["+jsonl_fpath=nowhere.jsonl"], "'nowhere.jsonl' is not a file"),
        (["+jsonl_fpath=[x.jsonl,x.jsonl]"], "a file is given twice"),
        (["+jsonl_fpath=x.jsonl", "+names=[a,b]"], "2 names for 1 files"),
        (["+jsonl_fpath=x.jsonl", "+host=0.0.0.0"], "would be open to other hosts on 0.0.0.0 without a token"),
        (["+jsonl_fpath=x.jsonl", "+hots=0.0.0.0"], "did you mean 'host'"),
        (["+jsonl_fpath=x.jsonl", "+export_limit=0"], "export_limit"),
    ],
)
def test_what_is_wrong_is_said_with_status_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    write(tmp_path / "x.jsonl", grid([1], 1))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROLLYARD_TOKEN", raising=False)
    with pytest.raises(SystemExit) as ended:
        run_command("ng_viewer", ViewerOptions, EXAMPLE, run, arguments)
    assert (ended.value.code, said in capsys.readouterr().err) == (2, True)


@pytest.mark.parametrize("words", every("ng_viewer"), ids=" ".join)
def test_every_documented_viewer_line_has_known_options(words: list[str]) -> None:
    read_options(ViewerOptions, words[1:])


async def test_beyond_loopback_the_token_opens_the_page(tmp_path: Path) -> None:
    write(tmp_path / "x.jsonl", grid([1], 1))
    arguments = ("+jsonl_fpath=x.jsonl", "+host=0.0.0.0", "+port=0", "+token=s3cret")
    async with viewer(*arguments, cwd=tmp_path) as (_, url), httpx.AsyncClient() as client:
        assert "s3cret" not in url
        port = url.split(":")[2].partition("/")[0]
        bare = await client.get(f"http://127.0.0.1:{port}/")
        opened = await client.get(f"http://127.0.0.1:{port}/?token=s3cret", follow_redirects=True)
    assert (bare.status_code, opened.status_code) == (401, 200)
