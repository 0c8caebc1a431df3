"""A shell box keeps files between commands, and keeps the commands away from this host."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollyard.records.errors import OperatorError
from rollyard.services.sandbox.shell_box import (
    BoxDied,
    BoxEntry,
    BoxLimits,
    BoxRefused,
    CommandResult,
    ShellBox,
    is_visible,
    plan_for,
)
from tests.support.waiting import deadline_s, until

ENV = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root", "LC_ALL": "C.UTF-8"}
LIMITS = BoxLimits(storage_mb=16, memory_mb=1024, processes=24, output_kb=4)


async def start_or_skip(limits: BoxLimits = LIMITS) -> ShellBox:
    try:
        return await ShellBox.start(plan_for(limits, folders=["/app"]), output_limit=limits.output_kb * 1024)
    except OperatorError as error:
        pytest.skip(f"this host allows no shell box: {error}")


@pytest.fixture
async def own_box() -> AsyncIterator[ShellBox]:
    """A box for a test that ends it."""
    started = await start_or_skip()
    yield started
    await started.close()


@pytest.fixture(scope="module")
async def shared_box() -> AsyncIterator[ShellBox]:
    started = await start_or_skip()
    yield started
    await started.close()


@pytest.fixture
async def box(shared_box: ShellBox) -> AsyncIterator[ShellBox]:
    """The box of this module, without processes and files of other tests."""
    yield shared_box
    await shared_box.kill_processes()
    await sh(shared_box, "rm -rf /app/* /tmp/*")


async def sh(box: ShellBox, command: str, timeout_s: float | None = None) -> CommandResult:
    return await box.run(("/bin/sh", "-c", command), cwd="/app", env=ENV, timeout_s=timeout_s or deadline_s())


async def test_files_stay_between_commands_and_variables_do_not(box: ShellBox) -> None:
    await sh(box, "echo kept > file; cd /tmp; export NAME=value")
    assert (await sh(box, "pwd; cat file; echo [$NAME]")).output == "/app\nkept\n[]\n"


async def test_output_and_exit_code_are_returned(box: ShellBox) -> None:
    result = await sh(box, "echo out; echo err >&2; exit 3")
    assert (result.output, result.exit_code, result.timed_out) == ("out\nerr\n", 3, False)
    assert (await sh(box, "kill -TERM $$")).exit_code == -signal.SIGTERM


async def test_a_program_that_does_not_exist_is_reported(box: ShellBox) -> None:
    result = await box.run(("/no/such/program",), env=ENV)
    assert result.exit_code == 127 and "No such file" in result.output
    assert (await box.run(("/bin/sh", "-c", "a\0b"), env=ENV)).exit_code == 127


async def test_long_output_keeps_its_start_and_its_end(box: ShellBox) -> None:
    result = await sh(box, "echo first; head -c 100000 /dev/zero | tr '\\0' x; echo last")
    assert result.output.startswith("first\n") and result.output.endswith("last\n")
    assert result.output_dropped > 90_000 and len(result.output) < 5000


async def test_a_command_is_stopped_when_its_time_is_over(box: ShellBox) -> None:
    result = await sh(box, "echo begun; sleep 1000; echo done", timeout_s=deadline_s() / 60)
    assert result.timed_out and result.output == "begun\n"
    assert (await sh(box, "echo next")).output == "next\n"


async def test_a_background_process_runs_on_until_all_processes_are_killed(box: ShellBox) -> None:
    await sh(box, "while true; do echo x >> ticks; sleep 0.02; done > /dev/null 2>&1 &")
    assert (await sh(box, "while [ ! -s ticks ]; do :; done; echo ticking")).output == "ticking\n"
    await box.kill_processes()
    await sh(box, "rm ticks")
    assert (await sh(box, "sleep 0.1; ls")).output == ""


async def test_a_background_process_that_holds_the_output_does_not_delay_the_command(box: ShellBox) -> None:
    assert (await sh(box, "sleep 1000 & echo started")).output == "started\n"


@pytest.mark.parametrize(
    "command",
    [
        "find /home /root -mindepth 1 2>/dev/null | grep .",  # files of users
        "cat /etc/shadow",
        "touch /usr/bin/written",
        "touch /etc/ld.so.cache",
        "mount -t tmpfs none /mnt",
        "unshare -r true",
        "ls -d /proc/[0-9][0-9][0-9][0-9]*",  # no process of this host is visible
        "cat /proc/1/environ",
        "ls /proc/1/root",
        "ls /dev/sd* /dev/vd* /dev/kmsg",
        "echo b > /proc/sysrq-trigger",
        "python3 -c 'import socket; socket.create_connection((\"10.0.0.1\", 80), 0.5)'",
        "python3 -c 'import socket; socket.socket(40)'",  # AF_VSOCK reaches the host of a virtual machine
        "python3 -c 'import os; os.mknod(\"/app/disk\", 0o60600, os.makedev(8, 0))'",
    ],
)
async def test_the_host_cannot_be_reached(box: ShellBox, command: str) -> None:
    assert (await sh(box, command)).exit_code != 0


async def test_process_1_cannot_be_killed_by_a_command(box: ShellBox) -> None:
    await sh(box, "kill -9 1; kill -9 -1")
    assert (await sh(box, "echo alive")).output == "alive\n"


async def test_servers_of_a_box_can_be_reached_inside_it(box: ShellBox) -> None:
    if (await sh(box, "command -v python3")).exit_code:
        pytest.skip("this host has no python3 in /usr")
    program = "import socket; s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname())"
    assert (await box.run(("python3", "-c", program), env=ENV)).exit_code == 0


async def test_storage_and_processes_are_limited(box: ShellBox) -> None:
    full = await sh(box, "head -c 100000000 /dev/zero > big; echo $?; stat -c %s big; rm big")
    assert full.output.splitlines()[-2] == "1" and int(full.output.splitlines()[-1]) <= 16 << 20
    forked = await sh(box, "for i in $(seq 100); do sleep 1000 & done")
    assert "fork" in forked.output
    await box.kill_processes()
    assert (await sh(box, "echo alive")).output == "alive\n"


async def test_files_are_written_read_and_removed(box: ShellBox) -> None:
    entries = [
        BoxEntry(path="/app/new/run.sh", kind="file", data=b"echo \xff", mode=0o755),
        BoxEntry(path="/app/new/link", kind="link", target="run.sh"),
    ]
    await box.write(entries)
    assert await box.read("/app/new/link", 100) == b"echo \xff"
    assert await box.read("/app/new/run.sh", 4) == b"echo"
    assert await box.read("/app/new", 4) is None and await box.read("/app/none", 4) is None
    await box.remove("/app/new")
    assert (await sh(box, "ls")).output == ""


async def test_more_data_than_one_message_holds_can_be_written() -> None:
    box = await start_or_skip(BoxLimits(storage_mb=64))
    files = [BoxEntry(path=f"/app/{number}", kind="file", data=bytes(6 << 20)) for number in range(5)]
    await box.write(files)
    assert (await box.run(("du", "-sm", "/app"), env=ENV)).output.startswith("30")
    await box.close()


async def test_a_link_that_a_command_left_is_replaced_and_not_followed(box: ShellBox) -> None:
    await sh(box, "echo original > target; ln -s target file")
    await box.write([BoxEntry(path="/app/file", kind="file", data=b"new")])
    assert (await sh(box, "cat target file")).output == "original\nnew"


async def test_a_fifo_is_not_a_file_and_does_not_block(box: ShellBox) -> None:
    await sh(box, "mkfifo pipe")
    assert await box.read("/app/pipe", 10) is None


async def test_what_a_command_broke_is_an_error_of_the_box(box: ShellBox) -> None:
    await sh(box, "echo > file")
    with pytest.raises(BoxRefused):
        await box.write([BoxEntry(path="/app/file/child", kind="file")])
    assert (await sh(box, "echo alive")).output == "alive\n"


async def test_a_box_that_was_killed_is_reported(own_box: ShellBox) -> None:
    os.kill(own_box.pid, signal.SIGKILL)
    with pytest.raises(BoxDied):
        await sh(own_box, "echo alive")


async def test_closing_a_box_ends_its_processes(own_box: ShellBox) -> None:
    marker = f"rollyard-{os.getpid()}-{time.monotonic_ns()}"
    await sh(own_box, f"sh -c 'sleep 1000; : {marker}' > /dev/null 2>&1 &")
    assert _running(marker)
    await own_box.close()
    await until(lambda: not _running(marker))


def _running(marker: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes():
                return True
        except OSError:
            continue
    return False


def test_visible_folders_are_compared_by_their_real_paths(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/usr")
    assert is_visible(str(tmp_path / "link" / "share"), ["/usr"])
    assert not is_visible(str(tmp_path), ["/usr", "/bin"])
    assert not is_visible("/usrlocal", ["/usr"])
