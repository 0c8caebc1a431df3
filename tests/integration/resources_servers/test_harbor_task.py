"""harbor_task: episodes in a shell box, from the Dockerfile to the reward of the task's tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.resources_servers.harbor_task import prepare
from rollyard.resources_servers.harbor_task.app import HarborTask
from rollyard.resources_servers.harbor_task.task_folder import EXAMPLES
from rollyard.testing import Rollout, calls, play
from tests.support.boxes import why_no_box
from tests.support.waiting import until
from tests.unit.resources_servers.harbor_task.folders import write_task

ANY_IMAGE = ["*"]
DONE = calls("bash", command="touch /app/done")


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
    return {pid for task in Path("/proc/self/task").glob("*/children") for pid in task.read_text().split()}


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
