"""Logs three steps of a training run to the tracker that is named on the command line; then two of them again."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from rollyard.cli.train import TRACKERS
from rollyard.training.metrics_log import MetricsLog, sinks_of


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    for steps in ((1, 2, 3), (2, 3, 4)):
        config = {"loss": {"algorithm": "grpo"}}
        sinks = sinks_of(sys.argv[1], name="sokoban", config=config, run_id="0123456789abcdef", trackers=TRACKERS)
        log = MetricsLog(Path("metrics.jsonl"), sinks)
        log.drop_after(steps[0] - 1)
        for step in steps:
            log.write(step, {"train/reward": step / 10, "train/reward/format": 0.1, "train/loss": float("nan")})
        log.write(steps[-1], {"eval/correct_rate": 0.5})
        log.close(failed=False)


if __name__ == "__main__":
    main()
