"""What has a loss in an update, its micro-batches by token budget, and the tokens compared with the engine."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollyard.analysis.viewer.token_pairs import read_pairs, token_place
from rollyard.records.errors import RunError
from rollyard.records.types import Json
from rollyard.training.groups import EndingRules, groups_of, member_of_row
from rollyard.training.training_sequence import SequenceRules
from rollyard.training.update import (
    LOG_RATIO_EDGES,
    Batch,
    TokenPair,
    TokenPairs,
    Update,
    chosen_tokens,
    largest_of,
    micro_batches,
    update_of,
    write_pairs,
)
from tests.unit.training.batches import batch, played
from tests.unit.training.recorded_turns import row, turn


def test_a_sequence_that_is_too_long_is_counted_and_has_no_loss() -> None:
    groups = batch(played(1.0, turn([1], [2] * 30)), played(0.0, turn([1], [2] * 10))).groups
    update = update_of(groups, max_seq_len=30, temperature=1.0)
    assert (update.too_long, [sequence.length for sequence in update.sequences]) == (1, [11])


def test_the_sequences_of_an_episode_share_its_advantage_and_its_number() -> None:
    cut = played(1.0, turn([1], [2, 3]), turn([4], [5]))
    update = update_of(batch(cut, played(0.0, turn([1], [6]))).groups, max_seq_len=99, temperature=1.0)
    assert update.advantages[0] == update.advantages[1] == -update.advantages[2]
    assert sorted(update.episode_tokens.values()) == [1, 3]
    assert [update.episode_tokens[episode] for episode in update.episodes] == [3, 3, 1]


def test_another_sampling_temperature_stops_the_training() -> None:
    with pytest.raises(RunError, match=r"temperature 1, .* 0\.7"):
        update_of(batch(played(1.0), played(0.0)).groups, max_seq_len=99, temperature=0.7)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 50)), st.integers(50, 200))
def test_every_sequence_is_in_one_micro_batch_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = micro_batches(lengths, budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert all(len(batch) * max(lengths[index] for index in batch) <= budget for batch in batches)


def test_sequences_of_similar_length_share_a_micro_batch() -> None:
    assert micro_batches([10, 2, 9, 2, 2], 20) == [[0, 2], [1, 3, 4]]
    with pytest.raises(ValueError, match=r"\b11 tokens.*\b10 tokens"):
        micro_batches([3, 11], 10)


def two_turns(repeat: int, reward: float) -> Json:
    """Two turns; the tokens of the tool result (9, 9) follow the first."""
    first, second = turn([1, 2], [3, 4]), turn([1, 2, 3, 4, 9, 9], [5, 6, 7])
    return row(first, second, reward=reward, _ng_task_index=8, _ng_rollout_index=repeat)


def pair_batch() -> tuple[Batch, Update, list[Json]]:
    rows = [two_turns(0, 1.0), two_turns(1, 0.0)]
    members = [member_of_row(one, "key", SequenceRules(), EndingRules()) for one in rows]
    found = Batch(1, tuple(groups_of(members, scale="group")), {})
    return found, update_of(found.groups, max_seq_len=100, temperature=1.0), rows


def pair_at(update: Update, sequence: int, position: int, difference: float) -> TokenPair:
    engine = update.sequences[sequence].log_probs[position]
    return TokenPair(sequence, position, engine, engine + difference, 0.5, False)


def test_only_tokens_with_a_loss_are_chosen_each_at_most_once_and_the_same_in_every_process() -> None:
    _, update, _ = pair_batch()
    assert chosen_tokens(update, 100) == {0: [0, 1, 4, 5, 6], 1: [0, 1, 4, 5, 6]}
    some = chosen_tokens(update, 4)
    assert sum(len(set(positions)) for positions in some.values()) == 4
    assert chosen_tokens(pair_batch()[1], 4) == some


def test_the_largest_differences_come_first_whatever_their_sign() -> None:
    _, update, _ = pair_batch()
    pairs = [pair_at(update, 0, position, difference) for position, difference in ((0, 0.1), (1, -0.9), (4, 0.5))]
    assert [pair.position for pair in largest_of(pairs, 2)] == [1, 4]


def test_the_file_names_the_rollout_and_the_place_of_each_token_and_its_counts_fit_its_bins(tmp_path: Path) -> None:
    compared, update, rows = pair_batch()
    pair, counts = pair_at(update, 1, 5, 0.25), tuple(range(len(LOG_RATIO_EDGES) + 1))
    write_pairs(file := tmp_path / "pairs" / "step.json", TokenPairs(10, 1, counts, (pair,), (pair,)), compared, update)
    read = read_pairs(file)
    [found] = read.largest
    assert (found.task, found.repeat, found.id, read.counts) == (8, 1, 6, counts)
    place = token_place(rows[1], found.index, found.id, found.engine)
    assert place is not None and (place.call, place.position) == (1, 1)
    record = orjson.loads(file.read_bytes())
    assert (record["step"], record["tokens"], record["clipped"]) == (1, 10, 1)


def test_a_token_of_another_sequence_at_the_same_index_is_not_taken_for_it() -> None:
    one, other = turn([1, 2], [3, 4]), turn([7, 7], [3, 5])
    other["generation_log_probs"] = [-2.0, -2.0]
    place = token_place(row(one, other), 2, 3, -2.0)
    assert place is not None and place.call == 1
    assert token_place(row(one, other), 2, 3, -5.0) is None
