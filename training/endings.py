"""What each way to end an episode means for training."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from enum import StrEnum

from pydantic import ConfigDict, Field, field_validator

from rollyard.records.errors import FailureKind
from rollyard.records.rewards import mask_of
from rollyard.records.types import FinishReason, Json, Record


class Treatment(StrEnum):
    """How a rollout takes part in an update."""

    PLAYED = "played"
    """Its tokens have a loss, and its reward counts in the group's mean and standard deviation."""
    MASKED = "masked"
    """Its tokens have no loss. Its reward counts, because the group's other members are compared with it."""
    ZERO = "zero"
    """It has no tokens. It counts in the group's mean and standard deviation with reward 0."""
    LEFT_OUT = "left_out"
    """It does not take part: neither its tokens nor its reward count."""


UNKNOWN = "unknown"
"""Finish reason of rows that have none, such as those of NeMo Gym's agents."""

DEFAULTS: dict[str, Treatment] = {
    FinishReason.DONE: Treatment.PLAYED,
    FinishReason.ANSWERED: Treatment.PLAYED,
    FinishReason.TRUNCATED: Treatment.PLAYED,
    # The usual way to lose a game: without it, the policy would learn only from episodes that it finished.
    FinishReason.MAX_STEPS: Treatment.PLAYED,
    FinishReason.UNREADABLE_CALL: Treatment.PLAYED,
    # The text was cut off, so its reward says nothing about where it was going.
    FinishReason.LENGTH: Treatment.MASKED,
    FinishReason.CONTEXT_OVERFLOW: Treatment.MASKED,
    FinishReason.CONTENT_FILTER: Treatment.MASKED,
    UNKNOWN: Treatment.PLAYED,
}
"""Treatment by finish reason. Reasons that only an agent of one's own has are played."""


class EndingRules(Record):
    """Settings of how rollouts take part in an update, by how they ended."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    finish_reasons: dict[str, Treatment] = Field(default_factory=dict)
    """Treatment by finish reason, instead of the defaults. `unknown` is for rows without a finish reason."""
    model_timeout: Treatment = Treatment.ZERO
    """Treatment of an episode that failed because the policy did not answer in time: `zero` or `left_out`. If it were
    left out, a policy could avoid a bad reward by being slow."""
    server_timeout: Treatment = Treatment.LEFT_OUT
    """Treatment of an episode that failed because any other server did not answer in time: `zero` or `left_out`."""

    @field_validator("model_timeout", "server_timeout")
    @classmethod
    def _check_timeout(cls, treatment: Treatment) -> Treatment:
        if treatment in (Treatment.PLAYED, Treatment.MASKED):
            raise ValueError(
                f"{treatment!s} is impossible: a failed rollout has no tokens and no reward. Use zero or left_out"
            )
        return treatment

    @field_validator("finish_reasons")
    @classmethod
    def _check_names(cls, given: dict[str, Treatment]) -> dict[str, Treatment]:
        # An agent may have finish reasons of its own, so that only likely typing mistakes are refused.
        for name, treatment in given.items():
            close = difflib.get_close_matches(name, DEFAULTS, 1, 0.8)
            if name not in DEFAULTS and close:
                raise ValueError(f"unknown finish reason {name!r}; did you mean {close[0]}?")
            if treatment is Treatment.ZERO:
                raise ValueError(
                    f"{name}: zero is for failed rollouts; one with a reward is played, masked or left_out"
                )
        return given

    def of_row(self, row: Json) -> tuple[str, Treatment]:
        """Return the finish reason of a rollout and its treatment. Masked rows are left out."""
        reason = str(row.get("finish_reason") or UNKNOWN)
        if mask_of(row):
            return reason, Treatment.LEFT_OUT
        return reason, self.finish_reasons.get(reason) or DEFAULTS.get(reason, Treatment.PLAYED)

    def of_failure(self, kind: str, server: str, model_servers: Collection[str]) -> Treatment:
        """Return the treatment of a permanently failed rollout.

        `kind` and `server` are those of the failure's record; `model_servers` are the names of the policy's servers.
        """
        if kind != FailureKind.TIMEOUT:
            return Treatment.LEFT_OUT
        return self.model_timeout if server in model_servers else self.server_timeout

    def is_final(self, kind: str, server: str, agents: Collection[str], model_servers: Collection[str]) -> bool:
        """Return whether a rollout that failed in this way is never retried.

        Bad tasks fail again. A failure that counts with reward 0 must stay one, and so must an episode that exceeded
        its deadline as a whole: no answer may buy a second try by what it costs.
        """
        if kind == FailureKind.BAD_TASK or (kind == FailureKind.TIMEOUT and server in agents):
            return True
        return self.of_failure(kind, server, model_servers) is not Treatment.LEFT_OUT
