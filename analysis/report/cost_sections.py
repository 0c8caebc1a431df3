"""Builds the sections on what a run cost: turns, tokens and time."""

from __future__ import annotations

from rollyard.analysis.charts import group_charts
from rollyard.analysis.metrics.estimate import MeanSpread
from rollyard.analysis.metrics.profile_records import Coverage, Profile
from rollyard.analysis.metrics.stage_times import TOTAL
from rollyard.analysis.report.formatting import count, interval, number, percent, seconds
from rollyard.analysis.report.section import Section, Table

_LEVEL = "95% interval"


def work(profile: Profile) -> Section:
    tokens = profile.tokens
    kinds: list[tuple[str, MeanSpread | None]] = [
        ("turns", profile.turns),
        ("input tokens", tokens.input),
        ("output tokens", tokens.output),
        ("reasoning tokens", tokens.reasoning if tokens.reasoning and tokens.reasoning.total else None),
    ]
    rows = [
        (
            *(name, number(s.mean), interval(s.estimate, "number"), *map(number, (s.median, s.p95, s.max))),
            *(count(s.total), _of(s.rollouts, profile.coverage)),
        )
        for name, s in kinds
        if s is not None
    ]
    head = ("per rollout", "mean", _LEVEL, "median", "p95", "max", "sum", "recorded by")
    text = []
    if tokens.per_solved is not None:
        text.append(f"Tokens, input and output, for each solved rollout: {count(tokens.per_solved)}.")
    return Section("Turns and tokens", text, [Table(head, rows)] if rows else [])


def time(profile: Profile) -> Section:
    rows = [
        (
            *(stage.stage, seconds(stage.seconds.mean), interval(stage.seconds.estimate, "seconds")),
            *map(seconds, (stage.seconds.median, stage.seconds.p95, stage.seconds.max)),
            seconds(stage.seconds.total),
            percent(stage.share, 1),
        )
        for stage in profile.stages
    ]
    if not rows:
        return Section("Time")
    head = ("stage", "mean", _LEVEL, "median", "p95", "max", "sum", "share of time")
    text = ["Seconds per episode by stage; (rest) is time in no stage, such as queueing and the agent's own work."]
    total = next((stage for stage in profile.stages if stage.stage == TOTAL), None)
    if total is not None:
        text.append(
            "Shares are of the total of all rollouts and add up to 100%. Mean, median and p95 are over the rollouts "
            "that recorded the stage."
            if total.share is not None
            else "The stages of a rollout overlap and exceed its total, so shares are of their sum and add up to 100%."
        )
    drawn = any(stage.stage != TOTAL and stage.share is not None for stage in profile.stages)
    return Section("Time", text, [Table(head, rows)], [group_charts.stages(profile.stages)] if drawn else [])


def _of(rollouts: int, covered: Coverage) -> str:
    return "all" if rollouts == covered.measured else f"{rollouts:,} of {covered.measured:,}"
