"""Keeps messages of the libraries out of a training's output."""

from __future__ import annotations

import warnings


def quiet_libraries() -> None:
    """Silence progress bars, and warnings that do not concern the user of a command."""
    # The trainer does not use TRL's vLLM client.
    warnings.filterwarnings("ignore", message="TRL currently supports vLLM versions")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
