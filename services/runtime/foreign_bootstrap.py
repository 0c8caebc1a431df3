"""Runs a server's program as a script, after one change: Ray starts when the program first uses it.

    python foreign_bootstrap.py app.py

NeMo Gym's servers connect to a Ray cluster at startup, and start one if the config names none. Only a few of them use
it, and each cluster would take seconds and hundreds of megabytes. Ray starts by itself on the first remote call.

It uses only the standard library, because it runs in the server's interpreter.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path


def main() -> None:
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path.cwd())  # as for `python app.py`, instead of this file's folder
    _start_ray_when_used()
    program = Path.cwd() / sys.argv[0]  # absolute, because a program may look for its files beside __file__
    runpy.run_path(str(program), run_name="__main__")


def _start_ray_when_used() -> None:
    try:
        utils = importlib.import_module("nemo_gym.server_utils")
    except ImportError:
        return  # the program itself reports what is missing
    if hasattr(utils, "initialize_ray"):
        vars(utils)["initialize_ray"] = lambda: None


if __name__ == "__main__":
    main()
