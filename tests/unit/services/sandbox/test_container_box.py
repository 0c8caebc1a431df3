"""What ContainerBoxes make of an engine's answers, with a program that stands for its client."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.services.sandbox.box import Box, BoxDied, BoxEntry, BoxLimits, BoxRefused, plan_for
from rollyard.services.sandbox.container_box import ContainerBoxes, _listener_of

# It runs commands on this host, but only what `Box.run` sends: `kill_processes` would kill more than a box.
CLIENT = """#!/bin/sh
home=${0%/*}
echo "$*" >> "$home/calls"
echo "a line of the client" >&2
case $1 in
run)
    while [ "$1" != leash ]; do shift; done
    printf '\\n%s 1\\n' "$2"; cat; touch "$home/ended"; exit ;;
rm) while [ ! -e "$home/ended" ]; do sleep 0.01; done; exit ;;
esac
[ ! -e "$home/dead" ] || exit 1
case $1 in
info | build) ;;
image) echo '{"WorkingDir": "/app"}' ;;
inspect) [ ! -e "$home/gone" ] && echo true ;;
exec)
    [ ! -e "$home/gone" ] || exit 1
    while [ $# -gt 0 ] && [ "$1" != /bin/sh ]; do shift; done
    [ "$4" = box ] || exit 1
    "$@"; cat "$home/after" 2>/dev/null ;;
*) echo "no space left on $(cat "$home/full" 2>/dev/null)"; exit 1 ;;
esac
"""
PLAN = plan_for(BoxLimits(), image="image")
Use = Callable[[Box], Coroutine[Any, Any, object]]
USES: dict[str, Use] = {
    "run": lambda box: box.run(("true",)),
    "put": lambda box: box.put([BoxEntry(path="/a", kind="file")]),
    "get": lambda box: box.get("/a", 10),
    "remove": lambda box: box.remove("/a"),
}
each_use = pytest.mark.parametrize("use", USES.values(), ids=USES.keys())


@pytest.fixture
def engine(tmp_path: Path) -> ContainerBoxes:
    client = tmp_path / "client"
    client.write_text(CLIENT)
    client.chmod(0o755)
    return ContainerBoxes(str(client), "bridge")


@pytest.fixture
async def box(engine: ContainerBoxes) -> AsyncIterator[Box]:
    started = await engine.start(PLAN)
    yield started
    await started.close()


async def test_what_a_background_process_writes_after_the_end_of_a_command_is_cut(box: Box, tmp_path: Path) -> None:
    (tmp_path / "after").write_text("y\ny\n")
    result = await box.run(("/bin/sh", "-c", "echo out; exit 3"))
    assert (result.exit_code, result.output) == (3, "a line of the client\nout\n")


async def test_a_false_end_without_a_status_is_exit_code_127(box: Box) -> None:
    forge = """
read -r _ _ _ shell _ < /proc/$PPID/stat
printf '\\n%s ' "$(tr '\\0' '\\n' < /proc/$shell/cmdline | sed -n 5p)"
exec cat /dev/zero
"""
    assert (await box.run(("/bin/sh", "-c", forge))).exit_code == 127


@each_use
async def test_an_engine_that_does_not_answer_is_a_failure_and_no_end_of_the_box(
    box: Box, tmp_path: Path, use: Use
) -> None:
    (tmp_path / "dead").touch()
    with pytest.raises(Failure) as found:
        await use(box)
    assert found.value.kind is FailureKind.SERVER_ERROR


@each_use
async def test_a_container_that_has_ended_is_reported(box: Box, tmp_path: Path, use: Use) -> None:
    (tmp_path / "gone").touch()
    with pytest.raises(BoxDied):
        await use(box)


async def test_a_full_disk_of_the_host_is_a_failure(box: Box, tmp_path: Path) -> None:
    with pytest.raises(BoxRefused):
        await USES["put"](box)
    (tmp_path / "full").write_text("device")
    with pytest.raises(Failure):
        await USES["put"](box)


async def test_only_arguments_that_are_too_long_are_an_error_of_the_command(box: Box, tmp_path: Path) -> None:
    assert (await box.run(("true", "x" * (1 << 20)))).exit_code == 127
    (tmp_path / "client").chmod(0o600)
    with pytest.raises(Failure):
        await box.run(("true",))
    with pytest.raises(Failure):
        await ContainerBoxes(str(tmp_path / "client"), "bridge").start(PLAN)
    (tmp_path / "client").chmod(0o755)


async def test_an_engine_is_only_found_if_it_answers(engine: ContainerBoxes, tmp_path: Path) -> None:
    await engine.check()
    (tmp_path / "dead").touch()
    with pytest.raises(OperatorError, match="running engine"):
        await engine.check()


async def test_a_build_on_the_default_network_names_none(engine: ContainerBoxes, tmp_path: Path) -> None:
    await engine.build("folder", "tag", 60.0)
    assert "build --tag tag folder" in (tmp_path / "calls").read_text()


async def test_podman_is_sent_no_flag_of_docker_and_no_empty_archive(
    engine: ContainerBoxes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("docker", "podman"):
        (tmp_path / name).symlink_to(engine.name)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    calls = tmp_path / "calls"
    for name, copy in (("docker", "cp --follow-link"), ("podman", "cp")):
        box = await ContainerBoxes(name, "bridge").start(PLAN)
        await box.put([])
        calls.write_text("")
        await box.get("/a", 10)
        assert calls.read_text().startswith(f"{copy} rollyard-box-")
        await box.close()
        (tmp_path / "ended").unlink()


def run_options(folder: Path) -> list[str]:
    (line,) = [line for line in (folder / "calls").read_text().splitlines() if line.startswith("run ")]
    return [word for word in line.partition(" image ")[0].split() if word.startswith("--")]


async def test_a_container_keeps_the_images_user_and_all_capabilities_but_three(box: Box, tmp_path: Path) -> None:
    options = run_options(tmp_path)
    dropped = {"--cap-drop=NET_RAW", "--cap-drop=MKNOD", "--cap-drop=AUDIT_WRITE"}
    assert {option for option in options if "cap" in option or "privileged" in option} == dropped
    assert not [option for option in options if "user" in option or "security-opt" in option]


async def test_a_container_limits_memory_processes_and_each_file_and_not_the_disk(box: Box, tmp_path: Path) -> None:
    names = {option.rpartition("=")[0] for option in run_options(tmp_path)}
    assert {"--memory", "--memory-swap", "--pids-limit", "--ulimit=fsize"} <= names
    assert not {"--storage-opt", "--read-only"} & names


@pytest.mark.parametrize(("network", "expected"), [("host", "--network=host"), (None, "--network=none")])
async def test_a_container_gets_the_named_network_or_none(
    engine: ContainerBoxes, tmp_path: Path, network: str | None, expected: str
) -> None:
    named = ContainerBoxes(engine.name, network or "none")
    box = await named.start(plan_for(BoxLimits(), image="image", network=network is not None))
    await box.close()
    assert [option for option in run_options(tmp_path) if "network" in option] == [expected]


async def test_starting_a_box_pulls_no_image(box: Box, tmp_path: Path) -> None:
    assert "--pull=never" in (tmp_path / "calls").read_text()


async def test_closing_a_box_ends_its_process_1_before_the_engine_answers(
    engine: ContainerBoxes, tmp_path: Path
) -> None:
    await (await engine.start(PLAN)).close()  # the client's `rm` waits for it
    assert (tmp_path / "ended").exists()


def test_a_process_of_this_host_is_not_taken_for_one_of_a_container() -> None:
    with pytest.raises(OSError, match="does not belong"):
        _listener_of(str(os.getpid()), "0" * 64)
