from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import orjson
import pytest

from rollyard.records.run_types import play_token
from tests.support.commands import BIN, Finished, command_environ, in_this_process, running_stack
from tests.support.stacks import AGENT, EXAMPLES, SOKOBAN
from tests.support.waiting import deadline_s, eventually, until

SLOW = "policy_model.responses_api_models.builtin_model.latency_s=3600"
COLLECT = (
    "ng_collect_rollouts",
    f"+agent_name={AGENT}",
    "+input_jsonl_fpath=in.jsonl",
    "+output_jsonl_fpath=out/rollouts.jsonl",
    "+num_repeats=4",
)


class Terminal:
    def __init__(self, columns: int, cwd: Path, *words: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        self._raw = b""
        asyncio.get_running_loop().add_reader(self._master, self._read)
        self._slave, self._words, self._cwd = slave, words, cwd
        self.process: asyncio.subprocess.Process

    @property
    def lines(self) -> list[str]:
        """The output without escape sequences."""
        text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", self._raw).decode()
        return [line for line in re.split(r"[\r\n]+", text) if line.strip()]

    async def __aenter__(self) -> Terminal:
        self.process = await asyncio.create_subprocess_exec(
            str(BIN / self._words[0]),
            *self._words[1:],
            cwd=self._cwd,
            env={**command_environ(), "TERM": "xterm"},
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
        )
        os.close(self._slave)
        return self

    async def __aexit__(self, *error: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        asyncio.get_running_loop().remove_reader(self._master)
        os.close(self._master)

    async def until(self, holds: Callable[[list[str]], bool]) -> None:
        """Wait until the condition holds for the output."""
        await until(lambda: holds(self.lines))

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            self._raw += os.read(self._master, 1 << 16)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a run with a collection whose rollouts all wait for the model."""
    folder: Path = tmp_path_factory.mktemp("run")
    shutil.copy(EXAMPLES, folder / "in.jsonl")
    with running_stack(SLOW, configs=SOKOBAN, folder=folder), (folder / "collect.log").open("wb") as log:
        environ = command_environ()
        collecting = subprocess.Popen([BIN / COLLECT[0], *COLLECT[1:]], cwd=folder, env=environ, stdout=log, stderr=log)
        try:
            yield folder
        finally:
            collecting.terminate()
            collecting.wait(deadline_s())


@pytest.fixture
def status(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Finished]:
    monkeypatch.chdir(run)
    show = partial(in_this_process, "ng_status", capsys=capsys)
    eventually("all wait", lambda: all_wait_for_the_model(show("+json=true", "+episodes=true")))
    return show


@pytest.fixture
def playing(run: Path, status: Callable[..., Finished]) -> Path:
    return run


def all_wait_for_the_model(status: Finished) -> bool:
    """True if the agent and the collection report it; the collection reports to the head once per second."""
    if status.status != 0:
        return False
    snapshot = orjson.loads(status.out)
    waiting = [entry["episodes"] for entry in snapshot["stages"] if entry["stage"] == "model"]
    return waiting == [20] and [entry["status"]["in_flight"] for entry in snapshot["collections"]] == [20]


def test_the_table_shows_the_running_rollouts_and_the_progress_of_the_collection(
    status: Callable[..., Finished],
) -> None:
    table = status().out
    assert "3 of 3 ready" in table
    assert re.search(r"^model +policy_model +20 ", table, re.MULTILINE)
    assert re.search(r"^20 .* 10:$", table, re.MULTILINE)
    assert re.search(r"out/rollouts.jsonl: running\n +0 of 20 measured, .*20 in flight", table)


def test_json_without_episodes_is_the_list_of_servers(status: Callable[..., Finished]) -> None:
    assert [server["ready"] for server in orjson.loads(status("+json=true").out)] == [True] * 3


def test_json_with_episodes_is_one_object_with_the_whole_status(run: Path, status: Callable[..., Finished]) -> None:
    snapshot = orjson.loads(status("+json=true", "+episodes=true").out)
    assert snapshot["total"] == 20 and snapshot["stages"][0]["stage"] == "model"
    assert {(entry["task"], entry["repeat"]) for entry in snapshot["episodes"]} == {
        (t, r) for t in range(5) for r in range(4)
    }
    assert snapshot["collections"][0]["output"] == str(run / "out/rollouts.jsonl")


def test_play_prints_the_play_token_of_the_run_token_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLYARD_TOKEN", "a run token of a test")
    assert in_this_process("ng_status", "--play", capsys=capsys).out == f"{play_token('a run token of a test')}\n"


@pytest.mark.parametrize("token", ["short", play_token("a run token of a test")])
def test_play_refuses_a_token_without_a_play_token(
    token: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLYARD_TOKEN", token)
    refused = in_this_process("ng_status", "--play", capsys=capsys)
    assert refused.status == 2 and "no play token" in refused.err and not refused.out


def test_a_run_without_a_token_has_no_play_token(status: Callable[..., Finished]) -> None:
    refused = status("--play")
    assert refused.status == 2 and "this run has no token" in refused.err


async def test_watch_redraws_within_the_terminal_until_ctrl_c_which_is_not_a_failure(playing: Path) -> None:
    columns = 80
    async with Terminal(columns, playing, "ng_status", "+watch=true") as terminal:
        await terminal.until(lambda lines: sum("3 of 3 ready" in line for line in lines) >= 2)
        terminal.process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(terminal.process.wait(), deadline_s()) == 0
        lines = terminal.lines
    assert max(map(len, lines)) <= columns
    assert any("grl_sokoban_resources_server" in line for line in lines)
    assert any(re.search(r"model +policy_model", line) for line in lines)


async def test_watch_with_json_prints_one_line_per_second(playing: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(str(BIN / "ng_status"), "+watch=true", "+json=true", "+episodes=true"),
        cwd=playing,
        env={**command_environ(), "PYTHONUNBUFFERED": ""},
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )
    assert process.stdout is not None
    totals = [orjson.loads(await asyncio.wait_for(process.stdout.readline(), deadline_s()))["total"] for _ in range(2)]
    process.send_signal(signal.SIGINT)
    assert (totals, await process.wait()) == ([20, 20], 0)


async def test_watch_waits_for_a_run_that_is_not_up_yet(tmp_path: Path) -> None:
    async with Terminal(100, tmp_path, "ng_status", "+watch=true", "+head=127.0.0.1:9") as terminal:
        await terminal.until(lambda lines: any("no running stack" in line for line in lines))
        assert terminal.process.returncode is None


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a run whose model answers after 0.3 s."""
    folder: Path = tmp_path_factory.mktemp("quick")
    shutil.copy(EXAMPLES, folder / "in.jsonl")
    with running_stack(SLOW.replace("=3600", "=0.3"), configs=SOKOBAN, folder=folder):
        yield folder


@pytest.mark.parametrize("columns", [80, 200])
async def test_the_collectors_progress_bar_fits_its_terminal(quick_run: Path, columns: int) -> None:
    output = f"+output_jsonl_fpath=out/{columns}.jsonl"
    async with Terminal(columns, quick_run, *COLLECT, output) as terminal:
        assert await asyncio.wait_for(terminal.process.wait(), deadline_s()) == 0
        bars = [line for line in terminal.lines if line.startswith("rollouts ")]
    assert max(map(len, bars)) <= columns and "…" not in "".join(bars)
    assert any(re.search(r"success .*/s  .* left", line) for line in bars)
    assert columns == 80 or any("in flight" in line for line in bars)
