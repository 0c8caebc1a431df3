"""Write task rows of the Sokoban environment: held-out rooms for the evaluation, or others for training.

    python -m examples.sokoban_policy.make_rooms --output results/sokoban_policy/test.jsonl
    python -m examples.sokoban_policy.make_rooms --train --num-examples 2000 --output results/sokoban_policy/train.jsonl

Only rooms whose shortest solution has 3 or more moves are used, and no room is a rotation or reflection of another one.
An episode has at most 30 moves; fewer make the rollouts of reinforcement learning cheaper.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from examples.sokoban_policy.layouts import (
    EVALUATION_SEED,
    LEAST_MOVES,
    MOST_MOVES,
    SIZE,
    TRAINING_SEED,
    distinct_rooms,
)
from rollyard.records.script import ScriptParser, positive, run_script
from rollyard.resources_servers.grl_sokoban.game import Room
from rollyard.resources_servers.grl_sokoban.generate_test_examples import Row, row, write
from rollyard.resources_servers.grl_sokoban.solver import solve


def row_of(level_id: int, room: Room, most_moves: int) -> Row:
    keys = {"seed": room.seed, "dim_room": [SIZE, SIZE], "num_boxes": 1, "max_steps": most_moves}
    return row(level_id, keys, solve(room))


def main(arguments: list[str] | None = None) -> None:
    parser = ScriptParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="the JSONL file to write")
    parser.add_argument("--num-examples", type=positive, default=500, help="rows to write (default 500)")
    parser.add_argument("--train", action="store_true", help="write rooms of the training split")
    parser.add_argument("--max-steps", type=positive, default=MOST_MOVES, help="moves of an episode (default 30)")
    parser.add_argument("--seed", type=int, help="first room seed (default: one per split)")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else TRAINING_SEED if options.train else EVALUATION_SEED
    rooms = distinct_rooms(options.num_examples, seed, held_out=not options.train, least_moves=LEAST_MOVES)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write((row_of(number, room, options.max_steps) for number, room in enumerate(rooms, 1)), options.output)
    print(f"{len(rooms)} rows -> {options.output}")


if __name__ == "__main__":
    run_script(main)
