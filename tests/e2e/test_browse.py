"""ng_browse as a process in a pseudo-terminal: what reaches the terminal, byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import struct
import termios
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rollyard.cli.browse import BrowseOptions
from rollyard.cli.options import read_options
from tests.e2e.test_docs import every
from tests.support.commands import BIN, command_environ, in_this_process
from tests.support.rollout_files import row, write
from tests.support.waiting import deadline_s

POINTER_SHAPE = b"22"
"""The only operating system command that textual itself writes."""
CLIPBOARD = "\x1b]52;c;cm0gLXJmIC8=\x07"
COLOUR = re.compile(rb"\x1b\[[\d;]*\b(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[;m]")


@dataclass
class Terminal:
    """A pseudo-terminal of 80 columns and 24 lines with a running ng_browse."""

    process: asyncio.subprocess.Process
    descriptor: int
    output: bytes = b""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def read(self) -> None:
        with contextlib.suppress(OSError):
            self.output += os.read(self.descriptor, 1 << 16)
        self.arrived.set()

    async def press(self, keys: str, expected: str) -> None:
        """Press keys and wait until a text is written."""
        start = len(self.output)
        os.write(self.descriptor, keys.encode())
        await self.shows(expected, start)

    async def shows(self, expected: str, start: int = 0) -> None:
        async with asyncio.timeout(deadline_s()):
            while expected not in _text(self.output[start:]):
                self.arrived.clear()
                await self.arrived.wait()


def _text(output: bytes) -> str:
    """The output without escape sequences, so that texts in several colours are found."""
    return re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", output.decode("utf-8", "replace"))


@contextlib.asynccontextmanager
async def terminal(*arguments: str, cwd: Path, **variables: str) -> AsyncIterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environ = command_environ({"TERM": "xterm-256color", "COLORTERM": "truecolor", **variables})
    process = await asyncio.create_subprocess_exec(
        str(BIN / "ng_browse"), *arguments, cwd=cwd, env=environ, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    opened = Terminal(process, ours)
    loop = asyncio.get_running_loop()
    loop.add_reader(ours, opened.read)
    try:
        yield opened
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        loop.remove_reader(ours)
        os.close(ours)


async def test_a_rollout_can_be_read_by_keys_and_its_text_does_not_control_the_terminal(tmp_path: Path) -> None:
    made = row(0, 0, 0.5, expected_answer=CLIPBOARD, finish_reason=CLIPBOARD)
    made["response"] = {"output": [{"type": "message", "role": "assistant", "content": f"hello {CLIPBOARD}"}]}
    write(tmp_path / "x.jsonl", [made])
    async with terminal("x.jsonl", cwd=tmp_path) as shown:
        await shown.shows("1 rollout")
        await shown.press("\r", "hello")
        await shown.press("?", "next, previous event")
        await shown.press("q", "k event")
        await shown.press("u", "Enter open")
        os.write(shown.descriptor, b"q")
        assert await asyncio.wait_for(shown.process.wait(), deadline_s()) == 0
    commands = re.findall(rb"\x1b\](\d*)", shown.output)
    assert set(commands) <= {POINTER_SHAPE}
    assert "u001b]52;c" in _text(shown.output)
    assert b"\x1b[?1049l" in shown.output  # the terminal shows what it showed before


async def test_with_no_color_no_colour_is_written(tmp_path: Path) -> None:
    write(tmp_path / "x.jsonl", [row(0, 0, 1.0), row(1, 0, 0.0)])
    async with terminal("x.jsonl", cwd=tmp_path, NO_COLOR="1") as shown:
        await shown.shows("2 rollouts")
        await shown.press("\r", "User")
        os.write(shown.descriptor, b"q")
        assert await asyncio.wait_for(shown.process.wait(), deadline_s()) == 0
    assert not COLOUR.search(shown.output)


def test_without_textual_the_command_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rollyard.records.io.optional.is_installed", lambda package: package != "textual")
    write(tmp_path / "x.jsonl", [row(0, 0, 1.0)])
    refused = in_this_process("ng_browse", "x.jsonl", capsys=capsys)
    assert refused.status == 2
    assert "'rollyard[browse]'" in refused.err


@pytest.mark.parametrize("words", every("ng_browse"), ids=" ".join)
def test_every_documented_ng_browse_line_has_known_options(words: list[str]) -> None:
    assert read_options(BrowseOptions, words[1:])
