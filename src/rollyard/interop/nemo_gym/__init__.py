"""The names that trainers import from NeMo Gym. `path_entry()` is the folder for PYTHONPATH that replaces `nemo_gym`.

PYTHONPATH=$(python -m rollyard.interop.nemo_gym) python train.py
"""

from __future__ import annotations

from rollyard.services.interop.nemo_gym.path_entry import path_entry
from rollyard.services.interop.nemo_gym.trainer.collection_helper import RolloutCollectionHelper
from rollyard.services.interop.nemo_gym.trainer.names import (
    HEAD_SERVER_KEY_NAME,
    BaseServerConfig,
    GlobalConfigDictParserConfig,
)
from rollyard.services.interop.nemo_gym.trainer.run_helper import RunHelper

__all__ = [
    "HEAD_SERVER_KEY_NAME",
    "BaseServerConfig",
    "GlobalConfigDictParserConfig",
    "RolloutCollectionHelper",
    "RunHelper",
    "path_entry",
]
