"""NeMo Gym's `rollout_collection`, as far as trainers import it."""

from __future__ import annotations

from rollyard.services.interop.nemo_gym.trainer.collection_helper import (
    RolloutCollectionHelper as RolloutCollectionHelper,
)
