"""Five tasks in Harbor's format, in boxes of this host's programs and in containers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.resources_servers.harbor_task import prepare
from rollyard.resources_servers.harbor_task.app import HarborTask
from rollyard.services.sandbox.backends import BackendName
from rollyard.testing import Rollout, calls, play
from tests.support.boxes import TEST_IMAGE, why_no_box
from tests.support.coming_from import MODEL, endpoint, last_text, our_rewards, pair, run_lines
from tests.support.commands import BIN
from tests.support.scripted_engine import listening
from tests.unit.resources_servers.harbor_task.folders import write_task

TASKS = Path(__file__).parent / "tasks"
pytestmark = pytest.mark.smoke


@pytest.fixture(params=["namespaces", "docker"])
async def boxes(request: pytest.FixtureRequest) -> BackendName:
    if why := await why_no_box(request.param):
        pytest.skip(why)
    kind: BackendName = request.param
    return kind


async def played(boxes: BackendName, name: str, turns: list[Any], tasks: Path = TASKS) -> Rollout:
    settings = {"boxes": boxes, "container_network": "host", "tasks": tasks, "accept_images": [TEST_IMAGE]}
    return await play(HarborTask, {"task": name}, turns, settings=settings)


def test_the_solution_of_every_task_gets_the_reward_1(
    boxes: BackendName, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "rows.jsonl"
    options = ["--boxes", boxes, "--container-network", "host", "--accept-image", TEST_IMAGE, "--check-solutions"]
    prepare.main([*options, "--tasks", str(TASKS), "--output", str(output)])
    printed = capsys.readouterr()
    assert "5 rows" in printed.out, printed.err


async def test_a_model_that_does_nothing_gets_0(boxes: BackendName) -> None:
    rollout = await played(boxes, "plain", ["Done."])
    assert (rollout.reward, rollout.requests[0]["input"][-1]["content"][:14]) == (0.0, "Sort the lines")


async def test_steps_are_graded_one_after_another(boxes: BackendName) -> None:
    first, second = calls("bash", command="echo alpha > words.txt"), calls("bash", command="cat more.txt >> words.txt")
    finish = calls("finish_step")
    both = await played(boxes, "steps", [first, finish, second, finish])
    assert (both.reward, both["rewards"], both.finish_reason) == (1.0, {"write": 1.0, "extend": 1.0}, "done")
    assert "Append the content of more.txt" in both.tool_outputs[1]
    one = await played(boxes, "steps", [first, finish, "Enough."])
    assert (one.reward, one["rewards"]) == (0.5, {"write": 1.0, "extend": 0.0})
    skipped = await played(boxes, "steps", [first, "Enough."])
    assert (skipped.reward, skipped["rewards"]) == (0.5, {"write": 1.0, "extend": 0.0})
    gated = await played(boxes, "steps", [finish])
    assert (gated.reward, gated["rewards"]) == (0.0, {"write": 0.0}) and "min_reward" in gated["problem"]


async def test_tools_of_a_server_in_the_box_are_called(boxes: BackendName) -> None:
    turns = [
        calls("code", safe="south"),
        calls("code", safe="north"),
        calls("bash", command="echo 7291 > code.txt"),
        "Done.",
    ]
    rollout = await played(boxes, "tools", turns)
    assert [tool["name"] for tool in rollout.requests[0]["tools"]] == ["bash", "code"]
    assert rollout.tool_outputs[:2] == ["Error: there is no safe 'south'", "7291"] and rollout.reward == 1.0


async def test_a_separate_verifier_does_not_see_what_the_model_did_to_its_own_box(boxes: BackendName) -> None:
    cheat = "mkdir -p /tests /logs/verifier; echo 1 > /logs/verifier/reward.txt; echo 41 > answer.txt"
    assert (await played(boxes, "separate", [calls("bash", command=cheat), "Done."])).reward == 0.0
    honest = "echo 42 > answer.txt; rm -rf /tests /logs/verifier"
    assert (await played(boxes, "separate", [calls("bash", command=honest), "Done."])).reward == 1.0


START = """echo ready; printf '%s\\n' "$@"; head -c 100000 /dev/zero
mkfifo /question /answer
while read -r line </question; do
    head -c 100000 /dev/zero
    echo "$line answered" >/answer
done &
exec "$@"
"""
ASK = "for i in 1 2 3; do echo $1 >/question; timeout 20 cat /answer; done"
SERVED = """grep -lz '[l]eft_running' /proc/[0-9]*/cmdline && exit
[ "$(sh /ask.sh it)" = "$(cat answers.txt)" ] && echo 1 > /logs/verifier/reward.txt
"""


async def test_what_the_entrypoint_of_an_image_starts_runs_during_the_tests_and_what_the_model_starts_does_not(
    tmp_path: Path,
) -> None:
    if why := await why_no_box("docker"):
        pytest.skip(why)
    lines = f'FROM {TEST_IMAGE}\nCOPY *.sh /\nWORKDIR /app\nENTRYPOINT ["bash", "/start.sh"]\n'
    files = {"environment/start.sh": START, "environment/ask.sh": ASK}
    write_task(tmp_path, name="served", dockerfile=lines, test=SERVED, files=files)
    left = "python3 -c 'import os, time; left_running = os.{}; time.sleep(1000)' &"
    left_running = f"{left.format('getpid()')} {left.format('setsid()')}"
    turns = [calls("bash", command=f"{left_running} sh /ask.sh it >answers.txt; cat answers.txt"), "Done."]
    rollout = await played("docker", "served", turns, tmp_path)
    assert (rollout.tool_outputs[0], rollout.reward) == ("it answered\n" * 3, 1.0), rollout["test_output"]


@pytest.mark.parametrize("entrypoint", ['["bash", "/start.sh"]', '["python3"]', '["/bin/sh", "-c"]', "sleep 1000"])
async def test_an_entrypoint_that_does_not_run_the_command_is_refused_by_name(tmp_path: Path, entrypoint: str) -> None:
    if why := await why_no_box("docker"):
        pytest.skip(why)
    lines = f"FROM {TEST_IMAGE}\nCOPY start.sh /\nENTRYPOINT {entrypoint}\n"
    write_task(tmp_path, name="hidden", dockerfile=lines, files={"environment/start.sh": '"$@"; true'})
    with pytest.raises(Failure, match=r"the ENTRYPOINT .* must end with `exec") as found:
        await played("docker", "hidden", ["Done."], tmp_path)
    assert found.value.kind is FailureKind.BAD_TASK


FORKS = "python3 -c 'import os; left_running = os.setsid()\nwhile True: os.fork() and os._exit(0)' &"


async def test_a_process_that_forks_and_exits_in_a_loop_is_killed_below_an_init(tmp_path: Path) -> None:
    if why := await why_no_box("docker"):
        pytest.skip(why)
    if (init := shutil.which("tini-static")) is None:
        pytest.skip("no tini-static on this host")
    lines = f'FROM {TEST_IMAGE}\nCOPY tini-static /\nWORKDIR /app\nENTRYPOINT ["/tini-static", "--"]\n'
    test = "grep -lz '[l]eft_running' /proc/[0-9]*/cmdline || echo 1 > /logs/verifier/reward.txt"
    folder = write_task(tmp_path, name="forks", dockerfile=lines, test=test)
    shutil.copy(init, folder / "environment")
    rollout = await played("docker", "forks", [calls("bash", command=f"{FORKS} true"), "Done."], tmp_path)
    assert rollout.reward == 1.0, rollout["test_output"]


async def test_the_commands_of_the_page_play_a_folder_of_tasks(tmp_path: Path) -> None:
    if why := await why_no_box("namespaces"):
        pytest.skip(why)
    examples = Path(prepare.__file__).with_name("examples")
    shutil.copytree(examples, tmp_path / "my_tasks")
    solution = (examples / "count_words" / "solution" / "solve.sh").read_text()

    def answer(request: Json) -> str | Json:
        if request["messages"][-1]["role"] == "tool" or "counts.txt" not in last_text(request):
            return "Done."
        function = {"name": "bash", "arguments": json.dumps({"command": solution})}
        return {"content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}

    async with listening(endpoint(answer)) as url:
        prepared, played = pair("Harbor", {MODEL: url}).ours
        prepared += ["--boxes", "namespaces", "--accept-image", "debian:*"]
        played += ["harbor_resources_server.resources_servers.harbor_task.boxes=namespaces"]
        await run_lines([prepared, played], tmp_path, BIN)
    assert our_rewards(tmp_path) == [0.0, 0.0, 1.0, 1.0]
