"""A real engine that is killed between two steps returns with the newest version, which the trainer then compares."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from rollyard.services.http.transport import HttpTransport
from rollyard.services.training.train_config import WeightSettings
from rollyard.services.training.trl.save_policy import write_policy
from rollyard.services.training.trl.sequence_log_probs import sequence_log_probs
from rollyard.services.training.weights.parity import ParityProbe
from rollyard.services.training.weights.policy_client import PolicyClient
from rollyard.services.training.weights.version_folders import VersionFolders
from rollyard.services.training.weights.weight_publisher import WeightPublisher
from tests.external.training.engine_stacks import TOKEN, ServedStack
from tests.external.training.test_adapter_sync import CLOSE, SEQUENCES, adapted, train
from tests.external.vllm.local_run import LONG_S, WORKER, mark_of, processes_of


async def test_a_killed_engine_returns_with_the_newest_adapter(
    local_stack: ServedStack, tiny_model: Path, tmp_path: Path
) -> None:
    model, transport = adapted(tiny_model), HttpTransport()
    client = PolicyClient(transport, local_stack.policy_url, TOKEN)
    publisher = WeightPublisher(client, VersionFolders(tmp_path, keep=2), timeout_s=LONG_S, kind="adapter")
    probe = ParityProbe(client, lambda ids: sequence_log_probs(model, ids), WeightSettings(timeout_s=LONG_S))
    for step in (1, 2):
        train(model, step)
        await publisher.publish(f"step_{step:06d}", lambda folder: write_policy(model, None, folder, lora="adapter"))
    os.kill(processes_of(mark_of(local_stack.stack))[WORKER], signal.SIGKILL)
    assert (await probe.measure("step_000002", SEQUENCES)).mean < CLOSE
    await transport.close()
