"""Runs a command in its own process group and kills the group when stdin closes because the parent has exited.

    python -m rollyard.services.evaluation.process_group lm_eval ...

A parent killed with SIGKILL cannot clean up, and vLLM's engine, a grandchild, would keep the GPU occupied.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def main() -> int:
    """Run the command and return its exit status."""
    # SIGTERM is meant for the command. A handler, unlike SIG_IGN, is not inherited by it.
    signal.signal(signal.SIGTERM, lambda *_: None)
    threading.Thread(target=_watch, daemon=True).start()
    status = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, check=False).returncode
    return status if status >= 0 else 128 - status


def _watch() -> None:
    os.read(0, 1)
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
