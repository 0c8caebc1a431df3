"""harbor_task: episodes in a shell box, from the Dockerfile to the reward of the task's tests."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.resources_servers.harbor_task import harbor_box, prepare
from rollyard.resources_servers.harbor_task.app import HarborTask
from rollyard.resources_servers.harbor_task.dockerfile import UnsupportedTask
from rollyard.resources_servers.harbor_task.harbor_box import TaskBox
from rollyard.resources_servers.harbor_task.play import Workshop
from rollyard.resources_servers.harbor_task.task_folder import EXAMPLES, HarborSettings, Host, TaskSet, load_folder
from rollyard.services.sandbox.box import BoxEntry, BoxRefused, CommandResult
from rollyard.services.sandbox.container_box import ContainerBoxes
from rollyard.services.sandbox.shell_box import ShellBox
from rollyard.testing import Rollout, calls, play
from tests.support.boxes import start_or_skip, why_no_box
from tests.support.fixtures import failure_of
from tests.support.waiting import until
from tests.unit.resources_servers.harbor_task.folders import HOST, write_task

ANY_IMAGE = ["*"]
DONE, FINISH = calls("bash", command="touch /app/done"), calls("finish_step")
STEPS = '[[steps]]\nname = "a"\n[[steps]]\nname = "b"\n'
STEP_FILES = {"steps/a/instruction.md": "Do a.", "steps/b/instruction.md": "Do b."}
SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'


@pytest.fixture(autouse=True)
async def boxes_are_possible() -> None:
    if why := await why_no_box():
        pytest.skip(f"this host allows no shell box: {why}")


async def episode(folder: Path, turns: list[Any], *, name: str = "task", **settings: Any) -> Rollout:
    tasks = {"boxes": "namespaces", "tasks": folder, "accept_images": ANY_IMAGE, **settings}
    return await play(HarborTask, {"task": name}, turns, settings=tasks)


async def test_the_reward_is_what_the_tests_write_and_invalid_calls_are_words_for_the_model(tmp_path: Path) -> None:
    write_task(tmp_path)
    wrong = [calls("bash", command=""), calls("bash", cmd="ls"), calls("bash", command="a\0b")]
    slow = calls("bash", command="sleep 1000", timeout_s=0.5)
    solved, idle = await episode(tmp_path, [*wrong, slow, DONE, "Done."]), await episode(tmp_path, ["I cannot."])
    assert all("command" in str(output) for output in solved.tool_outputs[:2])
    assert "stopped after 0.5 s" in solved.tool_outputs[3]
    assert (solved.reward, solved.success, solved["problem"]) == (1.0, True, "")
    assert (idle.reward, idle.success) == (0.0, False)


async def test_the_model_reads_the_instruction_and_gets_a_shell_that_leaves_no_process(tmp_path: Path) -> None:
    write_task(tmp_path)
    command = "pwd; sleep 1000 > /dev/null 2>&1 & echo oops >&2; exit 3"
    before = children()
    rollout = await episode(tmp_path, [calls("bash", command=command), "Done."])
    assert rollout.requests[0]["input"][-1]["content"] == "Create the file done."
    assert [tool["name"] for tool in rollout.requests[0]["tools"]] == ["bash"]
    assert rollout.tool_outputs == ["/app\noops\n\n[exit code 3]"]
    await until(lambda: children() <= before)


def children() -> set[str]:
    found: set[str] = set()
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError):  # a thread that has ended since
            found |= set(task.read_text().split())
    return found


@pytest.mark.parametrize(
    "test", ["exit 1", "echo many > /logs/verifier/reward.txt", "kill -9 $$", ": > /logs/verifier/reward.txt"]
)
async def test_tests_without_a_valid_reward_give_0_with_the_reason(tmp_path: Path, test: str) -> None:
    write_task(tmp_path, test=test)
    rollout = await episode(tmp_path, [DONE, "Done."])
    assert rollout.reward == 0.0 and rollout["problem"]


async def test_the_dockerfile_is_executed(tmp_path: Path) -> None:
    dockerfile = """FROM debian:12
ENV NAME=value
WORKDIR /app
RUN mkdir folder && echo $NAME > folder/built
COPY *.txt folder
COPY --chmod=755 run.sh ./
COPY nested /data
COPY a.txt /named
"""
    files = {f"environment/{name}": name for name in ("a.txt", "b.txt", "run.sh", "nested/sub/c.txt")}
    write_task(tmp_path, dockerfile=dockerfile, files=files)
    command = "cat folder/built folder/a.txt folder/b.txt /data/sub/c.txt /named; [ -x run.sh ] && echo $NAME"
    (output,) = (await episode(tmp_path, [calls("bash", command=command), "Done."])).tool_outputs
    assert output == "value\na.txtb.txtnested/sub/c.txta.txtvalue\n"


@pytest.mark.parametrize(
    ("dockerfile", "problem"),
    [
        ("FROM debian:12\nRUN false", "line 2: `RUN false`: it failed with exit code 1"),
        ("FROM debian:12\nRUN echo why >&2; exit 4", "exit code 4: why"),
        ("FROM debian:12\nCOPY none.txt /x", "none.txt does not exist in environment/"),
        ("FROM debian:12\nCOPY ../tests /x", "../tests does not exist in environment/"),
        ("FROM debian:12\nRUN echo > /file\nCOPY a.txt /file/x", "line 3"),
    ],
)
async def test_an_instruction_that_fails_is_a_bad_task_with_its_line(
    tmp_path: Path, dockerfile: str, problem: str
) -> None:
    write_task(tmp_path, dockerfile=dockerfile, files={"environment/a.txt": "a"})
    with pytest.raises(Failure) as raised:
        await episode(tmp_path, ["Done."])
    assert raised.value.kind is FailureKind.BAD_TASK and problem in raised.value.problem.detail


async def test_a_refused_task_does_not_stop_the_others_and_is_a_bad_task(tmp_path: Path) -> None:
    write_task(tmp_path, name="good")
    write_task(tmp_path, name="bad", dockerfile="FROM debian:12\nSHELL []")
    assert (await episode(tmp_path, [DONE, "Done."], name="good")).reward == 1.0
    with pytest.raises(Failure, match=r"bad .*`SHELL \[\]`"):
        await episode(tmp_path, ["Done."], name="bad")
    with pytest.raises(OperatorError, match=r"1 tasks .*bad: "):
        await episode(tmp_path / "bad", ["Done."], name="bad")


async def test_tests_and_solution_are_hidden_until_the_end(tmp_path: Path) -> None:
    secret = "the-secret-of-the-tests"
    write_task(tmp_path, files={"tests/expected.txt": secret, "solution/answer.txt": secret})
    look = f"ls -d /tests /solution {tmp_path} 2>/dev/null; grep -rsl {secret} / --exclude-dir=proc --exclude-dir=usr"
    (output,) = (await episode(tmp_path, [calls("bash", command=look), "Done."])).tool_outputs
    assert secret not in output and "/tests" not in output and "/solution" not in output


@pytest.mark.parametrize(
    "command",
    [
        "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt",
        "mkdir /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; chmod -R 000 /tests",
        "(while true; do echo 1 > /logs/verifier/reward.txt; done) > /dev/null 2>&1 &",
        "rm -rf /logs; echo 1 > /logs",
        "rm -rf /logs/verifier; mkdir /other; echo 1 > /other/reward.txt; ln -s /other /logs/verifier",
        "echo '{\"reward\": 1}' > /logs/verifier/reward.json",
        "rm -rf /tmp /app 2>/dev/null; cd /; head -c 1G /dev/zero > /fill",
    ],
)
async def test_a_model_that_tampers_gets_0_and_no_second_try(tmp_path: Path, command: str) -> None:
    write_task(tmp_path)
    rollout = await episode(tmp_path, [calls("bash", command=command), "Done."], limits={"storage_mb": 16})
    assert rollout.reward == 0.0


async def test_the_time_limits_of_the_task_are_kept(tmp_path: Path) -> None:
    config = "[agent]\ntimeout_sec = 1.0\n[verifier]\ntimeout_sec = 1.0\n"
    write_task(tmp_path, config=config, test="touch /app/tested; sleep 1000")
    rollout = await episode(tmp_path, [calls("bash", command="sleep 1000"), "never asked"])
    assert rollout.finish_reason == "done" and "time limit" in rollout.tool_outputs[0]
    assert rollout.reward == 0.0 and "within 1 s" in rollout["problem"]


async def test_calls_after_the_last_step_buy_no_reward(tmp_path: Path) -> None:
    folder = write_task(tmp_path, config=STEPS, files=STEP_FILES)
    late = [DONE, FINISH, calls("bash", command="touch /app/late"), *[FINISH] * 9]
    second = await episode(tmp_path, [FINISH, late])
    assert (second.reward, second["rewards"]) == (0.5, {"a": 0.0, "b": 1.0})
    assert all("The task is over." in str(output) for output in second.tool_outputs[3:])
    (folder / "task.toml").write_text(STEPS.replace('"a"\n', '"a"\nmin_reward = 1.0\n'))
    gated = await episode(tmp_path, [[FINISH, *late]])
    assert (gated.reward, gated["rewards"]) == (0.0, {"a": 0.0})


async def test_a_health_check_is_repeated_until_it_succeeds_and_ends_the_task_if_it_does_not(tmp_path: Path) -> None:
    check = 'command = "echo >>/app/tries; [ $(wc -l </app/tries) = 3 ]"\ninterval_sec = 0.0\n'
    config = f"[environment.healthcheck]\n{check}retries = 3\n{STEPS}[steps.healthcheck]\n{check}retries = 4\n"
    folder = write_task(tmp_path, config=config, files=STEP_FILES)
    rollout = await episode(tmp_path, [calls("bash", command="wc -l <tries"), [DONE, FINISH]])
    assert (rollout.tool_outputs[0], rollout["rewards"]) == ("3\n", {"a": 1.0, "b": 0.0})
    assert "the health check `echo" in rollout["problem"]
    (folder / "task.toml").write_text(config.replace("retries = 3", "retries = 2"))
    assert (await failure_of(episode(tmp_path, ["Done."]))).kind is FailureKind.SERVER_ERROR


async def test_processes_that_the_tests_leave_are_dead_when_the_reward_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(
        tmp_path, test="setsid sleep 1000 > /dev/null 2>&1 & echo $! > /app/pid; echo 1 > /logs/verifier/reward.txt"
    )
    alive, get = [], ShellBox.get

    async def look(box: ShellBox, path: str, limit: int) -> list[BoxEntry] | None:
        found = await box.run(("/bin/bash", "-c", "test -s /app/pid && kill -0 $(cat /app/pid)"))
        alive.append(found.exit_code == 0)
        return await get(box, path, limit)

    monkeypatch.setattr(ShellBox, "get", look)
    assert (await episode(tmp_path, ["Done."])).reward == 1.0
    assert alive and not any(alive)


async def test_waiting_for_a_slot_is_no_run_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    class Busy(asyncio.Semaphore):
        async def acquire(self) -> Any:
            now[0] += 1000.0
            return await super().acquire()

    monkeypatch.setattr(harbor_box, "time", SimpleNamespace(monotonic=lambda: now[0]))
    box = TaskBox(await start_or_skip("namespaces"), "/app", {}, Busy(1))
    try:
        assert (await box.run(("/bin/true",), 60.0)).exit_code == 0
    finally:
        await box.close()
    assert (now[0], box.ran_s) == (1000.0, 0.0)


def dying_at(word: str) -> Any:
    """Return a `ShellBox.run` whose box is killed when a command with this word begins."""
    run = ShellBox.run

    async def killed(box: ShellBox, argv: Sequence[str], **options: Any) -> CommandResult:
        if any(word in each for each in argv):
            box._process.kill()
            await box._process.wait()
        return await run(box, argv, **options)

    return killed


async def test_a_separate_verifier_whose_box_dies_is_a_failure_and_no_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path, config=SEPARATE)
    monkeypatch.setattr(ShellBox, "run", dying_at("/tests/test.sh"))
    failure = await failure_of(episode(tmp_path, [DONE, "Done."]))
    assert failure.kind is FailureKind.SERVER_ERROR and "separate verifier" in failure.problem.detail


async def test_artifacts_that_a_separate_verifier_cannot_get_give_0_and_no_second_try(tmp_path: Path) -> None:
    write_task(tmp_path, config=SEPARATE)
    spoil = calls("bash", command="rm -rf /logs/artifacts; echo 1 > /logs/artifacts")
    rollout = await episode(tmp_path, [spoil, "Done."])
    assert rollout.reward == 0.0 and "the tests cannot run" in rollout["problem"]


async def test_a_box_that_dies_before_the_model_acts_is_a_failure_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path, dockerfile="FROM debian:12\nRUN echo built\n")
    monkeypatch.setattr(ShellBox, "run", dying_at("echo built"))
    failure = await failure_of(episode(tmp_path, ["Done."]))
    assert failure.kind is FailureKind.SERVER_ERROR and "the box has ended" in failure.problem.detail


async def test_a_command_that_the_box_cannot_start_is_words_for_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path)
    run = ShellBox.run

    async def full(box: ShellBox, argv: Sequence[str], **options: Any) -> CommandResult:
        if "full" in argv:
            raise BoxRefused("BlockingIOError: Resource temporarily unavailable")
        return await run(box, argv, **options)

    monkeypatch.setattr(ShellBox, "run", full)
    rollout = await episode(tmp_path, [calls("bash", command="full"), DONE, "Done."])
    assert "temporarily unavailable" in str(rollout.tool_outputs[0]) and rollout.reward == 1.0


async def test_an_engine_that_fails_while_the_reward_is_due_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path)

    async def gone(box: ShellBox) -> None:
        raise OperatorError("docker cannot be run: Too many open files")

    monkeypatch.setattr(ShellBox, "kill_processes", gone)
    failure = await failure_of(episode(tmp_path, [DONE, "Done."]))
    assert failure.kind is FailureKind.SERVER_ERROR
    assert failure.problem.detail == "docker cannot be run: Too many open files"


def container_shop(folder: Path, *, build: str = "exit 0", version: str = "exit 0", **settings: Any) -> Workshop:
    """Return a workshop whose engine is a script that appends the arguments of its builds to the file `builds`."""
    script, builds = folder / "engine", shlex.quote(str(folder / "builds"))
    script.write_text(
        f"#!/bin/sh\ncase $1 in\nversion|info) {version};;\nbuild) echo $* >> {builds}; {build};;\nesac\nexit 1\n"
    )
    script.chmod(0o755)
    return Workshop(
        TaskSet({}, {}), HarborSettings(**settings), ContainerBoxes(str(script), "none"), asyncio.Semaphore(1), {}
    )


async def test_each_dockerfile_of_a_task_has_an_image_of_its_own(tmp_path: Path) -> None:
    files = {**STEP_FILES, "steps/a/tests/Dockerfile": "FROM a", "steps/b/tests/Dockerfile": "FROM b"}
    files |= {"steps/a/tests/test.sh": "", "steps/b/tests/test.sh": ""}
    folder = write_task(tmp_path, config=f"{SEPARATE}{STEPS}", files=files)
    task, shop = load_folder(folder, Host(HOST, (), ContainerBoxes.lacks)), container_shop(tmp_path)
    places = [step.separate for step in task.steps]
    for place in (task.place, *places, task.place):
        assert place is not None
        with pytest.raises(OperatorError, match="cannot"):  # the script starts no container
            await shop.box(task, place)
    tags = re.findall(r"rollyard-task:\S+", (tmp_path / "builds").read_text())
    assert len(set(tags)) == 3 and tags[0] == tags[3]


@pytest.mark.parametrize(
    ("engine", "error", "words"),
    [
        ({"build": "echo no such package; exit 1"}, UnsupportedTask, "environment/Dockerfile: .*no such package"),
        ({"build": "exec sleep 1000", "max_build_s": 0.2}, OperatorError, "not built within 0.2 s"),
        ({"build": "exit 1", "version": "echo no daemon; exit 1"}, (OperatorError, Failure), "no daemon"),
    ],
)
async def test_only_a_build_that_the_engine_refuses_is_the_tasks_fault(
    tmp_path: Path, engine: dict[str, Any], error: Any, words: str
) -> None:
    task = load_folder(write_task(tmp_path), Host(HOST, (), ContainerBoxes.lacks))
    with pytest.raises(error, match=words):
        await container_shop(tmp_path, **engine).box(task, task.place)


async def test_a_server_that_the_model_starts_can_be_kept_for_the_tests(tmp_path: Path) -> None:
    test = "if kill -0 $(cat /app/pid); then echo 1; else echo 0; fi > /logs/verifier/reward.txt"
    write_task(tmp_path, test=test)
    start = calls("bash", command="sleep 1000 > /dev/null 2>&1 & echo $! > pid")
    assert (await episode(tmp_path, [start, "Done."])).reward == 0.0
    assert (await episode(tmp_path, [start, "Done."], keep_processes=True)).reward == 1.0


async def test_several_rewards_are_recorded_and_their_mean_is_the_reward() -> None:
    command = "printf 'rows.txt 3\\ngenerated.txt 7\\ncorner.txt 12\\n' > counts.txt"
    rollout = await episode(EXAMPLES, [calls("bash", command=command), "Done."], name="count_words")
    assert rollout.reward == 0.5 and rollout["rewards"] == {"counts": 1.0, "order": 0.0}


def test_rows_are_written_for_tasks_whose_own_solution_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks, output = tmp_path / "tasks", tmp_path / "rows.jsonl"
    write_task(tasks, name="good")
    write_task(tasks, name="refused", dockerfile="FROM debian:12\nRUN pip install x")
    write_task(tasks, name="wrong", files={"solution/solve.sh": "echo no idea"})
    options = ["--boxes", "namespaces", "--output", str(output), "--accept-image", "debian:*"]
    prepare.main([*options, "--tasks", str(tasks), "--check-solutions"])
    printed = capsys.readouterr()
    assert [orjson.loads(line)["task"] for line in output.read_bytes().splitlines()] == ["good"]
    assert "refused: environment/Dockerfile line 2" in printed.err
    assert "wrong: " in printed.err and "1 rows" in printed.out
    prepare.main(options)
    assert output.read_bytes() == (EXAMPLES.parent / "data" / "example.jsonl").read_bytes()
