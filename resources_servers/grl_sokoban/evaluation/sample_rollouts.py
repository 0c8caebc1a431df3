"""Write a few rollouts with outcomes that are as different as possible, for a report or a pull request.

The choice depends only on the rollouts, not on their order in the file.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollyard.records.errors import OperatorError
from rollyard.records.json_values import items, mapping, number, text_of, whole_number
from rollyard.records.jsonl import ParsedLine, iter_jsonl, replace, skip
from rollyard.records.rewards import is_measured
from rollyard.records.rollout_file import check_output
from rollyard.records.script import ScriptParser, positive, run_script


@dataclass(frozen=True)
class SampledOutcome:
    """The properties by which rollouts are compared. `number` makes every outcome unique."""

    reward: float
    calls: int
    """Number of tool calls."""
    success: bool
    finish_reason: str
    task: int
    repeat: int
    number: int
    """Line number."""


Rank = Callable[[SampledOutcome], tuple[float, ...]]
"""Sort key: the smallest comes first."""

KINDS: tuple[tuple[str, Callable[[SampledOutcome], bool], Rank], ...] = (
    ("solved with the fewest calls", lambda found: found.success, lambda found: (found.calls, -found.reward)),
    ("solved with the most calls", lambda found: found.success, lambda found: (-found.calls, found.reward)),
    ("gave up at once", lambda found: not found.success and found.calls <= 1, lambda found: (found.calls,)),
    ("lowest reward", lambda found: not found.success and found.reward < 0, lambda found: (found.reward,)),
    (
        "cut off by a limit",
        lambda found: not found.success and found.finish_reason in ("max_steps", "length"),
        lambda found: (-found.calls, found.reward),
    ),
    (
        "gave up late",
        lambda found: not found.success and found.finish_reason == "answered",
        lambda found: (-found.calls,),
    ),
)
"""Kinds of outcomes in order of interest: name, condition, rank."""


def choose(outcomes: Sequence[SampledOutcome], count: int) -> list[tuple[str, SampledOutcome]]:
    """Return up to `count` outcomes with their kinds: one of each kind, then those farthest from the chosen ones.

    Every task is used at most once while there are others.
    """
    chosen: list[tuple[str, SampledOutcome]] = []
    for name, accepts, rank in KINDS[:count]:
        found = [outcome for outcome in outcomes if accepts(outcome)]
        if found := _unused(found, chosen):
            chosen.append((name, min(found, key=lambda outcome: (*rank(outcome), *_order(outcome)))))
    while len(chosen) < count and (left := _unused(outcomes, chosen)):
        chosen.append(("other", max(left, key=lambda found: (_distance(found, chosen), *(-n for n in _order(found))))))
    return chosen


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the chosen rollouts. Raises OperatorError if the file cannot be read or holds no rollouts."""
    options = _options(arguments)
    check_output(options.output, [options.rollouts])
    try:
        outcomes = [_outcome(found) for found in iter_jsonl(options.rollouts, skip) if _is_rollout(found)]
    except OSError as error:
        raise OperatorError(f"{options.rollouts} cannot be read: {error.strerror}") from error
    if not outcomes:
        raise OperatorError(f"{options.rollouts} holds no rollouts with a reward")
    chosen = choose(outcomes, options.count)
    replace(options.output, _lines(options.rollouts, [outcome.number for _, outcome in chosen]))
    for name, outcome in chosen:
        calls = f"{outcome.calls} tool call{'' if outcome.calls == 1 else 's'}"
        where = f"task {outcome.task}, repeat {outcome.repeat}"
        print(f"{name}: reward {outcome.reward:.1f}, {calls}, {outcome.finish_reason or 'no finish reason'} ({where})")
    print(f"{len(chosen)} of {len(outcomes)} rollouts -> {options.output}")


def _lines(rollouts: Path, numbers: Sequence[int]) -> Iterator[bytes]:
    lines = {found.number: found.line for found in iter_jsonl(rollouts, skip) if found.number in numbers}
    return (lines[wanted] for wanted in numbers)


def _is_rollout(found: ParsedLine) -> bool:
    return found.line.endswith(b"\n") and is_measured(found.value)


def _outcome(found: ParsedLine) -> SampledOutcome:
    row = found.value
    # Files of older programs have the episode in `output` itself.
    output = items(mapping(row.get("response")).get("output")) or items(row.get("output"))
    return SampledOutcome(
        reward=number(row.get("reward"), 0.0),
        calls=sum(mapping(item).get("type") == "function_call" for item in output),
        success=row.get("success") is True,
        finish_reason=text_of(row.get("finish_reason")),
        task=whole_number(row.get("_ng_task_index")) or 0,
        repeat=whole_number(row.get("_ng_rollout_index")) or 0,
        number=found.number,
    )


def _unused(outcomes: Sequence[SampledOutcome], chosen: Sequence[tuple[str, SampledOutcome]]) -> list[SampledOutcome]:
    """Return the outcomes that are not chosen yet, if possible of tasks of which none is."""
    numbers, tasks = {found.number for _, found in chosen}, {found.task for _, found in chosen}
    left = [outcome for outcome in outcomes if outcome.number not in numbers]
    return [outcome for outcome in left if outcome.task not in tasks] or left


def _distance(outcome: SampledOutcome, chosen: Sequence[tuple[str, SampledOutcome]]) -> float:
    return min(
        (abs(outcome.reward - found.reward) + abs(outcome.calls - found.calls) for _, found in chosen), default=0.0
    )


def _order(outcome: SampledOutcome) -> tuple[int, ...]:
    return outcome.task, outcome.repeat, outcome.number


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = ScriptParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=Path, required=True, help="rollouts of a collection (JSON Lines)")
    parser.add_argument("--count", type=positive, default=5, help="number of rollouts to write (default 5)")
    parser.add_argument("--output", type=Path, required=True, help="file to write")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_script(main)
