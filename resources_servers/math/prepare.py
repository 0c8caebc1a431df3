"""Write MATH task rows from a local file, S3 or the Hugging Face hub (EleutherAI/hendrycks_math)."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

from rollyard.records.errors import OperatorError
from rollyard.records.script import run_script
from rollyard.records.types import Json
from rollyard.resources_servers.dataset_sources import PrepareParser, prepare, read_rows
from rollyard.resources_servers.math.app import ANSWER_FORMS, SYSTEM, create_params, gold_answer, worked
from rollyard.services.datasets.splits import ALL, SplitSelection

SHOTS = Path(__file__).parent / "data" / "fewshot.jsonl"
TRAIN = SplitSelection(default_split="train", default_subset=ALL)
"""Split and subset to read if --shots-from is a folder."""
Shots = Callable[[str], list[tuple[str, str]]]
"""Returns the examples for the next row of a subject."""


def subject_of(row: Json) -> str:
    return str(row.get("subject") or row.get("type") or "unknown")


def fixed_shots(form: str, rows: Iterable[Json], count: int) -> Shots:
    """The first rows, for every problem. Raises ValueError if they are too few, or not solved problems."""
    found = [worked(form, row) for row in rows][:count]
    if len(found) < count:
        raise ValueError(f"--shots is {count}, but only {len(found)} rows are available")
    return lambda subject: found


def sampled_shots(form: str, rows: Iterable[Json], count: int, seed: int) -> Shots:
    """A sample of the subject's rows for each problem. Raises ValueError for a row that is not a solved problem.

    To lm-eval, each subject is a task of its own, with a generator that is seeded once and draws for its rows in order.
    """
    pools = defaultdict[str, list[tuple[str, str]]](list)
    for row in rows:
        pools[subject_of(row)].append(worked(form, row))
    rngs = defaultdict[str, Random](lambda: Random(seed))

    def sample(subject: str) -> list[tuple[str, str]]:
        if count > len(pools[subject]):
            raise ValueError(f"--shots is {count}, but --shots-from has only {len(pools[subject])} rows for {subject}")
        return rngs[subject].sample(pools[subject], count)

    return sample


def main(arguments: list[str] | None = None) -> None:
    parser = PrepareParser(__doc__, forms=tuple(ANSWER_FORMS), system=SYSTEM, split="test")
    parser.add_shots({"lm_eval_minerva": 4}, sampled=True)
    parser.add_argument(
        "--levels", type=int, nargs="+", default=[1, 2, 3, 4, 5], help="difficulty levels to keep (default all)"
    )
    options = parser.parse_args(arguments)
    count = parser.shots(options, ("lm_eval_minerva",))
    try:
        if options.shots_from:
            shots_for = sampled_shots(options.form, read_rows(options.shots_from, TRAIN), count, options.seed)
        else:
            shots_for = fixed_shots(options.form, read_rows(SHOTS), count)
    except (OperatorError, ValueError) as error:
        parser.error(str(error))
    numbers: Counter[str] = Counter()

    def make(_: int, row: Json) -> Json | None:
        subject = subject_of(row)
        number = numbers[subject]
        numbers[subject] += 1
        examples = shots_for(subject)  # also for a skipped row, because lm_eval samples for every row
        digit = re.search(r"[1-5]", str(row.get("level")))  # as in `3` and `Level 3`; a few rows have no level
        level = int(digit.group()) if digit else None
        if level is not None and level not in options.levels:
            return None
        gold = gold_answer(row)
        if gold is None:
            raise ValueError("the row has neither an answer nor a solution with \\boxed{}")
        return {
            "id": f"math_{subject.lower()}_{number}",
            "problem": row["problem"],
            "expected_answer": gold,
            "subject": subject,
            "level": level,
            "form": options.form,
            "responses_create_params": create_params(options.form, row["problem"], examples, options.system_prompt),
        }

    prepare(options, "EleutherAI/hendrycks_math", make, split="test", subset=ALL)


if __name__ == "__main__":
    run_script(main)
