"""Replays recorded Sokoban episodes for the viewer, move by move, and adds an optimal solution from the same start."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice, product
from typing import Any, NamedTuple

import orjson

from rollyard.records.replay import Cell, Frame, Replay
from rollyard.records.types import Json, items, mapping, number
from rollyard.resources_servers.base import BadTask
from rollyard.resources_servers.grl_sokoban.app import GameEpisode, GrlSokoban, read_move
from rollyard.resources_servers.grl_sokoban.game import DOWN, LEFT, RIGHT, UP, Room, board_in, parse_action
from rollyard.resources_servers.grl_sokoban.solver import UnsolvableRoom, solve
from rollyard.resources_servers.grl_sokoban.task import SokobanSettings

UNDO = 0
"""A pseudo-move that undoes the last move that moved the player."""
NAMES = {UP: "Up", DOWN: "Down", LEFT: "Left", RIGHT: "Right", UNDO: "Undo"}
_SYMBOLS = frozenset("#_OX√PS")
_LARGEST = 50
_MAX_TEXT_LENGTH = 200_000
_MAX_TURNS = 2000
MAX_MAGNITUDE = 1e9
"""Rewards with a larger absolute value are not shown."""
_ACTION = re.compile(r"<action>.*?</action>", re.IGNORECASE | re.DOTALL)
CANDIDATE_SETTINGS = (
    SokobanSettings(undo=True, deadlock="flag", solver_states=2_000),
    SokobanSettings(undo=True, deadlock="end", solver_states=2_000),
)
"""Settings to try in a replay, because a row does not record those of its episode. They differ in whether an episode
ends when the room can no longer be solved. Their `solver_states` is low because a page shows several episodes.
"""
CELLS = [
    *(
        Cell(symbol=s, name=name, looks=name)
        for s, name in zip("#_OXP", ("wall", "floor", "target", "box", "player"), strict=True)
    ),
    Cell(symbol="√", name="box on a target", looks="box_done"),
    Cell(symbol="S", name="player on a target", looks="player_on_target"),
]
_STATES = 50_000
_MAX_SOLVED_SIZE = 144
"""Maximum number of cells in a room for which an optimal solution is computed."""


class ReplayTurn(NamedTuple):
    moves: tuple[int, ...] = ()
    board: str | None = None
    reward: float | None = None
    total: float | None = None
    event: int | None = None
    """Index of the tool call within the episode."""


def replay(row: Json) -> Replay | None:
    """Replay the episode in a row; None if it is not a Sokoban episode."""
    turns, environment = list(islice(_turns(row), _MAX_TURNS)), _environment(row)
    boards = [turn.board for turn in turns if turn.board is not None]
    starts: list[tuple[Room, str]] = []  # most likely first, each with a note
    if turns and not turns[0].moves and turns[0].board is not None:
        other = environment is not None and environment.room.board() != turns[0].board
        note = "The row's seed yields a different room here; the recorded one is shown." if other else ""
        starts.append((Room.parse(turns[0].board), note))
    if environment is not None:
        note = "" if boards else "The row contains no board; the room is created from its seed or level."
        starts.append((environment.room, note))
    steps = environment.max_steps if environment else 100
    candidates = [
        (start, note, frames)
        for (start, note), settings in product(starts, CANDIDATE_SETTINGS)
        if (frames := _played(start, turns, steps, settings)) is not None
    ]
    if not candidates:
        return _as_recorded(turns, boards) if boards else None
    # If moves after the end changed nothing, the boards match both settings; the verdict's `moves` decides.
    matching = (candidate for candidate in candidates if len(candidate[2]) - 1 == row.get("moves"))
    start, note, frames = next(matching, candidates[0])
    best, reason = _best(start)
    note = " ".join(filter(None, [note, reason, _rewards(row, frames, turns)]))
    return Replay(cells=CELLS, frames=frames, optimal=best, title=_title(start), note=note)


def _environment(row: Json) -> GrlSokoban | None:
    if "level" not in row and not ("seed" in row and {"dim_room", "num_boxes"} & row.keys()):
        return None
    try:
        return GrlSokoban(row, SokobanSettings())
    except BadTask:
        return None


def _turns(row: Json) -> Iterator[ReplayTurn]:
    """Yield the turns in order. If the prompt shows the start, the first turn contains that board and no moves."""
    given = mapping(row.get("responses_create_params")).get("input")
    prompt = [mapping(item) for item in items(given)] or [{"content": given}]
    # The start is the last board in the prompt; earlier boards belong to examples.
    if shown := [board for item in prompt for board in boards_in(_text_of(item.get("content")))]:
        yield ReplayTurn(board=shown[-1])
    calls = before = sum(map(_is_call, prompt))
    pending: dict[str, tuple[int, tuple[int, ...]]] = {}
    message = ""
    for item in map(mapping, items(mapping(row.get("response")).get("output"))):
        kind, text = str(item.get("type") or "message"), _text_of(item.get("content"))
        if _is_call(item):
            pending[str(item.get("call_id"))] = calls, _moves(item)
            calls += 1
        elif kind.endswith("_call_output"):
            event, moves = pending.pop(str(item.get("call_id")), (None, ()))
            yield _answered(_text_of(item.get("output")), event, moves)
        elif kind == "message" and item.get("role") == "assistant":
            message = text
        elif kind == "message" and item.get("role") == "user":
            board = next(boards_in(text), None)
            move = read_move(message) if message else None
            if board is not None or move is not None:
                yield ReplayTurn(() if move is None else (move,), board)
            message = ""
    # The environment may not respond to the last move.
    if (tag := _ACTION.search(message)) and calls == before and (move := read_move(tag.group())) is not None:
        yield ReplayTurn((move,))


def _is_call(item: Json) -> bool:
    return str(item.get("type")).endswith("_call")


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = (mapping(part).get("text") for part in items(content))
    return "\n".join(part for part in parts if isinstance(part, str))


def boards_in(text: str) -> Iterator[str]:
    """Yield the boards in a text, in the format of `Room.board`, with or without spaces between the symbols.

    If there is none, yield the board that the text describes by coordinates.
    """
    text = text[:_MAX_TEXT_LENGTH]
    blocks: list[list[str]] = [[]]
    if "#" in text:
        for line in text.split("\n"):
            cells = line.replace(" ", "").strip()
            if 3 <= len(cells) <= _LARGEST and _SYMBOLS.issuperset(cells):
                blocks[-1].append(cells)
            elif blocks[-1]:
                blocks.append([])
    elif board := board_in(text):
        blocks = [board.split("\n")]
    for block in blocks:
        if 3 <= len(block) <= _LARGEST:
            with suppress(ValueError):
                yield Room.parse("\n".join(block)).board()


def _moves(call: Json) -> tuple[int, ...]:
    """Return the moves in a `step` or `undo` call; none if one is invalid, as the environment then executes none."""
    try:
        arguments = call.get("arguments")
        values = mapping(orjson.loads(arguments or "{}") if isinstance(arguments, str) else arguments)
        if call.get("name") == "undo":
            return (UNDO,) * max(0, min(int(values.get("moves", 1)), _MAX_TURNS))
        actions = values.get("actions", values.get("action", []))
        return tuple(map(parse_action, actions if isinstance(actions, list) else [actions]))[:_MAX_TURNS]
    except (ValueError, TypeError, OverflowError):
        return ()


def _answered(text: str, event: int | None, moves: tuple[int, ...]) -> ReplayTurn:
    try:
        answer = mapping(orjson.loads(text)) if text.startswith("{") else {}
    except orjson.JSONDecodeError:
        answer = {}
    shown = [text, *(value for value in answer.values() if isinstance(value, str))]
    board = next((board for words in shown[::-1] for board in boards_in(words)), None)
    # A call that the environment rejected did not move anything.
    played = () if "error" in answer and board is None else moves
    reward, total = (number(answer.get(name), None, MAX_MAGNITUDE) for name in ("reward", "total_reward"))
    return ReplayTurn(played, board, reward, total, event)


def _played(start: Room, turns: Sequence[ReplayTurn], max_steps: int, settings: SokobanSettings) -> list[Frame] | None:
    """Replay every move according to the rules; None if the result differs from the recorded boards."""
    play = GameEpisode(start, max_steps, settings)
    frames = [Frame(board=play.game.board(), total=0.0)]
    for turn in turns:
        # The environment rejects an undo of more moves than can be undone.
        for move in turn.moves if turn.moves.count(UNDO) <= play.undoable else ():
            if play.over:
                break
            reward = play.undo() if move == UNDO else play.move(move)
            board, total = play.game.board(), play.total_reward
            blocked, lost = board == frames[-1].board, "lost: can no longer be solved" if play.lost else ""
            remarks = ["blocked" if blocked else "", lost]
            note = "solved" if play.game.success else ", ".join(filter(None, remarks))
            frames.append(Frame(board=board, move=NAMES[move], reward=reward, total=total, event=turn.event, note=note))
        if turn.board is not None and turn.board != play.game.board():
            return None
    return frames


_solve = lru_cache(maxsize=1024)(solve)


def _best(start: Room) -> tuple[tuple[Frame, ...], str]:
    if len(start.state) > _MAX_SOLVED_SIZE:
        return (), "The room is too large to search for an optimal solution."
    try:
        solution = _solve(start, _STATES)
    except UnsolvableRoom:
        return (), "This room has no solution."
    if solution is None:
        return (), f"The optimal solution is unknown: the search stopped after {_STATES:,} positions."
    turn = ReplayTurn(moves=solution.path)
    return tuple(_played(start, [turn], len(solution.path) + 1, CANDIDATE_SETTINGS[0]) or ()), ""


def _rewards(row: Json, frames: Sequence[Frame], turns: Sequence[ReplayTurn]) -> str:
    """Explain why the recorded rewards differ from those in the replay; empty if they do not."""
    if not turns or (recorded := turns[-1].total) is None:
        return ""
    shaped, paid = (number(row.get(name), None, MAX_MAGNITUDE) for name in ("shaping_reward", "reward"))
    played = frames[-1].total or 0.0
    notes = []
    if shaped is not None and abs(played + shaped - recorded) < 1e-6:
        notes.append(f"Shaping adds {shaped:g} to the rewards of the moves.")
    elif abs(played - recorded) >= 1e-6:
        notes.append(f"By the rules, the total is {played:g}; the recorded total is {recorded:g}.")
    if paid is not None and abs(paid - recorded) >= 1e-6:
        notes.append(f"The steps earned {recorded:g}; the verdict's reward is {paid:g}.")
    return " ".join(notes)


def _as_recorded(turns: Sequence[ReplayTurn], boards: Sequence[str]) -> Replay:
    frames = []
    for turn in turns:
        if turn.board is not None:
            move = ", ".join(NAMES[move] for move in turn.moves)
            frames.append(Frame(board=turn.board, move=move, reward=turn.reward, total=turn.total, event=turn.event))
    why = "The start was not recorded" if turns[0].moves else "The recorded moves and boards contradict the rules"
    note = f"{why}; only the recorded boards are shown."
    return Replay(cells=CELLS, frames=frames, title=_title(Room.parse(boards[0])), note=note)


def _title(room: Room) -> str:
    boxes = sum(symbol in "X√" for symbol in room.board())
    return f"Sokoban {room.rows}x{room.cols}, {boxes} {'box' if boxes == 1 else 'boxes'}"
