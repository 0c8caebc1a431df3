"""mini-swe-agent, as it is on the package index, in the box of a task: its commands and the tests share the files."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollyard.agents.program_agent.app import ProgramAgent
from rollyard.records.types import Json
from rollyard.resources_servers.harbor_task.app import HarborTask
from rollyard.services.sandbox.backends import BackendName
from rollyard.training.training_sequence import SequenceRules, training_sequences
from tests.external.harbor.test_tasks import TASKS
from tests.support.boxes import TEST_IMAGE, why_no_box
from tests.support.in_process import environment, episode_servers
from tests.support.mini_swe_agent import SUBMIT, model, program, turn
from tests.support.token_engine import TokenEngine
from tests.support.waiting import deadline_s


@pytest.fixture(scope="module")
def mini() -> Iterator[Path]:
    """An environment with the system's Python, which boxes have, in a folder that every user can read."""
    folder = Path(tempfile.mkdtemp(prefix="rollyard-mini-"))
    folder.chmod(0o755)
    python, uv = str(folder / "env/bin/python"), shutil.which("uv")
    installer = [uv, "pip", "install"] if uv else [sys.executable, "-m", "pip", f"--python={python}", "install"]
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", folder / "env"], check=True)
    where = [f"--python={python}"] if uv else []
    subprocess.run([*installer, "-q", *where, "mini-swe-agent==2.4.6"], check=True)
    yield folder / "env"
    shutil.rmtree(folder)


@pytest.mark.parametrize("boxes", ["namespaces", "docker"])
async def test_it_solves_a_task_with_its_exact_tokens(mini: Path, boxes: BackendName) -> None:
    if why := await why_no_box(boxes):
        pytest.skip(why)
    turns = [turn("I sort.", "sort -rn numbers.txt > sorted.txt"), turn("Done.", SUBMIT)]
    engine = TokenEngine(turns)
    tasks: Json = {"boxes": boxes, "container_network": "host", "tasks": TASKS}
    tasks |= {"accept_images": (TEST_IMAGE,), "host_paths": (mini,)}
    async with episode_servers(
        environment(HarborTask, **tasks), model, ProgramAgent, in_box=True, **program(mini)
    ) as servers:
        servers.transport.mount("http://engine:1", engine)
        answer = await servers.client.post("agent", "/run", json.dumps({"task": "plain"}).encode(), deadline_s())
    row: Json = json.loads(answer.body)
    assert (row["reward"], row["program_run"]["exit_status"]) == (1.0, 0), row["program_run"]["output"]
    assert row["token_trail"] == {"turns": 1, "breaks": 0, "segments": 1}
    (sequence,) = training_sequences(row, SequenceRules())
    pairs = zip(sequence.completion_ids, sequence.loss_mask, strict=True)
    assert [token for token, has_loss in pairs if has_loss] == [*turns[0], *turns[1]]
