"""ng_status during a collection, for people and for programs."""

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
import termios
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import orjson
import pytest

from tests.support.commands import BIN, DEADLINE_S, Finished, command, command_environ, config, ng_run
from tests.support.stacks import AGENT, EXAMPLES, SOKOBAN

SLOW = "policy_model.responses_api_models.builtin_model.latency_s=3600"
COLLECT = (
    "ng_collect_rollouts",
    f"+agent_name={AGENT}",
    "+input_jsonl_fpath=in.jsonl",
    "+output_jsonl_fpath=out/rollouts.jsonl",
    "+num_repeats=4",
)


class Terminal:
    """A command in its own pseudo-terminal."""

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
        async with asyncio.timeout(DEADLINE_S):
            while not holds(self.lines):
                await asyncio.sleep(0.05)

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            self._raw += os.read(self._master, 1 << 16)


@pytest.fixture(scope="module")
async def playing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    """The folder of a run with a collection whose rollouts all wait for the model."""
    folder: Path = tmp_path_factory.mktemp("run")
    shutil.copy(EXAMPLES, folder / "in.jsonl")
    async with ng_run(config(SOKOBAN), SLOW, "+colocate=true", "+head_port=0", cwd=folder):
        with (folder / "collect.log").open("wb") as log:
            collecting = await asyncio.create_subprocess_exec(
                str(BIN / COLLECT[0]), *COLLECT[1:], cwd=folder, env=command_environ(), stdout=log, stderr=log
            )
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not all_wait_for_the_model(await full_status(folder)):
                    await asyncio.sleep(0.1)
            yield folder
        finally:
            collecting.send_signal(signal.SIGTERM)
            await collecting.wait()


async def full_status(folder: Path) -> Finished:
    return await command("ng_status", "+json=true", "+episodes=true", cwd=folder)


def all_wait_for_the_model(status: Finished) -> bool:
    """True if the agent and the collection report it; the collection reports to the head once per second."""
    if status.status != 0:
        return False
    snapshot = orjson.loads(status.out)
    waiting = [entry["episodes"] for entry in snapshot["stages"] if entry["stage"] == "model"]
    return waiting == [20] and [entry["status"]["in_flight"] for entry in snapshot["collections"]] == [20]


async def test_the_table_shows_the_running_rollouts_and_the_progress_of_the_collection(playing: Path) -> None:
    table = (await command("ng_status", cwd=playing)).out
    assert re.search(r"3 of 3 ready", table)
    assert re.search(r"^model +policy_model +20 ", table, re.MULTILINE)
    assert "20 rollouts running, the oldest 10:" in table
    assert re.search(r"out/rollouts.jsonl: running\n +0 of 20 measured, .*20 in flight, the oldest for", table)


async def test_json_without_episodes_is_the_list_of_servers(playing: Path) -> None:
    servers = orjson.loads((await command("ng_status", "+json=true", cwd=playing)).out)
    assert [server["ready"] for server in servers] == [True] * 3


async def test_json_with_episodes_is_one_object_with_the_whole_status(playing: Path) -> None:
    snapshot = orjson.loads((await command("ng_status", "+json=true", "+episodes=true", cwd=playing)).out)
    assert snapshot["total"] == 20 and snapshot["stages"][0]["stage"] == "model"
    assert {(entry["task"], entry["repeat"]) for entry in snapshot["episodes"]} == {
        (t, r) for t in range(5) for r in range(4)
    }
    assert snapshot["collections"][0]["output"] == str(playing / "out/rollouts.jsonl")


@pytest.mark.parametrize("columns", [80, 200])
async def test_watch_redraws_within_the_terminal_until_ctrl_c_which_is_not_a_failure(
    playing: Path, columns: int
) -> None:
    async with Terminal(columns, playing, "ng_status", "+watch=true") as terminal:
        await terminal.until(lambda lines: sum("3 of 3 ready" in line for line in lines) >= 2)
        terminal.process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(terminal.process.wait(), DEADLINE_S) == 0
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
    totals = [orjson.loads(await asyncio.wait_for(process.stdout.readline(), DEADLINE_S))["total"] for _ in range(2)]
    process.send_signal(signal.SIGINT)
    assert (totals, await process.wait()) == ([20, 20], 0)


async def test_watch_waits_for_a_run_that_is_not_up_yet(tmp_path: Path) -> None:
    async with Terminal(100, tmp_path, "ng_status", "+watch=true", "+head=127.0.0.1:9") as terminal:
        await terminal.until(lambda lines: any("no running stack" in line for line in lines))
        assert terminal.process.returncode is None


@pytest.fixture(scope="module")
async def quick_run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    """The folder of a run whose model answers after 0.3 s."""
    folder: Path = tmp_path_factory.mktemp("quick")
    shutil.copy(EXAMPLES, folder / "in.jsonl")
    quick = SLOW.replace("=3600", "=0.3")
    async with ng_run(config(SOKOBAN), quick, "+colocate=true", "+head_port=0", cwd=folder):
        yield folder


@pytest.mark.parametrize("columns", [80, 200])
async def test_the_collectors_progress_bar_fits_its_terminal(quick_run: Path, columns: int) -> None:
    output = f"+output_jsonl_fpath=out/{columns}.jsonl"
    async with Terminal(columns, quick_run, *COLLECT, output) as terminal:
        assert await asyncio.wait_for(terminal.process.wait(), DEADLINE_S) == 0
        bars = [line for line in terminal.lines if line.startswith("rollouts ")]
    assert max(map(len, bars)) <= columns and "…" not in "".join(bars)
    assert any(re.search(r"success .*/s  .* left", line) for line in bars)
    assert columns == 80 or any("in flight" in line for line in bars)
