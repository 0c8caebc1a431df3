"""Two verdicts on the same answers: agreement, disagreements, and errors by labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import rollyard
from rollyard.analysis.metrics.load import load
from rollyard.analysis.metrics.run_pair import PairLevel, RunPair, compare_runs
from rollyard.analysis.metrics.verdicts import VerdictComparison
from rollyard.records.manifest import ROLLOUTS, Manifest
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.rollout_keys import Key
from rollyard.records.types import Json
from tests.support.rollout_files import row, write


def answer(task: int, repeat: int, reward: float | None, text: str | None = None, **more: Any) -> Json:
    made = row(task, repeat, reward, calls=0, **more)
    content = [{"type": "output_text", "text": f"{task}/{repeat}" if text is None else text}]
    made["response"]["output"] = [{"type": "message", "role": "assistant", "content": content}]
    return made


def verdicts(*outcomes: Sequence[float | None], **more: Any) -> list[Json]:
    """Rows of one task for each argument, with these rewards."""
    return [
        answer(task, repeat, reward, **more)
        for task, rewards in enumerate(outcomes)
        for repeat, reward in enumerate(rewards)
    ]


def compared(folder: Path, first: list[Json], second: list[Json], threshold: float | None = None) -> RunPair:
    before, after = load(write(folder / "first.jsonl", first)), load(write(folder / "second.jsonl", second))
    return compare_runs(before, after, [], PairLevel(resamples=200), pass_threshold=threshold)


def found(pair: RunPair) -> VerdictComparison:
    assert pair.verdicts is not None
    return pair.verdicts


def test_the_table_counts_the_answers_by_both_verdicts(tmp_path: Path) -> None:
    pair = compared(tmp_path, verdicts((1, 1, 0), (0, 0, 1)), verdicts((1, 0, 0), (1, 1, 1)))
    one = found(pair)
    assert (one.answers, one.accepted, one.equal_rewards) == (6, (2, 2, 1, 1), 3)
    assert one.agreement.mean == 0.5
    assert [(each.task, each.repeat, each.baseline, each.candidate) for each in one.gained.answers] == [
        (1, 0, 0.0, 1.0),
        (1, 1, 0.0, 1.0),
    ]
    assert [(each.task, each.repeat) for each in one.lost.answers] == [(0, 1)]
    assert pair.costs == []


def test_the_agreement_has_an_interval_clustered_by_task(tmp_path: Path) -> None:
    flat = [(1.0, 1.0, 1.0, 1.0)] * 10
    clustered = [(0.0, 0.0, 0.0, 0.0)] * 2 + flat[2:]
    spread = [(0.0, 1.0, 1.0, 1.0)] * 8 + flat[8:]
    one = found(compared(tmp_path, verdicts(*flat), verdicts(*clustered))).agreement
    other = found(compared(tmp_path, verdicts(*flat), verdicts(*spread))).agreement
    assert one.mean == other.mean == 0.8
    assert one.stderr is not None and other.stderr is not None and one.stderr > 2 * other.stderr


def test_runs_with_other_answers_have_no_table(tmp_path: Path) -> None:
    first = verdicts((1, 0), (0, 1))
    other = [*first[:3], answer(1, 1, 1, text="something else")]
    assert compared(tmp_path, first, other).verdicts is None
    without = [{name: value for name, value in one.items() if name != "response"} for one in first]
    assert compared(tmp_path, without, without).verdicts is None


def test_ids_and_log_probabilities_do_not_make_another_answer(tmp_path: Path) -> None:
    first = verdicts((1, 0))
    second = verdicts((1, 1))
    for one in second:
        one["response"]["output"][0]["id"] = "msg_new"
    assert found(compared(tmp_path, first, second)).answers == 2


def test_answers_with_one_verdict_are_counted_and_change_no_difference(tmp_path: Path) -> None:
    masked = [*verdicts((1, 0), (1, 1)), answer(2, 0, 0.0, mask_sample=True)]
    pair = compared(tmp_path, verdicts((1, 0), (0, 1), (0,)), masked)
    assert (found(pair).only_baseline, found(pair).only_candidate, found(pair).answers) == (1, 0, 4)
    (one,) = [each for each in pair.differences if each.metric == "solve_rate"]
    assert (one.tasks, one.baseline, one.candidate) == (2, 0.5, 0.75)
    assert pair.baseline.coverage.measured == 5


def test_without_a_rule_of_what_is_solved_rewards_are_compared(tmp_path: Path) -> None:
    one = found(compared(tmp_path, verdicts((3.0, 2.0, 5.0)), verdicts((3.0, 4.0, -1.0))))
    assert (one.accepted, one.errors, one.equal_rewards) == (None, None, 1)
    assert one.agreement.mean == pytest.approx(1 / 3)
    assert [(each.total, each.answers[0].repeat) for each in (one.gained, one.lost)] == [(1, 1), (1, 2)]


def labelled(path: Path, judge: Callable[[Json], str | float | None]) -> None:
    notes = rollyard.annotate(path, author="ann")
    for each in rollyard.read_rollouts(path):
        if (verdict := judge(dict(each))) is not None:
            notes.judge(each, verdict)


@pytest.mark.parametrize("labelled_file", ["first", "second"])
def test_labels_give_the_false_accepts_and_refusals_of_both(tmp_path: Path, labelled_file: str) -> None:
    first, second = verdicts((1, 1), (1, 0), (0, 0)), verdicts((1, 0), (0, 1), (0, 1))
    compared(tmp_path, first, second)
    truth: dict[Key, str | float] = {(0, 0): "correct", (0, 1): "correct", (1, 0): "wrong", (1, 1): 1.0, (2, 0): 0.0}
    path = tmp_path / f"{labelled_file}.jsonl"
    labelled(path, lambda one: truth.get((one["_ng_task_index"], one["_ng_rollout_index"])))
    errors = found(compared(tmp_path, first, second)).errors
    assert errors is not None
    rates = [
        [(rate.errors, rate.labelled, rate.tasks) for rate in (one.false_accepts, one.false_refusals) if rate]
        for one in errors
    ]
    assert rates == [[(1, 2, 2), (1, 3, 2)], [(0, 2, 2), (1, 3, 2)]]
    accepts = errors[0].false_accepts
    assert accepts is not None and accepts.share.mean == 0.5
    assert accepts.share.low is not None and accepts.share.high is not None


def test_answers_with_a_label_are_listed_first(tmp_path: Path) -> None:
    first, second = verdicts((0, 0, 0)), verdicts((1, 1, 1))
    compared(tmp_path, first, second)
    labelled(tmp_path / "first.jsonl", lambda one: "wrong" if one["_ng_rollout_index"] == 2 else None)
    listed = found(compared(tmp_path, first, second)).gained.answers
    assert [(one.repeat, one.label) for one in listed] == [(2, "wrong"), (0, ""), (1, "")]


def test_labels_beside_the_file_that_was_verified_again_count(tmp_path: Path) -> None:
    original = write(tmp_path / "original.jsonl", verdicts((0, 1)))
    labelled(original, lambda one: "correct")
    for name in ("first", "second"):
        manifest = Manifest(identity={ROLLOUTS: 2}, versions={}, created=0.0, input=str(original))
        RolloutPaths(tmp_path / f"{name}.jsonl").manifest.write_text(manifest.model_dump_json())
    errors = found(compared(tmp_path, verdicts((0, 0)), verdicts((1, 1)))).errors
    assert errors is not None
    refusals = [one.false_refusals for one in errors]
    assert [(one.errors, one.labelled) for one in refusals if one] == [(2, 2), (0, 2)]
