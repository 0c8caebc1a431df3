"""Entry point of all commands: `ng_status`, for example, runs `cli/status.py`.

Importing a command takes about a second. Until its own error handling is active, Ctrl-C ends it immediately and prints
nothing.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path
from types import FrameType


def main() -> None:
    """Run the command that this program is named after."""
    before = signal.getsignal(signal.SIGINT)
    # Not a KeyboardInterrupt, which libraries catch or wrap while they are imported. An ignored SIGINT stays ignored.
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_silently)
    command = importlib.import_module(f"rollyard.cli.{Path(sys.argv[0]).name.removeprefix('ng_')}")
    signal.signal(signal.SIGINT, before)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # temporary files are removed, as after Ctrl-C
    command.main()


def _end_silently(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


if __name__ == "__main__":  # python -m rollyard.cli.entry ng_run ...: independent of PATH
    del sys.argv[0]
    main()
