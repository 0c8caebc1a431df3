"""Write the rows of an evaluation that still lack rollouts, so that they can be collected into the same file."""

from collections.abc import Sequence
from pathlib import Path

from rollyard.records.errors import OperatorError
from rollyard.records.jsonl import replace
from rollyard.records.rollout_file import check_output
from rollyard.records.script import ScriptParser, positive, run_script
from rollyard.services.datasets.mixture import TaskFile
from rollyard.services.rollouts.task_subset import find_remaining, remaining_lines

MAX_SHOWN = 5
"""Maximum number of ignored lines that are listed with the reason."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare the files, print the counts and write the rows.

    Raises OperatorError if a file cannot be read or the output would overwrite one, RunError if it cannot be written.
    """
    parser = ScriptParser(description=__doc__)
    add = parser.add_argument
    add("--input", type=Path, required=True, help="input of the collection (JSON Lines)")
    add("--rollouts", type=Path, required=True, help="its rollouts so far; may not exist yet")
    add("--output", type=Path, required=True, help="file to write, such as remaining_prompts.jsonl")
    add("--target-repeats", type=positive, default=16, help="rollouts that each row should have (default 16)")
    options = parser.parse_args(arguments)
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
    for number, problem in remaining.skipped[:MAX_SHOWN]:
        print(f"[INFO] {rollouts}: line {number}{problem}; it is not counted")
    if (more := len(remaining.skipped) - MAX_SHOWN) > 0:
        print(f"[INFO] {more} more lines are not counted")
    if remaining.missing:
        print("[INFO] Creating checkpoint to resume from remaining prompts...")
    replace(output, remaining_lines(tasks, remaining.missing))
    if remaining.missing:
        left = sum(remaining.missing.values())
        print(f"[INFO] {len(remaining.missing)} remaining prompts lack {left} rollouts -> {output}")
    else:
        print(f"[INFO] Nothing remains; {output} is empty")
    return len(remaining.missing)


if __name__ == "__main__":
    run_script(main)
