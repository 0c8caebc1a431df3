"""NeMo Gym's `cli`, as far as trainers import it."""

from __future__ import annotations

from rollyard.interop.nemo_gym import GlobalConfigDictParserConfig, RunHelper

__all__ = ["GlobalConfigDictParserConfig", "RunHelper"]
