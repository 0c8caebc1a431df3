"""Write task rows for IFEval (google/IFEval) or for the training set ifeval_train (allenai/RLVR-IFeval) from a local
file, S3 or the Hugging Face hub.
"""

import sys
from collections.abc import Callable

from rollyard.records.script import run_script
from rollyard.records.types import Json
from rollyard.resources_servers.answers.prompts import chat
from rollyard.resources_servers.dataset_sources import Hub, prepare, source_options
from rollyard.resources_servers.ifeval import rlvr
from rollyard.resources_servers.ifeval.app import instructions
from rollyard.services.datasets.splits import SplitSelection

MAX_OUTPUT_TOKENS = 1280
"""The limit that lm-eval uses."""
TEST, TRAIN = "ifeval", "ifeval_train"
HUB = {TEST: Hub("google/IFEval"), TRAIN: Hub("allenai/RLVR-IFeval")}


def main(arguments: list[str] | None = None) -> None:
    parser = source_options(__doc__)
    parser.add_argument(
        "--dataset",
        choices=tuple(HUB),
        default=TEST,
        help="ifeval: the test set (default); ifeval_train: a training set",
    )
    parser.add_argument(
        "--form", choices=("chat", "lm_eval"), default="chat", help="lm_eval: at most 1,280 output tokens"
    )
    parser.add_argument("--system-prompt", default="", help="system prompt (default: none)")
    parser.add_argument("--split", help="split to read, or all, if the dataset has several")
    options = parser.parse_args(arguments)

    def params(prompt: str) -> Json:
        limit = {"max_output_tokens": MAX_OUTPUT_TOKENS} if options.form == "lm_eval" else {}
        return chat(prompt, options.system_prompt) | limit

    skipped: list[str] = []
    make = _training_row(params, skipped) if options.dataset == TRAIN else _test_row(params)
    prepare(options, HUB[options.dataset], SplitSelection(options.split, options.subset), make)
    if skipped:
        print(f"skipped {len(skipped)} rows that cannot be scored; the first: {skipped[0]}", file=sys.stderr)


def _test_row(params: Callable[[str], Json]) -> Callable[[int, Json], Json]:
    def make(number: int, row: Json) -> Json:
        if "ground_truth" in row:
            raise ValueError(f"this row is from RLVR-IFEval; pass --dataset {TRAIN}")
        instructions(row)
        kwargs = [{key: value for key, value in (each or {}).items() if value is not None} for each in row["kwargs"]]
        return {
            "id": f"ifeval_{row.get('key', number)}",
            "prompt": row["prompt"],
            "instruction_id_list": row["instruction_id_list"],
            "kwargs": kwargs,
            "responses_create_params": params(row["prompt"]),
        }

    return make


def _training_row(params: Callable[[str], Json], skipped: list[str]) -> Callable[[int, Json], Json | None]:
    def make(number: int, row: Json) -> Json | None:
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
            "responses_create_params": params(prompts[0]),
        }

    return make


if __name__ == "__main__":
    run_script(main)
