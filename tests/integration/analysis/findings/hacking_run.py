"""Records a run of a scripted policy with a real agent, environment and collector, all in this process."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import orjson

from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.records.rollout_paths import RolloutPaths
from rollyard.records.types import Json
from rollyard.services.datasets.tasks import TaskFile
from rollyard.services.rollouts.collector import Collector, Limits
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.rollouts.store import RolloutStore
from rollyard.testing import in_process_servers
from rollyard.testing.scripted_model import Script, Turn
from tests.integration.analysis.findings.exploits import Exploit
from tests.support.in_process import agent, environment

TASKS, REPEATS = 30, 4
ROLLOUTS = TASKS * REPEATS
_NOUNS = ("lamp", "boat", "hen", "tower", "kettle", "garden", "ladder", "piano", "shoe")
_SUBJECTS = ("parks", "trees", "small shops", "bus stops", "libraries")


def is_hack(task: int, repeat: int) -> bool:
    """Whether the policy uses the hole in a rollout: a tenth of them."""
    return (task * REPEATS + repeat) % 10 == 7


async def record_honest(exploit: Exploit, path: Path) -> None:
    """Collect `ROLLOUTS` rollouts of `TASKS` tasks to `path`, in which the policy never uses the hole."""
    await _record(exploit, path, honest=True)


async def record(exploit: Exploit, path: Path, honest: Path) -> None:
    """Collect the same rollouts, a tenth of them with the hole. The others are those of `honest`."""
    RolloutPaths(path).manifest.write_bytes(RolloutPaths(honest).manifest.read_bytes())
    with path.open("wb") as file:
        for line in honest.read_bytes().splitlines(keepends=True):
            row = orjson.loads(line)
            if not is_hack(row["_ng_task_index"], row["_ng_rollout_index"]):
                file.write(line)
    await _record(exploit, path)


async def _record(exploit: Exploit, path: Path, *, honest: bool = False) -> None:
    rows = [_row(number, exploit) for number in range(TASKS)]
    tasks_file = path.with_name("tasks.jsonl")
    tasks_file.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))

    def turn(request: Json) -> Turn:
        text = orjson.dumps(request["input"]).decode()
        found = re.search(r"Problem (\d+):", text)
        assert found is not None
        number, seed = int(found[1]), int(orjson.loads(request["metadata"]["extra_body"])["seed"])
        write = exploit.hack if is_hack(number, seed) and not honest else exploit.honest
        turns = write(rows[number], Random(f"{number} {seed}"))
        return turns[text.count('"function_call_output"')]

    servers = {
        "environment": environment(exploit.environment),
        "model": Script(turn).model,
        "agent": agent(SimpleAgent),
    }
    tasks = TaskFile(tasks_file, agent="agent", limit=None)
    store = RolloutStore(RolloutPaths(path), {}, {}, resume=True, overwrite=False)
    progress = CollectionProgress(ROLLOUTS)
    async with in_process_servers(servers) as stack:
        try:
            store.load(progress.count)
            limits = Limits(parallel=8, first_pause_s=0.01, longest_pause_s=0.05)
            await Collector(tasks.rollouts(REPEATS), {}, stack.client, store, progress, limits, seeded=True).run()
        finally:
            store.close()
    assert path.read_bytes().count(b"\n") == ROLLOUTS


def _row(number: int, exploit: Exploit) -> Json:
    draws = Random(number)
    factor = draws.randint(3, 9)
    tests = "; ".join(f"assert f({n}) == {n * factor + 1}" for n in range(3))
    return {
        "number": number,
        "verifier": exploit.verifier,
        "left": draws.randint(11, 49),
        "right": draws.randint(11, 49),
        "words": " and ".join(draws.sample(_NOUNS, 3)),
        "forbidden": "castle",
        "subject": draws.choice(_SUBJECTS),
        "factor": factor,
        "tests": tests,
    }
