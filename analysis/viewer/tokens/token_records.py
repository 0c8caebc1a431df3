"""Records of the routes under /api/runs/{run}/tokens. They contain untrusted text from rollouts."""

from __future__ import annotations

from typing import Literal

from rollyard.analysis.charts.chart import Chart
from rollyard.analysis.metrics.estimate import Estimate
from rollyard.records.types import Record

Sort = Literal["surprisal", "log_prob", "entropy", "rare", "count"]
"""Orders of tokens: by their part of the surprisal of all tokens, by mean log-probability (lowest first), by the lower
bound of their entropy, by the number of occurrences below 1%, by the number of occurrences.
"""


class TokenExample(Record):
    """An occurrence of a token."""

    task: int
    repeat: int
    call: int
    """Index of the model call among those with recorded tokens."""
    position: int
    """Index of the token in the model call."""
    log_prob: float


class TokenGroup(Record):
    """All occurrences of a token."""

    text: str
    """Empty if no text is recorded."""
    id: int | None
    """Only if no text is recorded."""
    count: int
    share: float
    """Share of all generated tokens."""
    log_prob: float
    """Mean log-probability."""
    lowest: float
    rare: int
    """Number of occurrences with a probability below 1%."""
    surprisal: float
    """Share of the sum of all negative log-probabilities."""
    entropy: float | None
    """Mean of the entropies' lower bounds; None if alternatives are not recorded."""
    rollouts: int
    """Number of rollouts that contain it."""
    examples: list[TokenExample]
    """The least likely occurrences, each in another rollout."""


class TokensView(Record):
    """GET /api/runs/{run}/tokens: the tokens of a run. The page polls it until `examined` is 1."""

    examined: float
    """Share of the sample that has been read."""
    error: str
    """Why the file cannot be read any further; empty if it can."""
    sampled: bool
    """Whether only a part of the file is read, because it is large."""
    rows: int
    """Number of rollouts that were read."""
    with_tokens: int
    """Number of them in which log-probabilities of tokens are recorded."""
    calls: int
    tokens: int
    without_texts: int
    """Number of tokens whose text is not recorded, so that they are grouped by id."""
    left_out: int
    """Number of tokens that no group contains, because there are too many different ones."""
    log_prob: Estimate | None
    rare: Estimate | None
    entropy: Estimate | None
    charts: list[Chart]
    sort: Sort
    least: int
    """Minimum number of occurrences of the listed tokens."""
    total: int
    """Number of tokens in the list."""
    start: int
    groups: list[TokenGroup]
