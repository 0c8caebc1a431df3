"""The page of a rollout: verdict, conversation, board, failed attempts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rollyard.analysis.browse.blocks.block_view import BlockView
from rollyard.analysis.browse.rollout.board_panel import BoardPanel
from rollyard.analysis.viewer.rollout_list import Query
from rollyard.records.rollouts.replay import Cell, Frame, Replay
from rollyard.records.types import Json
from tests.support.failed_attempts import CALL, failed, partial
from tests.support.rollout_files import row, write, write_failures
from tests.support.terminal_pages import Reader, browsing

CELLS = [
    Cell(symbol="#", name="wall", looks="wall"),
    Cell(symbol="_", name="floor", looks="floor"),
    Cell(symbol="P", name="player", looks="player"),
]
BOARDS = ("#P__#", "#_P_#", "#__P#")


def board_of(row: Json) -> Replay:
    """Three boards: the start, and one for each of two calls."""
    start, *moves = BOARDS
    frames = [Frame(board=start)]
    frames += [Frame(board=board, move="right", event=at, reward=0.5 + at) for at, board in enumerate(moves)]
    return Replay(cells=CELLS, frames=frames, optimal=(Frame(board=start), Frame(board="#__P#", move="jump")))


def message(text: str, role: str = "assistant") -> Json:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def call(number: int, arguments: str = "{}", output: str = "done") -> list[Json]:
    made = {"type": "function_call", "name": "step", "arguments": arguments, "call_id": f"c{number}"}
    return [made, {"type": "function_call_output", "call_id": f"c{number}", "output": output}]


def played(*output: Json, prompt: str = "Play.", task: int = 0, **more: Any) -> Json:
    made = row(task, 0, 0.5, **more)
    made["responses_create_params"] = {"input": prompt}
    made["response"] = {"output": list(output)}
    return made


async def opened(reader: Reader) -> BlockView:
    """Open the rollout at the cursor, and wait until all of it is set."""
    await reader.press("enter")
    await reader.sees("Task ")
    view = reader.app.screen.query_one(BlockView)
    await reader.until(lambda: bool(view.blocks) and view.is_complete)
    return view


@pytest_asyncio.fixture(scope="module")
async def boards(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Reader]:
    """An opened rollout with three boards; tests begin with a key that leads to a known one."""
    path = write(tmp_path_factory.mktemp("boards") / "x.jsonl", [played(*call(0), *call(1))])
    async with browsing(path, draw=board_of) as reader:
        await opened(reader)
        yield reader


def current(view: BlockView) -> str:
    return view.blocks[view.current].title


async def test_the_verdict_comes_before_the_conversation(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [played(message("It is 41."), expected_answer="42", extracted_answer="41")])
    async with browsing(path) as reader:
        view = await opened(reader)
        screen = await reader.sees("Verdict", "42", "41", "It is 41.")
        assert screen.index("Verdict") < screen.index("Play.")
        assert [block.title for block in view.blocks][:3] == ["Verdict", "User", "Answer"]


async def test_prose_is_markdown_and_m_shows_the_original_text(tmp_path: Path) -> None:
    text = "The **bold** answer\n\n* one\n* two <b>html</b> and $a_1 * b_1$"
    async with browsing(write(tmp_path / "x.jsonl", [played(message(text))])) as reader:
        await opened(reader)
        screen = await reader.sees("The bold answer", "• one", "<b>html</b>", "$a_1 * b_1$")
        assert "**bold**" not in screen
        await reader.press("m")
        await reader.sees("**bold**", "* one")


async def test_boards_in_prose_and_results_keep_their_lines_and_spaces(tmp_path: Path) -> None:
    board = "#####\n# P #\n#  X#\n#####"
    rows = [
        played(message(f"I see\n{board}\nand think."), *call(0, output=f'{{"board": "{board}"}}'.replace("\n", "\\n")))
    ]
    async with browsing(write(tmp_path / "x.jsonl", rows), size=(80, 50)) as reader:
        await opened(reader)
        screen = await reader.sees("I see", "Result")
    for line in board.split("\n"):
        assert screen.count(line) >= 2


async def test_arguments_and_results_are_shown_field_by_field(tmp_path: Path) -> None:
    rows = [played(*call(0, arguments='{"direction": "Up", "steps": 3}', output='{"reward": 0.25, "ok": true}'))]
    async with browsing(write(tmp_path / "x.jsonl", rows)) as reader:
        await opened(reader)
        await reader.sees("direction  Up", "steps      3", "reward +0.25")


async def test_j_and_k_move_by_event_and_capitals_by_turn(tmp_path: Path) -> None:
    rows = [played(*call(0), *call(1), message("Done."))]
    async with browsing(write(tmp_path / "x.jsonl", rows)) as reader:
        view = await opened(reader)
        await reader.press("j", "j")
        assert (current(view), view.blocks[view.current].turn) == ("Result", 1)
        await reader.press("J")
        assert (current(view), view.blocks[view.current].turn) == ("Tool call step", 2)
        await reader.press("j", "K")
        assert (current(view), view.blocks[view.current].turn) == ("Tool call step", 2)
        await reader.press("k")
        assert (current(view), view.blocks[view.current].turn) == ("Result", 1)


async def test_moves_change_the_board_in_place_and_lead_to_their_call(boards: Reader) -> None:
    view = boards.app.screen.query_one(BlockView)
    await boards.press("end", "left")
    await boards.sees("# _ P _ #", "move 1 of 2")
    await boards.until(lambda: view.blocks[view.current].call == 0)
    await boards.press("home")
    await boards.sees("# P _ _ #", "start")
    await boards.press("end")
    await boards.sees("# _ _ P #", "move 2 of 2")


async def test_a_rollout_opens_with_its_last_board_and_an_event_leads_to_its_own(tmp_path: Path) -> None:
    rows = [played(*call(0), *call(1))]
    async with browsing(write(tmp_path / "x.jsonl", rows), draw=board_of) as reader:
        view = await opened(reader)
        await reader.sees("# _ _ P #", "move 2 of 2", "right", "reward +1.5")
        await reader.until(lambda: view.blocks[1].call == 0)
        await reader.press("j")
        await reader.sees("# _ P _ #", "move 1 of 2")


async def test_space_plays_the_moves_to_the_end(boards: Reader) -> None:
    panel = boards.app.screen.query_one(BoardPanel)
    await boards.press("home")
    await boards.until(lambda: panel.at == 0)
    await boards.press("space")
    await boards.until(lambda: panel.at == 2)
    assert "move 2 of 2" in await boards.sees("# _ _ P #")


async def test_o_shows_the_optimal_solution_and_the_episode_again(boards: Reader) -> None:
    await boards.press("end")
    await boards.sees("Best possible: 1 move")
    await boards.press("o", "right")
    await boards.sees("Optimal solution", "move 1 of 1", "jump")
    await boards.press("o")
    await boards.sees("move 2 of 2")


async def test_symbols_of_a_board_differ_in_colour_and_are_readable_without(boards: Reader) -> None:
    await boards.press("end")
    await boards.sees("# wall", "P player", "# _ _ P #")
    panel = boards.app.screen.query_one(BoardPanel)
    strip = panel.query_one("Static").render_line(1)
    colours = {letter: part.style.bgcolor or part.style.color for part in strip if part.style for letter in part.text}
    assert strip.text.strip() == "# _ _ P #"
    assert len({colours["#"], colours["P"], colours["_"]}) == 3


async def test_brackets_follow_the_order_of_the_list_and_the_list_follows(tmp_path: Path) -> None:
    rows = [played(message(f"number {task}"), task=task) for task in range(3)]
    async with browsing(write(tmp_path / "x.jsonl", rows), query=Query(sort="-task")) as reader:
        await opened(reader)
        await reader.sees("Task 2", "1 of 3", "number 2")
        await reader.press("right_square_bracket")
        await reader.sees("Task 1", "2 of 3", "number 1")
        await reader.press("u")
        await reader.sees("›    1")


async def test_find_goes_to_the_matches_also_in_shortened_texts(tmp_path: Path) -> None:
    long = "\n".join(f"line {number}" for number in range(100))
    rows = [played(message(f"{long}\nthe NEEDLE is here"), message("no"), *call(0, output="another needle"))]
    async with browsing(write(tmp_path / "x.jsonl", rows)) as reader:
        await opened(reader)
        await reader.press("slash")
        await reader.type("needle")
        await reader.press("enter")
        await reader.sees("match 1 of 2", "NEEDLE")
        await reader.press("n")
        await reader.sees("match 2 of 2", "another needle")
        await reader.press("N")
        await reader.sees("match 1 of 2")


async def test_the_search_of_the_list_is_marked_in_the_rollout(tmp_path: Path) -> None:
    async with browsing(
        write(tmp_path / "x.jsonl", [played(message("a needle here"))]), query=Query(q="needle")
    ) as reader:
        view = await opened(reader)
        lines = [view.render_line(y) for y in range(view.size.height)]
        marked = [segment.text for line in lines for segment in line if segment.style and segment.style.reverse]
        assert "needle" in "".join(marked)


async def test_long_texts_are_shortened_until_they_are_opened(tmp_path: Path) -> None:
    text = "\n\n".join(f"paragraph {number}" for number in range(100))
    async with browsing(write(tmp_path / "x.jsonl", [played(message(text))])) as reader:
        view = await opened(reader)
        before = view.virtual_size.height
        await reader.press("j", "enter")
        await reader.until(lambda: view.virtual_size.height > 190)
        await reader.press("enter")
        await reader.until(lambda: view.virtual_size.height == before)


async def test_the_end_of_a_long_prompt_is_shown_because_the_question_is_there(tmp_path: Path) -> None:
    prompt = "\n".join(f"rule {number}" for number in range(300)) + "\nAnd now: what is 6 times 7?"
    async with browsing(write(tmp_path / "x.jsonl", [played(message("42"), prompt=prompt)]), size=(80, 100)) as reader:
        await opened(reader)
        await reader.sees("rule 0", "what is 6 times 7?")


async def test_failed_attempts_are_shown_with_kind_server_and_detail(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [played(message("hi"))])
    write_failures(path, [(0, 0, "timeout"), (7, 0, "refused")])
    async with browsing(path, size=(80, 40)) as reader:
        await opened(reader)
        await reader.sees("Failed attempt 1: timeout")
        await reader.press("right_square_bracket")
        await reader.sees("Task 7", "! failed", "Failed attempt 1: refused")


async def test_what_had_been_said_in_a_failed_attempt_is_shown(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [played(message("hi"))])
    write(tmp_path / "x_failures.jsonl", [failed(0, 0, partial=partial([CALL], stage_s=2.5))])
    async with browsing(path, size=(80, 60)) as reader:
        await opened(reader)
        screen = await reader.sees("Until then: Tool call step", "Failed here: timeout", "Waited for 2.5 s")
        assert screen.index("Failed attempt 1: timeout") < screen.index("Until then: User")


async def test_other_fields_of_the_row_are_folded_at_the_end(tmp_path: Path) -> None:
    async with browsing(write(tmp_path / "x.jsonl", [played(message("hi"), difficulty="hard")])) as reader:
        view = await opened(reader)
        assert "hard" not in await reader.sees("Other fields of the row")
        view.go(len(view.blocks) - 1)
        await reader.press("enter")
        await reader.sees("difficulty", "hard")


async def test_all_of_a_rollout_with_many_turns_is_set(tmp_path: Path) -> None:
    rows = [played(*(item for number in range(200) for item in call(number)))]
    async with browsing(write(tmp_path / "x.jsonl", rows)) as reader:
        await reader.press("enter")
        await reader.sees("Tool call step")
        view = reader.app.screen.query_one(BlockView)
        await reader.until(lambda: view.is_complete)
        assert len(view.blocks) > 400
