"""Sums over tokens equal those computed directly, however the file is divided."""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from rollyard.analysis.metrics.tokens.place_figures import figures_at
from rollyard.analysis.metrics.tokens.row_tally import RowTally
from rollyard.analysis.metrics.tokens.sample import sampled_ranges, tally_range
from rollyard.analysis.metrics.tokens.token_tally import (
    EXAMPLES,
    LAST_TURN,
    Place,
    TokenTally,
    empty_tally,
    merged_tallies,
)
from rollyard.records.types import Json
from tests.support.rollout_files import write
from tests.support.token_rows import alternatives, call_item, logprobs_item, random_token_rows, token_row


def tally_of(rows: list[Json]) -> TokenTally:
    """The tally of rows whose offsets are their indexes."""
    tally = RowTally()
    for offset, row in enumerate(rows):
        tally.add(row, offset)
    return tally.result()


@pytest.fixture(scope="module")
def rows() -> list[Json]:
    return random_token_rows(6, 3)


def tokens_of(rows: list[Json]) -> list[tuple[int, int, int, str, float]]:
    """(row, call, position, text, log-probability) of every token."""
    found = []
    for number, row in enumerate(rows):
        calls = [item for item in row["response"]["output"] if "generation_log_probs" in item]
        for call, item in enumerate(calls):
            pairs = zip(item["token_trace"]["texts"], item["generation_log_probs"], strict=True)
            found += [(number, call, position, *pair) for position, pair in enumerate(pairs)]
    return found


def test_sums_by_text_are_those_of_the_tokens(rows: list[Json]) -> None:
    tally, by_text = tally_of(rows), defaultdict(list)
    for row, _, _, text, value in tokens_of(rows):
        by_text[text].append((value, row))
    assert set(tally.keys) == set(by_text)
    for index, key in enumerate(tally.keys):
        values = [value for value, _ in by_text[str(key)]]
        assert tally.count[index] == len(values)
        assert tally.log_prob[index] == pytest.approx(sum(values))
        assert tally.lowest[index] == min(values)
        assert tally.rare[index] == sum(value < math.log(0.01) for value in values)
        assert tally.rollouts[index] == len({row for _, row in by_text[str(key)]})


def test_examples_are_the_least_likely_occurrences_in_different_rollouts(rows: list[Json]) -> None:
    tally = tally_of(rows)
    for index, key in enumerate(tally.keys):
        lowest: dict[int, float] = {}
        for row, _, _, text, value in tokens_of(rows):
            if text == key:
                lowest[row] = min(value, lowest.get(row, 0.0))
        found = tally.examples[tally.examples["key"] == index]
        assert found["log_prob"].tolist() == sorted(lowest.values())[:EXAMPLES]
        assert len(set(found["offset"].tolist())) == len(found)


def test_an_example_names_the_call_and_the_position_of_its_token(rows: list[Json]) -> None:
    tally = tally_of(rows)
    everything = {(row, call, position): value for row, call, position, _, value in tokens_of(rows)}
    for one in tally.examples:
        assert everything[int(one["offset"]), int(one["call"]), int(one["position"])] == one["log_prob"]


def test_a_file_in_parts_has_the_same_tally_as_a_whole_one(tmp_path: Path, rows: list[Json]) -> None:
    path = write(tmp_path / "rollouts.jsonl", rows)
    size = path.stat().st_size
    whole = tally_range(path, 0, size)
    edges = sorted({0, size, *random.Random(1).sample(range(size), 7)})
    merged = merged_tallies([empty_tally(), *(tally_range(path, *span) for span in itertools.pairwise(edges))])
    assert merged.keys == whole.keys and merged.versions == whole.versions
    assert (merged.rows, merged.calls, merged.tokens) == (whole.rows, whole.calls, whole.tokens)
    for name in ("count", "lowest", "rare", "rollouts", "histogram"):
        np.testing.assert_array_equal(getattr(merged, name), getattr(whole, name))
    np.testing.assert_allclose(merged.log_prob, whole.log_prob)
    for name in ("key", "log_prob", "offset", "call", "position"):
        np.testing.assert_array_equal(merged.examples[name], whole.examples[name])
    for name in ("task", "place", "number", "tokens", "rare"):
        np.testing.assert_array_equal(merged.cells[name], whole.cells[name])
    np.testing.assert_allclose(merged.cells["log_prob"], whole.cells["log_prob"])


def test_means_by_turn_are_those_of_the_tokens_of_the_turn(rows: list[Json]) -> None:
    found = figures_at(tally_of(rows), Place.TURN)
    assert [one.number for one in found] == sorted({call + 1 for _, call, *_ in tokens_of(rows)})
    for one in found:
        values = [value for _, call, _, _, value in tokens_of(rows) if call + 1 == one.number]
        assert one.tokens == len(values)
        assert one.log_prob.mean == pytest.approx(sum(values) / len(values))
        assert one.rare.mean == pytest.approx(sum(value < math.log(0.01) for value in values) / len(values))


def test_late_turns_are_counted_together() -> None:
    calls = [call_item(["a"], [-1.0]) for _ in range(LAST_TURN + 5)]
    found = figures_at(tally_of([token_row(0, 0, calls)]), Place.TURN)
    assert (found[-1].number, found[-1].tokens) == (LAST_TURN, 6)


def test_a_position_belongs_to_the_range_that_contains_it() -> None:
    found = figures_at(tally_of([token_row(0, 0, [call_item(["a"] * 9, [-1.0] * 9)])]), Place.POSITION)
    assert [one.tokens for one in found] == [1, 1, 2, 4, 1]  # tokens 1, 2, 3-4, 5-8, 9-16


def test_tokens_of_a_turn_can_have_several_policy_versions() -> None:
    item = call_item(["a", "b", "c"], [-1.0, -2.0, -4.0], version="old")
    item["token_trace"]["sampling"]["weight_versions"] = [
        {"version": "old", "start": 0, "end": 1},
        {"version": "new", "start": 1, "end": 3},
    ]
    tally = tally_of([token_row(0, 0, [item])])
    found = {tally.versions[one.number]: one.log_prob.mean for one in figures_at(tally, Place.VERSION)}
    assert found == {"old": -1.0, "new": -3.0}


def test_no_interval_of_log_probabilities_extends_above_0() -> None:
    rows = [token_row(task, 0, [call_item(["a"], [value])]) for task, value in enumerate([-0.1, -0.2, -9000.0])]
    [whole] = figures_at(tally_of(rows), Place.ALL)
    assert whole.log_prob.low is not None and whole.log_prob.low < whole.log_prob.mean
    assert whole.log_prob.high == 0.0


def test_the_interval_of_a_mean_treats_the_tokens_of_a_task_as_dependent() -> None:
    same = [token_row(task, 0, [call_item(["a"] * 50, [-1.0 - task] * 50)]) for task in range(4)]
    [whole] = figures_at(tally_of(same), Place.ALL)
    values = np.array([-1.0, -2.0, -3.0, -4.0])
    assert whole.log_prob.stderr == pytest.approx(values.std(ddof=1) / 2)  # as of four values, not of 200


def test_the_entropy_covers_only_tokens_with_alternatives() -> None:
    rows = [token_row(0, 0, [logprobs_item([alternatives("a", 0.5)]), call_item(["a"], [-1.0])])]
    [whole] = figures_at(tally_of(rows), Place.ALL)
    assert (whole.tokens, whole.bounded) == (2, 1)
    assert whole.entropy is not None and whole.entropy.mean == pytest.approx(math.log(2))


def test_tokens_without_texts_are_grouped_by_id() -> None:
    tally = tally_of([token_row(0, 0, [call_item(["a", "b"], [-1.0, -1.0], with_texts=False)])])
    assert all(isinstance(key, int) for key in tally.keys) and tally.without_texts == 2


def test_rows_without_tokens_count_as_rows() -> None:
    tally = tally_of([{"reward": 1.0}, {"response": "no"}, token_row(0, 0, [call_item(["a"], [-1.0])])])
    assert (tally.rows, tally.with_tokens, tally.tokens) == (3, 1, 1)


def test_calls_without_log_probabilities_are_not_counted() -> None:
    unknown = {name: value for name, value in call_item(["a"], [-1.0]).items() if name != "generation_log_probs"}
    unknown["generation_token_ids"] = [1]
    tally = tally_of([token_row(0, 0, [call_item(["a"], [-1.0]), unknown]), token_row(0, 1, [unknown])])
    assert (tally.tokens, tally.calls, tally.with_tokens, tally.rows) == (1, 1, 1, 2)


def test_parts_of_a_large_file_are_evenly_spaced_and_limited() -> None:
    ranges = sampled_ranges(1000, most=100, part=10)
    assert len(ranges) == 10 and ranges[0] == (0, 10) and ranges[-1] == (990, 1000)
    gaps = np.diff([start for start, _ in ranges])
    assert gaps.max() - gaps.min() <= 1


def test_a_small_file_is_read_completely() -> None:
    assert sampled_ranges(25, most=100, part=10) == [(0, 10), (10, 20), (20, 25)]
