"""Write MBPP task rows from a local file, S3 or the Hugging Face hub (google-research-datasets/mbpp)."""

from pathlib import Path

from rollyard.records.script import not_negative, run_script
from rollyard.records.types import Json
from rollyard.resources_servers.dataset_sources import Hub, prepare, read_rows, source_options
from rollyard.resources_servers.mbpp.app import FORMS, GOLD_CPU_S, SYSTEM, create_params, names_used
from rollyard.services.datasets.splits import ALL, SplitSelection

SHOTS = Path(__file__).parent / "data" / "fewshot.jsonl"
SPLITS = {"prompt": (1, 10), "test": (11, 510), "validation": (511, 600), "train": (601, 974), "all": (1, 974)}
"""First and last task ID of each split."""


def main(arguments: list[str] | None = None) -> None:
    parser = source_options(__doc__)
    parser.add_argument("--split", choices=tuple(SPLITS), default="test", help="split by task id (default test)")
    parser.add_argument("--form", choices=FORMS, default="chat", help="prompt format (default chat)")
    parser.add_argument("--shots", type=not_negative, help="few-shot examples (default: 3 for lm_eval, otherwise 0)")
    parser.add_argument("--system-prompt", default=SYSTEM, help="system prompt for --form chat; may be empty")
    options = parser.parse_args(arguments)
    count = options.shots if options.shots is not None else 3 if options.form == "lm_eval" else 0
    if options.form == "chat" and count:
        parser.error("--shots requires --form lm_eval")
    shots = list(read_rows(SHOTS))
    if count > len(shots):
        parser.error(f"--shots is {count}, but lm-eval has only {len(shots)} examples")
    first, last = SPLITS[options.split]

    def make(number: int, row: Json) -> Json | None:
        if not first <= row["task_id"] <= last:
            return None
        tests, setup = list(row["test_list"]), row.get("test_setup_code") or ""
        names_used(setup, tests)  # rejects rows whose tests cannot be parsed
        text = row.get("text") or row["prompt"]
        slow = {"gold_cpu_s": GOLD_CPU_S[row["task_id"]]} if row["task_id"] in GOLD_CPU_S else {}
        return {
            "id": f"mbpp_{row['task_id']}",
            "task_id": row["task_id"],
            "text": text,
            "test_list": tests,
            "test_setup_code": setup,
            "challenge_test_list": list(row.get("challenge_test_list") or ()),
            **slow,
            "form": options.form,
            "responses_create_params": create_params(options.form, text, tests, shots[:count], options.system_prompt),
        }

    selection = SplitSelection(ALL, options.subset, default_subset="full")  # --split selects by task id
    prepare(options, Hub("google-research-datasets/mbpp"), selection, make)


if __name__ == "__main__":
    run_script(main)
