"""NeMo Gym's `server_utils`, as far as trainers import it."""

from __future__ import annotations

from rollyard.services.interop.nemo_gym.trainer.names import (
    HEAD_SERVER_KEY_NAME as HEAD_SERVER_KEY_NAME,
)
from rollyard.services.interop.nemo_gym.trainer.names import (
    BaseServerConfig as BaseServerConfig,
)
