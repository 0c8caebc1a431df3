"""The options of train_gsm8k.py, and the training run that they stand for."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import orjson
import pytest

from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import Failure, OperatorError
from rollyard.records.types import Json
from rollyard.resources_servers.gsm8k.app import server
from rollyard.resources_servers.gsm8k.evaluate import figures, write_rollout_log
from rollyard.resources_servers.gsm8k.evaluate import main as evaluate
from rollyard.resources_servers.gsm8k.train import loggers_of, served_model, train_settings, training_parser
from rollyard.services.http.request import HttpResponse
from rollyard.training.train_config import TrainConfig
from rollyard.training.weight_publisher import PolicyClient
from tests.support.processes import free_port
from tests.unit.resources_servers.answers.grading import in_process_server

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


DROP_IN = INSTALLED / "examples" / "drop_in"
LUDIC = {"score": "strict", "format_reward": 0.1, "format_penalty": 1.0}
"""The settings with the rewards of ludic's training."""


def test_l4_evaluation_has_the_documented_default_prompt_and_names(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        evaluate(["--help"])
    assert "system prompt (default: none)" in " ".join(capsys.readouterr().out.split())
    names = {*figures([])}
    assert {"correct_rate", "parse_err_rate", "avg_completion_length", "total_completion_tokens"} <= names


@pytest.mark.parametrize("text", [r"First \boxed{17}. Wait, no: \boxed{18}", r"\boxed{\frac{36}{2}}"])
async def test_l5_the_last_box_with_its_nested_braces_counts_without_a_think_tag(text: str) -> None:
    async with in_process_server(server) as environment:
        verdict = await environment.verdict({"question": "How many?", "expected_answer": "18"}, text)
    assert (verdict["reward"], verdict["parse_error"]) == (1.0, False)


def test_l6_an_output_file_without_a_suffix_is_refused_before_anything_is_played() -> None:
    with pytest.raises(OperatorError, match="results"):
        evaluate(["--out", "results"])


async def test_l9_the_format_is_worth_more_than_the_answer_only_with_the_published_values() -> None:
    texts = {"right": r"\boxed{18}", "wrong": r"\boxed{17}", "none": "No idea."}
    worth = {}
    for name, settings in {"published": LUDIC, "sane": {**LUDIC, "format_penalty": 0.0}}.items():
        async with in_process_server(server, **settings) as environment:
            row = {"question": "How many?", "expected_answer": "18"}
            reward = {key: (await environment.verdict(row, text))["reward"] for key, text in texts.items()}
        worth[name] = (reward["right"] - reward["wrong"], reward["wrong"] - reward["none"])
    assert worth["published"] == pytest.approx((1.0, 1.1))
    assert worth["sane"] == pytest.approx((1.0, 0.1))


@pytest.mark.parametrize(
    ("arguments", "host", "can_update"),
    [
        ([], "127.0.0.1", True),
        (["--host", "0.0.0.0"], "0.0.0.0", False),
        (["--host", "0.0.0.0", "--allow-weight-updates"], "0.0.0.0", True),
    ],
)
def test_l11_weights_can_be_updated_only_from_this_host_unless_allowed(
    arguments: list[str], host: str, can_update: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[list[str], dict[str, str]]] = []
    (tmp_path / "vllm").touch()
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setattr("sys.argv", ["vllm_server.py", "--model", "m", *arguments])
    monkeypatch.setattr("os.execve", lambda _, command, environ: started.append((command, environ)))
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    runpy.run_path(str(DROP_IN / "ludic" / "inference" / "vllm_server.py"), run_name="__main__")
    [(command, environ)] = started
    assert command[command.index("--host") + 1] == host
    assert ("VLLM_SERVER_DEV_MODE" in environ) is can_update


async def test_l12_a_failed_question_for_the_version_is_a_failure() -> None:
    class Broken:
        async def send(self, *_: object) -> HttpResponse:
            return HttpResponse(500, {}, orjson.dumps({"detail": "no engine"}))

    with pytest.raises(Failure):
        await PolicyClient(Broken(), "http://policy:1", None).status(1.0)  # type: ignore[arg-type]


def rollout(task: int, repeat: int, **fields: object) -> Json:
    return {
        "_ng_task_index": task,
        "_ng_rollout_index": repeat,
        "id": f"gsm8k_{task}",
        "responses_create_params": {"input": [{"role": "user", "content": "How many?"}]},
        "response": {
            "output": [{"type": "message", "content": [{"type": "output_text", "text": r"\boxed{18}"}]}],
            "usage": {"output_tokens": 7},
        },
        "reward": 1.1,
        "success": True,
        "parse_error": False,
        "extracted_answer": "18",
        "expected_answer": "18",
        "finish_reason": "answered",
        "timings": {"total_s": 0.5},
        **fields,
    }


def write(path: Path, *rows: Json) -> Path:
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def log_of(tmp_path: Path, *files: Path) -> list[Json]:
    write_rollout_log(list(files), tmp_path / "log.jsonl")
    return [orjson.loads(line) for line in (tmp_path / "log.jsonl").read_bytes().splitlines()]


def test_a_line_has_the_keys_of_the_original_log(tmp_path: Path) -> None:
    (line,) = log_of(tmp_path, write(tmp_path / "step_000003.jsonl", rollout(4, 1)))
    assert {*line} == {"id", "meta", "steps", "total_reward", "length", "duration_ns"}
    (step,) = line["steps"]
    assert {*step} == {"index", "prev_obs", "action", "next_obs", "reward", "truncated", "terminated", "info"}
    assert (line["id"], line["total_reward"], line["duration_ns"]) == ("step_000003-4-1", 1.1, 500_000_000)
    assert (step["prev_obs"], step["action"]) == ("How many?", r"\boxed{18}")
    assert (step["info"]["correct"], step["info"]["completion_length"]) == (True, 7)


def test_an_unreadable_answer_has_parse_error_instead_of_correct(tmp_path: Path) -> None:
    row = rollout(0, 0, parse_error=True, success=False, reward=-1.0, finish_reason="length")
    (line,) = log_of(tmp_path, write(tmp_path / "step_000001.jsonl", row))
    info = line["steps"][0]["info"]
    assert info["parse_error"] is True and "correct" not in info
    assert (line["steps"][0]["truncated"], line["steps"][0]["terminated"]) == (True, False)


def test_writing_it_again_repeats_no_line_and_the_incomplete_last_line_of_a_collection_is_left_out(
    tmp_path: Path,
) -> None:
    file = write(tmp_path / "step_000001.jsonl", rollout(0, 0), rollout(0, 1))
    file.write_bytes(file.read_bytes() + b'{"_ng_task')
    assert len(log_of(tmp_path, file)) == len(log_of(tmp_path, file)) == 2


Measured = tuple[str | None, bool, int | None]
"""Extracted answer, success, output tokens."""
ROWS: list[Measured] = [("18", True, 10), ("17", False, 10), (None, False, 10), (None, False, None)]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (ROWS, ("25.00%", "50.00%", "10.0", "30")),
        ([("1", False, None)], ("0.00%", "0.00%", "unknown", "0")),
        ([], ("0.00%", "0.00%", "unknown", "0")),
    ],
)
def test_figures_have_the_names_of_both_scripts_and_lengths_cover_the_rollouts_with_usage(
    rows: list[Measured], found: tuple[str, ...]
) -> None:
    measured: list[Json] = [
        {"response": {"output": [], "usage": tokens and {"output_tokens": tokens}}, "extracted_answer": answer}
        | {"success": success, "reward": 0.0}
        for answer, success, tokens in rows
    ]
    right, unread, length, total = found
    assert figures(measured) == {
        **dict.fromkeys(("accuracy", "correct_rate"), right),
        **dict.fromkeys(("parse_err_rate", "parse_error_rate"), unread),
        **dict.fromkeys(("avg_completion_length", "avg_completion_tokens"), length),
        "total_completion_tokens": total,
    }
