"""Detector: High reward although unsolved; Low reward although solved."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollyard.analysis.findings.detector import Detector, Selection
from rollyard.analysis.findings.evidence import Evidence, Flags
from rollyard.analysis.findings.finding import Category
from rollyard.analysis.metrics.solved import parts_of


def _beyond_median(evidence: Evidence, solved: Flags, *, of_solved: bool) -> Flags:
    """Return the rollouts whose reward contradicts their success, compared within each dataset."""
    reward, found = evidence.columns.reward, np.zeros(len(evidence), bool)
    for _, part in parts_of(evidence.columns):
        yes, no = part & solved, part & ~solved
        if not yes.any() or not no.any():
            continue
        if of_solved:
            found |= yes & (reward < np.median(reward[no]))
        else:
            found |= no & (reward >= np.median(reward[yes]))
    return found


class HighRewardUnsolved(Detector):
    """The task is not solved, but the reward is at least the median reward of the solved rollouts of the same dataset.
    A policy that is trained on this reward learns to do without success. Only where the environment or +pass_threshold
    states success, so that it can differ from the reward.
    """

    kind = "high_reward_unsolved"
    title = "High reward although unsolved"
    category = Category.REWARD

    def select(self, evidence: Evidence) -> Iterator[Selection]:
        if evidence.run.solved is None:
            return
        mask = _beyond_median(evidence, evidence.run.solved, of_solved=False)
        if mask.any():
            yield Selection(mask, "have at least the median reward of the solved rollouts but did not solve their task")


class LowRewardSolved(Detector):
    """The task is solved, but the reward is below the median reward of the unsolved rollouts of the same dataset.
    Reported from 1% of the rollouts.
    """

    kind = "low_reward_solved"
    title = "Low reward although solved"
    category = Category.REWARD

    def select(self, evidence: Evidence) -> Iterator[Selection]:
        if evidence.run.solved is None:
            return
        mask = _beyond_median(evidence, evidence.run.solved, of_solved=True)
        if mask.sum() >= max(1, 0.01 * len(evidence)):
            yield Selection(mask, "solved their task for less reward than the median unsolved rollout")
