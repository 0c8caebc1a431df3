"""The exception for tasks that cannot be played here."""

from __future__ import annotations


class UnsupportedTask(Exception):
    """The task folder is invalid, or needs what a box does not have. The message names the file and the instruction."""
