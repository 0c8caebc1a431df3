"""The names that trainers import from NeMo Gym. `path_entry()` is the folder for PYTHONPATH that replaces `nemo_gym`.

PYTHONPATH=$(python -m rollyard.interop.nemo_gym) python train.py
"""

from __future__ import annotations

from rollyard.interop.nemo_gym.collection_helper import (
    HEAD_SERVER_KEY_NAME,
    BaseServerConfig,
    GlobalConfigDictParserConfig,
    RolloutCollectionHelper,
)
from rollyard.interop.nemo_gym.path_entry import path_entry
from rollyard.interop.nemo_gym.run_helper import RunHelper

__all__ = [
    "HEAD_SERVER_KEY_NAME",
    "BaseServerConfig",
    "GlobalConfigDictParserConfig",
    "RolloutCollectionHelper",
    "RunHelper",
    "path_entry",
]
