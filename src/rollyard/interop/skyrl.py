"""StackGenerator: a GeneratorInterface of SkyRL (0.4), which plays its batches on a running stack.

If SkyRL trains step-wise, the sequences of a rollout with a changed history become several rows with the same
trajectory id, and `is_last_step` marks the last one. Otherwise see SeveralSequences.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rollyard.interop.episode_player import EpisodePlayer, row_of
from rollyard.interop.episodes_of_trainers import Episode, SeveralSequences, with_group_means


class StackGenerator:
    """Plays each prompt as an episode. A prompt's row is the column `row` of SkyRL's dataset, or its messages.

    A rollout that does not count has the stop reason `left_out`, no loss, and the mean reward of its group, so that it
    does not move the baseline. A rollout whose reward counts without a loss has a loss mask of zeros.
    """

    def __init__(
        self,
        player: EpisodePlayer,
        *,
        filler_id: int,
        step_wise: bool = False,
        several_sequences: SeveralSequences = "mask",
        has_importance_weights: bool = False,
    ) -> None:
        """`filler_id`: the tokenizer's end-of-text token. `step_wise`: SkyRL's generator.step_wise_trajectories.
        `has_importance_weights`: whether SkyRL's off_policy_correction is on.
        """
        player.check_weights(has_importance_weights, "trainer.algorithm.off_policy_correction.tis_ratio_type")
        self._player = player
        self._filler_id = filler_id
        self._step_wise = step_wise
        self._several: SeveralSequences = "all" if step_wise else several_sequences

    async def generate(self, input_batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return SkyRL's GeneratorOutput for a GeneratorInput, with the rows of each prompt in its order."""
        sampling = input_batch.get("sampling_params") or {}
        extras = input_batch.get("env_extras") or [{}] * len(input_batch["prompts"])
        rows = [
            row_of((extra or {}).get("row"), prompt)
            for extra, prompt in zip(extras, input_batch["prompts"], strict=True)
        ]
        playing = (self._player.episode(row, sampling, self._filler_id, self._several) for row in rows)
        episodes = await asyncio.gather(*playing)
        ids = input_batch.get("trajectory_ids")
        groups = [id_.instance_id for id_ in ids] if ids else [episode.member.task_key for episode in episodes]
        rewards = with_group_means([episode.reward for episode in episodes], groups)
        return self._output(episodes, rewards, ids)

    def _output(self, episodes: Sequence[Episode], rewards: list[float], ids: list[Any] | None) -> dict[str, Any]:
        rows = [(number, sequence) for number, episode in enumerate(episodes) for sequence in episode.sequences]
        endings = [episode.member.ending if episode.member.counts else "left_out" for episode in episodes]
        counts = Counter(endings)
        next_numbers = [*(number for number, _ in rows), -1][1:]
        return {
            "prompt_token_ids": [sequence.prompt_ids for _, sequence in rows],
            "response_ids": [sequence.completion_ids for _, sequence in rows],
            "rewards": [rewards[number] for number, _ in rows],
            "loss_masks": [sequence.loss_mask for _, sequence in rows],
            "stop_reasons": [endings[number] for number, _ in rows],
            "rollout_metrics": {f"rollyard/{name}": count / len(episodes) for name, count in sorted(counts.items())},
            "rollout_logprobs": [sequence.log_probs for _, sequence in rows],
            "trajectory_ids": [ids[number] for number, _ in rows] if ids else None,
            "is_last_step": [a != b for (a, _), b in zip(rows, next_numbers, strict=True)] if self._step_wise else None,
        }
