"""Train a model on GSM8K with a vLLM server that is already running.

The folder of the run, --output-dir, contains checkpoints, metrics and rollouts. Running the same command again
continues an interrupted run.
"""

from __future__ import annotations

import argparse
import re
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, build_opener

import orjson

from rollyard.records.errors import OperatorError
from rollyard.records.jsonl import replace
from rollyard.records.rollout_file import check_output
from rollyard.records.script import ScriptParser, not_negative, own_command, positive, run_foreground, run_script
from rollyard.records.types import Json
from rollyard.resources_servers.gsm8k.app import SYSTEM
from rollyard.resources_servers.gsm8k.evaluate import write_rollout_log
from rollyard.resources_servers.gsm8k.prepare import prepare_rows
from rollyard.services.config.overrides import format_value
from rollyard.services.config.settings_file import dump_settings


def main(arguments: list[str] | None = None) -> int:
    """Prepare the rows, run `ng_train` on them, and write the rollout log. Returns the exit status."""
    options = training_parser(__doc__).parse_args(arguments)
    check_output(options.rollout_log)
    # Beside the run's folder, which only ng_train writes.
    inputs = options.output_dir.resolve().with_name(f"{options.output_dir.name}_inputs")
    rows, evaluation_rows = inputs / "train.jsonl", inputs / "eval.jsonl" if options.eval_limit else None
    train_settings(options, rows, evaluation_rows, options.model)  # contradictions, before waiting for the server
    name = served_model(f"http://{options.host}:{options.port}", options.model)
    inputs.mkdir(parents=True, exist_ok=True)
    prompt, local = options.system_prompt, options.local
    status = prepare_rows(rows, split=options.split, system_prompt=prompt, limit=options.limit, local=local)
    if not status and evaluation_rows is not None:
        held_out = {"split": options.eval_split, "limit": options.eval_limit, "local": options.eval_local or local}
        status = prepare_rows(evaluation_rows, system_prompt=prompt, **held_out)
    if status:
        return status
    file = inputs / "train.yaml"
    replace(file, dump_settings(train_settings(options, rows, evaluation_rows, name)).encode())
    status = run_foreground(own_command("ng_train", str(file)))
    files = sorted((options.output_dir / "rollouts").glob("step_*.jsonl"))
    if played := [path for path in files if re.fullmatch(r"step_\d+\.jsonl", path.name)]:
        print(f"Wrote {write_rollout_log(played, options.rollout_log)} rollouts to {options.rollout_log}")
    return status


LOGGERS = ("rich", "print", "wandb", "mlflow")
_ENVIRONMENT = "gsm8k_resources_server.resources_servers.gsm8k"
_POLICY = "policy_model.responses_api_models.vllm_model"
_CONFIGS = ("resources_servers/gsm8k/configs/gsm8k.yaml", "responses_api_models/vllm_model/configs/vllm_model.yaml")


def training_parser(description: str | None) -> argparse.ArgumentParser:
    parser = ScriptParser(
        description=description, allow_abbrev=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add, switch = parser.add_argument, argparse.BooleanOptionalAction
    add("--model", default="Qwen/Qwen2.5-0.5B-Instruct", help="hub name or folder of the initial policy")
    add("--host", default="127.0.0.1", help="host of the running vLLM server")
    add("--port", type=positive, default=8000, help="port of the running vLLM server")
    add("--split", default="train", help="split of openai/gsm8k to train on")
    add("--limit", type=positive, help="number of questions to train on; without it, all")
    add("--local", type=Path, help="GSM8K rows on this machine, instead of the Hugging Face hub")
    add("--system-prompt", default=SYSTEM, help="system prompt of training and evaluation")
    add("--concurrency", type=positive, default=64, help="rollouts in flight")
    add("--rollouts-per-update", type=int, default=256, help="a multiple of --group-size")
    add("--group-size", type=positive, default=8, help="rollouts per question")
    add("--train-steps", type=not_negative, default=20, help="updates; 0: until the questions are exhausted")
    add("--train-temperature", type=float, default=1.0, help="sampling temperature of training")
    add("--max-seq-len", type=positive, default=1024, help="longest sequence to train on, in tokens")
    add("--max-completion-tokens", type=positive, default=512, help="longest response, in tokens")
    add("--micro-token-budget", type=positive, default=16384, help="tokens per micro-batch, padding included")
    add("--eval-before-start", action=switch, default=True, help="evaluate before the first update")
    add("--eval-every", type=not_negative, default=10, help="updates between evaluations; 0: none during training")
    add("--eval-limit", type=not_negative, default=1000, help="questions of an evaluation; 0: no evaluation")
    add("--eval-split", default="test", help="split to evaluate on")
    add("--eval-local", type=Path, help="rows to evaluate on; without it, --local")
    add("--eval-concurrency", type=positive, default=64, help="questions in flight during an evaluation")
    add("--eval-temperature", type=float, default=0.0, help="0 decodes greedily")
    add("--format-reward", type=float, default=0.1, help="added for a non-empty box")
    add("--format-penalty", type=float, default=1.0, help="subtracted without one")
    add("--algorithm", default="gspo", help="loss; the names are those of ng_train")
    add("--learning-rate", type=float, default=1e-5, help="learning rate of AdamW")
    add("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="type of the trainer's weights")
    add("--gradient-checkpointing", action=switch, default=True, help="save memory, compute activations twice")
    add("--shuffle", action=switch, default=True, help="shuffle the questions by --seed")
    add("--seed", type=not_negative, default=42, help="seed of the order of the questions and of the trainer")
    add("--checkpoint-every", type=not_negative, default=25, help="updates between checkpoints; 0: only the last")
    add("--output-dir", type=Path, default=Path("checkpoints_gsm8k"), help="folder of the run")
    add("--rollout-log", type=Path, default=Path("gsm8k_train_rollouts.jsonl"), help="one line per rollout")
    add("--logger", default="rich", help="rich, print, wandb, mlflow or none; several with , or +")
    add("--final-save", action="store_true", help="accepted; the last checkpoint is always saved")
    return parser


def loggers_of(text: str) -> list[str]:
    """Return the loggers in `rich,wandb` or `rich+wandb`; none for `none`. Raises OperatorError for unknown ones."""
    names = [name.strip().lower() for name in text.replace("+", ",").split(",") if name.strip()]
    unknown = [name for name in names if name not in (*LOGGERS, "none")]
    if unknown or not names:
        raise OperatorError(f"--logger is {text!r}; expected {', '.join(LOGGERS)} or none; several with , or +")
    return [name for name in dict.fromkeys(names) if name != "none"]


def train_settings(options: argparse.Namespace, rows: Path, evaluation_rows: Path | None, served_name: str) -> Json:
    """Return `ng_train`'s keys. Raises OperatorError for values that contradict each other."""
    rollouts, size, longest = options.rollouts_per_update, options.group_size, options.max_completion_tokens
    if rollouts <= 0 or rollouts % size:
        reason = f"--rollouts-per-update is {rollouts}; expected a positive multiple of --group-size, which is {size}"
        raise OperatorError(reason)
    if longest > options.max_seq_len:
        reason = f"--max-completion-tokens ({longest}) exceeds --max-seq-len ({options.max_seq_len})"
        raise OperatorError(f"{reason}: complete responses would be too long to train on")
    sampling = {"max_output_tokens": longest}
    return {
        "model": options.model,
        "output_dir": str(options.output_dir),
        "config_paths": list(_CONFIGS),
        "overrides": _overrides(options, served_name),
        "agent_name": "gsm8k_agent",
        "input_jsonl_fpath": str(rows),
        "shuffle": options.shuffle,
        "seed": options.seed,
        "max_steps": options.train_steps,
        "groups_per_step": rollouts // size,
        "group_size": size,
        "responses_create_params": {"temperature": options.train_temperature, **sampling},
        "num_samples_in_parallel": options.concurrency,
        "loss": {"algorithm": options.algorithm},
        "optimizer": {
            "learning_rate": options.learning_rate,
            "weight_decay": 0.01,
            "max_grad_norm": 0.5,
            "max_seq_len": options.max_seq_len,
            "micro_token_budget": options.micro_token_budget,
            "dtype": options.dtype,
            "gradient_checkpointing": options.gradient_checkpointing,
        },
        "evaluation": {
            "input_jsonl_fpath": None if evaluation_rows is None else str(evaluation_rows),
            "before_start": options.eval_before_start,
            "interval": options.eval_every,
            "limit": options.eval_limit or None,
            "responses_create_params": {"temperature": options.eval_temperature, **sampling},
            "num_samples_in_parallel": options.eval_concurrency,
        },
        "checkpoint_interval": options.checkpoint_every,
        "keep_checkpoints": 2,
        "loggers": loggers_of(options.logger),
    }


def _overrides(options: argparse.Namespace, served_name: str) -> list[str]:
    values = {
        "+policy_base_url": f"http://{options.host}:{options.port}/v1",
        "+policy_model_name": served_name,
        "+policy_api_key": "",
        f"{_POLICY}.uses_reasoning_parser": False,
        f"++{_ENVIRONMENT}.score": "strict",
        f"++{_ENVIRONMENT}.format_reward": options.format_reward,
        f"++{_ENVIRONMENT}.format_penalty": options.format_penalty,
    }
    return [f"{name}={format_value(value)}" for name, value in values.items()]


WAIT_S = 60.0
"""How long to wait for a server that is still starting."""
_PAUSE_S = 2.0
_TIMEOUT_S = 10.0


def served_model(url: str, model: str, *, wait_s: float = WAIT_S) -> str:
    """Return the name under which the vLLM server at `url` serves `model`.

    If `model` is a folder, the server's only model may be another one, because training begins with an update of its
    weights; the model server refuses the weights of another architecture. Raises OperatorError if no server responds
    within `wait_s` seconds, if it serves other models, or if its weights cannot be updated.
    """
    until = time.monotonic() + wait_s
    while True:
        try:
            status, body = _get(f"{url}/v1/models")
            break
        except (URLError, OSError) as error:
            if time.monotonic() >= until:
                reason = f"no vLLM server answers at {url} ({getattr(error, 'reason', error)}): start one with "
                remedy = "`python -m ludic.inference.vllm_server --model MODEL`, or pass --host and --port"
                raise OperatorError(reason + remedy) from error
            time.sleep(_PAUSE_S)
    try:
        listed: list[dict[str, Any]] = list(orjson.loads(body)["data"])
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        reason = f"{url}/v1/models answers with status {status}, but not with a list of models"
        raise OperatorError(f"{reason}: is it a vLLM server?") from error
    names = [str(entry["id"]) for entry in listed if model in (entry.get("id"), entry.get("root"))]
    roots = {entry.get("root") or entry.get("id") for entry in listed}  # a model may have several names
    if not names and len(roots) == 1 and Path(model).is_dir():
        names = [str(listed[0]["id"])]
        print(f"{url} serves {names[0]}; training replaces its weights by those of {model}")
    if not names:
        known = ", ".join(str(entry.get("id")) for entry in listed) or "no model"
        raise OperatorError(f"{url} serves {known}; expected {model}: pass the same --model to both programs")
    # In vLLM 0.32, this path exists only in development mode, as do those that change weights.
    status, _ = _get(f"{url}/is_paused")
    if status == HTTPStatus.NOT_FOUND:
        raise OperatorError(
            f"the vLLM server at {url} has no endpoints for weight updates: start it with VLLM_SERVER_DEV_MODE=1 in "
            "its environment, and with --logprobs-mode processed_logprobs, as `python -m ludic.inference.vllm_server` "
            "does. Everybody who reaches its port can then change its weights: serve on 127.0.0.1"
        )
    return names[0]


def _get(url: str) -> tuple[int, bytes]:
    # No proxy: the server is on this host or in this network.
    try:
        with build_opener(ProxyHandler({})).open(url, timeout=_TIMEOUT_S) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        return error.code, error.read()


if __name__ == "__main__":
    run_script(main)
