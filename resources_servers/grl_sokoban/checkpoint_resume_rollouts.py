"""Write the rows of an evaluation that still lack rollouts, so that they can be collected into the same file."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rollyard.records.errors import OperatorError
from rollyard.records.jsonl import replace
from rollyard.records.rollout_file import check_output
from rollyard.records.script import ScriptParser, positive, run_script
from rollyard.services.datasets.tasks import TaskFile
from rollyard.services.rollouts.task_subset import Remaining, find_remaining, remaining_lines

MAX_SHOWN = 5
"""Maximum number of ignored lines that are listed with the reason."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare the files, print the counts and write the rows. Raises OperatorError if a file cannot be read or the
    output would overwrite one, RunError if it cannot be written.
    """
    options = _options(arguments)
    check_output(options.output, [options.input, options.rollouts])
    if not options.input.is_file():
        raise OperatorError(f"{options.input} does not exist; expected the input of the collection (JSON Lines)")
    write_remaining(options.input, options.rollouts, options.output, options.target_repeats)


def write_remaining(source: Path, rollouts: Path, output: Path, repeats: int, limit: int | None = None) -> int:
    """Write the rows of `source` that lack rollouts, print the counts, and return the number of rows written."""
    # The agent does not matter here, but rows may leave it to the command line of the collection.
    tasks = TaskFile(source, agent="any", limit=limit)
    remaining = find_remaining(tasks, rollouts, repeats)
    print(f"[INFO] Found {remaining.found} existing rollouts (expected {remaining.expected})")
    _print_skipped(remaining, rollouts)
    if remaining.missing:
        print("[INFO] Creating checkpoint to resume from remaining prompts...")
    replace(output, remaining_lines(tasks, remaining.missing))
    if remaining.missing:
        left = sum(remaining.missing.values())
        print(f"[INFO] {len(remaining.missing)} remaining prompts lack {left} rollouts -> {output}")
    else:
        print(f"[INFO] Nothing remains; {output} is empty")
    return len(remaining.missing)


def _print_skipped(remaining: Remaining, rollouts: Path) -> None:
    for number, problem in remaining.skipped[:MAX_SHOWN]:
        print(f"[INFO] {rollouts}: line {number}{problem}; it is not counted")
    if (more := len(remaining.skipped) - MAX_SHOWN) > 0:
        print(f"[INFO] {more} more lines are not counted")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = ScriptParser(description=__doc__)
    parser.add_argument("--input", type=Path, required=True, help="input of the collection (JSON Lines)")
    parser.add_argument("--rollouts", type=Path, required=True, help="its rollouts so far; may not exist yet")
    parser.add_argument("--output", type=Path, required=True, help="file to write, such as remaining_prompts.jsonl")
    parser.add_argument(
        "--target-repeats", type=positive, default=16, help="rollouts that each row should have (default 16)"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_script(main)
