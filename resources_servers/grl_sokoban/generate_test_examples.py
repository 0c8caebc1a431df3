"""Write Sokoban task rows: feasible, all different, with their optimum; or, with --compat, the public set's tuples."""

import argparse
from collections.abc import Iterator
from itertools import count, islice
from random import Random

from rollyard.resources_servers.grl_sokoban.game import canonical_board
from rollyard.resources_servers.grl_sokoban.generator import InfeasibleRoom, RoomSpec, Streams, generate
from rollyard.resources_servers.grl_sokoban.prompts import PromptBuilder
from rollyard.resources_servers.grl_sokoban.row_selection import (
    RowSelection,
    add_selection_options,
    selection_from_options,
)
from rollyard.resources_servers.grl_sokoban.row_writer import Row, add_output, prompt_builder_from_options, row, write
from rollyard.resources_servers.grl_sokoban.solver import solve
from rollyard.services.errors import OperatorError
from rollyard.services.io.script import ScriptParser, positive, run_script
from rollyard.services.rollouts.rollout_files import check_output

SIZES = ((4, 4), (5, 5), (6, 6), (7, 7), (8, 8), (4, 6), (6, 4), (5, 6), (6, 5), (5, 7), (7, 5), (6, 7), (7, 6))
BOXES = (1, 1, 1, 1, 1, 2, 2, 3)
PUBLIC_ROWS = 500
DRAWS_A_ROW = 500
"""Tuples drawn for each row wanted before a filter counts as too narrow."""


def tuples(seed: int) -> Iterator[RoomSpec]:
    """The stream of seeds, sizes and box counts behind the public set, without end; its seed is 42."""
    rng = Random(seed)
    for index in count():
        room_seed = rng.randint(1000, 99999) + 97 * index
        rows, cols = rng.choice(SIZES)
        boxes = rng.choice(BOXES)
        yield RoomSpec(room_seed % 2**32, (rows, cols), 1 if boxes >= rows * cols // 3 else boxes)


def labelled(
    seed: int, wanted: int, choice: RowSelection | None = None, wording: PromptBuilder | None = None
) -> Iterator[Row]:
    """Up to `wanted` rows of the stream: feasible at the first seed tried (so the reference makes them too), no two
    the same up to rotation and reflection unless `choice` wants the images, and all of them what `choice` takes.
    """
    choice = choice or RowSelection()
    streams, seen, made = Streams(), set[str](), 0
    for spec in islice(tuples(seed), wanted * DRAWS_A_ROW):
        try:
            room = generate(spec, streams)
        except InfeasibleRoom:
            continue
        puzzle = canonical_board(room.board())
        if room.tries > 1 or puzzle in seen:
            continue
        seen.add(puzzle)
        if (solution := solve(room)) and choice.takes(room, solution):
            for symmetry in choice.images(room):
                made += 1
                yield row(made, keys(spec), solution, symmetry, wording)
                if made == wanted:
                    return


def keys(spec: RoomSpec) -> Row:
    """The keys of a row that say which room."""
    return {"seed": spec.seed, "dim_room": list(spec.dim_room), "num_boxes": spec.num_boxes}


def compat(seed: int, wanted: int) -> Iterator[Row]:
    """The stream as it comes, infeasible tuples too: seed 42 and 500 rows are the public set's."""
    return (row(index + 1, keys(spec)) for index, spec in enumerate(islice(tuples(seed), wanted)))


def main(arguments: list[str] | None = None) -> None:
    """Write the file. Raises OperatorError if the filter leaves too few rows."""
    options, choice = _options(arguments)
    check_output(options.output, options.apart_from)
    if options.compat:
        rows = list(compat(options.seed, options.num_examples or PUBLIC_ROWS))
    else:
        wanted = options.num_examples or 200
        rows = list(labelled(options.seed, wanted, choice, prompt_builder_from_options(options)))
        if len(rows) < wanted:
            found = f"only {len(rows)} of {wanted} rows found with {choice}"
            raise OperatorError(f"{found}; ask for fewer or a wider band")
    write(rows, options.output)
    print(f"{len(rows)} rows -> {options.output}")


def _options(arguments: list[str] | None) -> tuple[argparse.Namespace, RowSelection]:
    parser = ScriptParser(description=__doc__)
    add_output(parser)
    parser.add_argument("--num-examples", type=positive, help="rows (default 200; 500 with --compat)")
    parser.add_argument("--seed", type=int, default=42, help="of the stream of tuples (default 42)")
    add_selection_options(parser)
    parser.add_argument("--compat", action="store_true", help="the public tuples: unfiltered, without labels")
    options = parser.parse_args(arguments)
    choice = selection_from_options(parser, options)
    if options.compat and (choice != RowSelection() or prompt_builder_from_options(options) != PromptBuilder()):
        parser.error("--compat writes the public rows as they are; leave the filters, --observations and --undo out")
    return options, choice


if __name__ == "__main__":
    run_script(main)
