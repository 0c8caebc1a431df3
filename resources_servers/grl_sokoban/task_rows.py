"""Task rows: which rooms and which of their symmetric variants become rows, and what the rows' prompts say."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, get_args

from rollyard.records.jsonl import replace
from rollyard.resources_servers.dataset_sources import read_rows
from rollyard.resources_servers.grl_sokoban.game import Room, canonical_board
from rollyard.resources_servers.grl_sokoban.levels import sealed
from rollyard.resources_servers.grl_sokoban.observation import LEGEND, Observation
from rollyard.resources_servers.grl_sokoban.solver import Solution
from rollyard.resources_servers.grl_sokoban.task import SokobanSettings, SymmetryName, distinct, puzzle_of, read_task

Row = dict[str, Any]
Split = Literal["train", "test"]
Band = Literal["easy", "medium", "hard"]
BANDS: tuple[Band, ...] = get_args(Band)
EASY_UP_TO, MEDIUM_UP_TO = 4, 9
"""Difficulty by the optimal number of moves: up to 4 is easy (about half of the generated rooms), 5 to 9 medium, 10 or
more hard."""
NO_LIMIT = 10**6


def difficulty(moves: int) -> Band:
    return "easy" if moves <= EASY_UP_TO else "medium" if moves <= MEDIUM_UP_TO else "hard"


@dataclass(frozen=True)
class RowSelection:
    """The criteria that rooms must meet. By default, every room is accepted."""

    min_moves: int = 1
    max_moves: int = NO_LIMIT
    bands: Collection[Band] = BANDS
    split: Split | None = None
    test_share: float = 0.1
    symmetries: bool = False
    apart: frozenset[str] = frozenset()
    """Puzzles to exclude together with their symmetric variants, as returned by `puzzle_of_board`."""

    def refusal(self, room: Room, solution: Solution | None) -> str:
        """Return why the room is skipped, or an empty string. `solution` is None if the optimum is unknown."""
        if solution is None:
            narrow = (self.min_moves, self.max_moves) != (1, NO_LIMIT) or set(self.bands) != set(BANDS)
            return "unknown optimum" if narrow else self._other_refusal(room)
        if not self.min_moves <= solution.moves <= self.max_moves:
            upper = "or more" if self.max_moves == NO_LIMIT else f"to {self.max_moves}"
            return f"not {self.min_moves} {upper} optimal moves"
        if difficulty(solution.moves) not in self.bands:
            return f"not difficulty {' or '.join(self.bands)}"
        return self._other_refusal(room)

    def _other_refusal(self, room: Room) -> str:
        if self.apart and puzzle_of_board(room.board()) in self.apart:
            return f"one of {len(self.apart)} excluded puzzles"
        if self.split is not None and split_of(room, self.test_share) != self.split:
            return f"not in the split {self.split} at a test share of {self.test_share:g}"
        return ""

    def images(self, room: Room) -> list[SymmetryName]:
        """Return the names of the room's symmetric variants that become rows."""
        return [name for name, _ in distinct(room)] if self.symmetries else ["same"]


def puzzles_of(path: Path) -> frozenset[str]:
    """Return the puzzles in a file of task rows.

    Raises OperatorError if the file cannot be read, BadTask if a row is invalid.
    """
    # No limits, because the rows may be for a server with larger limits. No search, because only boards are needed.
    no_limits = SokobanSettings(max_rows=NO_LIMIT, max_boxes=NO_LIMIT, max_search_depth=NO_LIMIT, solver_states=1)
    return frozenset(puzzle_of_board(puzzle_of(read_task(row), no_limits).room.board()) for row in read_rows(path))


def puzzle_of_board(board: str) -> str:
    """Return a string that is the same for all boards of a puzzle. They may be rotated, mirrored, or differ in the
    thickness of walls and in unreachable cells. Raises InvalidLevel if a box or a target is unreachable.
    """
    lines = sealed(board.split("\n")).split("\n")
    for _ in range(4):
        while len(lines) > 1 and set(lines[0] + lines[1]) == {"#"}:
            lines = lines[1:]
        lines = ["".join(column) for column in zip(*lines[::-1], strict=True)]
    return canonical_board("\n".join(lines))


def split_of(room: Room, test_share: float) -> Split:
    """Return the room's split, which depends only on its puzzle and `test_share`.

    If the share is increased, the rooms that were in the test split remain in it.
    """
    digest = sha256(puzzle_of_board(room.board()).encode()).digest()
    return "test" if int.from_bytes(digest[:8], "big") < test_share * 2**64 else "train"


def row(
    level_id: int,
    room: Row,
    solution: Solution | None = None,
    symmetry: SymmetryName = "same",
    prompts: PromptBuilder | None = None,
) -> Row:
    """Build a task row. `room` contains the fields that determine the room. With a `solution`, the row gets labels."""
    labels = {} if solution is None else {
        "optimal_moves": solution.moves,
        "optimal_pushes": solution.pushes,
        "difficulty": difficulty(solution.moves),
    }  # fmt: skip
    image = {} if symmetry == "same" else {"symmetry": symmetry}
    params = (prompts or PromptBuilder()).create_params()
    return {"level_id": level_id, **room, **image, **labels, "responses_create_params": params}


def write(rows: Iterable[Row], output: Path) -> None:
    """Write the rows as JSON Lines, atomically. Raises RunError if they cannot be written."""
    replace(output, "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in rows).encode())


_LEGENDS: dict[Observation, str] = {
    "text": """\
The board is a grid of symbols, one line per row:
# is a wall, _ is floor, O is a target, X is a box, √ is a box on a target, P is you, S is you standing on a target.""",
    "coordinates": """\
The board is told in coordinates: the cells of player, boxes, targets and walls as (row, column), rows counted \
downwards and columns to the right.""",
    "image": f"The board is drawn as an image: {LEGEND}.",
}
_RULES = """\
You walk Up, Down, Left or Right, one cell a move. Walking into a box pushes it one cell further in the same \
direction, if the cell behind it is floor or a target. You cannot pull, push two boxes at once or pass through walls, \
so a box in a corner stays there.
You win when every box stands on a target. A move that is blocked changes nothing but still counts."""
_STEP = """\
Act only through the tool `step`: it plays a list of moves in order and returns the board that results. Call it with \
an empty list first to see the board, then with one or more of "Up", "Down", "Left" and "Right". Think about where \
each box must go before you push it, and use few moves: every move costs a little."""
_UNDO = """\
The tool `undo` takes your last moves back; each move taken back costs as much as a move. Moves that were blocked are \
not counted among them."""
_USER = """\
Solve this Sokoban puzzle. Start by calling `step` with an empty list to see the board, then keep calling it until \
all boxes are on targets. Finish with a short answer that says whether the puzzle is solved."""


def _tool(name: str, description: str, argument: str, schema: dict[str, Any]) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {argument: schema},
        "required": [argument],
        "additionalProperties": False,
    }
    return {"type": "function", "name": name, "description": description, "strict": True, "parameters": parameters}


_STEP_TOOL = _tool(
    "step",
    "Play moves in order and return the board after them. An empty list only shows the board.",
    "actions",
    {
        "type": "array",
        "items": {"type": "string"},
        "description": 'Moves to play in order, each "Up", "Down", "Left" or "Right"; may be empty.',
    },
)
_UNDO_TOOL = _tool(
    "undo",
    "Take back the last moves and return the board before them.",
    "moves",
    {"type": "integer", "description": "How many of the last moves to take back, 1 or more."},
)


@dataclass(frozen=True)
class PromptBuilder:
    observations: tuple[Observation, ...] = ("text",)
    undo: bool = False

    def create_params(self) -> dict[str, Any]:
        legend = "\n".join(text for kind, text in _LEGENDS.items() if kind in self.observations)
        parts = ["You are playing Sokoban. " + legend, _RULES, _STEP, *([_UNDO] if self.undo else [])]
        messages = [{"role": "developer", "content": "\n".join(parts)}, {"role": "user", "content": _USER}]
        return {"input": messages, "tools": [_STEP_TOOL, *([_UNDO_TOOL] if self.undo else [])]}
