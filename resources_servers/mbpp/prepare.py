"""Write MBPP task rows from a local file, S3 or the Hugging Face hub (google-research-datasets/mbpp)."""

from pathlib import Path

from rollyard.records.script import run_script
from rollyard.records.types import Json
from rollyard.resources_servers.dataset_sources import PrepareParser, prepare, read_rows
from rollyard.resources_servers.mbpp.app import FORMS, GOLD_CPU_S, SYSTEM, create_params, names_used
from rollyard.services.datasets.splits import ALL

SHOTS = Path(__file__).parent / "data" / "fewshot.jsonl"
SPLITS = {"prompt": (1, 10), "test": (11, 510), "validation": (511, 600), "train": (601, 974), "all": (1, 974)}
"""First and last task ID of each split."""


def main(arguments: list[str] | None = None) -> None:
    parser = PrepareParser(__doc__, forms=FORMS, system=SYSTEM)
    parser.add_argument("--split", choices=tuple(SPLITS), default="test", help="split by task id (default test)")
    parser.add_shots({"lm_eval": 3}, sampled=False)
    options = parser.parse_args(arguments)
    count, shots = parser.shots(options, FORMS), list(read_rows(SHOTS))
    if count > len(shots):
        parser.error(f"--shots is {count}, but lm-eval has only {len(shots)} examples")
    first, last = SPLITS[options.split]
    options.split = ALL  # the files' own splits are another matter

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

    prepare(options, "google-research-datasets/mbpp", make, subset="full")


if __name__ == "__main__":
    run_script(main)
