"""NeMo Gym's `rollout_collection`, as far as trainers import it."""

from __future__ import annotations

from rollyard.interop.nemo_gym import RolloutCollectionHelper

__all__ = ["RolloutCollectionHelper"]
