"""The sample of an update's tokens, and the file of a step."""

from __future__ import annotations

from pathlib import Path

import orjson

from rollyard.analysis.viewer.token_pairs import read_pairs, token_place
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
    update_of,
    write_pairs,
)
from tests.unit.training.recorded_turns import row, turn


def two_turns(repeat: int, reward: float) -> Json:
    """Two turns; the tokens of the tool result (9, 9) follow the first."""
    first, second = turn([1, 2], [3, 4]), turn([1, 2, 3, 4, 9, 9], [5, 6, 7])
    return row(first, second, reward=reward, _ng_task_index=8, _ng_rollout_index=repeat)


def batch() -> tuple[Batch, Update, list[Json]]:
    rows = [two_turns(0, 1.0), two_turns(1, 0.0)]
    members = [member_of_row(one, "key", SequenceRules(), EndingRules()) for one in rows]
    found = Batch(1, tuple(groups_of(members, scale="group")), {})
    return found, update_of(found.groups, max_seq_len=100, temperature=1.0), rows


def pair_at(update: Update, sequence: int, position: int, difference: float) -> TokenPair:
    engine = update.sequences[sequence].log_probs[position]
    return TokenPair(sequence, position, engine, engine + difference, 0.5, False)


def test_only_tokens_with_a_loss_are_chosen_each_at_most_once() -> None:
    _, update, _ = batch()
    chosen = chosen_tokens(update, 100)
    assert chosen == {0: [0, 1, 4, 5, 6], 1: [0, 1, 4, 5, 6]}
    some = chosen_tokens(update, 4)
    assert sum(len(set(positions)) for positions in some.values()) == 4


def test_every_process_chooses_the_same_tokens() -> None:
    assert chosen_tokens(batch()[1], 5) == chosen_tokens(batch()[1], 5)


def test_the_largest_differences_come_first_whatever_their_sign() -> None:
    _, update, _ = batch()
    pairs = [pair_at(update, 0, position, difference) for position, difference in ((0, 0.1), (1, -0.9), (4, 0.5))]
    assert [pair.position for pair in largest_of(pairs, 2)] == [1, 4]


def test_the_file_names_the_rollout_and_the_place_of_each_token(tmp_path: Path) -> None:
    played, update, rows = batch()
    pair = pair_at(update, 1, 5, 0.25)
    counts = (0,) * (len(LOG_RATIO_EDGES) + 1)
    write_pairs(tmp_path / "pairs" / "step.json", TokenPairs(10, 1, counts, (pair,), (pair,)), played, update)
    [found] = read_pairs(tmp_path / "pairs" / "step.json").largest
    assert (found.task, found.repeat, found.id) == (8, 1, 6)
    place = token_place(rows[1], found.index, found.id, found.engine)
    assert place is not None and (place.call, place.position) == (1, 1)


def test_a_token_of_another_sequence_at_the_same_index_is_not_taken_for_it() -> None:
    one, other = turn([1, 2], [3, 4]), turn([7, 7], [3, 5])
    other["generation_log_probs"] = [-2.0, -2.0]
    place = token_place(row(one, other), 2, 3, -2.0)
    assert place is not None and place.call == 1
    assert token_place(row(one, other), 2, 3, -5.0) is None


def test_counts_and_bins_of_the_file_fit_together(tmp_path: Path) -> None:
    played, update, _ = batch()
    counts = tuple(range(len(LOG_RATIO_EDGES) + 1))
    write_pairs(tmp_path / "step.json", TokenPairs(10, 1, counts, (), ()), played, update)
    assert read_pairs(tmp_path / "step.json").counts == counts
    record = orjson.loads((tmp_path / "step.json").read_bytes())
    assert (record["step"], record["tokens"], record["clipped"]) == (1, 10, 1)
