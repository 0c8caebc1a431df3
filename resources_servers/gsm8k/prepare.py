"""Write GSM8K task rows from a local file, S3 or the Hugging Face hub (openai/gsm8k)."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import orjson

from rollyard.records.errors import OperatorError
from rollyard.records.jsonl import replace
from rollyard.records.script import EXIT_DONE, run_foreground, run_script
from rollyard.records.types import Json
from rollyard.resources_servers.dataset_sources import PrepareParser, prepare, read_rows
from rollyard.resources_servers.gsm8k.app import ANSWER_FORMS, SYSTEM, create_params, gold_number
from rollyard.services.datasets.splits import SplitSelection

SHOTS = Path(__file__).parent / "data" / "fewshot.jsonl"
TRAIN = SplitSelection(default_split="train", default_subset="main")
"""Split and subset to read if --shots-from is a folder."""


def main(arguments: list[str] | None = None) -> None:
    parser = PrepareParser(__doc__, forms=tuple(ANSWER_FORMS), system=SYSTEM, split="test")
    parser.add_shots({"lm_eval_cot": 8}, sampled=True)
    options = parser.parse_args(arguments)
    count = parser.shots(options, ("lm_eval_cot",))
    try:
        pool = [(row["question"], row["answer"]) for row in read_rows(options.shots_from or SHOTS, TRAIN)]
    except (OperatorError, KeyError) as error:
        parser.error(f"--shots-from: {error if isinstance(error, OperatorError) else f'a row lacks the field {error}'}")
    if count > len(pool):
        parser.error(f"--shots is {count}, but only {len(pool)} rows are available")
    rng = Random(options.seed)  # one sample per row, in order, as in lm_eval if the pool is the full train split

    def make(number: int, row: Json) -> Json:
        gold = gold_number(row["answer"])
        if gold is None:
            raise ValueError("the answer does not end with #### and a number")
        shots = rng.sample(pool, count) if options.shots_from else pool[:count]
        return {
            "id": f"gsm8k_{number}",
            "question": row["question"],
            "expected_answer": gold,
            "form": options.form,
            "responses_create_params": create_params(options.form, row["question"], shots, options.system_prompt),
        }

    prepare(options, "openai/gsm8k", make, split="test", subset="main")


def prepare_rows(rows: Path, *, split: str, system_prompt: str, limit: int | None, local: Path | None) -> int:
    """Write the rows unless a run with the same options did (it may continue offline). Returns the exit status."""
    selection = ["--split", split, "--system-prompt", system_prompt]
    selection += [*(["--limit", str(limit)] if limit else []), *(["--local", str(local)] if local else [])]
    record, wanted = rows.with_name(f"{rows.stem}_options.json"), orjson.dumps(selection)
    if not local and rows.is_file() and record.is_file() and record.read_bytes() == wanted:
        print(f"{rows} is kept, because it was written with the same options")
        return EXIT_DONE
    record.unlink(missing_ok=True)
    command = [sys.executable, "-m", "rollyard.resources_servers.gsm8k.prepare", "--output", str(rows), *selection]
    status = run_foreground(command)
    if status == EXIT_DONE:
        replace(record, wanted)
    return status


if __name__ == "__main__":
    run_script(main)
