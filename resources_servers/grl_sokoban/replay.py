"""Sokoban's boards for those who look on: every single move of an episode, and the best play from the same start."""

from __future__ import annotations

from functools import lru_cache
from itertools import product

from rollyard.resources_servers.base import BadTask
from rollyard.resources_servers.grl_sokoban.app import GrlSokoban
from rollyard.resources_servers.grl_sokoban.game import DOWN, LEFT, RIGHT, UP, Room
from rollyard.resources_servers.grl_sokoban.game_episode import GameEpisode
from rollyard.resources_servers.grl_sokoban.rollout_moves import MOST, UNDO, Turn, turns_of
from rollyard.resources_servers.grl_sokoban.settings import SokobanSettings
from rollyard.resources_servers.grl_sokoban.solver import Solution, UnsolvableRoom, solve
from rollyard.services.io.json_values import number
from rollyard.services.rollouts.replay import Cell, Frame, Replay
from rollyard.services.types import Json

NAMES = {UP: "Up", DOWN: "Down", LEFT: "Left", RIGHT: "Right", UNDO: "Undo"}
WORLDS = (
    SokobanSettings(undo=True, deadlock="flag", solver_states=2_000),
    SokobanSettings(undo=True, deadlock="end", solver_states=2_000),
)
"""A row does not say by which settings it was played; these tell whether a lost room ends the episode. They try few
positions to see that a room is lost, because a page shows several episodes.
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
_LARGEST_SOLVED = 144
"""Cells of a room that the solver is asked about."""


def replay(row: Json) -> Replay | None:
    """The episode of a row; None where it is no Sokoban."""
    turns, ours = turns_of(row), _world(row)
    boards = [turn.board for turn in turns if turn.board is not None]
    if not boards and ours is None:
        return None
    steps = ours.max_steps if ours else 100
    plays = [
        (start, note, frames)
        for (start, note), settings in product(_starts(turns, boards, ours), WORLDS)
        if (frames := _played(start, turns, steps, settings)) is not None
    ]
    if not plays:
        return _as_recorded(turns, boards)
    # Moves behind the end may change nothing, so that boards agree with either world; the verdict counted them.
    start, note, frames = next((play for play in plays if len(play[2]) - 1 == row.get("moves")), plays[0])
    best, about = _best(start)
    return Replay(
        cells=CELLS,
        frames=frames,
        optimal=best,
        title=_title(start),
        note=" ".join(filter(None, [note, about, _rewards(row, frames, turns)])),
    )


def _world(row: Json) -> GrlSokoban | None:
    """The puzzle that the row asks for, made by our own generator; None where it asks for none that can be made."""
    if "level" not in row and not ("seed" in row and {"dim_room", "num_boxes"} & row.keys()):
        return None
    try:
        return GrlSokoban(row, SokobanSettings())
    except BadTask:
        return None


def _starts(turns: list[Turn], boards: list[str], ours: GrlSokoban | None) -> list[tuple[Room, str]]:
    """Where the episode may have begun, the likeliest first, and what is to be said of it."""
    starts = []
    if turns and not turns[0].moves and turns[0].board is not None:
        other = ours is not None and ours.room.board() != turns[0].board
        note = "The row's seed makes another room here: the one that was recorded is shown." if other else ""
        starts.append((Room.parse(turns[0].board), note))
    if ours is not None:
        starts.append((ours.room, "" if boards else "The row records no board: the room is made of its seed or level."))
    return starts


def _played(start: Room, turns: list[Turn], max_steps: int, settings: SokobanSettings) -> list[Frame] | None:
    """Every move by the rules; None where they lead elsewhere than was recorded."""
    play = GameEpisode(start, max_steps, settings)
    frames = [Frame(board=play.game.board(), total=0.0)]
    for turn in turns:
        # Of an undo that goes back too far the world does nothing.
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
    lost = "lost: no play solves it any more" if play.lost else ""
    return ", ".join(filter(None, ["blocked" if blocked else "", lost]))


@lru_cache(maxsize=1024)
def _solution(room: Room) -> Solution | None:
    return solve(room, _STATES)


def _best(start: Room) -> tuple[tuple[Frame, ...], str]:
    """The frames of an optimal play, or why there are none."""
    if len(start.state) > _LARGEST_SOLVED:
        return (), "The room is too large to look for the best play."
    try:
        solution = _solution(start)
    except UnsolvableRoom:
        return (), "No play solves this room."
    if solution is None:
        return (), f"The best play is not known: the search ended after {_STATES:,} positions."
    turn = Turn(moves=solution.path)
    return tuple(_played(start, [turn], len(solution.path) + 1, WORLDS[0]) or ()), ""


def _rewards(row: Json, frames: list[Frame], turns: list[Turn]) -> str:
    """What is to be said where the rewards on record are not those of the game alone."""
    if not turns or (recorded := turns[-1].total) is None:
        return ""
    shaped, paid = (number(row.get(name), None, MOST) for name in ("shaping_reward", "reward"))
    played = frames[-1].total or 0.0
    said = []
    if shaped is not None and abs(played + shaped - recorded) < 1e-6:
        said.append(f"Shaping adds {shaped:g} to the rewards of the moves.")
    elif abs(played - recorded) >= 1e-6:
        said.append(f"By the rules the total is {played:g}; recorded is {recorded:g}.")
    if paid is not None and abs(paid - recorded) >= 1e-6:
        said.append(f"The steps earned {recorded:g}; the verdict paid {paid:g}.")
    return " ".join(said)


def _as_recorded(turns: list[Turn], boards: list[str]) -> Replay | None:
    """The boards on record alone."""
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
    note = "The moves and the boards on record do not agree with the rules: only the recorded boards are shown."
    if turns[0].moves:
        note = "The start is not on record: only the recorded boards are shown."
    return Replay(cells=CELLS, frames=seen, title=_title(Room.parse(boards[0])), note=note)


def _title(room: Room) -> str:
    boxes = sum(symbol in "X√" for symbol in room.board())
    return f"Sokoban {room.rows}x{room.cols}, {boxes} {'box' if boxes == 1 else 'boxes'}"
