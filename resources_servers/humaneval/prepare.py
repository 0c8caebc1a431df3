"""Write HumanEval task rows from a local file, S3 or the Hugging Face hub (openai/openai_humaneval)."""

from rollyard.records.script import run_script
from rollyard.records.types import Json
from rollyard.resources_servers.dataset_sources import PrepareParser, prepare
from rollyard.resources_servers.humaneval.app import FORMS, SYSTEM, HumanEvalTask, create_params


def main(arguments: list[str] | None = None) -> None:
    options = PrepareParser(__doc__, forms=FORMS, system=SYSTEM, split="test").parse_args(arguments)

    def make(number: int, row: Json) -> Json:
        return {
            "id": row["task_id"],
            **{name: row[name] for name in ("task_id", *HumanEvalTask.model_fields)},
            "form": options.form,
            "responses_create_params": create_params(options.form, row["prompt"], options.system_prompt),
        }

    prepare(options, "openai/openai_humaneval", make, split="test", subset="openai_humaneval")


if __name__ == "__main__":
    run_script(main)
