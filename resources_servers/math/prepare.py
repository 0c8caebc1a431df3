"""Write MATH task rows from a local file, S3 or the Hugging Face hub (EleutherAI/hendrycks_math)."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

from rollyard.records.errors import OperatorError
from rollyard.records.script import not_negative, run_script
from rollyard.records.types import Json
from rollyard.resources_servers.dataset_sources import Hub, prepare, read_rows, source_options
from rollyard.resources_servers.math.app import ANSWER_FORMS, SYSTEM, create_params, gold_answer, worked
from rollyard.services.datasets.splits import ALL, SplitSelection


def subject_of(row: Json) -> str:
    """Return the row's subject, such as `Algebra`."""
    return str(row.get("subject") or row.get("type") or "unknown")


Shots = Callable[[str], list[tuple[str, str]]]
"""Returns the examples for the next row of a subject."""


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


SHOTS = Path(__file__).parent / "data" / "fewshot.jsonl"
TRAIN = SplitSelection(default_split="train", default_subset=ALL)
"""Split and subset to read if --shots-from is a folder."""


def main(arguments: list[str] | None = None) -> None:
    parser = source_options(__doc__)
    parser.add_argument("--split", help="split to read, or all (default test)")
    parser.add_argument("--form", choices=tuple(ANSWER_FORMS), default="chat", help="prompt format (default chat)")
    parser.add_argument(
        "--shots", type=not_negative, help="few-shot examples (default: 4 for lm_eval_minerva, otherwise 0)"
    )
    parser.add_argument(
        "--shots-from",
        type=Path,
        help="MATH rows to sample each problem's examples from, by subject; lm_eval uses the train split",
    )
    parser.add_argument("--seed", type=int, default=42, help="sampling seed, like lm_eval's --seed (default 42)")
    parser.add_argument("--system-prompt", default=SYSTEM, help="system prompt for --form chat; may be empty")
    parser.add_argument(
        "--levels", type=int, nargs="+", default=[1, 2, 3, 4, 5], help="difficulty levels to keep (default all)"
    )
    options = parser.parse_args(arguments)
    count = options.shots if options.shots is not None else 4 if options.form == "lm_eval_minerva" else 0
    if options.form == "chat" and count:
        parser.error("--shots requires --form lm_eval_hendrycks or lm_eval_minerva")
    if options.form == "lm_eval_hendrycks" and count and not options.shots_from:
        parser.error("--shots with --form lm_eval_hendrycks requires --shots-from with the rows to sample from")
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
        level = _level(row.get("level"))
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

    selection = SplitSelection(options.split, options.subset, default_split="test", default_subset=ALL)
    prepare(options, Hub("EleutherAI/hendrycks_math"), selection, make)


def _level(value: object) -> int | None:
    """Parse a level from 1 to 5, such as `3` or `Level 3`. Return None for the few rows without a level."""
    found = re.search(r"[1-5]", str(value))
    return int(found.group()) if found else None


if __name__ == "__main__":
    run_script(main)
