"""For tests with the real package verifiers, in .venv-verifiers."""

from __future__ import annotations

import pytest

pytest.importorskip("verifiers")
