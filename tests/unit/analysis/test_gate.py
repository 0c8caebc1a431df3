"""Verdicts of a gate: rules, missing rollouts, and runs that must not be compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rollyard.analysis.gate import Decision, GateRule, GateVerdict, decide
from rollyard.analysis.metrics.load import load
from rollyard.analysis.metrics.profile import Run
from rollyard.analysis.metrics.run_pair import PairLevel
from rollyard.cli.gate import read_rules
from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from tests.support.rollout_files import grid, load_run, row, solved, write, write_manifest

TASKS = 200


def gate(baseline: Run, candidate: Run, *rules: GateRule, **options: Any) -> GateVerdict:
    level = PairLevel(options.pop("alpha", 0.05), resamples=2000)
    return decide(baseline, candidate, rules or (GateRule(max_drop=0.05),), level, version="", **options)


def runs(folder: Path, before: Sequence[Json], after: Sequence[Json]) -> tuple[Run, Run]:
    return load_run(folder, before, "before"), load_run(folder, after, "after")


def planned(folder: Path, name: str, rows: Sequence[Json], repeats: int = 1, **more: Any) -> Run:
    path = write(folder / f"{name}.jsonl", rows)
    write_manifest(path, TASKS, repeats, **more)
    return load(path)


def outcomes(gained: int, lost: int) -> tuple[list[Json], list[Json]]:
    """Rows of TASKS tasks that are all solved, except for `gained` in the baseline and `lost` in the candidate."""
    before = [0] * gained + [1] * (TASKS - gained)
    return grid(before, 1), grid([1] * (TASKS - lost) + [0] * lost, 1)


@pytest.mark.parametrize(
    ("gained", "lost", "rule", "decision"),
    [
        (0, 0, GateRule(max_drop=0.05), Decision.GO),
        (5, 5, GateRule(max_drop=0.05), Decision.GO),
        (0, 0, GateRule(max_drop=0.01), Decision.INCONCLUSIVE),
        (0, 10, GateRule(max_drop=0.05), Decision.INCONCLUSIVE),
        (0, 40, GateRule(max_drop=0.05), Decision.NO_GO),
        (40, 0, GateRule(min_gain=0.05), Decision.GO),
        (10, 0, GateRule(min_gain=0.05), Decision.INCONCLUSIVE),
        (0, 0, GateRule(min_gain=0.05), Decision.NO_GO),
        (10, 0, GateRule(min_gain=0.0), Decision.GO),
    ],
)
def test_the_interval_decides(tmp_path: Path, gained: int, lost: int, rule: GateRule, decision: Decision) -> None:
    found = gate(*runs(tmp_path, *outcomes(gained, lost)), rule)
    [result] = found.rules
    assert found.decision == decision and result.low is not None and result.high is not None
    assert result.low <= result.gain <= result.high
    assert found.decision.exit_status == {"GO": 0, "NO-GO": 1, "INCONCLUSIVE": 3}[found.decision]


def test_the_worst_result_of_the_rules_counts(tmp_path: Path) -> None:
    found = gate(*runs(tmp_path, *outcomes(0, 10)), GateRule(max_drop=0.2), GateRule(max_drop=0.05))
    assert [result.decision for result in found.rules] == [Decision.GO, Decision.INCONCLUSIVE]
    assert found.decision == Decision.INCONCLUSIVE


def test_lower_is_better_for_tokens(tmp_path: Path) -> None:
    short, long = runs(tmp_path, *([row(task, 0, 1.0, calls=one + task % 3) for task in range(60)] for one in (1, 4)))
    rule = GateRule(metric="input_tokens", max_drop=100)
    assert gate(short, long, rule).decision == Decision.NO_GO
    assert gate(long, short, rule).decision == Decision.GO
    assert gate(short, long, rule.model_copy(update={"better": "higher"})).decision == Decision.GO


def test_missing_rollouts_are_refused(tmp_path: Path) -> None:
    rows = grid([1] * TASKS, 1)
    complete, partial = planned(tmp_path, "a", rows), planned(tmp_path, "b", rows[:-3])
    for pair in ((complete, partial), (partial, complete)):
        with pytest.raises(OperatorError, match=r"3 of 200 .*of b .*solve_rate \(98\.50%"):
            gate(*pair)
        with pytest.raises(OperatorError, match=r"min-coverage 0\.99 is needed"):
            gate(*pair, min_coverage=0.99)
    few = load_run(tmp_path, rows[:40], "c")
    write(tmp_path / "c_materialized_inputs.jsonl", [{}] * 50)  # only their number is known
    with pytest.raises(OperatorError, match="10 of 50 expected rollouts"):
        gate(few, load(tmp_path / "c.jsonl"))
    with pytest.raises(OperatorError, match="1 of 200 expected rollouts"):  # a row without a reward and no manifest
        gate(*runs(tmp_path, rows, [*rows[:-1], {**rows[-1], "mask_sample": True}]))


@pytest.mark.parametrize(
    ("reward", "kept", "missing"),
    [(1, (TASKS, TASKS - 8), (0, 8)), (0, (TASKS - 8, TASKS), (8, 0)), (1, (TASKS - 8, TASKS - 8), (8, 8))],
)
def test_accepted_missing_rollouts_count_against_the_candidate(
    tmp_path: Path, reward: int, kept: tuple[int, int], missing: tuple[int, int]
) -> None:
    rows = grid([reward] * TASKS, 1)
    pair = [planned(tmp_path, name, rows[:count]) for name, count in zip("ab", kept, strict=True)]
    [result] = gate(pair[0], pair[1], min_coverage=0.95).rules
    assert (result.missing_baseline, result.missing_candidate) == missing
    assert (result.gain, result.decision) == (0.0, Decision.INCONCLUSIVE)
    if missing == (0, 8):
        as_failed = planned(tmp_path, "c", grid([1] * (TASKS - 8) + [0] * 8, 1))
        [expected] = gate(pair[0], as_failed).rules
        assert expected.high is not None and result.high is not None
        assert result.low == expected.low and result.high > expected.high


def test_missing_repeats_count_against_the_candidate(tmp_path: Path) -> None:
    rows = grid([2] * TASKS, 4)
    kept = [one for one in rows if one["_ng_task_index"] % 4 or one["_ng_rollout_index"] != 3]
    pair = planned(tmp_path, "a", rows, 4), planned(tmp_path, "b", kept, 4)
    [result] = gate(*pair, min_coverage=0.9).rules
    # 50 of 800 missing rollouts as failed lower the rate by nothing: those repeats were failures before.
    assert result.missing_candidate == 50 and result.low is not None and result.high is not None
    assert result.low < 0 and result.high > 50 / 800


def test_different_tasks_are_refused_unless_allowed(tmp_path: Path) -> None:
    pair = runs(tmp_path, grid([1] * 30, 1), grid([1] * 40, 1))
    with pytest.raises(OperatorError, match=r"10 tasks of after .*before \(30 "):
        gate(*pair)
    assert gate(*pair, allow_different=["tasks"]).tasks == 30


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ([{"responses_create_params": {"temperature": one, "model": str(one)}} for one in (0.0, 0.7)], True),
        ([{"settings": {"policy_model": {"model": one, "implementation": "x"}}} for one in ("small", "large")], False),
    ],
)
def test_different_sampling_is_refused_unless_allowed_but_the_model_may_be_different(
    tmp_path: Path, settings: list[Json], refused: bool
) -> None:
    pair = [planned(tmp_path, "ab"[at], grid([1] * TASKS, 1), **one) for at, one in enumerate(settings)]
    allowed = ["responses_create_params"] if refused else []
    if refused:
        with pytest.raises(OperatorError, match=r"responses_create_params\.temperature: 0\.0 .*, 0\.7 "):
            gate(pair[0], pair[1])
    found = gate(pair[0], pair[1], allow_different=allowed)
    assert found.settings == ["responses_create_params.temperature: 0.0 -> 0.7"] * refused


def test_without_a_manifest_the_parameters_of_the_rows_are_compared(tmp_path: Path) -> None:
    keyed = [solved(task, 0, True, _ng_task_key=f"{task + 1:016x}") for task in range(TASKS)]
    cold, hot = ([{**one, "responses_create_params": {"temperature": degrees}} for one in keyed] for degrees in (0, 1))
    with pytest.raises(OperatorError, match="temperature"):
        gate(*runs(tmp_path, cold, hot))
    assert gate(*runs(tmp_path, cold, cold)).decision == Decision.GO


def test_a_rule_can_be_limited_to_a_dataset(tmp_path: Path) -> None:
    first, second = (
        [{**one, "dataset_name": "ab"[at >= 100]} for at, one in enumerate(rows)] for rows in outcomes(0, 30)
    )
    pair = runs(tmp_path, first, second)
    found = gate(*pair, *(GateRule(dataset=name, max_drop=0.05) for name in "ab"))
    assert [result.decision for result in found.rules] == [Decision.GO, Decision.NO_GO]
    with pytest.raises(OperatorError, match="dataset 'c'"):
        gate(*pair, GateRule(dataset="c", max_drop=0.1))


INVALID_RULES = {
    "rules: [{metric: reward, max_drop: 0.1, min_gain: 0.1}]": "either max_drop or min_gain",
    "rules: [{metric: reward}]": "either max_drop or min_gain",
    "rules: [{metrik: reward, max_drop: 0.1}]": "metrik",
    "rules: []": "rules",
    "- 1": "no mapping",
    "rules: [": "cannot be read",
    "rules: [{max_drop: .nan}]": "max_drop",
}


@pytest.mark.parametrize(("text", "problem"), INVALID_RULES.items())
def test_invalid_rules_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "rules.yaml").write_text(text)
    with pytest.raises(OperatorError, match=problem):
        read_rules(tmp_path / "rules.yaml")
