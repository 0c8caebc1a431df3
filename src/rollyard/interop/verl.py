"""StackAgentLoop: an agent loop of verl (0.9), which plays each prompt as an episode on a running stack.

verl makes one object per episode, from a file that names the class and the arguments of the stack:

    - {name: rollyard, _target_: rollyard.interop.verl.StackAgentLoop, head: "127.0.0.1:11000"}
"""

from __future__ import annotations

import functools
from typing import Any

from rollyard.interop.episode_player import EpisodePlayer, row_of
from rollyard.interop.episodes_of_trainers import Episode, SeveralSequences
from rollyard.records.errors import RunError
from rollyard.training.training_sequence import SequenceRules, TrainingSequence
from rollyard.training.trl.episodes import PlaySettings

ESTIMATOR = "rollyard_grpo"


@functools.cache
def player(constrained_turns: Any = "refuse", **stack: Any) -> EpisodePlayer:
    """Return the player that all episodes of this process share, because each has an agent loop of its own."""
    return EpisodePlayer(**stack, settings=PlaySettings(sequences=SequenceRules(constrained_turns)))


class StackAgentLoop:
    """Plays the row in the column `row` of verl's dataset, or its `raw_prompt`.

    `several_sequences=all` needs verl's trainer v1, which takes several outputs per episode.
    """

    def __init__(self, trainer_config: Any, tokenizer: Any, **others: Any) -> None:
        """`others`: several_sequences, constrained_turns (see SequenceRules), head, agent, policy_server and folder, as
        for EpisodePlayer, and verl's arguments, which are not used.
        """
        self._config = trainer_config.config
        rollout = self._config.actor_rollout_ref.rollout
        self._lengths = rollout.prompt_length, rollout.response_length
        names = ("constrained_turns", "head", "agent", "policy_server", "folder")
        self._player = player(**{name: others[name] for name in names if name in others})
        weights = bool(self._config.algorithm.get("rollout_correction"))
        self._player.check_weights(weights, "algorithm.rollout_correction")
        self._several: SeveralSequences = others.get("several_sequences", "mask")
        self._filler_id = tokenizer.eos_token_id

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        """Return verl's AgentLoopOutput, or a list of them for several sequences. Raises RunError for a rollout that
        does not count, unless verl uses the estimator that leaves it out.
        """
        row = row_of(kwargs.get("row"), kwargs.get("raw_prompt"))
        episode = await self._player.episode(row, sampling_params, self._filler_id, self._several)
        member = episode.member
        if not member.counts and self._config.algorithm.adv_estimator != ESTIMATOR:
            raise RunError(
                f"a rollout does not count ({member.ending}), but verl's advantage estimator would use its reward: set "
                f"algorithm.adv_estimator={ESTIMATOR} and VERL_USE_EXTERNAL_MODULES=rollyard.interop.verl_advantages"
            )
        outputs = [self._output(episode, sequence) for sequence in episode.sequences]
        return outputs[0] if len(outputs) == 1 else outputs

    def _output(self, episode: Episode, sequence: TrainingSequence) -> Any:
        from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

        prompt, response = self._lengths
        fits = len(sequence.prompt_ids) <= prompt
        numbers = [int(version) for version in episode.versions if version.isdecimal()]
        steps = {"min_global_steps": min(numbers), "max_global_steps": max(numbers)} if numbers else {}
        counts, ending = float(episode.member.counts), episode.member.ending
        return AgentLoopOutput(
            prompt_ids=sequence.prompt_ids[-prompt:],
            response_ids=sequence.completion_ids[:response],
            response_mask=[value if fits else 0 for value in sequence.loss_mask[:response]],
            response_logprobs=sequence.log_probs[:response],
            reward_score=episode.reward,
            num_turns=2 * episode.turns,
            metrics=AgentLoopMetrics(),
            extra_fields={"reward_extra_info": {"counts": counts}, "ending": ending, **steps},
        )
