"""A box of namespaces keeps its commands away from this host."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollyard.services.sandbox.box import Box, BoxDied, BoxEntry, BoxLimits, is_visible
from rollyard.services.sandbox.inside.box_main import get
from rollyard.services.sandbox.shell_box import ShellBox
from rollyard.services.sandbox.zygote_link import read_message
from tests.support.boxes import start_or_skip
from tests.support.waiting import until
from tests.unit.services.sandbox.test_box import ENV, sh


@pytest.fixture(scope="module")
async def box() -> AsyncIterator[Box]:
    started = await start_or_skip("namespaces")
    yield started
    await started.close()


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
async def test_the_host_cannot_be_reached(box: Box, command: str) -> None:
    assert (await sh(box, command)).exit_code != 0


async def test_process_1_cannot_be_killed_by_a_command(box: Box) -> None:
    await sh(box, "kill -9 1; kill -9 -1")
    assert (await sh(box, "echo alive")).output == "alive\n"


async def test_servers_of_a_box_can_be_reached_inside_it(box: Box) -> None:
    if (await sh(box, "command -v python3")).exit_code:
        pytest.skip("this host has no python3 in /usr")
    program = "import socket; s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname())"
    assert (await box.run(("python3", "-c", program), env=ENV)).exit_code == 0


async def test_storage_and_processes_are_limited(box: Box) -> None:
    full = await sh(box, "head -c 100000000 /dev/zero > big; echo $?; stat -c %s big; rm big")
    assert full.output.splitlines()[-2] == "1" and int(full.output.splitlines()[-1]) <= 16 << 20
    forked = await sh(box, "for i in $(seq 100); do sleep 1000 & done")
    assert "fork" in forked.output
    await box.kill_processes()
    assert (await sh(box, "echo alive")).output == "alive\n"


async def test_more_data_than_one_message_holds_can_be_written() -> None:
    box = await start_or_skip("namespaces", BoxLimits(storage_mb=64))
    files = [BoxEntry(path=f"/app/{number}", kind="file", data=bytes(6 << 20)) for number in range(5)]
    await box.put(files)
    assert (await box.run(("du", "-sm", "/app"), env=ENV)).output.startswith("30")
    await box.close()


async def test_a_box_that_was_killed_is_reported() -> None:
    box = await start_or_skip("namespaces")
    assert isinstance(box, ShellBox)
    os.kill(box.pid, signal.SIGKILL)
    await until(lambda: not Path(f"/proc/{box.pid}").exists())  # else its process 1 may still answer
    with pytest.raises(BoxDied):
        await sh(box, "echo alive")
    await box.close()


async def test_a_box_of_landlock_has_no_sockets_that_reach_the_hosts_local_sockets() -> None:
    box = await start_or_skip("landlock")
    pair = "import socket; socket.socketpair(socket.AF_UNIX, socket.{})"
    assert (await box.run(("python3", "-c", pair.format("SOCK_STREAM")), env=ENV)).output == ""
    refused = await box.run(("python3", "-c", pair.format("SOCK_DGRAM")), env=ENV)
    assert "PermissionError" in refused.output
    await box.close()


def test_the_names_in_a_folder_are_limited(tmp_path: Path) -> None:
    for number in range((8 << 20) // 4000):
        (tmp_path / str(number)).symlink_to("x" * 4000)
    with pytest.raises(OSError, match="too many files"):
        get(str(tmp_path), 1)


async def test_a_message_that_is_too_long_is_refused_before_it_is_read() -> None:
    own, other = socket.socketpair()
    own.setblocking(False)
    with own, other:
        other.sendall(b"\xff\xff\xff\xff")
        with pytest.raises(ValueError, match="larger than the limit"):
            await read_message(own)


def test_visible_folders_are_compared_by_their_real_paths(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/usr")
    assert is_visible(str(tmp_path / "link" / "share"), ["/usr"])
    assert not is_visible(str(tmp_path), ["/usr", "/bin"])
    assert not is_visible("/usrlocal", ["/usr"])
