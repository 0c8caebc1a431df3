"""Write HumanEval task rows from a local file, S3 or the Hugging Face hub (openai/openai_humaneval)."""

from rollyard.records.script import run_script
from rollyard.records.types import Json
from rollyard.resources_servers.dataset_sources import Hub, prepare, source_options
from rollyard.resources_servers.humaneval.app import FORMS, SYSTEM, create_params
from rollyard.services.datasets.splits import SplitSelection


def main(arguments: list[str] | None = None) -> None:
    parser = source_options(__doc__)
    parser.add_argument("--form", choices=FORMS, default="chat", help="prompt format (default chat)")
    parser.add_argument("--system-prompt", default=SYSTEM, help="system prompt for --form chat; may be empty")
    parser.add_argument("--split", help="split to read, or all, if the dataset has several")
    options = parser.parse_args(arguments)

    def make(number: int, row: Json) -> Json:
        return {
            "id": row["task_id"],
            "task_id": row["task_id"],
            "prompt": row["prompt"],
            "entry_point": row["entry_point"],
            "test": row["test"],
            "form": options.form,
            "responses_create_params": create_params(options.form, row["prompt"], options.system_prompt),
        }

    prepare(
        options,
        Hub("openai/openai_humaneval"),
        SplitSelection(options.split, options.subset, default_split="test", default_subset="openai_humaneval"),
        make,
    )


if __name__ == "__main__":
    run_script(main)
