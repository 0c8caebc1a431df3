"""Fails if this checkout is slower than the commit in the file `baseline`: `make bench-gate`.

It compares the CPU time of every figure in turn (comparison.py): per turn, of a start, per verdict, of the viewer's
first list and of a profile. The baseline only ever moves to a faster commit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import profile, startup, turns, verdicts, viewer
from benchmarks.comparison import Plan, against

BASELINE = Path(__file__).parent / "baseline"
SCALE = 0.3
"""Share of the rollouts per pair that `benchmarks.turns` plays."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if a figure has become worse."""
    figures = [
        *turns.figures([64], SCALE),
        *startup.figures(),
        *verdicts.figures(),
        viewer.FIGURE,
        profile.FIGURE,
    ]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="REVISION", default=BASELINE.read_text().strip(), help="another commit")
    parser.add_argument("--only", default="", metavar="WORD", help="figures with this word in their names")
    options = parser.parse_args(arguments)
    chosen = [figure for figure in figures if options.only in figure.name]
    if not chosen:
        parser.error(f"no figure has {options.only!r} in its name: {', '.join(figure.name for figure in figures)}")
    return against(options.against, chosen, Plan())


if __name__ == "__main__":
    sys.exit(main())
