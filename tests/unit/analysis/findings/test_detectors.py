"""Each detector reports what its docstring defines, and not what merely looks like it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from rollyard.analysis.findings.detector import Finding
from rollyard.analysis.findings.find import DETECTORS
from rollyard.records.types import Json
from tests.support.finding_rows import LOOK, found_in, played
from tests.support.findings_page import PAGE, page
from tests.support.rollout_files import write, write_failures

MOVED = [("move", '{"to": "up"}', f"board {step}") for step in range(6)]
HITS: dict[str, list[Json]] = {
    "no_tool_used": [played(0, says="I give up.", tools=["look"])],
    "empty_response": [played(0, says="  ")],
    "repeated_calls": [played(0, calls=[LOOK] * 4)],
    "repeated_text": [played(0, says="Let me think about this again, step by step. " * 20)],
    "cut_by_limit": [played(0, finish_reason="length")],
    "no_answer": [played(0, says="maybe seven", extracted_answer=None)],
    "invalid_calls": [played(0, calls=[("look", "{broken", "invalid")], tools=["look"])],
    "verdict_timeouts": [played(0, scoring_timed_out=True)],
    "high_reward_unsolved": [played(0, success=True), {**played(1), "reward": 1.5}],
    "low_reward_solved": [played(0, success=True, repeat=0), {**played(1, success=True), "reward": -1.0}, played(2)],
    "stopped_early": [
        *(played(task, calls=MOVED, success=True, finish_reason="done") for task in range(5)),
        played(5, calls=MOVED, finish_reason="answered"),
    ],
    "repeated_partial_rewards": [
        *(played(0, success=True, step_rewards=[0.1, 1.0]), {**played(1, step_rewards=[0.1] * 12), "reward": 1.2}),
        *(played(2), played(3)),
    ],
    "no_variance": [played(task, repeat) for task in range(2) for repeat in range(2)],
    "same_answer": [played(task, extracted_answer="42", expected_answer=str(task)) for task in range(20)],
    "unusually_long": [*map(played, range(40)), played(40, response={"usage": {"output_tokens": 9000}})],
    "unusually_short": [*map(played, range(40)), played(40, response={"usage": {"output_tokens": 1}})],
}
INNOCENT: dict[str, list[Json]] = {
    "no_tool_used": [played(0, tools=["look"], success=True), played(1, tools=["look"], finish_reason="length")],
    "repeated_calls": [played(0, calls=MOVED), played(1, calls=[LOOK] * 3), played(2, calls=[LOOK] * 4, success=True)],
    "repeated_text": [played(0, says="=" * 2000), played(1, says="A sentence. " * 3)],
    "cut_by_limit": [played(0, finish_reason="answered"), played(1, finish_reason="done")],
    "no_answer": [played(0), played(1, extracted_answer="7"), played(2, extracted_answer=["a"])],
    "invalid_calls": [played(0, calls=[("look", "", "a wall")], tools=["look"]), played(1, calls=[LOOK])],
    "verdict_timeouts": [played(0, scoring_timed_out=False), played(1, judge_error=None)],
    "high_reward_unsolved": [played(0, success=True), {**played(1), "reward": 0.5}],
    "stopped_early": [played(task, calls=[LOOK], success=task < 5, finish_reason="answered") for task in range(10)],
    "same_answer": [played(at, extracted_answer="yes", expected_answer=["yes", "no"][at % 10 < 1]) for at in range(40)],
    "no_variance": [played(task, repeat, success=repeat == 0) for task in range(9) for repeat in range(2)],
    "unusually_long": [played(at, response={"usage": {"output_tokens": 2 ** (at % 12)}}) for at in range(60)],
}


@pytest.mark.parametrize("kind", HITS)
def test_a_detector_reports_what_it_defines_and_not_what_only_looks_alike(tmp_path: Path, kind: str) -> None:
    assert kind in found_in(tmp_path, HITS[kind])
    assert kind not in found_in(tmp_path, INNOCENT.get(kind, []))


def test_attempts_that_timed_out_are_reported_with_their_share(tmp_path: Path) -> None:
    rows = [played(task, success=True, response={"output": [], "created_at": 1000.0 * task}) for task in range(20)]
    write_failures(tmp_path / "rollouts.jsonl", [(task, 0, "timeout") for task in range(6)])
    found = found_in(tmp_path, rows)
    assert (found["timeouts"].count, found["timeouts"].of, found["timeouts"].unit) == (6, 26, "attempts")


COLLECTED = [played(task, response={"output": [], "created_at": 100.0 * task}) for task in range(101)]
BURST = [*(5_001.0 + second for second in range(8)), 100.0, 9_000.0]


def burst(folder: Path, times: Sequence[float | None]) -> Finding | None:
    failed = {"_ng_rollout_index": 0, "failure_kind": "connection"}
    rows = [{**failed, "_ng_task_index": number, "time": time} for number, time in enumerate(times)]
    write(folder / "rollouts_failures.jsonl", rows)
    return found_in(folder, COLLECTED).get("error_burst")


def test_a_burst_of_failed_attempts_is_reported_with_exactly_its_attempts(tmp_path: Path) -> None:
    for spread_few_or_without_time in ([500.0 * number for number in range(20)], BURST[:4], [None] * 20):
        assert burst(tmp_path, spread_few_or_without_time) is None
    found = burst(tmp_path, BURST)
    assert found is not None and found.count == 8
    assert (found.of, found.unit, found.tasks) == (111, "attempts", 8)
    assert [example.task for example in found.examples] == [0, 4, 7] and "7 seconds" in found.sentence
    assert found.share.low is not None and found.share.high is not None
    assert found.share.low < found.share.mean == 8 / 111 < found.share.high


def test_every_detector_has_a_kind_a_title_and_a_definition_of_its_own_and_is_on_the_page_of_findings() -> None:
    assert len({one.kind for one in DETECTORS}) == len({one.title for one in DETECTORS}) == len(DETECTORS)
    assert all(len(one.definition) > 100 for one in DETECTORS)
    assert page(PAGE.read_text()) == PAGE.read_text(), "run python -m tests.support.findings_page"
