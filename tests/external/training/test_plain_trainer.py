"""Any trainer can be the client: 60 lines of plain PyTorch train on a real engine, over HTTP only."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import orjson
import torch
from transformers import Qwen3ForCausalLM

from rollyard.records.data_files import INSTALLED
from rollyard.services.http.transport import HttpTransport
from rollyard.training.train_config import WeightSettings
from rollyard.training.trl.policy_trainer import sequence_log_probs
from rollyard.training.weight_publisher import ParityProbe, PolicyClient
from tests.external.training.conftest import StartStack
from tests.external.training.engine_stacks import TOKEN
from tests.external.training.train_command import training_s, write_folder
from tests.support.commands import command

TRAINER = INSTALLED / "examples" / "plain_trainer" / "plain_trainer.py"
STEPS = 2


async def test_it_trains_a_policy_whose_log_probabilities_stay_those_of_the_engine(
    start_stack: StartStack, tiny_model: Path, tmp_path: Path
) -> None:
    write_folder(tmp_path, tiny_model)
    stack = start_stack(environments=["resources_servers/letters/configs/letters.yaml"], roots=[tmp_path])
    rows = tmp_path / "prompts.jsonl"
    prompts = [{"word": word, "responses_create_params": {"input": f"Write {word}."}} for word in ("a", "b")]
    rows.write_bytes(b"\n".join(map(orjson.dumps, prompts)))
    options: dict[str, Any] = {
        "model": tiny_model,
        "rows": rows,
        "head": f"http://{stack.head}",
        "token": TOKEN,
        "agent": "letters_agent",
        "policy": "policy_model",
        "output": tmp_path / "weights",
        "steps": STEPS,
        "tasks": 2,
        "group": 4,
        "max-tokens": 16,
        "learning-rate": 1e-3,
    }
    arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    found = await command(
        sys.executable, str(TRAINER), *arguments, cwd=tmp_path, env={"OMP_NUM_THREADS": "1"}, deadline_s=training_s()
    )
    assert found.status == 0, found.err
    lines = [orjson.loads(line) for line in found.out.splitlines()]
    # The first pass of each step compares the trainer with the engine after the previous update.
    assert all(line["drift"] < 1e-4 for line in lines), lines
    assert [line["version"] for line in lines] == [f"step_{step:06d}" for step in range(1, STEPS + 1)]
    before, after = (
        Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
        for folder in (tiny_model, tmp_path / "weights" / lines[-1]["version"])
    )
    assert not torch.equal(before.lm_head.weight, after.lm_head.weight)
    transport = HttpTransport()
    try:
        client = PolicyClient(transport, stack.policy_url, TOKEN)
        probe = ParityProbe(client, lambda ids: sequence_log_probs(after, ids), WeightSettings())
        parity = await probe.measure(lines[-1]["version"], [[5, 6, 7, 8, 9, 10] * 20])
    finally:
        await transport.close()
    assert parity.max < 1e-3


def test_it_has_at_most_60_lines() -> None:
    assert len(TRAINER.read_text().splitlines()) <= 60
