"""The advantage estimator `rollyard_grpo` of verl: its GRPO without rollouts that do not count, whose reward is NaN.

verl imports this module if VERL_USE_EXTERNAL_MODULES=rollyard.interop.verl_advantages is in its environment.
"""

from __future__ import annotations

from typing import Any

from verl.trainer.ppo.core_algos import register_adv_est

from rollyard.interop.episodes_of_trainers import group_advantages
from rollyard.interop.verl import ESTIMATOR


@register_adv_est(ESTIMATOR)  # type: ignore[untyped-decorator]
def masked_grpo(
    token_level_rewards: Any, response_mask: Any, index: Any, config: Any = None, **_: Any
) -> tuple[Any, Any]:
    """Return advantages and returns, both of the shape of `response_mask`. `index`: the group of each row."""
    scaled = True if config is None else bool(config.get("norm_adv_by_std_in_grpo", True))
    rewards = token_level_rewards.sum(dim=-1).tolist()
    advantages = group_advantages(rewards, list(index), range(len(rewards)), scaled=scaled, epsilon=1e-6)
    spread = token_level_rewards.new_tensor(advantages).unsqueeze(-1) * response_mask
    return spread, spread
