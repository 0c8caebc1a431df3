"""The order of the data depends on seed and epoch, and its position on nothing else."""

from __future__ import annotations

import json

import pytest

from rollyard.records.errors import RunError
from rollyard.training.batch_source import Draw, OrderPosition, TaskOrder

START = OrderPosition()


def order(rows: int = 5, *, seed: int = 7, shuffle: bool = True, epochs: int | None = 2) -> TaskOrder:
    return TaskOrder(rows, seed=seed, shuffle=shuffle, epochs=epochs)


def rows_of(draws: list[Draw]) -> list[int]:
    return [draw.row for draw in draws]


def test_each_epoch_has_every_row_once_in_an_order_that_depends_on_seed_and_epoch_alone() -> None:
    drawn, _ = order(50).take(START, 100)
    first, second = rows_of(drawn[:50]), rows_of(drawn[50:])
    assert sorted(first) == sorted(second) == list(range(50)) and first != second
    assert order(50).take(START, 100)[0] == drawn
    assert rows_of(order(50, seed=8).take(START, 50)[0]) != first


def test_without_shuffle_rows_come_in_the_order_of_the_file_until_the_last_epoch_ends() -> None:
    drawn, position = order(3, shuffle=False).take(START, 7)
    assert rows_of(drawn) == [0, 1, 2, 0, 1, 2]
    assert order(3, shuffle=False).take(position, 4) == ([], position)


def test_taking_rows_one_by_one_gives_the_same_as_taking_them_together() -> None:
    position, drawn = START, []
    for _ in range(10):
        more, position = order().take(position, 1)
        drawn += more
    assert (drawn, position) == order().take(START, 10)


def test_a_row_that_went_back_comes_at_the_end_of_its_epoch_and_moves_no_other() -> None:
    expected = rows_of(order().take(START, 10)[0])
    drawn, position = order().take(START, 2)
    position = order().put_back(position, [drawn[0]], max_returns=1)
    rest, _ = order().take(position, 100)
    assert rows_of(rest) == [*expected[2:5], drawn[0].row, *expected[5:]]


def test_a_row_goes_back_a_limited_number_of_times() -> None:
    [draw], position = order(1, epochs=1).take(START, 1)
    for _ in range(2):
        [draw], position = order(1, epochs=1).take(order().put_back(position, [draw], max_returns=2), 1)
    assert order().put_back(position, [draw], max_returns=2) == position


def test_the_position_survives_a_checkpoint() -> None:
    drawn, position = order(20).take(START, 12)
    position = order(20).put_back(position, [drawn[11], drawn[3]], max_returns=1)
    stored = json.loads(json.dumps(position.record(20), sort_keys=True))
    assert order(20).position(stored) == position


def test_the_position_of_another_dataset_is_refused() -> None:
    with pytest.raises(RunError, match=r"\b5 rows.*\b6\b"):
        order(5).position(START.record(6))
