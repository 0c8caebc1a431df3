"""A stack whose engine samples with the published weights and depends on nothing else: the same weights and tasks give
the same rollouts, log-probabilities included.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM

from rollyard.training.groups import EndingRules, groups_of, member_of_row
from rollyard.training.policy_trainer import Save
from rollyard.training.run_folder import TrainingPaths
from rollyard.training.training_sequence import SequenceRules
from rollyard.training.update import Batch
from rollyard.training.weight_publisher import PublishedWeights, VersionFolders
from tests.external.vllm.tiny_model import VOCABULARY
from tests.unit.training.recorded_turns import row, turn

GROUPS, MEMBERS, TOKENS = 3, 4, 6

Reached = Callable[[str, int], None]
"""Called with the name of a point and the step when the training gets there."""


class SampledStack:
    """Source, publisher and evaluation in one. The policy learns to generate tokens of the first half."""

    def __init__(self, paths: TrainingPaths, position: Mapping[str, int], reached: Reached, *, steps: int = 0) -> None:
        """`steps`: number of batches in the data; 0: without end."""
        self._folders = VersionFolders(paths.weights, keep=2)
        self._index = position.get("index", 0)
        self._reached = reached
        self._steps = steps
        self._model: Any = None
        self._version = ""

    async def publish(self, version: str, save: Save) -> PublishedWeights:
        folder = self._folders.write(version, save)
        self._reached("published", int(version[5:11]))
        self._model = _loaded(folder)
        self._version = version
        self._folders.prune({folder})
        return PublishedWeights(version, 0.0)

    async def repair(self) -> PublishedWeights | None:
        return None

    async def next_batch(self, step: int) -> Batch | None:
        if self._steps and self._index == self._steps:
            return None
        members = []
        for group in range(GROUPS):
            for repeat in range(MEMBERS):
                rollout = self._play(f"{self._index}/{group}", repeat)
                members.append(member_of_row(rollout, str(group), SequenceRules(), EndingRules()))
            if group == 1:
                self._reached("playing", step)
                await asyncio.sleep(0)
        self._index += 1
        return Batch(step, tuple(groups_of(members, scale="group")), {"index": self._index})

    async def evaluate(self, step: int) -> Mapping[str, float]:
        rewards = [self._play(f"evaluation/{task}", 0)["reward"] for task in range(4)]
        self._reached("evaluating", step)
        await asyncio.sleep(0)
        return {"reward": sum(rewards) / len(rewards)}

    def _play(self, task: str, repeat: int) -> dict[str, Any]:
        draw = random.Random(task)
        ids = [draw.randrange(VOCABULARY) for _ in range(4)]
        prompt, log_probs = list(ids), []
        for _ in range(TOKENS):
            with torch.no_grad():
                scores = torch.log_softmax(self._model(input_ids=torch.tensor([ids])).logits[0, -1], -1)
            point = random.Random(f"{task}/{repeat}/{len(ids)}").random()
            token = int((scores.exp().cumsum(0) < point).sum().clamp(max=VOCABULARY - 1))
            ids.append(token)
            log_probs.append(float(scores[token]))
        generated = ids[len(prompt) :]
        reward = sum(token < VOCABULARY // 2 for token in generated) / TOKENS
        sampled = {**turn(prompt, generated, policy_version=self._version), "generation_log_probs": log_probs}
        return row(sampled, reward=reward, _ng_rollout_index=repeat)


def _loaded(folder: Path) -> Any:
    if (folder / "adapter_config.json").exists():
        return AutoPeftModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def initial_model(folder: Path) -> Path:
    from tests.external.training.tiny_policy import make_model, make_tokenizer

    make_model().save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder
