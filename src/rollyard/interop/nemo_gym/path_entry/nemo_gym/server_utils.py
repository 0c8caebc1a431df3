"""NeMo Gym's `server_utils`, as far as trainers import it."""

from __future__ import annotations

from rollyard.interop.nemo_gym import HEAD_SERVER_KEY_NAME, BaseServerConfig

__all__ = ["HEAD_SERVER_KEY_NAME", "BaseServerConfig"]
