"""Builds and writes task rows for `generate_test_examples.py` and `generate_level_examples.py`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from rollyard.records.jsonl import replace
from rollyard.resources_servers.grl_sokoban.observation import LEGEND, Observation
from rollyard.resources_servers.grl_sokoban.row_selection import difficulty
from rollyard.resources_servers.grl_sokoban.solver import Solution
from rollyard.resources_servers.grl_sokoban.symmetry import SymmetryName

Row = dict[str, Any]


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


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the options that all scripts that write rows have in common."""
    parser.add_argument("--output", type=Path, required=True, help="the JSONL file to write")
    parser.add_argument(
        "--observations",
        nargs="+",
        choices=get_args(Observation),
        default=("text",),
        help="the server's setting `observations`, which the prompt describes (default text)",
    )
    parser.add_argument("--undo", action="store_true", help="offer the tool undo, for a server with undo: true")


def prompt_builder_from_options(options: argparse.Namespace) -> PromptBuilder:
    return PromptBuilder(tuple(options.observations), options.undo)


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


@dataclass(frozen=True)
class PromptBuilder:
    """Builds the prompt and the tools of a row for a server with these settings."""

    observations: tuple[Observation, ...] = ("text",)
    undo: bool = False

    def create_params(self) -> dict[str, Any]:
        """Return the row's `responses_create_params`."""
        legend = "\n".join(text for kind, text in _LEGENDS.items() if kind in self.observations)
        parts = ["You are playing Sokoban. " + legend, _RULES, _STEP, *([_UNDO] if self.undo else [])]
        messages = [{"role": "developer", "content": "\n".join(parts)}, {"role": "user", "content": _USER}]
        return {"input": messages, "tools": [_step_tool(), *([_undo_tool()] if self.undo else [])]}


def _step_tool() -> dict[str, Any]:
    actions = {
        "type": "array",
        "items": {"type": "string"},
        "description": 'Moves to play in order, each "Up", "Down", "Left" or "Right"; may be empty.',
    }
    description = "Play moves in order and return the board after them. An empty list only shows the board."
    return _tool("step", description, {"actions": actions})


def _undo_tool() -> dict[str, Any]:
    moves = {"type": "integer", "description": "How many of the last moves to take back, 1 or more."}
    return _tool("undo", "Take back the last moves and return the board before them.", {"moves": moves})


def _tool(name: str, description: str, properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "name": name,
        "description": description,
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        },
    }
