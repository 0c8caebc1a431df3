"""Write task rows for IFEval (google/IFEval) or for the training set ifeval_train (allenai/RLVR-IFEval) from a local
file, S3 or the Hugging Face hub.
"""

import sys

from rollyard.records.script import run_script
from rollyard.records.types import Json
from rollyard.resources_servers.answers.prompts import chat
from rollyard.resources_servers.dataset_sources import PrepareParser, prepare
from rollyard.resources_servers.ifeval import rlvr
from rollyard.resources_servers.ifeval.app import instructions

MAX_OUTPUT_TOKENS = 1280
"""The limit that lm-eval uses."""
TEST, TRAIN = "ifeval", "ifeval_train"
HUB = {TEST: "google/IFEval", TRAIN: "allenai/RLVR-IFEval"}


def main(arguments: list[str] | None = None) -> None:
    parser = PrepareParser(__doc__, forms=("chat", "lm_eval"), system="")
    parser.add_argument("--dataset", choices=tuple(HUB), default=TEST, help="test set (default) or training set")
    parser.add_argument("--split", help="split to read, or all, if the dataset has several")
    options = parser.parse_args(arguments)
    limit = {"max_output_tokens": MAX_OUTPUT_TOKENS} if options.form == "lm_eval" else {}
    skipped: list[str] = []

    def test_row(number: int, row: Json) -> Json:
        if "ground_truth" in row:
            raise ValueError(f"this row is from RLVR-IFEval; pass --dataset {TRAIN}")
        instructions(row)
        kwargs = [{key: value for key, value in (each or {}).items() if value is not None} for each in row["kwargs"]]
        return {
            "id": f"ifeval_{row.get('key', number)}",
            "prompt": row["prompt"],
            "instruction_id_list": row["instruction_id_list"],
            "kwargs": kwargs,
            "responses_create_params": chat(row["prompt"], options.system_prompt) | limit,
        }

    def training_row(number: int, row: Json) -> Json | None:
        prompts = [message["content"] for message in row["messages"] if message["role"] == "user"]
        if not prompts:
            raise ValueError("the row has no user message")
        try:
            rlvr.instruction(row["ground_truth"])
        except ValueError as error:
            skipped.append(f"row {number}: {error}")
            return None
        return {
            "id": f"{TRAIN}_{number}",
            "prompt": prompts[0],
            "ground_truth": row["ground_truth"],
            "constraint_type": row.get("constraint_type"),
            "constraint": row.get("constraint"),
            "responses_create_params": chat(prompts[0], options.system_prompt) | limit,
        }

    prepare(options, HUB[options.dataset], training_row if options.dataset == TRAIN else test_row)
    if skipped:
        print(f"skipped {len(skipped)} rows that cannot be scored; the first: {skipped[0]}", file=sys.stderr)


if __name__ == "__main__":
    run_script(main)
