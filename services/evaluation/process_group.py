"""Runs a command in its own process group, and ends the whole group when stdin closes: when its parent is gone.

    python -m rollyard.services.evaluation.process_group lm_eval ...

A parent killed with -9 can end nobody, and vLLM's engine, a grandchild, would keep the GPU from the next try.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def main() -> int:
    """The command's exit status."""
    # A request to end is for the command; a handler, unlike SIG_IGN, is not inherited by it.
    signal.signal(signal.SIGTERM, lambda *_: None)
    threading.Thread(target=_watch, daemon=True).start()
    status = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, check=False).returncode
    return status if status >= 0 else 128 - status


def _watch() -> None:
    os.read(0, 1)
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
