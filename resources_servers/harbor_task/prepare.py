"""Write rows for task folders in Harbor's format, and list the tasks that cannot be played here."""

from __future__ import annotations

import asyncio
import os
import sys
from itertools import islice
from pathlib import Path

from rollyard.records.rollout_file import check_output
from rollyard.records.script import ScriptParser, positive, run_script
from rollyard.records.terminal import plain
from rollyard.resources_servers.dataset_sources import write_rows
from rollyard.resources_servers.harbor_task.app import TaskBox
from rollyard.resources_servers.harbor_task.dockerfile import UnsupportedTask
from rollyard.resources_servers.harbor_task.task_folder import HarborSettings, TaskFolder, load_tasks
from rollyard.services.sandbox.backends import backend_named
from rollyard.services.sandbox.box import BoxBackend


def main(arguments: list[str] | None = None) -> None:
    parser = ScriptParser(description=__doc__)
    parser.add_argument("--tasks", type=Path, help="folder of task folders (default: the two examples)")
    parser.add_argument("--output", type=Path, required=True, help="the JSONL file to write")
    parser.add_argument(
        "--accept-image", action="append", default=[], help="like the setting accept_images; repeatable"
    )
    parser.add_argument(
        "--check-solutions", action="store_true", help="write only tasks whose own solution gets the reward 1"
    )
    parser.add_argument("--limit", type=positive, help="maximum number of rows to write (default: all)")
    options = parser.parse_args(arguments)
    check_output(options.output, ())
    settings = HarborSettings(tasks=options.tasks, accept_images=tuple(options.accept_image))
    tasks = load_tasks(settings)
    refused, playable = dict(tasks.refused), dict(tasks.playable)
    if options.check_solutions:
        found = asyncio.run(_solution_problems(list(playable.values()), settings))
        refused |= {name: problem for name, problem in zip(playable, found, strict=True) if problem}
    for name, reason in sorted(refused.items()):
        print(plain(f"{name}: {reason}"), file=sys.stderr)
    rows = (
        {"task": name, "task_sha256": task.digest} for name, task in sorted(playable.items()) if name not in refused
    )
    count = write_rows(options.output, islice(rows, options.limit))
    print(f"{count} rows -> {options.output}; {len(refused)} tasks cannot be played here")


async def _solution_problems(tasks: list[TaskFolder], settings: HarborSettings) -> list[str]:
    backend = await backend_named("namespaces")
    slots = asyncio.Semaphore(len(os.sched_getaffinity(0)))

    async def check(task: TaskFolder) -> str:
        async with slots:
            return await _solution_problem(task, settings, backend)

    return await asyncio.gather(*map(check, tasks))


async def _solution_problem(task: TaskFolder, settings: HarborSettings, backend: BoxBackend) -> str:
    """Return why the task's own solution does not get the reward 1; empty if it does."""
    try:
        box = await TaskBox.build(task, settings, backend, asyncio.Semaphore(1))
        try:
            solved, tested = await box.solve(), await box.test()
        finally:
            await box.close()
    except UnsupportedTask as error:
        return str(error)
    if tested.reward >= 1.0:
        return ""
    output = " ".join((solved.output[-200:] + tested.output[-200:]).split())
    return f"its own solution gets the reward {tested.reward:g} here: {tested.problem or output}"


if __name__ == "__main__":
    run_script(main)
