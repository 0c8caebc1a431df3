"""Formats metrics for people: short names in groups, and values with their units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rollyard.records.io.durations import duration
from rollyard.records.io.terminal import plain_line

_SHARES = (
    *("train/correct_rate", "train/parse_err_rate", "train/clip_rate", "train/zero_variance_rate", "train/stale_rate"),
    *("train/seq_too_long_rate", "train/ending/"),
)
NORMALLY_ZERO = (
    *("train/skipped_groups", "train/zero_variance_rate", "train/failed_rollouts", "train/seq_too_long_rate"),
    *("train/stale_rate", "train/staleness_mean", "train/policy_lag", "eval/failed_rollouts"),
)
"""Not shown in the terminal while they are 0."""
_UPDATE = (
    *("loss", "kl", "kl_initial", "entropy", "ratio_mean", "ratio_max", "clip_rate", "grad_norm"),
    *("learning_rate", "parity_mean", "parity_max"),
)


def value_text(name: str, value: float) -> str:
    """Format a metric's value: `38.2%`, `12 s`, `1,024` or `0.01234`."""
    if name.startswith(_SHARES) or (name.startswith("eval/") and name.endswith(("_rate", "/accuracy"))):
        return f"{value:.1%}"
    if name.endswith("_s") and not name.endswith("per_s"):
        return duration(value)
    if name.startswith("train/ratio_"):
        return f"{value:.6g}"  # differences from 1 matter
    if value == round(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4g}"


def short_name(name: str) -> str:
    """Return the name of a metric without its prefix: `reward` for `train/reward`. Other prefixes than train and perf
    stay.
    """
    return plain_line(name.removeprefix("train/").removeprefix("perf/"))


def grouped(metrics: Mapping[str, float]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the titles of groups, each with the short names and formatted values of its metrics.

    What is 0 if nothing goes wrong, such as the number of failed rollouts, is left out if it is 0.
    """
    groups: dict[str, list[tuple[str, str]]] = {
        "reward": [],
        "update": [],
        "rollouts": [],
        "time": [],
        "evaluation": [],
    }
    for name, value in metrics.items():
        if name in NORMALLY_ZERO and not value:
            continue
        groups[_group(name)].append((short_name(name).removeprefix("eval/"), value_text(name, value)))
    yield from ((title, rows) for title, rows in groups.items() if rows)


def _group(name: str) -> str:
    kind, _, rest = name.partition("/")
    if kind == "eval":
        return "evaluation"
    if kind == "perf":
        return "time"
    if rest in _UPDATE:
        return "update"
    return "reward" if rest.startswith("reward") or rest in ("correct_rate", "parse_err_rate") else "rollouts"
