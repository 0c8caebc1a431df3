"""Evaluate a model on GSM8K: accuracy, unreadable answers and completion lengths.

The rollouts, their report and the logs are in a folder named after --out. Running the same command again continues an
interrupted evaluation.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

import orjson
import yaml

from rollyard.records import script
from rollyard.records.errors import OperatorError
from rollyard.records.jsonl import Lines, iter_jsonl, refuse, replace
from rollyard.records.rewards import is_measured
from rollyard.records.rollout_file import check_output
from rollyard.records.types import Json
from rollyard.resources_servers.gsm8k.app import MAX_OUTPUT_TOKENS
from rollyard.resources_servers.gsm8k.prepare import prepare_rows


def write_rollout_log(files: list[Path], output: Path) -> int:
    return _write_lines(output, (_log_record(path.stem, row) for path in files for row in measured_rows(path)))


def _write_lines(output: Path, rows: Iterable[Json]) -> int:
    """Write one line per row, replacing `output`, and return their number."""
    count = 0

    def lines() -> Iterator[bytes]:
        nonlocal count
        for row in rows:
            count += 1
            yield orjson.dumps(row) + b"\n"

    replace(output, lines())
    return count


def measured_rows(path: Path) -> Iterator[Json]:
    """Yield the rollouts with a reward. The last line of a file that is still being written may be incomplete."""
    for line in iter_jsonl(Lines(path, whole=True), refuse(path)):
        if is_measured(line.value):
            yield line.value


def response_text(row: Json) -> str:
    parts = [part for item in row["response"]["output"] if item.get("type") == "message" for part in item["content"]]
    return "".join(part.get("text", "") for part in parts)


def question_text(row: Json) -> str:
    items = row["responses_create_params"]["input"]
    return str(items if isinstance(items, str) else items[-1]["content"])


def _log_record(step: str, row: Json) -> Json:
    duration_s = (row.get("timings") or {}).get("total_s")
    info: Json = {
        "parsed_answer": row.get("extracted_answer"),
        "target_answer": row.get("expected_answer"),
        "completion_length": completion_tokens(row),
        "finish_reason": row.get("finish_reason"),
        "reward_components": row.get("reward_components"),
    }
    info |= {"parse_error": True} if row.get("parse_error") else {"correct": row.get("success") is True}
    truncated = row.get("finish_reason") == "length"
    played = {"index": 0, "prev_obs": question_text(row), "action": response_text(row), "next_obs": None}
    ended = {"reward": row["reward"], "truncated": truncated, "terminated": not truncated}
    return {
        "id": f"{step}-{row['_ng_task_index']}-{row['_ng_rollout_index']}",
        "meta": {"train_step": step, "question_id": row.get("id"), "task_key": row.get("_ng_task_key")},
        "steps": [{**played, **ended, "info": info}],
        "total_reward": row["reward"],
        "length": 1,
        "duration_ns": None if duration_s is None else round(duration_s * 1e9),
    }


def figures(rows: Iterable[Json]) -> dict[str, str]:
    """Return the figures of the rollout rows by name: shares of all rollouts, and lengths in tokens. The names are
    those of this project's and of ludic's scripts.
    """
    count = correct = unreadable = 0
    lengths: list[int] = []
    for row in rows:
        count += 1
        correct += row.get("success") is True
        unreadable += bool(row.get("parse_error", row.get("extracted_answer") is None))
        lengths += [] if (tokens := completion_tokens(row)) is None else [tokens]
    right, unread = (f"{100 * part / max(count, 1):.2f}%" for part in (correct, unreadable))
    length = f"{sum(lengths) / len(lengths):.1f}" if lengths else "unknown"
    found = {"accuracy": right, "correct_rate": right, "parse_err_rate": unread, "parse_error_rate": unread}
    found |= {"avg_completion_length": length, "avg_completion_tokens": length}
    return {**found, "total_completion_tokens": str(sum(lengths))}


def completion_tokens(row: Json) -> int | None:
    tokens = (row["response"].get("usage") or {}).get("output_tokens")
    return tokens if isinstance(tokens, int) else None


def main(arguments: list[str] | None = None) -> int:
    """Prepare the rows, run `ng_eval` on them, and print the figures. Returns the exit status."""
    parser = script.ScriptParser(description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--model", default="Qwen/Qwen2.5-7B-Instruct", help="hub name or folder (default %(default)s)")
    add("--host", default="127.0.0.1", help="host of the vLLM server (default %(default)s)")
    add("--port", type=int, default=8000, help="port of the vLLM server (default %(default)s)")
    add("--start-server", action="store_true", help="start vLLM, and stop it at the end")
    add("--gpu-memory-utilization", "--gpu_memory_utilization", type=float, default=0.7)
    add("--max-model-len", "--max_model_len", type=script.positive, help="maximum context length in tokens")
    add("--split", default="test", help="split of openai/gsm8k (default %(default)s)")
    add("--limit", type=script.positive, help="number of questions (default: all)")
    add("--local", type=Path, help="GSM8K rows on this machine, instead of the Hugging Face hub")
    add("--system-prompt", default="", help="system prompt (default: none)")
    add("--temperature", type=float, default=0.0, help="0 decodes greedily (default)")
    add("--max-tokens", type=script.positive, default=MAX_OUTPUT_TOKENS, help="default %(default)s")
    add("--max-steps", type=script.positive, default=1, help="model calls per question (default 1)")
    add("--timeout-s", type=float, help="time limit of one question in seconds")
    add("--concurrency", type=script.positive, default=64, help="questions in flight (default %(default)s)")
    add("--out", type=Path, default=Path("gsm8k_eval.jsonl"), help="default %(default)s")
    options = parser.parse_args(arguments)
    if not options.out.suffix:
        raise OperatorError(f"--out is {str(options.out)!r}; expected a file name such as gsm8k_eval.jsonl")
    check_output(options.out)
    folder = options.out.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    rows = folder / "rows.jsonl"
    given = {name: getattr(options, name) for name in ("split", "system_prompt", "limit", "local")}
    if status := prepare_rows(rows, **given):
        return status
    config = folder / "config.yaml"
    replace(config, yaml.safe_dump(_eval_config(options, rows, folder), sort_keys=False, allow_unicode=True).encode())
    status = script.run_foreground(script.own_command("ng_eval", str(config)))
    rollouts = folder / "rollouts.jsonl"
    if status in (script.EXIT_USAGE, script.EXIT_INTERRUPTED) or not rollouts.is_file():
        return status or script.EXIT_FAILED  # rollouts.jsonl may be that of other options
    count = _write_lines(options.out, map(_record, measured_rows(rollouts)))
    print("---- GSM8K Evaluation ----")
    for name, figure in figures(measured_rows(rollouts)).items():
        print(f"{name}: {figure}")
    print(f"Wrote {count} step records to {options.out}")
    return status


def _eval_config(options: argparse.Namespace, rows: Path, folder: Path) -> Json:
    config: Json = {
        "model": f"vllm/{options.model}" if options.start_server else options.model,
        "environments": ["gsm8k"],
        "overrides": [f"gsm8k_agent.responses_api_agents.simple_agent.max_steps={options.max_steps}"],
        "input_jsonl_fpath": str(rows.resolve()),
        "num_repeats": 1,
        "colocate": True,  # three small servers; the comparisons have processes of their own
        "num_samples_in_parallel": options.concurrency,
        "responses_create_params": {"temperature": options.temperature, "max_output_tokens": options.max_tokens},
        "output_dir": str(folder.resolve()),
    }
    if options.timeout_s:
        config["rollout_timeout_s"] = options.timeout_s
    if options.start_server:
        vllm: Json = {"port": options.port, "gpu_memory_utilization": options.gpu_memory_utilization}
        # As vllm_server.py: sampling parameters of the model's own file, such as a repetition penalty, change scores.
        vllm["args"] = ["--generation-config=vllm"]
        config["vllm"] = vllm | ({"max_model_len": options.max_model_len} if options.max_model_len else {})
    elif options.model != "builtin":
        config["policy_base_url"] = f"http://{options.host}:{options.port}/v1"
    return config


def _record(row: Json) -> Json:
    """Return one line of --out: the only step of an episode, under the original script's names."""
    answer, gold = row.get("extracted_answer"), row.get("expected_answer")
    record: Json = {
        "rollout_id": f"{row['_ng_task_index']}-{row['_ng_rollout_index']}",
        "step_index": 0,
        "question_id": row.get("id", row["_ng_task_index"]),
        "prev_obs": question_text(row),
        "action": response_text(row),
        "raw_action": response_text(row),
        "parsed_answer": answer,
        "target_answer": gold,
        "reward": row["reward"],
        "total_reward": row["reward"],
        "completion_length": completion_tokens(row),
        "truncated": row.get("finish_reason") == "length",
        "terminated": True,
    }
    return record | ({"parse_error": True} if answer is None else {"correct": row.get("success") is True})


if __name__ == "__main__":
    script.run_script(main)
