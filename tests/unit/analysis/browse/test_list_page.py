"""The list: columns, order, filters, expressions and search."""

from __future__ import annotations

import re
from pathlib import Path

import orjson

from rollyard.analysis.viewer.rollout_list import Query
from tests.support.rollout_files import grid, row, solved, write, write_failures
from tests.support.terminal_pages import Reader, browsing


def tasks(reader: Reader) -> list[str]:
    """The task and the repeat of each line, in order."""
    lines = [line.lstrip("›").split() for line in reader.screen.splitlines()]
    return [f"{words[0]}/{words[1]}" for words in lines if len(words) > 2 and words[0].isdigit() and words[1].isdigit()]


async def test_the_list_shows_outcome_reward_prompt_expected_and_extracted_answer(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [solved(3, 0, True, expected_answer="42", extracted_answer="41")])
    async with browsing(path, size=(120, 24)) as reader:
        await reader.sees("x  1 rollout", "✓ solved", "play 3", "42", "41", "expected answer", "extracted answer")


async def test_an_expression_selects_rollouts_and_is_stated_below_the_list(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [row(0, 0, 1.0), row(1, 0, 0.25), row(2, 0, 0.75)])
    async with browsing(path) as reader:
        await reader.press("e")
        await reader.type("reward < 0.5")
        await reader.press("enter")
        await reader.sees("1 of 3 rollouts", "where reward < 0.5")
        assert tasks(reader) == ["1/0"]


async def test_an_invalid_expression_is_explained_below_the_field_and_changes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", grid([1, 0], 2))
    async with browsing(path) as reader:
        await reader.press("e")
        await reader.type("reward <")
        await reader.press("enter")
        await reader.sees("Error: reward <", "4 rollouts")
        await reader.press("escape")
        await reader.until(lambda: "Error" not in reader.screen)


async def test_a_name_that_no_row_has_is_remarked_while_typing(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", grid([1], 2))
    async with browsing(path) as reader:
        await reader.press("e")
        await reader.type("rewart > 0")
        await reader.sees("rewart", "similar: reward")


async def test_the_right_arrow_completes_the_name_of_a_field(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [row(0, 0, 1.0, difficulty=3), row(1, 0, 1.0, difficulty=5)])
    async with browsing(path) as reader:
        await reader.press("e")
        await reader.until(lambda: "difficulty" in reader.app.screen._keys)  # type: ignore[attr-defined]
        await reader.type("diffi")
        await reader.sees("difficulty")
        await reader.press("right")
        await reader.type(" > 4")
        await reader.press("enter")
        await reader.sees("where difficulty > 4")
        assert tasks(reader) == ["1/0"]


async def test_a_search_finds_texts_of_the_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [row(0, 0, 1.0, note="a needle"), row(1, 0, 1.0, note="hay")])
    async with browsing(path) as reader:
        await reader.press("slash")
        await reader.type("needle")
        await reader.press("enter")
        await reader.sees("1 of 2 rollouts", "contains 'needle'")
        assert tasks(reader) == ["0/0"]


async def test_sorting_by_the_same_column_again_reverses_the_order(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [row(0, 0, 0.5), row(1, 0, 0.25), row(2, 0, 0.75)])
    async with browsing(path) as reader:
        for expected in (["1/0", "0/0", "2/0"], ["2/0", "0/0", "1/0"]):
            await reader.press("s")
            await reader.sees("Sort by")
            await reader.type("rewar")
            await reader.press("enter")
            await reader.until(lambda expected=expected: tasks(reader) == expected, str(expected))  # type: ignore[misc]
        assert "by reward descending" in reader.screen


async def test_a_filter_lists_failed_rollouts_which_no_expression_selects(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", grid([1], 1))
    write_failures(path, [(5, 0, "timeout")])
    async with browsing(path) as reader:
        await reader.sees("2 rollouts")
        await reader.press("f")
        await reader.sees("Show rollouts")
        await reader.type("failed")
        await reader.press("enter")
        await reader.sees("1 of 2 rollouts", "! failed", "outcome failed")
        await reader.press("x")
        await reader.sees("2 rollouts")


async def test_any_field_can_be_a_column(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [row(0, 0, 1.0, verifier={"seconds": 7.25})])
    async with browsing(path, size=(120, 30)) as reader:
        await reader.press("c")
        await reader.sees("Columns")
        await reader.type("verifier")
        await reader.press("tab", "enter")
        await reader.sees("verifier.seconds", "7.25")


async def test_the_command_line_can_state_the_query(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [row(0, 0, 1.0), row(1, 0, 0.0)])
    async with browsing(path, query=Query(where="reward == 0", columns="reward")) as reader:
        await reader.sees("1 of 2 rollouts", "where reward == 0")
        assert "play 1" not in reader.screen


async def test_the_task_stays_at_the_left_when_the_columns_scroll(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [solved(17, 0, True, expected_answer="42", reason="because " * 9)])
    async with browsing(path, size=(60, 12)) as reader:
        await reader.sees("play 17")
        await reader.press("right", "right", "right")
        await reader.until(lambda: "✓ solved" not in reader.screen)
        assert re.search(r"^› +17 ", reader.screen, re.MULTILINE)


async def test_rollouts_appear_while_the_file_grows_and_the_cursor_stays_at_its_rollout(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [row(5, 0, 1.0), row(6, 0, 1.0)])
    async with browsing(path) as reader:
        await reader.press("j")
        await reader.until(lambda: "›    6" in reader.screen)
        with path.open("ab") as file:
            file.write(orjson.dumps(row(1, 0, 0.5)) + b"\n")
        await reader.sees("3 rollouts")
        assert tasks(reader) == ["1/0", "5/0", "6/0"]
        assert "›    6" in reader.screen


async def test_brackets_go_to_the_next_and_the_previous_file(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{name}.jsonl", [row(0, 0, 1.0)]) for name in ("base", "trained")]
    async with browsing(*paths) as reader:
        await reader.sees("base (1 of 2)")
        await reader.press("right_square_bracket")
        await reader.sees("trained (2 of 2)")
        await reader.press("left_square_bracket")
        await reader.sees("base (1 of 2)")


async def test_only_the_rows_on_the_screen_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [row(task, 0, 1.0) for task in range(900)])
    async with browsing(path) as reader:
        await reader.sees("900 rollouts", "play 0")
        await reader.press("end")
        await reader.sees("899", "play 899")
        source = reader.app.screen.source  # type: ignore[attr-defined]
        listed = reader.app.screen.listed  # type: ignore[attr-defined]
        assert source.fields(listed, 450, "") is None
