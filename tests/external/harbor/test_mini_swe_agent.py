"""mini-swe-agent, as it is on the package index, in the box of a task: its commands and the tests share the files."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollyard.agents.program_agent.app import ProgramAgent
from rollyard.records.types import Json
from rollyard.resources_servers.harbor_task.app import HarborTask
from rollyard.responses_api_models.vllm_model.app import VllmModel, VllmModelSettings
from rollyard.services.sandbox.backends import BackendName
from rollyard.services.server.app import Context
from rollyard.training.training_sequence import SequenceRules, training_sequences
from tests.external.harbor.test_tasks import TASKS
from tests.support.boxes import TEST_IMAGE, why_no_box
from tests.support.in_process import environment, episode_servers
from tests.support.token_engine import TokenEngine
from tests.support.toy_tokenizer import END, encode_letters
from tests.support.waiting import deadline_s

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


@pytest.fixture(scope="module")
def mini() -> Iterator[Path]:
    """An environment with the system's Python, which boxes have, in a folder that every user can read."""
    if (uv := shutil.which("uv")) is None:
        pytest.skip("uv is not installed")
    folder = Path(tempfile.mkdtemp(prefix="rollyard-mini-"))
    folder.chmod(0o755)
    install = [uv, "pip", "install", "-q", "--python", str(folder / "env/bin/python"), "mini-swe-agent==2.4.6"]
    for command in ([uv, "venv", "-q", "-p", "/usr/bin/python3", str(folder / "env")], install):
        subprocess.run(command, check=True)
    yield folder / "env"
    shutil.rmtree(folder)


def turn(text: str, command: str) -> list[int]:
    call = {"name": "bash", "arguments": {"command": command}}
    return [*encode_letters(f"{text}\n<tool_call>\n{json.dumps(call)}\n</tool_call>"), END]


@pytest.mark.parametrize("boxes", ["namespaces", "docker"])
async def test_it_solves_a_task_with_its_exact_tokens(mini: Path, boxes: BackendName) -> None:
    if why := await why_no_box(boxes):
        pytest.skip(why)
    turns = [turn("I sort.", "sort -rn numbers.txt > sorted.txt"), turn("Done.", SUBMIT)]
    engine = TokenEngine(turns)
    options: Json = {"base_url": "http://engine:1/v1", "model": "tiny", "return_token_id_information": True}
    options |= {"logprobs_mode": "processed_logprobs", "text_tool_parser": "hermes"}
    tasks: Json = {"boxes": boxes, "container_network": "host", "tasks": TASKS}
    tasks |= {"accept_images": (TEST_IMAGE,), "host_paths": (mini,)}
    agent: Json = {
        "in_box": True,
        "program": [
            str(mini / "bin/mini"),
            "--yolo",
            "--exit-immediately",
            "-m",
            "openai/policy",
            "-t",
            "{instruction}",
        ],
        "env": {
            "OPENAI_BASE_URL": "{base_url}",
            "OPENAI_API_KEY": "{api_key}",
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "LITELLM_LOCAL_MODEL_COST_MAP": "true",
            "LANG": "C.UTF-8",
        },
    }

    def model(context: Context) -> VllmModel:
        return VllmModel(VllmModelSettings(**options), context)

    async with episode_servers(environment(HarborTask, **tasks), model, ProgramAgent, **agent) as servers:
        servers.transport.mount("http://engine:1", engine)
        answer = await servers.client.post("agent", "/run", json.dumps({"task": "plain"}).encode(), deadline_s())
    row: Json = json.loads(answer.body)
    assert (row["reward"], row["program_run"]["exit_status"]) == (1.0, 0), row["program_run"]["output"]
    assert row["token_trail"] == {"turns": 1, "breaks": 0, "segments": 1}
    (sequence,) = training_sequences(row, SequenceRules())
    pairs = zip(sequence.completion_ids, sequence.loss_mask, strict=True)
    assert [token for token, has_loss in pairs if has_loss] == [*turns[0], *turns[1]]
