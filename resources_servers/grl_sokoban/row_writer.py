"""Builds and writes task rows for `generate_test_examples.py` and `generate_level_examples.py`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

from rollyard.records.io.jsonl import replace
from rollyard.resources_servers.grl_sokoban.observation import Observation
from rollyard.resources_servers.grl_sokoban.prompts import PromptBuilder
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
