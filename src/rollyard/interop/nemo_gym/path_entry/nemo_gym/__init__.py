"""Rollyard under the name by which trainers import NeMo Gym. It contains only what they import."""

from __future__ import annotations

from pathlib import Path

from rollyard.records.data_files import INSTALLED

PARENT_DIR = Path(INSTALLED)
ROLLYARD = True
