"""NeMo Gym's `global_config`, as far as trainers import it."""

from __future__ import annotations

from rollyard.interop.nemo_gym import HEAD_SERVER_KEY_NAME, GlobalConfigDictParserConfig
from rollyard.interop.nemo_gym.run_helper import get_global_config_dict

__all__ = ["HEAD_SERVER_KEY_NAME", "GlobalConfigDictParserConfig", "get_global_config_dict"]
