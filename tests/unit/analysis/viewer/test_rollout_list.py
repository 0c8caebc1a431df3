from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rollyard.analysis.viewer.api_records import RolloutLine
from rollyard.analysis.viewer.rollout_list import SORTS, Query, page_start
from rollyard.analysis.viewer.run_file import RunFile
from rollyard.records.types import Json
from tests.support.rollout_files import random_rows, row, write, write_failures
from tests.unit.analysis.viewer.opened_runs import open_index


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> RunFile:
    """Measured, masked and abandoned rollouts of two agents."""
    path = tmp_path_factory.mktemp("listing") / "x.jsonl"
    other: Json = {"agent_ref": {"name": "other"}}
    rows = [row(20, 0, None), row(20, 1, 3.0, mask_sample=True, **other), row(21, 0, 2.5, calls=3, **other)]
    write(path, [*random_rows(12, 5), *rows])
    write_failures(path, [(0, 0, "timeout"), (22, 3, "unreachable"), (22, 3, "timeout")])
    return open_index(path).runs[0]


def all_lines(listing: RunFile) -> list[RolloutLine]:
    return listing.page(Query(limit=500)).lines


def test_only_rollouts_without_a_measurement_are_listed_as_failed(listing: RunFile) -> None:
    failed = [line for line in all_lines(listing) if line.outcome == "failed"]
    found = [(line.task, line.repeat, line.end) for line in failed]
    assert found == [(20, 0, "no_reward"), (20, 1, "masked"), (22, 3, "timeout")]
    assert {(line.reward, line.success) for line in failed} == {(None, None)}


@pytest.mark.parametrize("sort", [direction + name for name in SORTS for direction in ("", "-")])
def test_lines_are_sorted_with_missing_values_last(listing: RunFile, sort: str) -> None:
    values = [getattr(line, sort.removeprefix("-")) for line in listing.page(Query(sort=sort, limit=500)).lines]
    known = [value for value in values if value not in (None, "")]
    assert known == sorted(known, reverse=sort.startswith("-"))
    assert all(value in (None, "") for value in values[len(known) :])


ROUNDING = 1e-9
"""Tolerance of the reward filters."""
FILTERS: dict[str, tuple[st.SearchStrategy[Any], Callable[[RolloutLine, Any], bool]]] = {
    "task": (st.integers(-1, 23), lambda line, task: line.task == task),
    "repeat": (st.integers(0, 5), lambda line, repeat: line.repeat == repeat),
    "success": (st.booleans(), lambda line, success: line.success is success),
    "outcome": (st.sampled_from(["measured", "failed"]), lambda line, outcome: line.outcome == outcome),
    "min_reward": (st.floats(-2, 12), lambda line, least: line.reward is not None and line.reward >= least - ROUNDING),
    "max_reward": (st.floats(-2, 12), lambda line, most: line.reward is not None and line.reward <= most + ROUNDING),
    "min_tool_calls": (st.integers(0, 12), lambda line, n: line.tool_calls is not None and line.tool_calls >= n),
    "max_tool_calls": (st.integers(0, 12), lambda line, n: line.tool_calls is not None and line.tool_calls <= n),
    "end": (st.sampled_from(["done", "answered", "timeout", "nothing"]), lambda line, end: line.end == end),
    "agent": (st.sampled_from(["player", "other", "unknown"]), lambda line, agent: line.agent == agent),
}


@settings(max_examples=40)
@given(st.fixed_dictionaries({}, optional={name: values for name, (values, _) in FILTERS.items()}))
def test_a_query_returns_exactly_the_lines_that_match_its_filters(listing: RunFile, query: dict[str, Any]) -> None:
    page = listing.page(Query(**query, limit=500))
    expected = [line for line in all_lines(listing) if all(FILTERS[key][1](line, query[key]) for key in query)]
    assert (page.lines, page.total) == (expected, len(expected))


@given(st.integers(0, 80) | st.just(10**6), st.integers(0, 80))
def test_a_page_is_a_slice_of_the_list_and_the_last_one_if_it_starts_past_the_end(
    listing: RunFile, start: int, limit: int
) -> None:
    page = listing.page(Query(sort="-reward", start=start, limit=limit))
    assert page.lines == listing.page(Query(sort="-reward", limit=500)).lines[page.start : page.start + limit]
    assert page.total == len(listing.table)
    if start >= page.total and limit:
        assert page.start % limit == 0 and page.start + len(page.lines) == page.total
    else:
        assert page.start == start


def test_a_list_without_lines_starts_at_0(listing: RunFile) -> None:
    nothing = listing.page(Query(task=999, start=100))
    assert (nothing.total, nothing.start, nothing.lines) == (0, 0, [])


def test_the_end_is_not_known_before_everything_has_been_searched() -> None:
    assert page_start(10**6, 100, total=7, searched=0.5) == 10**6


def test_every_finish_reason_and_agent_is_offered_as_a_filter(listing: RunFile) -> None:
    page = listing.page(Query(limit=0))
    assert page.ends == ("answered", "done", "masked", "max_steps", "no_reward", "timeout")
    assert page.agents == ("other", "player")


@pytest.mark.parametrize(
    "query", [{"where": "x" * 2001}, {"limit": 501}, {"start": -1}, {"min_reward": math.nan}, {"x": 1}]
)
def test_an_invalid_query_is_rejected(query: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Query(**query)


def test_an_empty_file_has_an_empty_list(tmp_path: Path) -> None:
    page = open_index(write(tmp_path / "x.jsonl", [])).runs[0].page(Query(sort="-end", min_reward=0))
    assert (page.total, page.lines) == (0, [])


@pytest.mark.parametrize(("threshold", "solved"), [(None, [None, None]), (2.5, [False, True])])
def test_a_threshold_decides_what_is_solved(tmp_path: Path, threshold: float | None, solved: list[bool | None]) -> None:
    path = write(tmp_path / "x.jsonl", [row(0, 0, 2.0), row(0, 1, 3.0)])
    assert [line.success for line in all_lines(open_index(path, threshold=threshold).runs[0])] == solved
