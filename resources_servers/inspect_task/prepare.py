"""Write the dataset of an inspect_ai task as rows, one per sample."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from rollyard.records.rollout_file import check_output
from rollyard.records.script import ScriptParser, positive, run_script
from rollyard.resources_servers.dataset_sources import write_rows
from rollyard.resources_servers.inspect_task.app import EXAMPLE_TASK, InspectPackage, InspectSettings, load_task
from rollyard.services.config.overrides import parse_overrides


def main(arguments: list[str] | None = None) -> None:
    parser = ScriptParser(description=__doc__)
    parser.add_argument("--task", default=EXAMPLE_TASK, help="path/to/file.py@name or package/name")
    parser.add_argument(
        "--arg", action="append", default=[], help="argument of the task, such as count=20; may be repeated"
    )
    parser.add_argument("--output", type=Path, required=True, help="the JSONL file to write")
    parser.add_argument("--limit", type=positive, help="maximum number of rows to write (default: all)")
    options = parser.parse_args(arguments)
    check_output(options.output, ())
    given = {override.key: override.value for override in parse_overrides(options.arg, {})}
    task = load_task(InspectSettings(task=options.task, task_args=given), InspectPackage())
    count = write_rows(options.output, islice(task.rows(), options.limit))
    print(f"{count} rows -> {options.output}")


if __name__ == "__main__":
    run_script(main)
