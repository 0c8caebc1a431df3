"""ng_viewer as a process."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rollyard.services.cli.arguments.positional import split_arguments
from rollyard.services.cli.options import read_options
from rollyard.services.cli.viewer import FIRST_PORT, ViewerOptions
from rollyard.services.runtime.hosting import bind
from tests.e2e.test_docs import every
from tests.support.commands import DEADLINE_S, command, in_this_process, ng_viewer
from tests.support.rollout_files import grid, random_rows, write
from tests.support.training_runs import training_run


@pytest.fixture
def first_port_taken() -> Iterator[None]:
    """Hold the default port, unless another process already does."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(bind("127.0.0.1", FIRST_PORT))
        yield


@pytest.mark.usefixtures("first_port_taken")
async def test_the_printed_address_shows_the_file_and_ctrl_c_ends_with_0(tmp_path: Path) -> None:
    write(tmp_path / "x.jsonl", random_rows(3, 2))
    async with ng_viewer("+jsonl_fpath=x.jsonl", "+names=[mine]", cwd=tmp_path) as (process, url):
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


async def test_rollouts_appear_while_they_are_collected(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", grid([1], 1))
    async with ng_viewer("+jsonl_fpath=x.jsonl", "+port=0", cwd=tmp_path) as (_, url), httpx.AsyncClient() as client:

        async def measured(count: int) -> None:
            async with asyncio.timeout(DEADLINE_S):
                while (await client.get(f"{url}api/overview")).json()["runs"][0]["measured"] != count:
                    await asyncio.sleep(0.05)

        await measured(1)
        path.write_bytes(path.read_bytes() + write(tmp_path / "y.jsonl", grid([1, 1], 2)[1:]).read_bytes())
        await measured(4)


async def test_a_requested_port_that_is_in_use_is_named_with_its_owner(tmp_path: Path) -> None:
    write(tmp_path / "x.jsonl", grid([1], 1))
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        done = await command("ng_viewer", "+jsonl_fpath=x.jsonl", f"+port={port}", cwd=tmp_path)
    assert done.status == 1
    assert f"cannot listen on 127.0.0.1:{port}, held by process" in done.err


async def test_export_writes_one_file_and_exits(tmp_path: Path) -> None:
    write(tmp_path / "x.jsonl", random_rows(3, 2))
    done = await command("ng_viewer", "+jsonl_fpath=x.jsonl", "+export=out.html", "+export_limit=4", cwd=tmp_path)
    assert (done.status, done.err) == (0, "")
    page = (tmp_path / "out.html").read_text()
    assert "This page contains 4 of 6 rollouts" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected +jsonl_fpath="),
        (["+jsonl_fpath=nowhere.jsonl"], "'nowhere.jsonl' is not a file"),
        (["+jsonl_fpath=[x.jsonl,x.jsonl]"], "a file is listed more than once"),
        (["+jsonl_fpath=x.jsonl", "+names=[a,b]"], "2 names for 1 files"),
        (["+jsonl_fpath=x.jsonl", "+host=0.0.0.0"], "would be open to other hosts on 0.0.0.0 without a token"),
        (["+jsonl_fpath=x.jsonl", "+hots=0.0.0.0"], "did you mean 'host'"),
        (["+jsonl_fpath=x.jsonl", "+export_limit=0"], "export_limit"),
        (["run", "x.jsonl"], "'run' is a training run, which is shown alone; found 2 files and folders"),
        (["run", "+export=page.html"], "'run' is a training run, which cannot be exported"),
        (["run/rollouts"], "the folder 'run/rollouts' has no rollouts.jsonl"),
    ],
)
def test_wrong_usage_prints_a_message_and_returns_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    write(tmp_path / "x.jsonl", grid([1], 1))
    training_run(tmp_path / "run", 1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROLLYARD_TOKEN", raising=False)
    refused = in_this_process("ng_viewer", *arguments, capsys=capsys)
    assert (refused.status, message in refused.err) == (2, True), refused.err


@pytest.mark.parametrize("words", every("ng_viewer"), ids=" ".join)
def test_every_documented_viewer_line_has_known_options(words: list[str]) -> None:
    read_options(ViewerOptions, split_arguments(words[1:])[1])


async def test_on_other_addresses_than_loopback_the_page_needs_the_token(tmp_path: Path) -> None:
    write(tmp_path / "x.jsonl", grid([1], 1))
    arguments = ("+jsonl_fpath=x.jsonl", "+host=0.0.0.0", "+port=0", "+token=s3cret")
    async with ng_viewer(*arguments, cwd=tmp_path) as (_, url), httpx.AsyncClient() as client:
        assert "s3cret" not in url
        port = url.split(":")[2].partition("/")[0]
        bare = await client.get(f"http://127.0.0.1:{port}/")
        opened = await client.get(f"http://127.0.0.1:{port}/?token=s3cret", follow_redirects=True)
    assert (bare.status_code, opened.status_code) == (401, 200)
