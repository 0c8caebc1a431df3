"""Draws metrics of finished or growing training runs as an SVG picture.

python -m rollyard.training.metrics.curves RUN... --metric eval/correct_rate --output curves.svg

Each RUN is the folder of a training run. Several are the seeds of one experiment: the picture has their mean with a
95 % band. `--group NAME RUN...` compares experiments, and `--each` draws a line for each run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rollyard.analysis.charts.curves.catalog import axis_of
from rollyard.analysis.charts.curves.seeds import MAX_GROUPS, MeanCurve, mean_curve, picture, summary
from rollyard.analysis.charts.curves.training_charts import value_text
from rollyard.analysis.metrics.training.metrics_file import Curve, MetricsFile
from rollyard.records.errors import OperatorError, did_you_mean
from rollyard.records.io.jsonl import replace
from rollyard.records.io.script import ScriptParser, positive, run_script
from rollyard.training.run_paths import TrainingPaths

Curves = dict[str, Curve]


def main(arguments: Sequence[str]) -> int:
    """Draw the picture, and print the first and the last value of each line. Return the exit status."""
    options = _parser().parse_args(arguments)
    groups = _groups(options)
    runs = {folder: _read(folder) for _, folders in groups for folder in folders}
    panels: dict[str, list[MeanCurve]] = {}
    for metric in options.metric:
        axis = axis_of(metric)
        for name, folders in groups:
            curves = [_curve(runs[folder], metric, folder) for folder in folders]
            curve = mean_curve(name, curves, is_share=axis.percent, smooth=options.smooth)
            if not curve.steps:
                raise OperatorError(f"{metric}: the runs of {name or 'the picture'} have no step in common")
            panels.setdefault(metric, []).append(curve)
            measured = mean_curve(name, curves, is_share=axis.percent)
            print(summary(metric, measured, partial(value_text, axis=axis)))
    replace(options.output, picture(panels, columns=options.columns).encode())
    print(options.output)
    return 0


def _parser() -> ScriptParser:
    parser = ScriptParser(
        prog="python -m rollyard.training.metrics.curves",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="folder of a training run")
    parser.add_argument(
        "--group",
        nargs="+",
        action="append",
        default=[],
        metavar=("NAME", "RUN"),
        help="name of an experiment and the folders of its runs; may be repeated",
    )
    parser.add_argument("--each", action="store_true", help="draw a line for each run instead of their mean")
    parser.add_argument(
        "--metric",
        action="append",
        metavar="NAME",
        help="name in metrics.jsonl; may be repeated; default: train/reward",
    )
    parser.add_argument("--smooth", action="store_true", help="draw moving averages over a tenth of 20 or more steps")
    parser.add_argument("--columns", type=positive, default=2, metavar="N", help="panels side by side; default: 2")
    parser.add_argument("--output", type=Path, default=Path("curves.svg"), metavar="FILE", help="default: curves.svg")
    return parser


def _groups(options: argparse.Namespace) -> list[tuple[str, list[Path]]]:
    """Return names and folders of the lines. Raises OperatorError if there are none or too many."""
    options.metric = list(dict.fromkeys(options.metric or ["train/reward"]))
    groups: list[tuple[str, list[Path]]] = [(name, [Path(run) for run in runs]) for name, *runs in options.group]
    if options.runs:
        groups = [*([(run.name, [run]) for run in options.runs] if options.each else [("", options.runs)]), *groups]
    if not groups:
        raise OperatorError("no training run given; expected folders of training runs, or --group NAME RUN...")
    if empty := [name for name, runs in groups if not runs]:
        raise OperatorError(f"--group {empty[0]} has no runs; expected --group NAME RUN...")
    if len(groups) > MAX_GROUPS:
        raise OperatorError(f"{len(groups)} lines were asked for, but a picture has at most {MAX_GROUPS}")
    return groups


def _read(folder: Path) -> Curves:
    path = TrainingPaths(folder).metrics
    file = MetricsFile(path)
    file.advance()
    if not file.steps:
        raise OperatorError(f"{path} has no metrics; expected the folder of a training run that has done a step")
    return file.curves()


def _curve(curves: Curves, metric: str, folder: Path) -> Curve:
    if (found := curves.get(metric)) is None:
        raise OperatorError(
            f"{folder} has no metric {metric!r}{did_you_mean(metric, curves)}; it has {', '.join(curves)}"
        )
    return found


if __name__ == "__main__":
    run_script(lambda: main(sys.argv[1:]))
