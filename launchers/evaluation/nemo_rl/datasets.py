"""Finds the environment of a NeMo-RL dataset name and prepares its rows."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from rollyard.launchers.evaluation.nemo_rl.config import DataSection
from rollyard.records.errors import OperatorError, RunError, did_you_mean
from rollyard.records.io.jsonl import iter_jsonl, refuse, replace
from rollyard.records.io.lines import Lines
from rollyard.records.types import Json


@dataclass(frozen=True)
class DatasetSource:
    """Where the rows of a dataset come from, and which environment scores them."""

    environment: str
    repo: str
    """Dataset on the Hugging Face hub."""
    arguments: tuple[str, ...] = ()
    """More arguments of the environment's `prepare`."""


DATASETS = {
    source.repo: source
    for source in (
        DatasetSource("gsm8k", "openai/gsm8k"),
        DatasetSource("math", "HuggingFaceH4/MATH-500"),
        DatasetSource("math", "EleutherAI/hendrycks_math"),
        DatasetSource("math", "HuggingFaceH4/aime_2024"),
        DatasetSource("math", "math-ai/aime25"),
        DatasetSource("mbpp", "google-research-datasets/mbpp"),
        DatasetSource("humaneval", "openai/openai_humaneval"),
        DatasetSource("ifeval", "google/IFEval"),
    )
}
SHORT_NAMES = {
    "gsm8k": "openai/gsm8k",
    "math": "EleutherAI/hendrycks_math",
    "math500": "HuggingFaceH4/MATH-500",
    "aime2024": "HuggingFaceH4/aime_2024",
    "aime2025": "math-ai/aime25",
}
"""NeMo-RL's short names."""


def find_source(data: DataSection) -> DatasetSource | None:
    """Return the dataset's source, or None if `dataset_name` is a file of rows. Raises OperatorError if unknown."""
    name = data.dataset_name
    if name.endswith((".jsonl", ".parquet", ".arrow")) or Path(name).is_file():
        return None
    repo = SHORT_NAMES.get(name, name)
    if repo not in DATASETS:
        known = [*DATASETS, *SHORT_NAMES]
        raise OperatorError(
            f"data.dataset_name is {name!r}{did_you_mean(name, known)} (known: {', '.join(known)}, or a .jsonl file "
            "with rows of an environment)"
        )
    return DATASETS[repo]


def prepare_rows(data: DataSection, output: Path) -> Path:
    """Write the dataset's rows for its environment to `output`, unless they are already there; return their path.

    Several processes may do so at the same time. A file next to the rows records what they were made from.
    Raises OperatorError if the dataset or a prompt file is missing, RunError if its download fails.
    """
    source = find_source(data)
    if source is None:
        if not Path(data.dataset_name).is_file():
            raise OperatorError(f"data.dataset_name is {data.dataset_name!r}, but there is no such file")
        return Path(data.dataset_name).resolve()
    template = None if data.prompt_file is None else _template(data.prompt_file)
    system_prompt = None if data.system_prompt_file is None else _text(data.system_prompt_file)
    made_from = orjson.dumps([source.repo, source.arguments, data.dataset_key, data.limit, template, system_prompt])
    record = output.with_name(f"{output.stem}_source.json")
    if output.exists() and (not record.exists() or record.read_bytes() == made_from):
        return output  # without a record: placed there by hand
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".rows-", dir=output.parent) as folder:
        raw = _prepared(data, source, template, system_prompt, Path(folder) / "rows.jsonl")
        replace(record, b"")  # a crash now leads to another preparation
        if template is None:
            raw.rename(output)
        else:
            replace(output, (orjson.dumps(_with_prompt(row, template)) + b"\n" for row in _rows(raw)))
        replace(record, made_from)
    return output


def _prepared(
    data: DataSection, source: DatasetSource, template: str | None, system_prompt: str | None, output: Path
) -> Path:
    """Run the environment's `prepare` and return the path of its rows, `output`."""
    command = [sys.executable, "-m", f"rollyard.resources_servers.{source.environment}.prepare", *source.arguments]
    command += ["--output", str(output), *_location(data, source)]
    if source.environment in ("gsm8k", "math"):
        command += ["--split", data.dataset_key]
        if system_prompt is not None:
            command += ["--system-prompt", system_prompt]
        elif template is not None:
            command += ["--system-prompt", ""]  # the template carries the instructions, as in NeMo-RL
    if data.limit is not None:
        command += ["--limit", str(data.limit)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        problem = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        error = OperatorError if done.returncode == 2 else RunError
        raise error(f"the rows of {data.dataset_name} could not be prepared: {''.join(problem)}")
    return output


def _location(data: DataSection, source: DatasetSource) -> list[str]:
    if data.local_root is None:
        return ["--hub", source.repo]
    local = data.local_root / source.repo
    if not local.exists():
        raise OperatorError(f"data.local_root has no folder {source.repo} (looked for {local})")
    return ["--local", str(local), "--offline"]


def _template(path: Path) -> str:
    template = _text(path)
    if "{}" not in template:
        raise OperatorError(f"data.prompt_file {str(path)!r} does not contain {{}}, where the problem is inserted")
    return template


def _text(path: Path) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OperatorError(f"prompt file {str(path)!r} cannot be read: {error}") from error


def _rows(path: Path) -> Iterator[Json]:
    for line in iter_jsonl(Lines(path), refuse(path)):
        yield line.value


def _with_prompt(row: Json, template: str) -> Json:
    """Return the row with the template around the last user message."""
    params = dict(row["responses_create_params"])
    items = [dict(item) for item in params["input"]]
    last = max(number for number, item in enumerate(items) if item.get("role") == "user")
    items[last]["content"] = template.replace("{}", items[last]["content"])
    return {**row, "responses_create_params": {**params, "input": items}}
