"""Write Sokoban task rows: feasible, distinct and labelled rooms from seeds or, with --input, from level files.

Level files have the format .xsb or that of Boxoban's .txt. With --compat, the rows are those of the public dataset.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple, get_args

from rollyard.records.errors import OperatorError
from rollyard.records.jsonl import replace
from rollyard.records.rollout_file import check_output
from rollyard.records.script import ScriptParser, not_negative, positive, run_script
from rollyard.resources_servers.base import BadTask
from rollyard.resources_servers.dataset_sources import read_rows
from rollyard.resources_servers.grl_sokoban.game import BOX, LEGEND, Observation, Room, canonical_board
from rollyard.resources_servers.grl_sokoban.generator import InfeasibleRoom, RoomSpec, counted, generate
from rollyard.resources_servers.grl_sokoban.levels import InvalidLevel, levels_of, sealed
from rollyard.resources_servers.grl_sokoban.solver import MAX_STATES, Solution, UnsolvableRoom, solve
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
    labels: Row = {}
    if solution is not None:
        labels = {"optimal_moves": solution.moves, "optimal_pushes": solution.pushes}
        labels["difficulty"] = difficulty(solution.moves)
    image = {} if symmetry == "same" else {"symmetry": symmetry}
    params = (prompts or PromptBuilder()).create_params()
    return {"level_id": level_id, **room, **image, **labels, "responses_create_params": params}


def write(rows: Iterable[Row], output: Path) -> None:
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
    properties = {"type": "object", "properties": {argument: schema}}
    parameters = {**properties, "required": [argument], "additionalProperties": False}
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


SIZES = ((4, 4), (5, 5), (6, 6), (7, 7), (8, 8), (4, 6), (6, 4), (5, 6), (6, 5), (5, 7), (7, 5), (6, 7), (7, 6))
BOXES = (1, 1, 1, 1, 1, 2, 2, 3)
PUBLIC_ROWS = 500
DRAWS_A_ROW = 500
"""Number of room specifications tried per requested row before the filters are considered too narrow."""


class Candidate(NamedTuple):
    keys: Row
    """The fields of the row that determine the room."""
    room: Room
    puzzle: str
    """The same for rooms of which only the first is used."""
    name: str = ""
    """The level, for error messages."""


def tuples(seed: int) -> Iterator[RoomSpec]:
    """Yield an endless sequence of room specifications. Seed 42 yields those of the public dataset."""
    rng = Random(seed)
    for index in count():
        room_seed = rng.randint(1000, 99999) + 97 * index
        rows, cols = rng.choice(SIZES)
        boxes = rng.choice(BOXES)
        yield RoomSpec(room_seed % 2**32, (rows, cols), 1 if boxes >= rows * cols // 3 else boxes)


def keys(spec: RoomSpec) -> Row:
    return {"seed": spec.seed, "dim_room": list(spec.dim_room), "num_boxes": spec.num_boxes}


def compat(seed: int, wanted: int) -> Iterator[Row]:
    """Yield unfiltered rows, including infeasible ones. Seed 42 with 500 rows yields the public dataset."""
    return (row(index + 1, keys(spec)) for index, spec in enumerate(islice(tuples(seed), wanted)))


def seeded_rooms(seed: int, draws: int | None = None) -> Iterator[Candidate]:
    """Yield the rooms that their first seed yields, because the reference can generate these too."""
    for spec in islice(tuples(seed), draws):
        try:
            room = generate(spec)
        except InfeasibleRoom:
            continue
        if room.tries == 1:
            yield Candidate(keys(spec), room, canonical_board(room.board()))


def level_rooms(options: argparse.Namespace, skipped: Counter[str]) -> Iterator[Candidate]:
    """Yield the rooms of the level files. Raises InvalidLevel for an invalid level, OSError for an unreadable file."""
    folder = options.levels_folder and options.levels_folder.resolve()
    for path in options.input:
        levels = levels_of(path)
        if not levels:
            raise InvalidLevel(f"{path} contains no levels; expected lines of the symbols # space . $ * @ +")
        for level in levels:
            room = level.room()
            boxes = room.state.count(BOX)
            if max(room.rows, room.cols) > options.max_rows:
                skipped[f"more than {options.max_rows} rows or columns"] += 1
                continue
            if not options.min_boxes <= boxes <= options.max_boxes:
                skipped[counted(boxes)] += 1
                continue
            keys: Row = {"level": room.board(), "source": f"{level.file}, level {level.index}"}
            if folder:
                file = path.resolve().relative_to(folder).as_posix()
                keys = {"level_file": file, "level_index": level.index}
            yield Candidate(keys, room, puzzle_of_board(room.board()), level.name)


def labelled(
    candidates: Iterable[Candidate],
    selection: RowSelection | None = None,
    prompts: PromptBuilder | None = None,
    *,
    skipped: Counter[str] | None = None,
    most_states: int = MAX_STATES,
) -> Iterator[Row]:
    """Yield the rows of the candidates that `selection` accepts, with labels, and count the others in `skipped`.

    No room is a rotation or reflection of another one, unless `selection` requests the symmetric variants. Raises
    InvalidLevel for a room without a solution.
    """
    selection, skipped = selection or RowSelection(), Counter() if skipped is None else skipped
    seen, made = set[str](), count(1)
    for keys, room, puzzle, name in candidates:
        if puzzle in seen:
            skipped["the same puzzle as an earlier one"] += 1
            continue
        seen.add(puzzle)
        try:
            solution = solve(room, most_states)
        except UnsolvableRoom as error:
            raise InvalidLevel(f"{name}: {error}") from error
        if reason := selection.refusal(room, solution):
            skipped[reason] += 1
        else:
            yield from (row(next(made), keys, solution, image, prompts) for image in selection.images(room))


def main(arguments: list[str] | None = None) -> None:
    """Write the rows. Raises OperatorError if too few rooms pass the filters, or if a level is invalid."""
    options, selection, prompts = _options(arguments)
    check_output(options.output, [*options.apart_from, *options.input])
    skipped: Counter[str] = Counter()
    wanted = options.num_examples or (None if options.input else PUBLIC_ROWS if options.compat else 200)
    if options.input:
        candidates = level_rooms(options, skipped)
    else:
        candidates = seeded_rooms(options.seed, (wanted or 0) * DRAWS_A_ROW)
    made = labelled(candidates, selection, prompts, skipped=skipped, most_states=options.most_states)
    try:
        rows = list(compat(options.seed, wanted or 0) if options.compat else islice(made, wanted))
    except InvalidLevel as error:
        raise OperatorError(str(error)) from error
    except OSError as error:
        raise OperatorError(f"{error.filename} cannot be read: {error.strerror}; expected a level file") from error
    reasons = "".join(f"\n  skipped {number}: {reason}" for reason, number in skipped.items())
    if len(rows) < (1 if options.input else wanted or 0):
        found = f"only {len(rows)} of {wanted or 'all'} rows found"
        raise OperatorError(f"{found}: request fewer, or relax the filters{reasons}")
    write(rows, options.output)
    print(f"{len(rows)} rows -> {options.output}{reasons if options.input else ''}")


def _options(arguments: list[str] | None) -> tuple[argparse.Namespace, RowSelection, PromptBuilder]:
    parser = ScriptParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--output", type=Path, required=True, help="the JSONL file to write")
    add("--num-examples", type=positive, help="rows to write; without it 200, 500 with --compat, or all levels")
    add("--seed", type=int, default=42, help="seed of the random row parameters")
    add("--compat", action="store_true", help="write the public dataset's rows, unfiltered and without labels")
    add("--min-moves", type=not_negative, default=1, help="minimum optimal moves")
    add("--max-moves", type=not_negative, default=NO_LIMIT, help="maximum optimal moves")
    bands = f"by optimal moves: easy up to {EASY_UP_TO}, medium up to {MEDIUM_UP_TO}, hard beyond"
    add("--difficulty", nargs="+", choices=BANDS, default=BANDS, help=bands)
    add("--split", choices=get_args(Split), help="write only rooms of this split; a room's split never changes")
    add("--test-share", type=float, default=0.1, help="share of rooms in the test split")
    add("--apart-from", type=Path, nargs="+", default=(), help="files of task rows whose puzzles are excluded")
    add("--symmetries", action="store_true", help="write all rotations and reflections of each room")
    described = "the server's setting `observations`, which the prompt describes"
    add("--observations", nargs="+", choices=get_args(Observation), default=("text",), help=described)
    add("--undo", action="store_true", help="offer the tool undo, for a server with undo: true")
    add("--input", type=Path, nargs="+", default=(), help="level files, instead of rooms from seeds")
    add("--max-rows", type=positive, default=10, help="maximum rows and columns of a level")
    add("--min-boxes", type=positive, default=1, help="minimum number of boxes in a level")
    add("--max-boxes", type=positive, default=4, help="maximum number of boxes in a level")
    add("--most-states", type=positive, default=MAX_STATES, help="maximum positions per search for the optimum")
    add("--levels-folder", type=Path, help="write the levels' files relative to this folder, instead of boards")
    options = parser.parse_args(arguments)
    for least, most in (("min_moves", "max_moves"), ("min_boxes", "max_boxes")):
        if (low := getattr(options, least)) > (high := getattr(options, most)):
            parser.error(f"--{least} {low} exceeds --{most} {high}".replace("_", "-"))
    if not 0 <= options.test_share <= 1:
        parser.error(f"--test-share is {options.test_share}; expected a number from 0 to 1")
    if options.levels_folder:
        for path in options.input:
            if not path.resolve().is_relative_to(options.levels_folder.resolve()):
                parser.error(f"{path} is not in --levels-folder {options.levels_folder}")
    try:
        apart = frozenset[str]().union(*map(puzzles_of, options.apart_from))
    except (BadTask, OperatorError) as error:
        parser.error(f"--apart-from: {error}")
    given = {name: getattr(options, name) for name in ("min_moves", "max_moves", "split", "test_share", "symmetries")}
    selection = RowSelection(**given, bands=tuple(options.difficulty), apart=apart)
    prompts = PromptBuilder(tuple(options.observations), options.undo)
    if options.compat and (selection != RowSelection() or prompts != PromptBuilder() or options.input):
        parser.error("--compat writes the public rows unchanged; drop the filters, --input, --observations and --undo")
    return options, selection, prompts


if __name__ == "__main__":
    run_script(main)
