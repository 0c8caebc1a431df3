"""Writes the rows of a dataset as the dataset of a trainer, in whose columns the adapters find them.

    python -m rollyard.interop.rows skyrl rows.jsonl skyrl.jsonl

Rows are JSON within the columns, because most loaders give all rows the same nested fields.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import orjson

from rollyard.records.errors import OperatorError
from rollyard.records.rows import messages_of, valid_rows
from rollyard.records.script import ScriptParser, exit_status
from rollyard.records.types import Json

NAME = "python -m rollyard.interop.rows"
TRAINERS = ("areal", "openrlhf", "skyrl", "slime", "verl")


def columns_for(trainer: str, row: Json, number: int) -> Json:
    """Return the columns of a row. `number`: its index in the dataset."""
    text, messages = orjson.dumps(row).decode(), messages_of(row)
    columns: dict[str, Json] = {
        "skyrl": {"prompt": messages, "env_class": "rollyard", "row": text},
        "slime": {"prompt": messages, "label": "", "metadata": {"row": text}},
        "areal": {"messages": messages, "row": text},
        "openrlhf": {"input": "\n\n".join(str(each["content"]) for each in messages), "label": text},
        "verl": {
            "data_source": "rollyard",
            "agent_name": "rollyard",
            "prompt": messages,
            "row": text,
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": number},
        },
    }
    return columns[trainer]


def main(arguments: Sequence[str]) -> int:
    """Write the dataset. Raises OperatorError if the input cannot be read."""
    parser = ScriptParser(prog=NAME, description="Write rows as the dataset of a trainer.")
    parser.add_argument("trainer", choices=TRAINERS)
    parser.add_argument("input", type=Path, help="rows, as for ng_collect_rollouts")
    parser.add_argument("output", type=Path, help="a new JSON Lines file")
    given = parser.parse_args(arguments)
    if given.output.exists():
        raise OperatorError(f"{given.output} exists already: choose another file, or remove it")
    with given.output.open("xb") as file:
        count = 0
        for count, row in enumerate(valid_rows(given.input), 1):
            file.write(orjson.dumps(columns_for(given.trainer, row, count - 1)) + b"\n")
    print(f"wrote {count} rows for {given.trainer} to {given.output}")
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(NAME, lambda: main(sys.argv[1:])))
