"""Bugs of ludic's GSM8K scripts (https://github.com/joanvelja/ludic at 321e8d7) that do not exist here."""

from __future__ import annotations

import runpy
from pathlib import Path

import orjson
import pytest

from rollyard.records.errors import Failure, OperatorError
from rollyard.records.search_path import INSTALLED
from rollyard.resources_servers.gsm8k.app import server
from rollyard.resources_servers.gsm8k.evaluate import figures
from rollyard.resources_servers.gsm8k.evaluate import main as evaluate
from rollyard.services.http.request import HttpResponse
from rollyard.training.weight_publisher import PolicyClient
from tests.unit.resources_servers.answers.grading import in_process_server

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
