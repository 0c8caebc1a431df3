"""What every kind of box does. The containers' part is skipped without an engine (`make test-harbor` starts one)."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollyard.services.sandbox.backends import BackendName
from rollyard.services.sandbox.box import Box, BoxEntry, BoxRefused, CommandResult, content, relayed
from tests.support.boxes import start_or_skip
from tests.support.waiting import deadline_s, short_s, until

ENV = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root", "LC_ALL": "C.UTF-8"}
BACKENDS: tuple[BackendName, ...] = ("namespaces", "landlock", "docker")


@pytest.fixture(scope="module", params=BACKENDS)
async def shared_box(request: pytest.FixtureRequest) -> AsyncIterator[Box]:
    started = await start_or_skip(request.param, endpoint=True)
    yield started
    await started.close()


@pytest.fixture
async def box(shared_box: Box) -> AsyncIterator[Box]:
    """The box of this module, without processes and files of other tests."""
    yield shared_box
    await shared_box.kill_processes()
    await sh(shared_box, "rm -rf ./*")


async def sh(box: Box, command: str, timeout_s: float | None = None) -> CommandResult:
    return await box.run(("/bin/sh", "-c", command), cwd="/app", env=ENV, timeout_s=timeout_s or deadline_s())


async def test_files_stay_between_commands_and_variables_do_not(box: Box) -> None:
    await sh(box, "echo kept > file; cd /usr; export NAME=value")
    assert (await sh(box, "pwd; cat file; echo [$NAME]")).output == f"{box.path('/app')}\nkept\n[]\n"


async def test_output_and_exit_code_are_returned(box: Box) -> None:
    result = await sh(box, "echo out; echo err >&2; exit 3")
    assert (result.output, result.exit_code, result.timed_out) == ("out\nerr\n", 3, False)
    assert (await sh(box, "kill -TERM $$")).exit_code in (-signal.SIGTERM, 128 + signal.SIGTERM)


async def test_a_program_that_does_not_exist_is_reported(box: Box) -> None:
    result = await box.run(("/no/such/program",), env=ENV)
    assert result.exit_code == 127 and "No such file" in result.output
    assert (await box.run(("/bin/sh", "-c", "a\0b"), env=ENV)).exit_code == 127


async def test_long_output_keeps_its_start_and_its_end(box: Box) -> None:
    result = await sh(box, "echo first; head -c 100000 /dev/zero | tr '\\0' x; echo last")
    assert result.output.startswith("first\n") and result.output.endswith("last\n")
    assert result.output_dropped > 90_000 and len(result.output) < 5000


async def test_a_command_is_stopped_when_its_time_is_over(box: Box) -> None:
    result = await sh(box, "echo begun; sleep 1000; echo done", timeout_s=2 * short_s())
    assert result.timed_out and result.output == "begun\n"
    assert (await sh(box, "echo next")).output == "next\n"


async def test_a_background_process_runs_on_until_all_processes_are_killed(box: Box) -> None:
    await sh(box, "while true; do echo x >> ticks; sleep 0.02; done > /dev/null 2>&1 &")
    assert (await sh(box, "while [ ! -s ticks ]; do :; done; echo ticking")).output == "ticking\n"
    await box.kill_processes()
    await sh(box, "rm ticks")
    assert (await sh(box, "sleep 0.1; ls")).output == ""


async def test_a_background_process_that_holds_the_output_does_not_delay_the_command(box: Box) -> None:
    assert (await sh(box, "sleep 1000 & echo started")).output == "started\n"


async def test_files_are_put_got_and_removed(box: Box) -> None:
    entries = [
        BoxEntry(path="/app/new/run.sh", kind="file", data=b"echo \xff", mode=0o755),
        BoxEntry(path="/app/new/link", kind="link", target="run.sh"),
    ]
    await box.put(entries)
    assert await content(box, "/app/new/link", 100) == b"echo \xff"
    found = await box.get("/app/new", 100)
    assert found and found[0] == BoxEntry(path="/app/new", kind="folder", mode=0o755)
    assert sorted(found[1:], key=lambda entry: entry.path, reverse=True) == entries
    assert await content(box, "/app/new", 100) is None and await content(box, "/app/none", 4) is None
    with pytest.raises(BoxRefused, match="more than 4 bytes"):
        await box.get("/app/new", 4)
    await box.remove("/app/new")
    assert (await sh(box, "ls")).output == ""


async def test_a_fifo_is_not_a_file_and_does_not_block(box: Box) -> None:
    await sh(box, "mkfifo pipe")
    assert not await box.get("/app/pipe", 10)


async def test_the_command_of_a_cancelled_call_is_ended(box: Box) -> None:
    marker = _marker()
    running = asyncio.create_task(sh(box, f"sleep 1000; echo late > {marker}"))
    await until(lambda: _running(marker))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await sh(box, "ls")).output == ""
    assert not _running(marker)


async def test_a_box_reaches_the_one_server_that_it_is_connected_with_and_no_other(box: Box) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"from outside: " + await reader.readline())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    call = "import socket; s = socket.create_connection(('127.0.0.1', {})); s.sendall(b'hello\\n'); print(s.recv(99))"
    async with relayed(box, "127.0.0.1", port) as url:
        inside = call.format(url.rpartition(":")[2])
        assert "from outside: hello" in (await box.run(("python3", "-c", inside), env=ENV)).output
        assert "rror" in (await box.run(("python3", "-c", call.format(port)), env=ENV)).output
    server.close()


async def test_a_box_has_at_most_64_connections_with_its_server(box: Box) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(1))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with relayed(box, "127.0.0.1", server.sockets[0].getsockname()[1]) as url:
        program = f"""
import socket
made = [socket.create_connection(("127.0.0.1", {url.rpartition(":")[2]})) for _ in range(65)]
for each in made[:64]: each.sendall(b"x")
print([each.recv(1) for each in made] == [b"x"] * 64 + [b""])
"""
        assert (await box.run(("python3", "-c", program), env=ENV, timeout_s=deadline_s())).output == "True\n"
    server.close()


async def test_a_link_that_a_command_left_is_replaced_and_not_followed(box: Box) -> None:
    await sh(box, "echo original > target; ln -s target file")
    await box.put([BoxEntry(path="/app/file", kind="file", data=b"new")])
    assert (await sh(box, "cat target file")).output == "original\nnew"


async def test_what_a_command_broke_is_an_error_of_the_box(box: Box) -> None:
    await sh(box, "echo > file")
    with pytest.raises(BoxRefused):
        await box.put([BoxEntry(path="/app/file/child", kind="file")])
    assert (await sh(box, "echo alive")).output == "alive\n"


@pytest.mark.parametrize("name", BACKENDS)
async def test_closing_a_box_ends_its_processes(name: BackendName) -> None:
    box = await start_or_skip(name)
    marker = _marker()
    await sh(box, f"sh -c 'sleep 1000; : {marker}' > /dev/null 2>&1 &")
    await until(lambda: _running(marker))
    await box.close()
    await until(lambda: not _running(marker))


def _marker() -> str:
    return f"rollyard-{os.getpid()}-{time.monotonic_ns()}"


def _running(marker: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes():
                return True
        except OSError:
            continue
    return False
