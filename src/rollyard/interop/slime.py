"""SlimeRollouts: the custom generate function of slime and miles, and the rewards of its rollouts.

A file of your own, such as my_rollouts.py, makes the object; the paths of its methods are arguments of the trainer:

    rollouts = SlimeRollouts(EpisodePlayer("127.0.0.1:11000"))
    generate, rewards = rollouts.generate, rollouts.rewards
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from rollyard.interop.episode_player import EpisodePlayer, row_of
from rollyard.interop.episodes_of_trainers import Episode, SeveralSequences, group_advantages, with_group_means
from rollyard.records.errors import OperatorError
from rollyard.records.types import FinishReason
from rollyard.training.training_sequence import TrainingSequence

_GROUPED = ("grpo", "gspo", "reinforce_plus_plus_baseline")
_TRUNCATED = (FinishReason.LENGTH, FinishReason.CONTEXT_OVERFLOW, FinishReason.MAX_STEPS)


class SlimeRollouts:
    """Plays each sample as an episode. Its row is `row` in the sample's metadata, or its prompt.

    A rollout that does not count has the status FAILED, `remove_sample`, no loss and the reward NaN, which `rewards`
    leaves out of the group.
    """

    def __init__(
        self, player: EpisodePlayer, *, filler_id: int = 0, several_sequences: SeveralSequences = "all"
    ) -> None:
        """`several_sequences`: `all` returns a list of samples for a rollout with a changed history."""
        self._player, self._filler_id = player, filler_id
        self._several: SeveralSequences = several_sequences

    async def generate(self, args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
        """Return the sample with its tokens, or a list of samples for several sequences.

        Raises OperatorError if the trainer would turn rollouts that do not count into rewards.
        """
        if not getattr(args, "custom_reward_post_process_path", None):
            raise OperatorError("set --custom-reward-post-process-path to the `rewards` of the same SlimeRollouts")
        weights = getattr(args, "use_tis", False) or getattr(args, "use_rollout_logprobs", False)
        self._player.check_weights(weights, "--use-tis or --use-rollout-logprobs")
        row = row_of((sample.metadata or {}).get("row"), sample.prompt)
        episode = await self._player.episode(row, sampling_params, self._filler_id, self._several)
        samples = [_filled(copy.copy(sample), episode, sequence) for sequence in episode.sequences]
        return samples[0] if len(samples) == 1 else samples

    def rewards(self, args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
        """Return the raw rewards and those after normalisation, in groups without the rollouts that do not count."""
        groups = [sample.group_index for sample in samples]
        given = [sample.get_reward_value(args) for sample in samples]
        raw = with_group_means(given, groups)
        if not args.rewards_normalization or args.advantage_estimator not in _GROUPED:
            return raw, raw
        scaled = args.advantage_estimator in _GROUPED[:2] and args.grpo_std_normalization
        ids = [sample.index for sample in samples]
        return raw, group_advantages(given, groups, ids, scaled=scaled, epsilon=1e-6)


def _filled(sample: Any, episode: Episode, sequence: TrainingSequence) -> Any:
    member = episode.member
    sample.tokens = sequence.prompt_ids + sequence.completion_ids
    sample.response_length = len(sequence.completion_ids)
    sample.loss_mask, sample.rollout_log_probs = sequence.loss_mask, sequence.log_probs
    sample.reward, sample.remove_sample = episode.reward, not sequence.loss_tokens
    sample.rollout_id = sample.index
    sample.weight_versions = episode.versions
    sample.metadata = {**(sample.metadata or {}), "ending": member.ending}
    status = type(sample).Status
    ended = status.TRUNCATED if member.ending in _TRUNCATED else status.COMPLETED
    sample.status = ended if member.counts else status.FAILED
    return sample
