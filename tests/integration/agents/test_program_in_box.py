"""A program that runs in the box of a harbor_task: its commands act on the box's files, and the tests grade them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rollyard.agents.program_agent.app import ProgramAgent, ProgramAgentSettings
from rollyard.records.errors import FailureKind
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Verdict, Verification
from rollyard.resources_servers.harbor_task.app import HarborTask
from rollyard.services.sandbox.box import BoxDied, BoxEntry
from rollyard.services.sandbox.shell_box import ShellBox
from rollyard.testing import Rollout, play
from tests.support.boxes import why_no_box
from tests.support.fixtures import failure_of
from tests.support.waiting import short_s
from tests.unit.resources_servers.harbor_task.folders import write_task

PROGRAM = """
import json, os, subprocess, sys, urllib.request as request
url, key, task = sys.argv[1:4]
messages = [{"role": "user", "content": open(task).read()}]
while True:
    body = json.dumps({"model": "any", "messages": messages}).encode()
    headers = {"authorization": "Bearer " + key, "content-type": "application/json"}
    answer = json.load(request.urlopen(request.Request(url + "/chat/completions", body, headers)))
    text = answer["choices"][0]["message"]["content"]
    if text == "exit":
        break
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True)
    print(done.stdout, flush=True)
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": done.stdout or "nothing"}]
"""
"""A coding agent in 15 lines: what the model answers is a command, until it answers `exit`."""


@pytest.fixture(autouse=True)
async def boxes_are_possible() -> None:
    if why := await why_no_box():
        pytest.skip(f"this host allows no shell box: {why}")


async def played(folder: Path, turns: Any, instruction: str = "Create the file done.", **agent: Any) -> Rollout:
    write_task(folder, instruction=instruction)
    given = {"program": ["python3", "-c", PROGRAM, "{base_url}", "{api_key}", "{instruction_file}"], "in_box": True}
    tasks = {"boxes": "namespaces", "tasks": folder, "accept_images": ["*"]}
    row = {"task": "task"}
    return await play(HarborTask, row, turns, settings=tasks, agent=ProgramAgent, agent_settings={**given, **agent})


async def test_its_commands_act_on_the_files_that_the_tests_grade(tmp_path: Path) -> None:
    solved = await played(tmp_path, ["pwd; touch done; ls", "exit"])
    assert solved["program_run"]["output"].split() == ["/app", "done"]
    assert "Create the file done." in json.dumps(solved["response"]["output"])
    assert (solved.reward, solved.success, solved["program_run"]["exit_status"]) == (1.0, True, 0)
    idle = await played(tmp_path, ["exit"])
    assert (idle.reward, idle.finish_reason) == (0.0, "answered")


async def test_only_the_settings_words_are_replaced_and_not_the_tasks(tmp_path: Path) -> None:
    text, env = "Write {folder}, not {here}.", {"PLACE": "{folder}", "TASK": "{instruction}"}
    look = 'echo "$PLACE"; echo "$TASK" | tail -n 1; tail -n 1 /tmp/instruction.md'
    rollout = await played(tmp_path, [look, "exit"], text, env=env)
    assert rollout["program_run"]["output"].splitlines() == ["/app", text, text]


async def test_it_sees_neither_the_tests_nor_this_host(tmp_path: Path) -> None:
    look = f"ls -d /tests /solution {tmp_path}; ls /proc | grep -c '[0-9][0-9][0-9][0-9]'; id -u"
    rollout = await played(tmp_path, [look, "exit"])
    assert rollout["program_run"]["output"].split() == ["0", "0"]


async def test_a_limit_ends_it_and_what_it_has_done_is_graded(tmp_path: Path) -> None:
    endless = await played(tmp_path, lambda request: "touch done", max_steps=3)
    assert (endless.finish_reason, endless.reward, endless["truncated"]) == ("max_steps", 1.0, True)
    slow = await played(tmp_path, ["touch done", "sleep 1000"], time_limit_s=2 * short_s())
    assert (slow.finish_reason, slow.reward) == ("time_limit", 1.0)


async def test_a_box_that_its_commands_end_gives_0_and_no_second_try(tmp_path: Path) -> None:
    rollout = await played(tmp_path, ["rm -rf /app /tmp; kill -9 -1", "exit"])
    assert rollout.reward == 0.0


async def test_a_program_that_the_box_does_not_have_is_a_failure(tmp_path: Path) -> None:
    failure = await failure_of(played(tmp_path, ["exit"], program=["/opt/none/bin/mini"]))
    assert failure.kind is FailureKind.SERVER_ERROR and "No such file" in failure.problem.detail


async def test_a_box_that_dies_before_the_program_starts_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(box: ShellBox, entries: Sequence[BoxEntry]) -> None:
        raise BoxDied("the box has ended")

    monkeypatch.setattr(ShellBox, "put", dies)
    failure = await failure_of(played(tmp_path, ["exit"]))
    assert failure.kind is FailureKind.SERVER_ERROR and failure.problem.detail == "the box has ended"


class Plain(Environment[EnvironmentSettings]):
    user_template = "{question}"

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=0.0)


async def test_an_environment_without_boxes_refuses_it() -> None:
    settings = {"program": ["true"], "in_box": True}
    failure = await failure_of(play(Plain, {"question": "x"}, ["x"], agent=ProgramAgent, agent_settings=settings))
    assert failure.kind is FailureKind.BAD_TASK and "Plain has no box" in failure.problem.detail


def test_tools_in_a_box_are_refused_at_the_start() -> None:
    refs = {"resources_server": {"name": "a"}, "model_server": {"name": "b"}}
    with pytest.raises(ValueError, match=r"\{mcp_url\} with in_box"):
        ProgramAgentSettings.model_validate({**refs, "program": ["x", "{mcp_url}"], "in_box": True})
