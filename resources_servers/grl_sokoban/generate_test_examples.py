"""Write Sokoban task rows: feasible, all different, with their optimum; or, with --compat, the public set's tuples."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any

if __name__ == "__main__":  # also from a checkout that is not installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from resources_servers.grl_sokoban.game import canonical_board
from resources_servers.grl_sokoban.generator import InfeasibleRoom, RoomSpec, Streams, generate
from resources_servers.grl_sokoban.solver import Solution, solve

Row = dict[str, Any]

SIZES = ((4, 4), (5, 5), (6, 6), (7, 7), (8, 8), (4, 6), (6, 4), (5, 6), (6, 5), (5, 7), (7, 5), (6, 7), (7, 6))
BOXES = (1, 1, 1, 1, 1, 2, 2, 3)
PUBLIC_ROWS = 500
EASY_UP_TO, MEDIUM_UP_TO = 4, 9
"""Optimal moves: up to 4 easy (about half of the rooms), 5 to 9 medium, from 10 on hard."""
DRAWS_A_ROW = 500
"""Tuples drawn for each row wanted before a filter counts as too narrow."""

DEVELOPER = """\
You are playing Sokoban. The board is a grid of symbols, one line per row:
# is a wall, _ is floor, O is a target, X is a box, √ is a box on a target, P is you, S is you standing on a target.
You walk Up, Down, Left or Right, one cell a move. Walking into a box pushes it one cell further in the same \
direction, if the cell behind it is floor or a target. You cannot pull, push two boxes at once or pass through walls, \
so a box in a corner stays there.
You win when every box stands on a target. A move that is blocked changes nothing but still counts.
Act only through the tool `step`: it plays a list of moves in order and returns the board that results. Call it with \
an empty list first to see the board, then with one or more of "Up", "Down", "Left" and "Right". Think about where \
each box must go before you push it, and use few moves: every move costs a little."""
USER = """\
Solve this Sokoban puzzle. Start by calling `step` with an empty list to see the board, then keep calling it until \
all boxes are on targets. Finish with a short answer that says whether the puzzle is solved."""
STEP_TOOL: Row = {
    "type": "function",
    "name": "step",
    "description": "Play moves in order and return the board after them. An empty list only shows the board.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {
            "actions": {
                "type": "array",
                "items": {"type": "string"},
                "description": 'Moves to play in order, each "Up", "Down", "Left" or "Right"; may be empty.',
            }
        },
        "required": ["actions"],
        "additionalProperties": False,
    },
}


def tuples(seed: int) -> Iterator[RoomSpec]:
    """The stream of seeds, sizes and box counts behind the public set, without end; its seed is 42."""
    rng = Random(seed)
    for index in count():
        room_seed = rng.randint(1000, 99999) + 97 * index
        rows, cols = rng.choice(SIZES)
        boxes = rng.choice(BOXES)
        yield RoomSpec(room_seed % 2**32, (rows, cols), 1 if boxes >= rows * cols // 3 else boxes)


def difficulty(moves: int) -> str:
    """The band of a room by the fewest moves that solve it."""
    return "easy" if moves <= EASY_UP_TO else "medium" if moves <= MEDIUM_UP_TO else "hard"


def labelled(seed: int, wanted: int, accept: Callable[[int], bool] = lambda moves: True) -> Iterator[Row]:
    """Up to `wanted` rows of the stream: feasible at the first seed tried (so the reference makes them too), no two
    the same up to rotation and reflection, and with a number of optimal moves that `accept` takes.
    """
    streams, seen, made = Streams(), set[str](), 0
    for spec in islice(tuples(seed), wanted * DRAWS_A_ROW):
        if made == wanted:
            return
        try:
            room = generate(spec, streams)
        except InfeasibleRoom:
            continue
        puzzle = canonical_board(room.board())
        if room.tries > 1 or puzzle in seen:
            continue
        seen.add(puzzle)
        if (solution := solve(room)) and accept(solution.moves):
            made += 1
            yield row(made, spec, solution)


def row(level_id: int, spec: RoomSpec, solution: Solution | None = None) -> Row:
    """One task row, with labels if the optimum is given."""
    labels = {} if solution is None else {
        "optimal_moves": solution.moves,
        "optimal_pushes": solution.pushes,
        "difficulty": difficulty(solution.moves),
    }  # fmt: skip
    messages = [{"role": "developer", "content": DEVELOPER}, {"role": "user", "content": USER}]
    return {
        "level_id": level_id,
        "seed": spec.seed,
        "dim_room": list(spec.dim_room),
        "num_boxes": spec.num_boxes,
        **labels,
        "responses_create_params": {"input": messages, "tools": [STEP_TOOL]},
    }


def compat(seed: int, wanted: int) -> Iterator[Row]:
    """The stream as it comes, infeasible tuples too: seed 42 and 500 rows are the public set's."""
    return (row(index + 1, spec) for index, spec in enumerate(islice(tuples(seed), wanted)))


def main(arguments: list[str] | None = None) -> None:
    """Write the file; exits with a message if the filter leaves too few rows."""
    options = _options(arguments)
    if options.compat:
        rows = list(compat(options.seed, options.num_examples or PUBLIC_ROWS))
    else:
        wanted = options.num_examples or 200
        rows = list(labelled(options.seed, wanted, lambda moves: options.min_moves <= moves <= options.max_moves))
        if len(rows) < wanted:
            band = f"{options.min_moves} to {options.max_moves} optimal moves"
            sys.exit(f"only {len(rows)} of {wanted} rows found with {band}; ask for fewer or a wider band")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(item, ensure_ascii=False) + "\n" for item in rows]
    options.output.write_text("".join(lines), encoding="utf-8")
    print(f"{len(rows)} rows -> {options.output}")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="the JSONL file to write")
    parser.add_argument("--num-examples", type=_positive, help="rows (default 200; 500 with --compat)")
    parser.add_argument("--seed", type=int, default=42, help="of the stream of tuples (default 42)")
    parser.add_argument("--min-moves", type=int, default=1, help="fewest optimal moves (default 1)")
    parser.add_argument("--max-moves", type=int, default=10**6, help="most optimal moves (default no limit)")
    parser.add_argument("--compat", action="store_true", help="the public tuples: unfiltered, without labels")
    options = parser.parse_args(arguments)
    if options.min_moves > options.max_moves:
        parser.error(f"--min-moves {options.min_moves} is more than --max-moves {options.max_moves}")
    return options


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


if __name__ == "__main__":
    main()
