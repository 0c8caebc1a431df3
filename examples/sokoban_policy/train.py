"""Train the policy on traces, on one core, from random weights or from those of an earlier phase.

    python -m examples.sokoban_policy.train --data results/sokoban_policy/short.npz --stop-after 750 \\
        --output results/sokoban_policy/first

Writes a checkpoint and a line of curve.jsonl every 250 steps, and the folder `final` at the end.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rollyard.records.script import ScriptParser, positive, run_script


def main(arguments: list[str] | None = None) -> None:
    parser = ScriptParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the .npz file of make_data")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    parser.add_argument("--steps", type=positive, help="number of batches to train on (default: all)")
    parser.add_argument("--stop-after", type=positive, help="stop at this step, before the learning rate is 0")
    parser.add_argument("--initial", type=Path, help="folder of the policy to start from (default: random weights)")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="highest learning rate (default 2e-3)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and the order (default 0)")
    options = parser.parse_args(arguments)
    from examples.sokoban_policy.policy_training import TrainingRun, train

    train(TrainingRun(**vars(options)))


if __name__ == "__main__":
    run_script(main)
