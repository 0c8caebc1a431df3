"""Write rows for task folders in Harbor's format, and list the tasks that cannot be played here."""

from __future__ import annotations

import asyncio
import os
import sys
from itertools import islice
from pathlib import Path
from typing import get_args

from rollyard.records.errors import RollyardError
from rollyard.records.rollout_file import check_output
from rollyard.records.script import ScriptParser, positive, run_script
from rollyard.records.terminal import plain
from rollyard.resources_servers.dataset_sources import write_rows
from rollyard.resources_servers.harbor_task.dockerfile import UnsupportedTask
from rollyard.resources_servers.harbor_task.play import Play, Workshop, workshop
from rollyard.resources_servers.harbor_task.task_folder import HarborSettings, TaskFolder
from rollyard.services.sandbox.backends import BackendName


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
    parser.add_argument("--boxes", choices=get_args(BackendName), default="auto", help="like the setting boxes")
    parser.add_argument("--container-network", help="like the setting container_network")
    parser.add_argument(
        "--host-path", action="append", default=[], type=Path, help="like the setting host_paths; repeatable"
    )
    options = parser.parse_args(arguments)
    network = {} if options.container_network is None else {"container_network": options.container_network}
    check_output(options.output, ())
    settings = HarborSettings(
        boxes=options.boxes,
        tasks=options.tasks,
        accept_images=tuple(options.accept_image),
        host_paths=tuple(options.host_path),
        **network,
    )
    refused, playable = asyncio.run(_sorted(settings, options.check_solutions))
    for name, reason in sorted(refused.items()):
        print(plain(f"{name}: {reason}"), file=sys.stderr)
    rows = (
        {"task": name, "task_sha256": task.digest} for name, task in sorted(playable.items()) if name not in refused
    )
    count = write_rows(options.output, islice(rows, options.limit))
    print(f"{count} rows -> {options.output}; {len(refused)} tasks cannot be played here")


async def _sorted(settings: HarborSettings, check_solutions: bool) -> tuple[dict[str, str], dict[str, TaskFolder]]:
    """Return why tasks cannot be played, and those that can, each by name."""
    shop = await workshop(settings)
    refused, playable = dict(shop.tasks.refused), dict(shop.tasks.playable)
    if check_solutions:
        slots = asyncio.Semaphore(len(os.sched_getaffinity(0)))
        found = await asyncio.gather(*(_solution_problem(task, shop, slots) for task in playable.values()))
        refused |= {name: problem for name, problem in zip(playable, found, strict=True) if problem}
    return refused, playable


async def _solution_problem(task: TaskFolder, shop: Workshop, slots: asyncio.Semaphore) -> str:
    """Return why the task's own solution does not get the reward 1; empty if it does."""
    async with slots:
        try:
            play = await Play.start(task, shop)
            try:
                printed = ""
                while not play.is_over:
                    limit_s = play.step.agent_timeout_s or shop.settings.episode_s
                    printed = (await play.box.solve(play.step, limit_s)).output
                    await play.finish_step()
                tested = play.reward()
            finally:
                await play.box.close()
        except (UnsupportedTask, RollyardError) as error:
            return str(error)
    if tested.reward >= 1.0:
        return ""
    output = " ".join((printed[-200:] + tested.output[-200:]).split())
    return f"its own solution gets the reward {tested.reward:g} here: {tested.problem or output}"


if __name__ == "__main__":
    run_script(main)
