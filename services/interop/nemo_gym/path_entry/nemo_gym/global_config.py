"""NeMo Gym's `global_config`, as far as trainers import it."""

from __future__ import annotations

from rollyard.services.interop.nemo_gym.trainer.names import (
    HEAD_SERVER_KEY_NAME as HEAD_SERVER_KEY_NAME,
)
from rollyard.services.interop.nemo_gym.trainer.names import (
    GlobalConfigDictParserConfig as GlobalConfigDictParserConfig,
)
from rollyard.services.interop.nemo_gym.trainer.running_config import (
    get_global_config_dict as get_global_config_dict,
)
