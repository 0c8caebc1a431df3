"""Numbers by training step: those of rollout files, of series of them, and of a trainer's metrics.jsonl."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from rollyard.analysis.metrics import training_steps as steps
from rollyard.analysis.metrics.profile import Run
from rollyard.analysis.metrics.run_pair import REWARD, SOLVE_RATE, PairLevel, TaskChanges, compare_runs, fisher_exact
from rollyard.analysis.metrics.training_steps import MetricsFile, RowNumbers, TaskSeries
from rollyard.records.types import Json
from rollyard.training.metrics_log import MetricsLog
from tests.support.rollout_files import grid, load_run, random_rows, row, solved, write_manifest
from tests.support.step_rows import step_rows
from tests.support.token_rows import alternatives, call_item, logprobs_item, token_row


def numbers_of(*rows: Json) -> dict[str, list[float]]:
    found = RowNumbers()
    for place, one in enumerate(rows):
        found.add(one, 100 * place)
    return {name: column.tolist() for name, column in found.columns().values.items()}


def test_the_numbers_of_a_verdict_have_dotted_names_and_truth_values_count_as_0_or_1() -> None:
    nested = row(0, 0, 1.0, reward_components={"format": 0.5}, details={"graded": True, "why": "text"})
    assert numbers_of(nested) == {"reward_components.format": [0.5], "details.graded": [1.0]}
    assert numbers_of(row(0, 0, 1.0, success=True, timings={"total_s": 3.0}, _ng_attempt_index=2)) == {}
    scores = numbers_of(row(0, 0, 1.0), row(0, 1, 1.0, score=3), row(0, 2, 1.0))["score"]
    assert scores == pytest.approx([math.nan, 3, math.nan], nan_ok=True)
    # A file with a different field in every row does not fill the memory.
    assert len(numbers_of(*(row(0, place, 1.0, **{f"field_{place}": 1}) for place in range(200)))) == 64


def test_numbers_of_tokens_are_means_and_shares_over_all_generated_tokens() -> None:
    found = numbers_of(token_row(0, 0, [call_item(["a", "b"], [-1.0, -3.0]), call_item(["c"], [-8.0])]))
    assert found[steps.LOG_PROB] == [-4.0]
    assert numbers_of(token_row(0, 0, [call_item(list("abcd"), [-0.1, -5.0, -4.6, -9.0])]))[steps.RARE_TOKENS] == [0.5]
    calls = [logprobs_item([alternatives("a", 0.5)]), call_item(["b"], [-1.0])]
    assert numbers_of(token_row(0, 0, calls))[steps.TOKEN_ENTROPY] == pytest.approx([math.log(2)])


def series_of(*runs: Run) -> TaskSeries:
    return TaskSeries.of([steps.step_summary(run, {}) for run in runs])


def pair(folder: Path, first: list[Json], second: list[Json]) -> tuple[Run, Run]:
    return load_run(folder, first, "a"), load_run(folder, second, "b")


def test_the_figures_are_those_of_the_report(tmp_path: Path) -> None:
    run = load_run(tmp_path, random_rows(20, 4))
    found, profile = steps.step_summary(run, {}).figures, run.profile
    assert profile.solved and profile.rewards and profile.tokens.output
    assert profile.tasks and profile.tool_calls and profile.turns
    assert (found[SOLVE_RATE], found[REWARD]) == (profile.solved.rate, profile.rewards.mean)
    means = [found[name].mean for name in ("output_tokens", "tool_calls", "turns")]
    assert means == [profile.tokens.output.mean, profile.tool_calls.mean, profile.turns.mean]
    assert found[steps.ZERO_VARIANCE] == profile.tasks.zero_variance.share


def test_tasks_are_paired_by_content_and_never_by_index(tmp_path: Path) -> None:
    found = series_of(*pair(tmp_path, step_rows({7: 1, 8: 4}), step_rows({8: 0, 7: 3})))
    assert found.by == "content"
    rates = dict(zip(map(tuple, found.task.tolist()), found.solve_rate.tolist(), strict=True))
    assert rates == {(0, 1): [0.25, 0.75], (1, 0): [1.0, 0.0]}


def test_without_content_keys_only_the_same_input_pairs_tasks_by_index(tmp_path: Path) -> None:
    same = {"responses_create_params": {"input": "the same"}}
    rows = [{**one, **same} for one in grid([0, 1], 2)]
    unpaired = series_of(*pair(tmp_path, rows, rows))
    assert len(unpaired) == 0 and "_ng_task_key" in unpaired.why_not
    assert unpaired.order("change", unpaired.mean).tolist() == []
    for name in ("a", "b"):
        write_manifest(tmp_path / f"{name}.jsonl", 2, 2)
    found = series_of(*pair(tmp_path, grid([0, 1], 2), grid([2, 1], 2)))
    assert (found.by, found.solve_rate.tolist()) == ("index", [[0.0, 1.0], [0.5, 0.5]])


def test_sorting_by_change_puts_the_largest_loss_first_and_tasks_of_one_step_last(tmp_path: Path) -> None:
    found = series_of(*pair(tmp_path, step_rows({1: 4, 2: 0, 3: 2}), step_rows({1: 0, 2: 4})))
    assert found.label[found.order("change", found.solve_rate)].tolist() == [0, 1, 2]
    assert found.label[found.order("-change", found.solve_rate)].tolist() == [1, 0, 2]
    assert np.isnan(found.solve_rate[2, 1]) and found.task[2, 1] == -1


def test_a_task_is_learned_from_the_step_on_after_which_it_is_never_below_one_half() -> None:
    nan = np.nan
    values = np.array([[0, 0.6, 0.4, 0.5, 1], [1, 1, 1, 1, 1], [1, 1, 1, 1, 0], [0, 0, nan, 0.5, nan], [nan] * 5])
    assert np.array_equal(steps.learned_at(values), [3, 0, nan, 3, nan], equal_nan=True)


def test_attributes_of_tasks_are_not_drawn_but_results_and_parts_of_the_reward_are(tmp_path: Path) -> None:
    run = load_run(tmp_path, [solved(task, repeat, True) for task in range(3) for repeat in range(2)])
    numbers = {"seed": np.repeat([5.0, 6.0, 7.0], 2), "tries": np.array([1.0, 2, 1, 1, 1, 1])}
    found = steps.drawn_names({0: steps.step_summary(run, {**numbers, "reward_components.format": np.ones(6)})})
    assert "seed" not in found and "tries" in found and found.index("reward_components.format") == 2


def test_steps_are_compared_by_rewards_if_solved_is_undefined_in_one_of_them(tmp_path: Path) -> None:
    found = series_of(*(load_run(tmp_path, [row(0, 0, one), row(0, 1, -3.0)], str(one)) for one in (2.0, 5.0)))
    assert not found.has_solved and found.mean.tolist() == [[-0.5, 1.0]]
    rows = step_rows({1: 4, 2: 0})
    graded = [{key: value for key, value in one.items() if key != "success"} | {"reward": 2.5} for one in rows]
    found = series_of(*pair(tmp_path, rows, graded))
    assert not np.isnan(found.solve_rate[:, 0]).any() and not found.has_solved


def profile_of(folder: Path, files: dict[int, list[Json]]) -> steps.SeriesProfile:
    runs = {step: load_run(folder, rows, f"step_{step}") for step, rows in files.items()}
    summarized = [
        steps.SummarizedStep(step, "", "", steps.step_summary(run, {}) if len(run.columns) else None)
        for step, run in runs.items()
    ]
    return steps.series_profile(summarized, runs[min(runs)], runs[max(runs)])


def test_gains_and_losses_are_paired_by_content_over_all_steps(tmp_path: Path) -> None:
    files = {0: step_rows({1: 0, 2: 4, 3: 1}), 5: step_rows({3: 2, 2: 2, 1: 2}), 9: step_rows({1: 4, 2: 1, 3: 1})}
    found = profile_of(tmp_path, files)
    assert (found.paired_by, found.value, found.columns, found.tasks) == ("content", "solve_rate", [0, 5, 9], 3)
    assert [(one.task, one.values, one.change) for one in found.gains] == [(0, [0.0, 0.5, 1.0], 1.0)]
    assert [(one.task, one.values, one.change) for one in found.losses] == [(1, [1.0, 0.5, 0.25], -0.75)]


def test_a_step_without_measured_rollouts_is_listed_without_figures(tmp_path: Path) -> None:
    found = profile_of(tmp_path, {0: step_rows({1: 0}), 5: [row(0, 0, None)], 9: step_rows({1: 4})})
    listed = [(one.step, one.rollouts, bool(one.figures)) for one in found.steps]
    assert listed == [(0, 4, True), (5, 0, False), (9, 4, True)] and found.columns == [0, 9]


def test_only_the_tasks_with_the_largest_changes_are_kept(tmp_path: Path) -> None:
    count = steps.MAX_TASKS + 5
    found = profile_of(tmp_path, {step: step_rows(dict.fromkeys(range(count), 4 * step)) for step in (0, 1)})
    assert (found.tasks, found.changes.learned) == (count, count)
    assert len(found.gains) == len(found.changes.most_learned) == steps.MAX_TASKS


def test_tasks_are_learned_and_forgotten_by_content_whatever_their_index(tmp_path: Path) -> None:
    found = TaskChanges.of(*pair(tmp_path, step_rows({1: 0, 2: 4, 3: 2, 9: 1}), step_rows({3: 2, 2: 1, 1: 3}, first=5)))
    [learned], [forgotten] = found.listed("learned").tolist(), found.listed("forgotten").tolist()
    assert found.by == "content" and found.only == (1, 0)
    assert (found.at(learned).task, found.at(learned).task_in_second) == (0, 7)
    assert (found.at(forgotten).first, found.at(forgotten).second) == (1.0, 0.25)


def test_the_difference_is_that_of_ng_compare(tmp_path: Path) -> None:
    runs = pair(tmp_path, *(step_rows({task: task * factor % 5 for task in range(12)}) for factor in (1, 3)))
    assert TaskChanges.of(*runs).difference == compare_runs(*runs, [], PairLevel()).differences[0]


def test_runs_are_compared_by_mean_rewards_without_success_and_not_without_a_common_task(tmp_path: Path) -> None:
    found = TaskChanges.of(*pair(tmp_path, *([row(0, 0, one, _ng_task_key="0" * 15 + "1")] for one in (2.0, 5.0))))
    assert (found.metric, found.at(0).first, found.at(0).second, found.at(0).p) == ("reward", 2.0, 5.0, None)
    apart = TaskChanges.of(*pair(tmp_path, step_rows({1: 1}), step_rows({2: 1})))
    assert "in common" in apart.why_not and apart.listed("all").tolist() == []


@pytest.mark.parametrize(("table", "p"), [((0, 4, 4, 4), 2 / 70), ((1, 4, 1, 4), 1.0), ((0, 8, 6, 8), 0.006993006993)])
def test_fishers_exact_test_agrees_with_its_definition(table: tuple[int, int, int, int], p: float) -> None:
    assert fisher_exact(*table) == pytest.approx(p)


FIRST = b'{"step": 1, "train/reward": 0.5}\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def rewards(file: MetricsFile) -> list[tuple[int, float]]:
    file.advance()
    return [(step, found["train/reward"]) for step in file.steps if "train/reward" in (found := file.at(step))]


def test_a_growing_file_is_followed_line_by_line(path: Path) -> None:
    log, file = MetricsLog(path), MetricsFile(path)
    assert not file.advance()
    log.write(1, {"train/reward": 0.5})
    assert file.advance() and not file.advance() and file.updated is not None
    for part, found in ((b'{"step": 2, "trai', [(1, 0.5)]), (b'n/reward": 1.0}\n', [(1, 0.5), (2, 1.0)])):
        with path.open("ab") as out:
            out.write(part)
        assert rewards(file) == found


def test_the_steps_of_a_resumed_run_replace_those_of_before_and_lines_of_one_step_belong_together(path: Path) -> None:
    log, file = MetricsLog(path), MetricsFile(path)
    for step in range(1, 6):
        log.write(step, {"train/reward": 0.0})
    file.advance()
    log.drop_after(2)
    log.write(3, {"train/reward": 0.5, "train/loss": 1.0})
    log.write(3, {"eval/success_rate": 0.25, "train/loss": 2.0})
    assert rewards(file) == [(1, 0.0), (2, 0.0), (3, 0.5)]
    assert file.at(3) == {"train/reward": 0.5, "train/loss": 2.0, "eval/success_rate": 0.25}


def test_a_rewritten_file_is_read_again_and_one_that_disappears_leaves_nothing(path: Path) -> None:
    file = MetricsFile(path)
    path.write_bytes(FIRST)
    file.advance()
    path.write_bytes(b'{"step": 7, "train/reward": 0.25, "train/loss": 1}\n{"step": 8, "train/reward": 1}\n')
    assert rewards(file) == [(7, 0.25), (8, 1.0)]
    path.unlink()
    assert file.advance() and not file.steps and not file.advance()


STEPS = [("-1", "1"), ('"2"', "1"), ("2.5", "1"), ("2", "null"), ("2", "true"), ("2", "NaN"), ("2", '"1"')]


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"nonsense", b"[1]", b"{}", b"\xff\xfe"),
        *(f'{{"step": {step}, "train/reward": {value}}}'.encode() for step, value in STEPS),
    ],
)
def test_lines_that_are_no_metrics_are_skipped(path: Path, line: bytes) -> None:
    path.write_bytes(FIRST + line + b'\n{"step": 3, "train/reward": 1}\n')
    assert rewards(MetricsFile(path)) == [(1, 0.5), (3, 1.0)]
