"""Replays recorded Sokoban episodes for the viewer, move by move, and adds an optimal solution from the same start."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import orjson

from rollyard.records.json_values import items, mapping, number
from rollyard.records.replay import Cell, Frame, Replay
from rollyard.records.types import Json
from rollyard.resources_servers.base import BadTask
from rollyard.resources_servers.grl_sokoban.app import GameEpisode, GrlSokoban, read_move
from rollyard.resources_servers.grl_sokoban.game import DOWN, LEFT, RIGHT, UP, Room, parse_action
from rollyard.resources_servers.grl_sokoban.observation import board_in
from rollyard.resources_servers.grl_sokoban.solver import Solution, UnsolvableRoom, solve
from rollyard.resources_servers.grl_sokoban.task import SokobanSettings

UNDO = 0
"""A pseudo-move that undoes the last move that moved the player."""
_SYMBOLS = frozenset("#_OX√PS")
_LARGEST = 50
_MAX_TEXT_LENGTH = 200_000
_MAX_TURNS = 2000
MAX_MAGNITUDE = 1e9
"""Rewards with a larger absolute value are not shown."""
_ACTION = re.compile(r"<action>.*?</action>", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class ReplayTurn:
    """The moves in one tool call or message, and the environment's response."""

    moves: tuple[int, ...] = ()
    board: str | None = None
    reward: float | None = None
    total: float | None = None
    event: int | None = None
    """Index of the tool call within the episode."""


def turns_of(row: Json) -> list[ReplayTurn]:
    """Return the turns in order. If the prompt shows the start, the first turn contains that board and no moves."""
    found: list[ReplayTurn] = []
    params = mapping(row.get("responses_create_params"))
    # The start is the last board in the prompt; earlier boards belong to examples.
    shown = [board for item in items(params.get("input")) for board in boards_in(_text_of(mapping(item)))]
    shown = shown or list(boards_in(params["input"] if isinstance(params.get("input"), str) else ""))
    if shown:
        found.append(ReplayTurn(board=shown[-1]))
    before = sum(map(_is_call, items(params.get("input"))))
    for turn in _played_turns(items(mapping(row.get("response")).get("output")), before):
        if len(found) < _MAX_TURNS:
            found.append(turn)
    return found


def boards_in(text: str) -> Iterator[str]:
    """Yield the boards in a text, in the format of `Room.board`, with or without spaces between the symbols.

    If there is none, yield the board that the text describes by coordinates.
    """
    if "#" not in text:
        board = board_in(text[:_MAX_TEXT_LENGTH])
        if board is not None and _is_room(board):
            yield board
        return
    block: list[str] = []
    for line in [*text[:_MAX_TEXT_LENGTH].split("\n"), ""]:
        cells = line.replace(" ", "").strip()
        if 3 <= len(cells) <= _LARGEST and _SYMBOLS.issuperset(cells):
            block.append(cells)
            continue
        if 3 <= len(block) <= _LARGEST and _is_room("\n".join(block)):
            yield "\n".join(block)
        block = []


def _is_room(board: str) -> bool:
    try:
        Room.parse(board)
    except ValueError:
        return False
    return True


def _is_call(item: Any) -> bool:
    return str(mapping(item).get("type")).endswith("_call")


def _played_turns(output: list[Any], before: int) -> Iterator[ReplayTurn]:
    """Yield the turns in an episode's output. `before` is the number of tool calls in the prompt."""
    calls = before
    pending: dict[str, tuple[int, tuple[int, ...]]] = {}
    message = ""
    for item in map(mapping, output):
        kind = str(item.get("type") or "message")
        if _is_call(item):
            pending[str(item.get("call_id"))] = calls, _moves(item)
            calls += 1
        elif kind.endswith("_call_output"):
            event, moves = pending.pop(str(item.get("call_id")), (None, ()))
            yield _answered(item, event, moves)
        elif kind == "message" and item.get("role") == "assistant":
            message = _text_of(item)
        elif kind == "message" and item.get("role") == "user":
            board = next(boards_in(_text_of(item)), None)
            move = read_move(message) if message else None
            if board is not None or move is not None:
                yield ReplayTurn(() if move is None else (move,), board)
            message = ""
    # The environment may not respond to the last move.
    if (tag := _ACTION.search(message)) and calls == before and (move := read_move(tag.group())) is not None:
        yield ReplayTurn((move,))


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


def _answered(item: Json, event: int | None, moves: tuple[int, ...]) -> ReplayTurn:
    output = item.get("output")
    text = output if isinstance(output, str) else _text_of({"content": output})
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


def _text_of(item: Json) -> str:
    content = item.get("content")
    if isinstance(content, str):
        return content
    parts = (mapping(part).get("text") for part in items(content))
    return "\n".join(part for part in parts if isinstance(part, str))


NAMES = {UP: "Up", DOWN: "Down", LEFT: "Left", RIGHT: "Right", UNDO: "Undo"}
CANDIDATE_SETTINGS = (
    SokobanSettings(undo=True, deadlock="flag", solver_states=2_000),
    SokobanSettings(undo=True, deadlock="end", solver_states=2_000),
)
"""Settings to try in a replay, because a row does not record those of its episode. They differ in whether an episode
ends when the room can no longer be solved. Their `solver_states` is low because a page shows several episodes.
"""
CELLS = [
    Cell(symbol="#", name="wall", looks="wall"),
    Cell(symbol="_", name="floor", looks="floor"),
    Cell(symbol="O", name="target", looks="target"),
    Cell(symbol="X", name="box", looks="box"),
    Cell(symbol="√", name="box on a target", looks="box_done"),
    Cell(symbol="P", name="player", looks="player"),
    Cell(symbol="S", name="player on a target", looks="player_on_target"),
]
_STATES = 50_000
_MAX_SOLVED_SIZE = 144
"""Maximum number of cells in a room for which an optimal solution is computed."""


def replay(row: Json) -> Replay | None:
    """Replay the episode in a row; None if it is not a Sokoban episode."""
    turns, environment = turns_of(row), _environment(row)
    boards = [turn.board for turn in turns if turn.board is not None]
    if not boards and environment is None:
        return None
    steps = environment.max_steps if environment else 100
    candidates = [
        (start, note, frames)
        for (start, note), settings in product(_starts(turns, boards, environment), CANDIDATE_SETTINGS)
        if (frames := _played(start, turns, steps, settings)) is not None
    ]
    if not candidates:
        return _as_recorded(turns, boards)
    # If moves after the end changed nothing, the boards match both settings; the verdict's `moves` decides.
    matching = (candidate for candidate in candidates if len(candidate[2]) - 1 == row.get("moves"))
    start, note, frames = next(matching, candidates[0])
    best, reason = _best(start)
    return Replay(
        cells=CELLS,
        frames=frames,
        optimal=best,
        title=_title(start),
        note=" ".join(filter(None, [note, reason, _rewards(row, frames, turns)])),
    )


def _environment(row: Json) -> GrlSokoban | None:
    """Create the environment for the row's puzzle; None if the row does not contain a valid puzzle."""
    if "level" not in row and not ("seed" in row and {"dim_room", "num_boxes"} & row.keys()):
        return None
    try:
        return GrlSokoban(row, SokobanSettings())
    except BadTask:
        return None


def _starts(turns: list[ReplayTurn], boards: list[str], environment: GrlSokoban | None) -> list[tuple[Room, str]]:
    """Return the possible start positions of the episode, most likely first, each with a note."""
    starts = []
    if turns and not turns[0].moves and turns[0].board is not None:
        other = environment is not None and environment.room.board() != turns[0].board
        note = "The row's seed yields a different room here; the recorded one is shown." if other else ""
        starts.append((Room.parse(turns[0].board), note))
    if environment is not None:
        starts.append(
            (
                environment.room,
                "" if boards else "The row contains no board; the room is created from its seed or level.",
            )
        )
    return starts


def _played(start: Room, turns: list[ReplayTurn], max_steps: int, settings: SokobanSettings) -> list[Frame] | None:
    """Replay every move according to the rules; None if the result differs from the recorded boards."""
    play = GameEpisode(start, max_steps, settings)
    frames = [Frame(board=play.game.board(), total=0.0)]
    for turn in turns:
        # The environment rejects an undo of more moves than can be undone.
        for move in turn.moves if turn.moves.count(UNDO) <= play.undoable else ():
            if play.over:
                break
            reward = play.undo() if move == UNDO else play.move(move)
            board = play.game.board()
            frames.append(
                Frame(
                    board=board,
                    move=NAMES[move],
                    reward=reward,
                    total=play.total_reward,
                    event=turn.event,
                    note=_note(play, blocked=board == frames[-1].board),
                )
            )
        if turn.board is not None and turn.board != play.game.board():
            return None
    return frames


def _note(play: GameEpisode, *, blocked: bool) -> str:
    if play.game.success:
        return "solved"
    lost = "lost: can no longer be solved" if play.lost else ""
    return ", ".join(filter(None, ["blocked" if blocked else "", lost]))


@lru_cache(maxsize=1024)
def _solution(room: Room) -> Solution | None:
    return solve(room, _STATES)


def _best(start: Room) -> tuple[tuple[Frame, ...], str]:
    """Return the frames of an optimal solution, or no frames and the reason."""
    if len(start.state) > _MAX_SOLVED_SIZE:
        return (), "The room is too large to search for an optimal solution."
    try:
        solution = _solution(start)
    except UnsolvableRoom:
        return (), "This room has no solution."
    if solution is None:
        return (), f"The optimal solution is unknown: the search stopped after {_STATES:,} positions."
    turn = ReplayTurn(moves=solution.path)
    return tuple(_played(start, [turn], len(solution.path) + 1, CANDIDATE_SETTINGS[0]) or ()), ""


def _rewards(row: Json, frames: list[Frame], turns: list[ReplayTurn]) -> str:
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


def _as_recorded(turns: list[ReplayTurn], boards: list[str]) -> Replay | None:
    """Show only the recorded boards, because the moves cannot be replayed; None if there are none."""
    if not boards:
        return None
    seen = [
        Frame(
            board=turn.board,
            move=", ".join(NAMES[move] for move in turn.moves),
            reward=turn.reward,
            total=turn.total,
            event=turn.event,
        )
        for turn in turns
        if turn.board is not None
    ]
    note = "The recorded moves and boards contradict the rules; only the recorded boards are shown."
    if turns[0].moves:
        note = "The start was not recorded; only the recorded boards are shown."
    return Replay(cells=CELLS, frames=seen, title=_title(Room.parse(boards[0])), note=note)


def _title(room: Room) -> str:
    boxes = sum(symbol in "X√" for symbol in room.board())
    return f"Sokoban {room.rows}x{room.cols}, {boxes} {'box' if boxes == 1 else 'boxes'}"
