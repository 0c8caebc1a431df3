"""Headline: the figures of one evaluation that a table over several evaluations shows."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import orjson

from rollyard.launchers.evaluation.eval_state import EvalFolder
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.script import EXIT_USAGE, own_command
from rollyard.records.terminal import plain_line
from rollyard.records.types import Json, Record
from rollyard.services.config.overrides import as_override


class HeadlineEstimate(Record):
    """A mean with its 95% interval, clustered by task. A number that is undefined is null."""

    mean: float
    stderr: float | None = None
    low: float | None = None
    high: float | None = None


class Headline(Record):
    """Coverage and metrics of a rollout file. A metric that is not defined for the file is absent."""

    measured: int
    expected: int | None
    metrics: dict[str, HeadlineEstimate]
    """By name, in the order of a table's columns: `reward`, `solve_rate`, `pass@1`, ..."""

    @property
    def is_complete(self) -> bool:
        return self.expected is not None and self.measured >= self.expected

    @property
    def coverage(self) -> str:
        return f"{self.measured:,} of {'?' if self.expected is None else f'{self.expected:,}'}"


def headline(rollouts: Path, *, pass_threshold: float | None = None) -> Headline:
    if not rollouts.exists():
        return Headline(measured=0, expected=None, metrics={})
    profile = read_profile(rollouts, pass_threshold)
    metrics: Json = {}
    if (rewards := profile["rewards"]) is not None and not rewards["why_no_mean"]:
        metrics["reward"] = rewards["mean"]
    if (solved := profile["solved"]) is not None:
        metrics["solve_rate"] = solved["rate"]
    if (tasks := profile["tasks"]) is not None:
        # pass@1 is the solve rate with equal weights per task; powers of two keep the table narrow.
        shown = [one for one in tasks["pass_at"] if one["k"] & (one["k"] - 1) == 0 and one["k"] > 1]
        metrics |= {f"pass@{one['k']}": one["any"] for one in shown}
        metrics |= {f"cons@{one['k']}": one["consensus"] for one in shown if one["consensus"] is not None}
    coverage = profile["coverage"]
    return Headline(measured=coverage["measured"], expected=coverage["expected"], metrics=metrics)


def read_profile(rollouts: Path, pass_threshold: float | None = None) -> Json:
    """Return what `ng_reward_profile` writes about a rollout file: from the report of its evaluation if that is newer
    and no threshold is given, else by running the command.
    """
    report = EvalFolder(rollouts.parent).report.with_suffix(".json")
    if pass_threshold is None and report.is_file() and report.stat().st_mtime_ns > rollouts.stat().st_mtime_ns:
        return _first_run(report)
    with tempfile.TemporaryDirectory(prefix="ng-profile-") as folder:
        options = {"jsonl_fpath": [str(rollouts)], "output_dir": folder, "pass_threshold": pass_threshold}
        given = [as_override(key, value) for key, value in options.items() if value is not None]
        command = own_command("ng_reward_profile", *given, "+findings=false")
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if not (written := Path(folder) / "profile.json").is_file():
            problem = done.stderr.strip().rpartition("\n")[2].removeprefix("ng_reward_profile: ")
            error = OperatorError if done.returncode == EXIT_USAGE else RunError
            raise error(problem or f"{rollouts} cannot be read")
        return _first_run(written)


def _first_run(report: Path) -> Json:
    profile: Json = orjson.loads(report.read_bytes())["runs"][0]
    return profile


def formatted(estimate: HeadlineEstimate | None) -> str:
    """Return `0.135 [0.120, 0.150]`; a dash if the metric is not defined."""
    if estimate is None:
        return "-"
    bounds = "" if estimate.low is None or estimate.high is None else f" [{estimate.low:.3f}, {estimate.high:.3f}]"
    return f"{estimate.mean:.3f}{bounds}"


def metric_names(headlines: Iterable[Headline]) -> list[str]:
    return list(dict.fromkeys(name for one in headlines for name in one.metrics))


def metric_columns(metrics: Iterable[str]) -> list[str]:
    return [f"{name}{part}" for name in metrics for part in ("", "_low", "_high")]


def metric_numbers(headline: Headline, metrics: Iterable[str]) -> list[float | None]:
    found = [headline.metrics.get(name) for name in metrics]
    return [number for one in found for number in ((one.mean, one.low, one.high) if one else (None,) * 3)]


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    header, *rows = lines
    shown = (
        "| " + " | ".join(plain_line(cell).replace("|", "\\|") for cell in cells) + " |"
        for cells in (header, ["---"] * len(header), *rows)
    )
    return "\n".join(shown) + "\n"
