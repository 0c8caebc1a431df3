"""NeMo Gym's `cli`, as far as trainers import it."""

from __future__ import annotations

from rollyard.services.interop.nemo_gym.trainer.names import (
    GlobalConfigDictParserConfig as GlobalConfigDictParserConfig,
)
from rollyard.services.interop.nemo_gym.trainer.run_helper import RunHelper as RunHelper
