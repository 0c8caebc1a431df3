"""Write Sokoban task rows from level files (.xsb or Boxoban's .txt).

Duplicate levels are skipped. Rows contain the optimum if the solver finds it.
"""

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from rollyard.records.errors import OperatorError
from rollyard.records.rollout_file import check_output
from rollyard.records.script import ScriptParser, positive, run_script
from rollyard.resources_servers.grl_sokoban.game import BOX, Room
from rollyard.resources_servers.grl_sokoban.levels import InvalidLevel, Level, levels_of
from rollyard.resources_servers.grl_sokoban.solver import Solution, UnsolvableRoom, solve
from rollyard.resources_servers.grl_sokoban.task_rows import (
    PromptBuilder,
    Row,
    RowSelection,
    add_output,
    add_selection_options,
    prompt_builder_from_options,
    puzzle_of_board,
    row,
    selection_from_options,
    write,
)


@dataclass
class LevelRows:
    selection: RowSelection
    prompts: PromptBuilder
    max_rows: int
    boxes: range
    most_states: int
    folder: Path | None = None
    """If set, rows contain the path of the level file relative to this folder and the level's number, not the board."""
    skipped: Counter[str] = field(default_factory=Counter)

    def rows(self, paths: Iterable[Path]) -> Iterator[Row]:
        """Yield the files' rows in order.

        Raises InvalidLevel at the first invalid level, OSError if a file cannot be read.
        """
        seen, made = set[str](), 0
        for path in paths:
            levels = levels_of(path)
            if not levels:
                raise InvalidLevel(f"{path} contains no levels; expected lines of the symbols # space . $ * @ +")
            for level in levels:
                room = level.room()
                puzzle = puzzle_of_board(room.board())
                solution, reason = self._solve(level, room, puzzle in seen)
                seen.add(puzzle)
                if reason:
                    self.skipped[reason] += 1
                    continue
                for symmetry in self.selection.images(room):
                    made += 1
                    yield row(made, self._keys(path, level, room), solution, symmetry, self.prompts)

    def _solve(self, level: Level, room: Room, known: bool) -> tuple[Solution | None, str]:
        """Return the optimum and the reason for skipping the level, which is empty if the level is not skipped."""
        if known:
            return None, "the same puzzle as an earlier level"
        if max(room.rows, room.cols) > self.max_rows:
            return None, f"more than {self.max_rows} rows or columns"
        if (boxes := room.state.count(BOX)) not in self.boxes:
            return None, f"{boxes} box{'es' * (boxes > 1)}"
        try:
            solution = solve(room, self.most_states)
        except UnsolvableRoom as error:
            raise InvalidLevel(f"{level.file}, level {level.index} (line {level.line}): {error}") from error
        if solution is None and self.selection.needs_optimum:
            return None, f"optimum not found in {self.most_states:,} positions"
        return solution, "" if self.selection.accepts(room, solution) else f"not {self.selection}"

    def _keys(self, path: Path, level: Level, room: Room) -> Row:
        if self.folder is not None:
            return {"level_file": path.resolve().relative_to(self.folder).as_posix(), "level_index": level.index}
        return {"level": room.board(), "source": f"{level.file}, level {level.index}"}


def main(arguments: list[str] | None = None) -> None:
    """Write the rows. Raises OperatorError if a level is invalid, a file is unreadable, or every level was skipped."""
    options, level_rows = _options(arguments)
    check_output(options.output, options.input)
    try:
        rows = list(islice(level_rows.rows(options.input), options.num_examples))
    except InvalidLevel as error:
        raise OperatorError(str(error)) from error
    except OSError as error:
        raise OperatorError(f"{error.filename} cannot be read: {error.strerror}; expected a level file") from error
    skipped = "".join(f"\n  skipped {number}: {reason}" for reason, number in level_rows.skipped.items())
    if not rows:
        raise OperatorError(f"every level was skipped; relax the filters{skipped}")
    write(rows, options.output)
    print(f"{len(rows)} rows -> {options.output}{skipped}")


def _options(arguments: list[str] | None) -> tuple[argparse.Namespace, LevelRows]:
    parser = ScriptParser(description=__doc__)
    parser.add_argument("--input", type=Path, nargs="+", required=True, help="level files, .xsb or Boxoban's .txt")
    add_output(parser)
    parser.add_argument("--num-examples", type=positive, help="maximum number of rows to write (default all)")
    parser.add_argument(
        "--max-rows",
        type=positive,
        default=10,
        help="maximum rows and columns of a level (default 10, as in the server)",
    )
    parser.add_argument("--min-boxes", type=positive, default=1, help="minimum number of boxes (default 1)")
    parser.add_argument("--max-boxes", type=positive, default=4, help="maximum number of boxes (default 4)")
    parser.add_argument(
        "--most-states", type=positive, default=100_000, help="maximum positions per search (default 100,000)"
    )
    parser.add_argument(
        "--levels-folder",
        type=Path,
        help="write level files relative to this folder (the server's levels_folder), not boards",
    )
    add_selection_options(parser)
    options = parser.parse_args(arguments)
    folder = options.levels_folder and options.levels_folder.resolve()
    for path in options.input:
        if folder is not None and not path.resolve().is_relative_to(folder):
            parser.error(f"{path} is not in --levels-folder {options.levels_folder}")
    boxes = range(options.min_boxes, options.max_boxes + 1)
    if not boxes:
        parser.error(f"--min-boxes {options.min_boxes} exceeds --max-boxes {options.max_boxes}")
    selection, prompts = selection_from_options(parser, options), prompt_builder_from_options(options)
    return options, LevelRows(selection, prompts, options.max_rows, boxes, options.most_states, folder)


if __name__ == "__main__":
    run_script(main)
