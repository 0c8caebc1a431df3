"""For tests with the real package verifiers, in .venv-verifiers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("verifiers")
sys.path.append(str(Path(__file__).parent))  # verifiers imports tasksets as modules outside a package
