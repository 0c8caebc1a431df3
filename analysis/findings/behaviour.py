"""Detectors of behaviour that costs reward, of answers and rewards that teach nothing, and of failing servers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np
import orjson

from rollyard.analysis.findings.detector import (
    AttemptSelection,
    Category,
    Detector,
    Evidence,
    RowDetector,
    Selection,
    UnsolvedDetector,
)
from rollyard.analysis.findings.row_view import Call, RowView
from rollyard.analysis.metrics.columns import Floats
from rollyard.analysis.metrics.estimators import clustered_mean
from rollyard.analysis.metrics.solved import Flags, parts_of
from rollyard.records.types import mapping

_REASONS = ("length", "context_overflow", "max_steps", "truncated", "time_limit")


class CutByLimit(RowDetector):
    """A limit ended the episode: the finish reason is `length`, `context_overflow`, `max_steps`, `truncated` or
    `time_limit`, or, in rows without one, the response is incomplete because of `max_output_tokens`. Reported from 1%
    of the rollouts, because such rewards measure the limit as well as the policy.
    """

    kind = "cut_by_limit"
    title = "Cut off by a limit"
    category = Category.BEHAVIOUR
    what = "were cut off by a limit on tokens, context, steps or time"

    def flags(self, row: RowView) -> bool:
        if row.finish_reason:
            return row.finish_reason in _REASONS
        details = mapping(mapping(row.row.get("response")).get("incomplete_details"))
        return details.get("reason") == "max_output_tokens"


class EmptyResponse(UnsolvedDetector):
    """The model's messages are empty and it called no tool, and the task is not solved. Reasoning does not count as a
    message, because environments do not read it.
    """

    kind = "empty_response"
    title = "Empty responses"
    category = Category.BEHAVIOUR
    what = "consist of no text and no tool call"

    def flags(self, row: RowView) -> bool:
        return not row.calls and not any(message.strip() for message in row.messages)


_LIMITS = ("length", "context_overflow", "content_filter", "unreadable_call")


class NoToolUsed(UnsolvedDetector):
    """Tools were offered, the model called none, and the task is not solved. Rollouts that a token limit cut off or
    whose call was unreadable do not count, because the model may have been about to call one; neither do solved
    rollouts, because tools can be optional.
    """

    kind = "no_tool_used"
    title = "Gave up without using a tool"
    category = Category.BEHAVIOUR
    what = "used no tool at all and did not solve their task"

    def flags(self, row: RowView) -> bool:
        if not row.tools or row.calls or row.finish_reason in _LIMITS:
            return False
        return any(message.strip() for message in row.messages)


_LEAST = 4
_SHARE = 1 / 3


class RepeatedCalls(UnsolvedDetector):
    """The same tool call got the same output at least 4 times, in at least a third of all calls of the rollout, and the
    task is not solved. A call that is repeated with different outputs makes progress and does not count, such as the
    same move on a changing board; up to three equal attempts are normal retries.
    """

    kind = "repeated_calls"
    title = "Loops: the same call with the same result"
    category = Category.BEHAVIOUR
    what = "repeated the same call with the same result at least 4 times"

    def flags(self, row: RowView) -> bool:
        if len(row.calls) < _LEAST:
            return False
        seen = Counter((call.name, call.arguments, call.output) for call in row.calls if call.output is not None)
        most = max(seen.values(), default=0)
        return most >= max(_LEAST, _SHARE * len(row.calls))


_ENDING = 40
_LEAST_ENDINGS = 8


class RepeatedText(RowDetector):
    """The last 40 characters of a text of the model occur in it at least 8 times without overlapping, and contain at
    least 4 different characters. Degenerate generation runs into a limit while it repeats a phrase; normal texts hardly
    ever repeat their ending 8 times.
    """

    kind = "repeated_text"
    title = "Loops: the same text again and again"
    category = Category.BEHAVIOUR
    what = "end in a text that repeats at least 8 times"

    def flags(self, row: RowView) -> bool:
        text = row.text.rstrip()
        ending = text[-_ENDING:]
        if len(text) < _ENDING * _LEAST_ENDINGS or len(set(ending)) < 4:
            return False
        return text.count(ending) >= _LEAST_ENDINGS


_DONE_SHARE = 0.9
_LEAST_SOLVED = 5


class StoppedEarly(Detector):
    """The model stopped calling tools (finish reason `answered`) after at least one call, without solving the task, in
    a run in which at least 90% of the solved rollouts (and at least 5) ended because the environment was done. Where
    success usually ends the episode, an answer before that is a resignation; elsewhere, answering is the normal end and
    nothing is reported.
    """

    kind = "stopped_early"
    title = "Stopped before the environment was done"
    category = Category.BEHAVIOUR

    def select(self, evidence: Evidence) -> Iterator[Selection]:
        solved = evidence.run.solved
        if solved is None or solved.sum() < _LEAST_SOLVED:
            return
        done = (evidence.ended("done") & solved).sum() / solved.sum()
        mask = evidence.ended("answered") & ~solved & (evidence.columns.tool_calls > 0)
        if done >= _DONE_SHARE and mask.sum() >= max(1, 0.01 * len(evidence)):
            filters = {"end": "answered", "success": "false", "min_tool_calls": "1"}
            yield Selection(mask, "stopped calling tools before the environment was done", filters=filters)


_LEAST_ROLLOUTS = 30
_FACTOR = 5.0
_DEVIATIONS = 6.0


def outliers(evidence: Evidence, sign: int) -> Flags:
    """Return the rollouts that are extremely long (`sign` 1) or extremely short (-1)."""
    tokens = evidence.columns.output_tokens
    length = np.where(np.isnan(tokens), evidence.signs.length, tokens)
    if len(length) < _LEAST_ROLLOUTS:
        return np.zeros(len(length), bool)
    logs = np.log(np.maximum(length, 1.0))
    off = sign * (logs - np.median(logs))
    deviation = 1.4826 * float(np.median(np.abs(off)))
    return np.asarray(off > max(float(np.log(_FACTOR)), _DEVIATIONS * deviation))


class UnusuallyLong(Detector):
    """The model wrote more than 5 times the median number of tokens (characters, if tokens are not recorded), and the
    logarithm of the length is more than 6 robust standard deviations (1.4826 times the median absolute deviation) from
    the median. Among normally distributed logarithms, that happens once in a billion. Reported for 30 rollouts or more,
    from 0.1% of them.
    """

    kind = "unusually_long"
    title = "Extremely long rollouts"
    category = Category.BEHAVIOUR

    def select(self, evidence: Evidence) -> Iterator[Selection]:
        mask = outliers(evidence, 1)
        if mask.sum() >= max(1, 0.001 * len(evidence)):
            yield Selection(mask, "are extremely long, at least 5 times the median")


class UnusuallyShort(Detector):
    """The model wrote less than a fifth of the median number of tokens (characters, if tokens are not recorded), more
    than 6 robust standard deviations below the median of the logarithms, and the task is not solved. Reported for 30
    rollouts or more, from 1% of them.
    """

    kind = "unusually_short"
    title = "Extremely short rollouts"
    category = Category.BEHAVIOUR

    def select(self, evidence: Evidence) -> Iterator[Selection]:
        mask = outliers(evidence, -1) & ~evidence.paid
        if mask.sum() >= max(1, 0.01 * len(evidence)):
            yield Selection(mask, "are extremely short, less than a fifth of the median")


class InvalidCalls(RowDetector):
    """At least one tool call is invalid: its arguments are not a JSON object, or its name is not that of an offered
    tool (only where the row lists tools), or the episode ended with `unreadable_call`. Calls with empty arguments are
    valid.
    """

    kind = "invalid_calls"
    title = "Invalid tool calls"
    category = Category.FORMAT
    what = "contain a tool call with an unknown name or arguments that are not a JSON object"

    def flags(self, row: RowView) -> bool:
        if row.finish_reason == "unreadable_call":
            return True
        return any(_is_invalid(call, row.tools) for call in row.calls)


def _is_invalid(call: Call, tools: frozenset[str]) -> bool:
    if tools and call.name not in tools:
        return True
    try:
        return bool(call.arguments.strip()) and not isinstance(orjson.loads(call.arguments), dict)
    except orjson.JSONDecodeError:
        return True


class NoAnswer(UnsolvedDetector):
    """The environment extracts answers and found none in this response (the field that it declares as `extracted`, or
    `extracted_answer`, is null or empty), although the model wrote something. The reward then depends on the format
    rather than on the content.
    """

    kind = "no_answer"
    title = "No answer could be extracted"
    category = Category.FORMAT
    what = "contain no answer that the environment could extract"

    def flags(self, row: RowView) -> bool:
        return row.extracted == "" and bool(row.final_message.strip())


_LEAST_TASKS = 10
_EXCESS = 0.15


class SameAnswer(Detector):
    """The most common extracted answer occurs in at least 10 tasks and more often than it is right: its share among the
    answers minus its share among the gold answers is above 0.15, even at the lower end of the 95% interval. Where gold
    answers are few, as with yes and no, a policy that knows nothing gives each about as often as it occurs, which is
    not reported. Without gold answers in the rows, nothing is reported.
    """

    kind = "same_answer"
    title = "One answer for many tasks"
    category = Category.BEHAVIOUR

    def select(self, evidence: Evidence) -> Iterator[Selection]:
        answer, gold = evidence.signs.extracted, evidence.signs.expected
        has_both = (answer != 0) & (gold != 0)
        if not has_both.any():
            return
        values, counts = np.unique(answer[has_both], return_counts=True)
        common = values[counts.argmax()]
        mask = has_both & (answer == common)
        excess = mask.astype(float) - (has_both & (gold == common))
        tasks = len(np.unique(evidence.columns.task[mask]))
        found = clustered_mean(excess, evidence.starts)
        low = found.mean if found.low is None else found.low
        if tasks >= _LEAST_TASKS and low > _EXCESS:
            yield Selection(mask, f"give the same answer, in {tasks:,} different tasks")


_LEAST_FLAT = 0.1


class NoVariance(Detector):
    """All rollouts of the task have the same reward, so that their group-relative advantage and their gradient are
    zero. Counted among the rollouts of tasks with two or more; reported from 10% of them, because some tasks are always
    too easy or too hard.
    """

    kind = "no_variance"
    title = "Groups without variance"
    category = Category.TRAINING

    def select(self, evidence: Evidence) -> Iterator[Selection]:
        grouped = evidence.run.by_task
        if grouped is None:
            return
        several = grouped.measured > 1
        flat = several & (grouped.min == grouped.max)
        of, mask = np.repeat(several, grouped.measured), np.repeat(flat, grouped.measured)
        if not of.any() or mask.sum() < _LEAST_FLAT * of.sum():
            return
        split = ""
        if grouped.solved is not None:
            always = int((flat & (grouped.solved == grouped.measured)).sum())
            split = f": {always:,} always solved, {int((flat & (grouped.solved == 0)).sum()):,} never"
        tasks = f"{int(flat.sum()):,} of {int(several.sum()):,} tasks"
        yield Selection(mask, f"are in groups whose rewards are all equal ({tasks}{split})", of)


_LEAST_PARTIAL = 5
_MORE_PARTIAL = 2


class RepeatedPartialRewards(Detector):
    """An unsolved rollout earned the same positive step reward at least 5 times, at least twice as often as any solved
    rollout, and has more reward than the median of the other unsolved rollouts. Whoever can earn a partial reward
    again and again need not solve the task. Only rows with `step_rewards` count, and only if some rollouts are
    solved.
    """

    kind = "repeated_partial_rewards"
    title = "The same partial reward again and again"
    category = Category.EXPLOIT

    def select(self, evidence: Evidence) -> Iterator[Selection]:
        solved, repeats = evidence.run.solved, np.nan_to_num(evidence.signs.partial_rewards)
        if solved is None or not solved.any() or solved.all():
            return
        usual = max(_LEAST_PARTIAL, _MORE_PARTIAL * float(repeats[solved].max()))
        reward = evidence.columns.reward
        many = ~solved & (repeats >= usual)
        others = ~solved & ~many
        mask = many & (reward > np.median(reward[others])) if others.any() else many
        if mask.any():
            yield Selection(mask, "earned the same partial reward at least 5 times without solving their task")


def _beyond_median(evidence: Evidence, solved: Flags, *, of_solved: bool) -> Flags:
    """Return the rollouts whose reward contradicts their success, compared within each dataset."""
    reward, found = evidence.columns.reward, np.zeros(len(evidence), bool)
    for _, part in parts_of(evidence.columns):
        yes, no = part & solved, part & ~solved
        if not yes.any() or not no.any():
            continue
        found |= yes & (reward < np.median(reward[no])) if of_solved else no & (reward >= np.median(reward[yes]))
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
        if (solved := evidence.run.solved) is not None:
            mask = _beyond_median(evidence, solved, of_solved=False)
            if mask.any():
                what = "have at least the median reward of the solved rollouts but did not solve their task"
                yield Selection(mask, what)


class LowRewardSolved(Detector):
    """The task is solved, but the reward is below the median reward of the unsolved rollouts of the same dataset.
    Reported from 1% of the rollouts.
    """

    kind = "low_reward_solved"
    title = "Low reward although solved"
    category = Category.REWARD

    def select(self, evidence: Evidence) -> Iterator[Selection]:
        if (solved := evidence.run.solved) is not None:
            mask = _beyond_median(evidence, solved, of_solved=True)
            if mask.sum() >= max(1, 0.01 * len(evidence)):
                yield Selection(mask, "solved their task for less reward than the median unsolved rollout")


_LEAST_SHARE = 0.01
_WINDOWS = 20
_LEAST_FAILED = 5
_MORE_FAILED = 4


class Timeouts(Detector):
    """Attempts that failed with a timeout, in an environment, a model server or a judge; reported from 1% of all
    attempts. They are never rewards, but hard tasks take longer, so that the measured rollouts are too easy a sample.
    """

    kind = "timeouts"
    title = "Attempts that timed out"
    category = Category.FAILURE

    def select(self, evidence: Evidence) -> Iterator[AttemptSelection]:
        failed = evidence.failed
        mask = np.array(["timeout" in kind or "timed_out" in kind for kind in failed.kind], bool)
        of = len(evidence) + len(failed.kind)
        if mask.sum() >= max(1, _LEAST_SHARE * of):
            servers = sorted({failed.server[index] for index in np.flatnonzero(mask).tolist()} - {"unknown"})
            named = f", on {', '.join(servers[:3])}" if servers else ""
            yield AttemptSelection(failed.task[mask], failed.repeat[mask], f"failed with a timeout{named}", of)


class ErrorBurst(Detector):
    """At least 5 failed attempts in a twentieth of the collection's time, more than 4 times as many as in an average
    twentieth. A burst points to an event, such as a restarted server or a full disk, rather than to the tasks.
    """

    kind = "error_burst"
    title = "A burst of failed attempts"
    category = Category.FAILURE

    def select(self, evidence: Evidence) -> Iterator[AttemptSelection]:
        failed = evidence.failed
        known = np.flatnonzero(~np.isnan(failed.time))
        window = _busiest(failed.time[known], evidence.signs.created)
        if window is None:
            return
        mask = known[window]
        of = len(evidence) + len(failed.kind)
        seconds = float(failed.time[mask].max() - failed.time[mask].min())
        within = f"within {seconds:,.0f} seconds" if seconds >= 1 else "within a second"
        yield AttemptSelection(failed.task[mask], failed.repeat[mask], f"failed {within} of each other", of)


def _busiest(times: Floats, created: Floats) -> np.ndarray | None:
    """Return a mask of the failures in the busiest window; None if it is not a burst."""
    every = np.concatenate([times, created[~np.isnan(created)]])
    if len(times) < _LEAST_FAILED or not np.ptp(every):
        return None
    edges = np.linspace(every.min(), every.max(), _WINDOWS + 1)
    windows = np.clip(np.searchsorted(edges, times, side="right") - 1, 0, _WINDOWS - 1)
    counts = np.bincount(windows, minlength=_WINDOWS)
    most = int(counts.argmax())
    if counts[most] < _LEAST_FAILED or counts[most] <= _MORE_FAILED * len(times) / _WINDOWS:
        return None
    return np.asarray(windows == most)


_TIMED_OUT = ("timed_out", "scoring_timed_out", "openenv_timed_out", "verification_timed_out", "judge_timed_out")
_TIMEOUT = re.compile(r"time_?d?_?out", re.IGNORECASE)
_FAILED = ("judge_error", "judge_failed", "verifier_error", "verification_error", "scoring_error")


class VerdictTimeouts(RowDetector):
    """The environment reports that its own verdict timed out or that its judge failed (`timed_out`,
    `scoring_timed_out`, `judge_error`, ..., or a declared `limit` whose name says so), and the rollout has a reward
    nevertheless. Such rewards say nothing about the policy. Reported from 1% of the rollouts.
    """

    kind = "verdict_timeouts"
    title = "Verdicts that timed out or failed"
    category = Category.FAILURE
    what = "have a reward although the environment's verdict timed out or its judge failed"

    def flags(self, row: RowView) -> bool:
        if any(row.row.get(name) is True for name in _TIMED_OUT):
            return True
        if any(value is True and _TIMEOUT.search(name) for name, value in row.limits.items()):
            return True
        return any(row.row.get(name) not in (None, False, "", 0) for name in _FAILED)
