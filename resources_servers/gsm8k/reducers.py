"""Figures of a GSM8K evaluation: accuracy, unreadable answers and completion lengths."""

from __future__ import annotations

from collections.abc import Iterable

from rollyard.records.types import Json, Record


class Gsm8kFigures(Record):
    """The figures over all rollouts. Rates are shares from 0 to 1, lengths are in tokens."""

    rollouts: int
    correct_rate: float
    """Share of the rollouts with the correct number."""
    parse_err_rate: float
    """Share of the rollouts from which no number could be extracted."""
    avg_completion_length: float | None
    """Mean number of generated tokens; None if the endpoint does not report usage."""
    total_completion_tokens: int

    def lines(self) -> list[str]:
        """Return one line per figure. `accuracy` and the names below it are aliases that other scripts read."""
        length = "unknown" if self.avg_completion_length is None else f"{self.avg_completion_length:.1f}"
        return [
            f"accuracy: {100 * self.correct_rate:.2f}%",
            f"correct_rate: {100 * self.correct_rate:.2f}%",
            f"parse_err_rate: {100 * self.parse_err_rate:.2f}%",
            f"parse_error_rate: {100 * self.parse_err_rate:.2f}%",
            f"avg_completion_length: {length}",
            f"avg_completion_tokens: {length}",
            f"total_completion_tokens: {self.total_completion_tokens}",
        ]


def reduce_rollouts(rows: Iterable[Json]) -> Gsm8kFigures:
    """Return the figures of the rollout rows."""
    count = correct = unreadable = 0
    lengths: list[int] = []
    for row in rows:
        count += 1
        correct += row.get("success") is True
        unreadable += bool(row.get("parse_error", row.get("extracted_answer") is None))
        tokens = completion_tokens(row)
        if tokens is not None:
            lengths.append(tokens)
    return Gsm8kFigures(
        rollouts=count,
        correct_rate=correct / count if count else 0.0,
        parse_err_rate=unreadable / count if count else 0.0,
        avg_completion_length=sum(lengths) / len(lengths) if lengths else None,
        total_completion_tokens=sum(lengths),
    )


def completion_tokens(row: Json) -> int | None:
    """Return the number of tokens that the policy generated in a rollout."""
    usage = row["response"].get("usage") or {}
    tokens = usage.get("output_tokens")
    return tokens if isinstance(tokens, int) else None
