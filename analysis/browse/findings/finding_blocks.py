"""Turns findings into blocks."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.analysis.browse.blocks.block import Block
from rollyard.analysis.findings.finding import Finding
from rollyard.analysis.report.formatting import NOTHING, interval, percent, reward

_COLOURS = {"exploit": "bad", "failure": "bad", "reward": "second", "training": "thought"}
_BAR = 24


def blocks_of(findings: Sequence[Finding], *, definitions: bool) -> list[Block]:
    """Return one block for each finding, most important first. `definitions`: with what is counted."""
    return [_block(rank, finding, definitions) for rank, finding in enumerate(findings, 1)]


def _block(rank: int, finding: Finding, definitions: bool) -> Block:
    pairs = [
        ("share", f"{_bar(finding.share.mean)} {percent(finding.share.mean, 1)}  {_interval(finding, 'percent')}", ""),
    ]
    if finding.mean_reward is not None:
        others = finding.mean_reward_others
        pairs.append(
            ("mean reward", f"{reward(finding.mean_reward.mean)}; others {reward(others.mean if others else None)}", "")
        )
    solved = f", {finding.solved:,} of {finding.count:,} solved" if finding.solved is not None else ""
    pairs.append(("about", f"{finding.count:,} {finding.unit} of {finding.tasks:,} tasks{solved}", ""))
    if finding.examples:
        examples = "  ".join(f"({at}) {one.task}/{one.repeat}" for at, one in enumerate(finding.examples, 1))
        pairs.append(("examples", examples, "first"))
    if definitions:
        pairs.append(("counted", finding.definition, "soft"))
    return Block(
        f"{rank} {finding.title}",
        _COLOURS.get(finding.category, "first"),
        text=finding.sentence,
        kind="pairs",
        pairs=tuple(pairs),
        note=finding.category,
        key=finding,
    )


def _bar(share: float) -> str:
    filled = round(share * _BAR)
    return "█" * filled + "░" * (_BAR - filled)


def _interval(finding: Finding, form: str) -> str:
    found = interval(finding.share, form)
    return "" if found == NOTHING else f"95% interval {found}"
