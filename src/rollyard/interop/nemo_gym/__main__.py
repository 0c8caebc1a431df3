"""Prints the folder to put in PYTHONPATH: `PYTHONPATH=$(python -m rollyard.interop.nemo_gym) python train.py`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rollyard.interop.nemo_gym import path_entry
from rollyard.records.script import ScriptParser


def main(arguments: Sequence[str]) -> int:
    ScriptParser(prog="python -m rollyard.interop.nemo_gym", description=__doc__).parse_args(arguments)
    print(path_entry())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
