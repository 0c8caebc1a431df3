"""The agent executor of OpenRLHF (0.11). The file given with --train.agent_func_path needs two lines:

from rollyard.interop.openrlhf import agent_executor
AgentExecutor = agent_executor(StackAddress("127.0.0.1:11000"))
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from typing import Any

from rollyard.interop.episode_player import EpisodePlayer, row_of
from rollyard.interop.episodes_of_trainers import Episode, SeveralSequences, ranges_of, with_group_means
from rollyard.records.errors import OperatorError


def agent_executor(player: EpisodePlayer, several_sequences: SeveralSequences = "mask") -> type[Any]:
    """Return a subclass of OpenRLHF's AgentExecutorBase. `several_sequences`: not `all`, as it takes one sequence.

    OpenRLHF computes baselines from all samples of a prompt, which it starts together. The reward of one that does not
    count is therefore the mean of the others, which `execute` waits for; none of its tokens is an action.
    """
    from openrlhf.utils.agent import AgentExecutorBase

    if several_sequences == "all":
        raise OperatorError("OpenRLHF takes one sequence per rollout: choose several_sequences mask, last or refuse")

    class StackExecutor(AgentExecutorBase):  # type: ignore[misc]
        def __init__(self) -> None:
            self._groups: dict[tuple[str, str], list[asyncio.Future[float]]] = defaultdict(list)

        async def execute(
            self, prompt: Any, label: Any, sampling_params: Any, max_length: int, hf_tokenizer: Any, *_: Any, **__: Any
        ) -> dict[str, Any]:
            """Play the row in `label`, or the prompt, as an episode."""
            has_log_probs = sampling_params.logprobs is not None
            player.check_weights(has_log_probs, "algo.advantage.is_correction_level to token or seq")
            names = ("temperature", "top_p", "top_k", "max_tokens")
            sampling = {name: getattr(sampling_params, name) for name in names}
            key = (str(prompt), str(label))
            group = self._groups[key]
            group.append(own := asyncio.get_running_loop().create_future())
            try:
                row = row_of(label or None, prompt)
                episode = await player.episode(row, sampling, hf_tokenizer.eos_token_id, several_sequences)
                own.set_result(episode.reward)
            finally:
                own.cancel()
                if all(future.done() for future in group):
                    self._groups.pop(key, None)
            reward = own.result()
            if math.isnan(reward):
                await asyncio.wait(group)
                rewards = [future.result() for future in group if not future.cancelled()]
                reward = with_group_means([math.nan, *rewards], [key] * (len(rewards) + 1))[0]
            given = {"prompt": prompt, "label": label, "images": None, "mm_train_inputs": None}
            return {**given, **_response(episode, reward, has_log_probs)}

    return StackExecutor


def _response(episode: Episode, reward: float, has_log_probs: bool) -> dict[str, Any]:
    [sequence] = episode.sequences
    before, member = [0] * len(sequence.prompt_ids), episode.member
    return {
        "observation_tokens": sequence.prompt_ids + sequence.completion_ids,
        "action_ranges": ranges_of([*before, *sequence.loss_mask]),
        "rollout_log_probs": [0.0] * len(before) + sequence.log_probs if has_log_probs else None,
        "reward": reward,
        "scores": reward,
        "truncated": member.ending in ("length", "context_overflow"),
        "extra_logs": {"counts": float(member.counts), "turns": float(episode.turns)},
    }
