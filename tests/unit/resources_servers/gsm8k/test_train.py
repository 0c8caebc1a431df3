"""The options of train_gsm8k.py, and the training run that they stand for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.resources_servers.gsm8k.train import loggers_of, served_model, train_settings, training_parser
from rollyard.training.train_config import TrainConfig
from tests.support.sokoban_page import free_port

DEFAULTS: Json = {
    "model": "Qwen/Qwen2.5-0.5B-Instruct",
    "host": "127.0.0.1",
    "port": 8000,
    "split": "train",
    "limit": None,
    "concurrency": 64,
    "rollouts_per_update": 256,
    "train_steps": 20,
    "group_size": 8,
    "train_temperature": 1.0,
    "max_seq_len": 1024,
    "micro_token_budget": 16384,
    "max_completion_tokens": 512,
    "logger": "rich",
    "system_prompt": r"First, think step by step. Then put your final answer inside \boxed{...}.",
    "eval_every": 10,
    "eval_before_start": True,
    "eval_limit": 1000,
    "eval_concurrency": 64,
    "eval_temperature": 0.0,
    "rollout_log": Path("gsm8k_train_rollouts.jsonl"),
    "final_save": False,
}
"""Those of ludic's script."""


def config(*arguments: str) -> TrainConfig:
    options = training_parser(None).parse_args(arguments)
    evaluation = Path("/rows/eval.jsonl") if options.eval_limit else None
    return TrainConfig.model_validate(train_settings(options, Path("/rows/train.jsonl"), evaluation, "served"))


def test_the_options_have_the_names_and_defaults_of_the_original_script() -> None:
    options = vars(training_parser(None).parse_args([]))
    assert {name: options[name] for name in DEFAULTS} == DEFAULTS


def test_the_defaults_are_the_training_run_of_the_original_script() -> None:
    found, loss = config(), config().loss.resolved
    assert (found.groups_per_step, found.group_size, found.max_steps, found.checkpoint_interval) == (32, 8, 20, 25)
    assert (loss.ratio, loss.epsilon, loss.epsilon_high) == ("sequence", 3e-4, 4e-4)
    optimizer = found.optimizer
    assert (optimizer.learning_rate, optimizer.weight_decay, optimizer.max_grad_norm) == (1e-5, 0.01, 0.5)
    assert (optimizer.dtype, optimizer.gradient_checkpointing, found.keep_checkpoints) == ("bfloat16", True, 2)
    assert found.responses_create_params == {"temperature": 1.0, "max_output_tokens": 512}
    assert found.output_dir == Path("checkpoints_gsm8k") and found.evaluation.before_start


def test_l2_zero_train_steps_use_every_question_once() -> None:
    found = config("--train-steps", "0")
    assert (found.max_steps, found.epochs) == (0, 1)


def test_l3_the_evaluation_can_be_turned_off() -> None:
    assert not config("--no-eval-before-start").evaluation.before_start
    assert config("--eval-limit", "0").evaluation.input_jsonl_fpath is None


def test_the_servers_get_the_vllm_server_and_the_rewards() -> None:
    overrides = config("--host", "gpu1", "--port", "81", "--format-penalty", "0").overrides
    assert '+policy_base_url="http://gpu1:81/v1"' in overrides
    assert "+policy_model_name=served" in overrides
    reward = [line.partition("gsm8k.")[2] for line in overrides if ".gsm8k." in line]
    assert reward == ["score=strict", "format_reward=0.1", "format_penalty=0.0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rollouts-per-update", "0"], "0.*--group-size.* 8$"),
        (["--rollouts-per-update", "-8"], "positive multiple"),
        (["--rollouts-per-update", "20"], " 20;.*--group-size.* 8$"),
        (["--max-completion-tokens", "2000"], r"--max-completion-tokens \(2000\) .*--max-seq-len \(1024\)"),
        (["--logger", "rich,tensorboard"], "tensorboard.* rich, print, wandb, mlflow or none"),
        (["--train-steps", "-1"], "--train-steps.*-1"),
    ],
)
def test_contradictory_or_unknown_values_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        config(*arguments)


def test_several_loggers_are_separated_by_comma_or_plus() -> None:
    found = [loggers_of(text) for text in ("rich", "rich,wandb", "print+wandb", "none")]
    assert found == [["rich"], ["rich", "wandb"], ["print", "wandb"], []]


@contextmanager
def vllm(paths: dict[str, str]) -> Iterator[str]:
    """A server with these responses; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = paths.get(self.path)
            self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write((found or "").encode())

        def log_message(self, format: str, *values: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def models(*entries: dict[str, str]) -> str:
    return json.dumps({"data": entries})


def test_the_name_is_the_servers_for_the_model_and_a_folder_replaces_the_weights_of_the_only_one(
    tmp_path: Path,
) -> None:
    listed = models({"id": "other", "root": "/models/other"}, {"id": "policy", "root": "/models/qwen"})
    with vllm({"/v1/models": listed, "/is_paused": "{}"}) as url:
        assert served_model(url, "/models/qwen") == "policy"
    listed = models({"id": "base", "root": "/models/base"}, {"id": "/models/base", "root": "/models/base"})
    with vllm({"/v1/models": listed, "/is_paused": "{}"}) as url:
        assert served_model(url, str(tmp_path)) == "base"


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ({"/v1/models": models({"id": "m"})}, "VLLM_SERVER_DEV_MODE=1"),
        ({"/v1/models": models({"id": "other"})}, "other; expected m"),
        ({"/v1/models": "<html>"}, "is it a vLLM server"),
    ],
)
def test_a_server_that_cannot_be_trained_is_refused_with_what_it_needs(paths: dict[str, str], message: str) -> None:
    with vllm(paths) as url, pytest.raises(OperatorError, match=message):
        served_model(url, "m")
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(OperatorError, match=url):
        served_model(url, "m", wait_s=0.0)
