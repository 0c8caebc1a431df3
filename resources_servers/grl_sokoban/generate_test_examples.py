"""Write feasible, distinct and labelled Sokoban task rows. With --compat, write the rows of the public dataset."""

import argparse
from collections.abc import Iterator
from itertools import count, islice
from random import Random

from rollyard.records.errors import OperatorError
from rollyard.records.rollout_file import check_output
from rollyard.records.script import ScriptParser, positive, run_script
from rollyard.resources_servers.grl_sokoban.game import canonical_board
from rollyard.resources_servers.grl_sokoban.generator import InfeasibleRoom, RoomSpec, Streams, generate
from rollyard.resources_servers.grl_sokoban.solver import solve
from rollyard.resources_servers.grl_sokoban.task_rows import (
    PromptBuilder,
    Row,
    RowSelection,
    add_output,
    add_selection_options,
    prompt_builder_from_options,
    row,
    selection_from_options,
    write,
)

SIZES = ((4, 4), (5, 5), (6, 6), (7, 7), (8, 8), (4, 6), (6, 4), (5, 6), (6, 5), (5, 7), (7, 5), (6, 7), (7, 6))
BOXES = (1, 1, 1, 1, 1, 2, 2, 3)
PUBLIC_ROWS = 500
DRAWS_A_ROW = 500
"""Number of room specifications tried per requested row before the filters are considered too narrow."""


def tuples(seed: int) -> Iterator[RoomSpec]:
    """Yield an endless sequence of room specifications. Seed 42 yields those of the public dataset."""
    rng = Random(seed)
    for index in count():
        room_seed = rng.randint(1000, 99999) + 97 * index
        rows, cols = rng.choice(SIZES)
        boxes = rng.choice(BOXES)
        yield RoomSpec(room_seed % 2**32, (rows, cols), 1 if boxes >= rows * cols // 3 else boxes)


def labelled(
    seed: int, wanted: int, selection: RowSelection | None = None, prompts: PromptBuilder | None = None
) -> Iterator[Row]:
    """Yield up to `wanted` labelled rows that `selection` accepts.

    Only rooms that their first seed yields are used, because the reference can generate these too. No room is a
    rotation or reflection of another one, unless `selection` requests the symmetric variants.
    """
    selection = selection or RowSelection()
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
        if (solution := solve(room)) and selection.accepts(room, solution):
            for symmetry in selection.images(room):
                made += 1
                yield row(made, keys(spec), solution, symmetry, prompts)
                if made == wanted:
                    return


def keys(spec: RoomSpec) -> Row:
    return {"seed": spec.seed, "dim_room": list(spec.dim_room), "num_boxes": spec.num_boxes}


def compat(seed: int, wanted: int) -> Iterator[Row]:
    """Yield unfiltered rows, including infeasible ones. Seed 42 with 500 rows yields the public dataset."""
    return (row(index + 1, keys(spec)) for index, spec in enumerate(islice(tuples(seed), wanted)))


def main(arguments: list[str] | None = None) -> None:
    """Write the rows. Raises OperatorError if too few rooms pass the filters."""
    options, selection = _options(arguments)
    check_output(options.output, options.apart_from)
    if options.compat:
        rows = list(compat(options.seed, options.num_examples or PUBLIC_ROWS))
    else:
        wanted = options.num_examples or 200
        rows = list(labelled(options.seed, wanted, selection, prompt_builder_from_options(options)))
        if len(rows) < wanted:
            found = f"only {len(rows)} of {wanted} rows found with {selection}"
            raise OperatorError(f"{found}; request fewer rows or a wider range")
    write(rows, options.output)
    print(f"{len(rows)} rows -> {options.output}")


def _options(arguments: list[str] | None) -> tuple[argparse.Namespace, RowSelection]:
    parser = ScriptParser(description=__doc__)
    add_output(parser)
    parser.add_argument("--num-examples", type=positive, help="rows to write (default 200; 500 with --compat)")
    parser.add_argument("--seed", type=int, default=42, help="seed of the random row parameters (default 42)")
    add_selection_options(parser)
    parser.add_argument(
        "--compat", action="store_true", help="write the public dataset's rows, unfiltered and without labels"
    )
    options = parser.parse_args(arguments)
    selection = selection_from_options(parser, options)
    if options.compat and (selection != RowSelection() or prompt_builder_from_options(options) != PromptBuilder()):
        parser.error("--compat writes the public rows unchanged; drop the filters, --observations and --undo")
    return options, selection


if __name__ == "__main__":
    run_script(main)
