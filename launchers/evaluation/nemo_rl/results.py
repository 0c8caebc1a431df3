"""Writes the results of an evaluation in NeMo-RL's formats."""

from __future__ import annotations

from pathlib import Path

import orjson

from rollyard.analysis.metrics.loader.load_run import load
from rollyard.launchers.evaluation.nemo_rl.config import NemoRlConfig
from rollyard.records.errors import RunError
from rollyard.records.io.jsonl import iter_jsonl, refuse, replace
from rollyard.records.io.lines import Lines
from rollyard.records.rollouts.rewards import is_measured
from rollyard.records.types import Json

_WIDTH = 60


def score(config: NemoRlConfig, rollouts: Path) -> tuple[float, int]:
    """Return the mean of pass@k or cons@k over the tasks, and the number of tasks.

    Raises RunError if no task has k rollouts, or rows have no answers.
    """
    tasks = load(rollouts).profile.tasks
    k, metric = config.eval.k_value, config.eval.metric
    found = next((one for one in tasks.pass_at if one.k == k), None) if tasks else None
    if found is None:
        raise RunError(
            f"{rollouts}: no task has {k} rollouts, which {metric.replace('k', str(k))} requires; raise "
            "eval.num_tests_per_prompt, or lower eval.k_value"
        )
    if metric == "pass@k":
        return found.any.mean, found.tasks
    if found.consensus is None:
        raise RunError(
            f"{rollouts}: cons@{k} is undefined; it requires extracted_answer in the rows and k up to 128: use pass@k"
        )
    return found.consensus.mean, found.tasks


def summary(config: NemoRlConfig, rollouts: Path) -> str:
    """Return the block that NeMo-RL prints at the end."""
    generation, evaluation = config.generation, config.eval
    metric = f"{evaluation.metric.removesuffix('k')}{evaluation.k_value}"
    average, tasks = score(config, rollouts)
    lines = [
        f"model_name={generation.model_name!r} dataset_name={config.data.dataset_name!r}",
        f"max_new_tokens={generation.max_new_tokens or generation.vllm_cfg.max_model_len} "
        f"temperature={generation.temperature} top_p={generation.top_p} top_k={generation.top_k} "
        f"seed={evaluation.seed}",
        "",
        f"metric={metric} num_tests_per_prompt={evaluation.num_tests_per_prompt}",
        "",
        f"score={average:.4f} ({round(average * tasks, 9)}/{tasks})",
    ]
    return "\n".join(["", "=" * _WIDTH, *lines, "=" * _WIDTH])


def save(config: NemoRlConfig, rollouts: Path) -> list[Path]:
    """Write config.json and evaluation_data.json to `eval.save_path`, if it is set; return the paths of the files."""
    folder = config.eval.save_path
    if folder is None:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    generation, evaluation = config.generation, config.eval
    settings = {
        "model_name": generation.model_name,
        "dataset_name": config.data.dataset_name,
        "metric": evaluation.metric,
        "k_value": evaluation.k_value,
        "num_tests_per_prompt": evaluation.num_tests_per_prompt,
        "temperature": generation.temperature,
        "top_p": generation.top_p,
        "top_k": generation.top_k,
    }
    written = [folder / "config.json", folder / "evaluation_data.json"]
    replace(written[0], orjson.dumps(settings, option=orjson.OPT_INDENT_2))
    samples = [_sample(line.value) for line in iter_jsonl(Lines(rollouts), refuse(rollouts)) if is_measured(line.value)]
    replace(written[1], orjson.dumps({"evaluation_data": samples}, option=orjson.OPT_INDENT_2))
    return written


def _sample(row: Json) -> Json:
    """Return one sample with the keys of NeMo-RL; the message log and the environment's values are strings there."""
    items, output = row["responses_create_params"]["input"], row["response"]["output"]
    prompt = items if isinstance(items, str) else "\n".join(_text(item) for item in items)
    response = "".join(_text(item) for item in output)
    messages = [*([{"role": "user", "content": items}] if isinstance(items, str) else items), *output]
    extra = {key: row[key] for key in ("expected_answer", "extracted_answer", "success") if key in row}
    return {
        "prompt": prompt,
        "response": response,
        "reward": row["reward"],
        "message_log": str(messages),
        "extra_env_info": str(extra),
        "sample_index": row["_ng_rollout_index"],
    }


def _text(item: Json) -> str:
    content = item.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""
