"""main: where each of our programs begins; `ng_status` is `services/cli/status.py`.

A command's imports take a second, and no `except` of its own is there yet: until then Ctrl-C ends it at once, in
silence.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path
from types import FrameType


def main() -> None:
    """Run the command by whose name this process was started."""
    before = signal.getsignal(signal.SIGINT)
    # A KeyboardInterrupt would not do: libraries catch or wrap it while they are imported. Ignored stays ignored.
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    command = importlib.import_module(f"rollyard.services.cli.{Path(sys.argv[0]).name.removeprefix('ng_')}")
    signal.signal(signal.SIGINT, before)
    command.main()


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)
