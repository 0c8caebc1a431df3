"""For tests with the real packages of OpenEnv, ORS and Gymnasium, in .venv-envs."""

from __future__ import annotations

import pytest

pytest.importorskip("openenv")
pytest.importorskip("openreward")
pytest.importorskip("gymnasium")
