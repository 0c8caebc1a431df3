"""A real engine computes the trainer's log-probabilities after each update; a difference stops the training."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import Qwen3ForCausalLM

from rollyard.records.errors import RunError
from rollyard.services.http.transport import HttpTransport
from rollyard.training.train_config import WeightSettings
from rollyard.training.trl.policy_trainer import sequence_log_probs
from rollyard.training.weight_publisher import ParityProbe, PolicyClient, VersionFolders, WeightPublisher
from tests.external.training.conftest import StartStack
from tests.external.training.engine_stacks import TOKEN
from tests.support.waiting import deadline_s

SEQUENCES = [[5, 6, 7, 8, 9, 10] * 20, [300, 301, 17, 40, 41]]
CLOSE = 1e-4
SETTINGS = WeightSettings(timeout_s=deadline_s())


@pytest.fixture
async def client(start_stack: StartStack) -> AsyncIterator[PolicyClient]:
    transport = HttpTransport()
    yield PolicyClient(transport, start_stack().policy_url, TOKEN)
    await transport.close()


def loaded(folder: Path) -> Qwen3ForCausalLM:
    return Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)


async def test_after_every_update_engine_and_trainer_agree(
    client: PolicyClient, tiny_model: Path, other_model: Path, tmp_path: Path
) -> None:
    publisher = WeightPublisher(client, VersionFolders(tmp_path / "weights", keep=2), timeout_s=deadline_s())
    for step, folder in enumerate((other_model, tiny_model, other_model), 1):
        model = loaded(folder)
        probe = ParityProbe(client, partial(sequence_log_probs, model), SETTINGS)
        await publisher.publish(f"step_{step:06d}", model.save_pretrained)
        assert await probe.is_due(step)
        parity = await probe.measure(f"step_{step:06d}", SEQUENCES)
        assert parity.mean < CLOSE and parity.max < 10 * CLOSE and parity.tokens > 60


async def test_weights_that_are_not_the_trainers_stop_the_training(
    client: PolicyClient, tiny_model: Path, other_model: Path, tmp_path: Path
) -> None:
    shutil.copytree(other_model, tmp_path / "published")
    await client.update(tmp_path / "published", "step_000001", deadline_s())
    probe = ParityProbe(client, lambda ids: sequence_log_probs(loaded(tiny_model), ids), SETTINGS)
    with pytest.raises(RunError, match="step_000001"):
        await probe.measure("step_000001", SEQUENCES)
