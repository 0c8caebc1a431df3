"""The bugs L1 to L12 of ludic's GSM8K scripts (https://github.com/joanvelja/ludic at 321e8d7) do not exist here."""

from __future__ import annotations

import runpy
from pathlib import Path

import orjson
import pytest

from rollyard.records.errors import Failure, OperatorError, RunError
from rollyard.records.io.search_path import INSTALLED
from rollyard.resources_servers.answers.grader import AnswerGrader
from rollyard.resources_servers.gsm8k.app import server
from rollyard.resources_servers.gsm8k.evaluate import main as evaluate
from rollyard.resources_servers.gsm8k.prompt_formats import ANSWER_FORMS
from rollyard.resources_servers.gsm8k.reducers import reduce_rollouts
from rollyard.resources_servers.gsm8k.train import train_config
from rollyard.resources_servers.gsm8k.train_options import training_parser
from rollyard.services.http.transport import HttpResponse
from rollyard.training.endings import Treatment
from rollyard.training.groups.advantages import groups_of
from rollyard.training.metrics.staleness import staleness_of
from rollyard.training.metrics.step_metrics import step_metrics
from rollyard.training.play.task_order import TaskOrder
from rollyard.training.run.checkpoints import Checkpoints
from rollyard.training.train_config import TrainConfig
from rollyard.training.weights.policy_client import PolicyClient
from tests.unit.resources_servers.answers.grading import in_process_server, verification_of
from tests.unit.training.metrics.batches import TIMES, batch, failed, played
from tests.unit.training.recorded_turns import turn

DROP_IN = INSTALLED / "examples" / "drop_in"
LUDIC = {"score": "strict", "format_reward": 0.1, "format_penalty": 1.0}
"""The settings with the rewards of ludic's training."""


def config(*arguments: str) -> TrainConfig:
    return train_config(training_parser(None).parse_args(arguments), Path("/train.jsonl"), Path("/eval.jsonl"), "m")


@pytest.mark.parametrize(
    ("gold", "answer"),
    [("18", "18.0"), ("18", "18.00"), ("1018", "1,018"), ("18", r"\$18"), ("18", r"\frac{36}{2}"), ("18", r"18\%")],
)
async def test_l1_answers_are_compared_by_value_not_as_text(gold: str, answer: str) -> None:
    grade = await AnswerGrader(None).grade(gold, verification_of(rf"\boxed{{{answer}}}"), ANSWER_FORMS["chat"])
    assert grade.strict and grade.lenient


def test_l2_zero_train_steps_use_every_question_once() -> None:
    found = config("--train-steps", "0")
    assert (found.max_steps, found.epochs) == (0, 1)
    order = TaskOrder(10, seed=found.seed, shuffle=found.shuffle, epochs=found.epochs)
    drawn, end = order.take(order.position({}), 100)
    assert sorted(draw.row for draw in drawn) == list(range(10))
    assert order.take(end, 1)[0] == []


def test_l3_the_evaluation_before_the_start_can_be_turned_off() -> None:
    assert config().evaluation.before_start
    assert not config("--no-eval-before-start").evaluation.before_start


def test_l4_evaluation_has_the_documented_default_prompt_and_names(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        evaluate(["--help"])
    assert "system prompt (default: none)" in " ".join(capsys.readouterr().out.split())
    names = {line.partition(":")[0] for line in reduce_rollouts([]).lines()}
    assert {"correct_rate", "parse_err_rate", "avg_completion_length", "total_completion_tokens"} <= names


def test_l4_training_has_the_same_names() -> None:
    found = step_metrics(batch(played(1.0), played(0.0)), {}, TIMES)
    names = ("parse_err_rate", "avg_completion_length", "total_completion_tokens")
    assert {f"train/{name}" for name in names} <= {*found}


@pytest.mark.parametrize("text", [r"First \boxed{17}. Wait, no: \boxed{18}", r"\boxed{\frac{36}{2}}"])
async def test_l5_the_last_box_with_its_nested_braces_counts_without_a_think_tag(text: str) -> None:
    async with in_process_server(server) as environment:
        verdict = await environment.verdict({"question": "How many?", "expected_answer": "18"}, text)
    assert (verdict["reward"], verdict["parse_error"]) == (1.0, False)


def test_l6_one_failed_request_changes_no_other_rollout() -> None:
    [without] = groups_of([played(0.0), played(1.0)], scale="group")
    [group] = groups_of([played(0.0), failed(Treatment.LEFT_OUT), played(1.0)], scale="group")
    assert (group.advantages[0], group.advantages[2]) == without.advantages


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


def test_l7_questions_are_shuffled_again_in_every_epoch() -> None:
    found = config()
    order = TaskOrder(100, seed=found.seed, shuffle=found.shuffle, epochs=None)
    rows = [draw.row for draw in order.take(order.position({}), 200)[0]]
    assert sorted(rows[:100]) == sorted(rows[100:]) == list(range(100))
    assert rows[:100] != rows[100:] != list(range(100))


def test_l7_a_resumed_run_goes_on_where_the_data_was() -> None:
    order = TaskOrder(100, seed=1, shuffle=True, epochs=None)
    unbroken = order.take(order.position({}), 50)[0]
    checkpoint = order.take(order.position({}), 30)[1].record(100)
    resumed = TaskOrder(100, seed=1, shuffle=True, epochs=None)
    assert resumed.take(resumed.position(checkpoint), 20)[0] == unbroken[30:]


def test_l8_a_half_written_checkpoint_is_not_resumed_from(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2, print_line=print)
    (checkpoints.begin(1) / "model.safetensors").write_text("weights")
    checkpoints.commit(1, "step_000001", {"index": 4})
    (tmp_path / "step_000002").mkdir()
    (tmp_path / "step_000002" / "model.safetensors").write_text("wei")
    (checkpoints.begin(3) / "model.safetensors").write_text("we")
    found = checkpoints.newest()
    assert found is not None
    assert (found.step, found.position) == (1, {"index": 4})


def test_l9_a_group_of_equal_rewards_is_skipped() -> None:
    [group] = groups_of([played(0.1), played(0.1)], scale="group")
    assert group.skipped == "zero_variance"


def test_l10_mean_and_total_of_the_lengths_are_of_the_same_rollouts() -> None:
    lengths = [[2, 3], [4], [5, 6, 7, 8, 9]]
    found = step_metrics(
        batch(*(played(0.0, turn([1], ids, policy_version="step_000000")) for ids in lengths)), {}, TIMES
    )
    assert found["train/total_completion_tokens"] == sum(map(len, lengths))
    assert found["train/avg_completion_length"] * len(lengths) == found["train/total_completion_tokens"]


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


def test_l12_a_rollout_of_unknown_weights_stops_training_instead_of_being_of_version_0() -> None:
    with pytest.raises(RunError, match="version"):
        staleness_of([played(1.0, turn([1], [2], policy_version=None))], step=1)


async def test_l12_a_failed_question_for_the_version_is_a_failure() -> None:
    class Broken:
        async def send(self, *_: object) -> HttpResponse:
            return HttpResponse(500, {}, orjson.dumps({"detail": "no engine"}))

    with pytest.raises(Failure):
        await PolicyClient(Broken(), "http://policy:1", None).status(1.0)  # type: ignore[arg-type]
