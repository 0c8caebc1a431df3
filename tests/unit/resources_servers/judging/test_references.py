"""The judge's model server is a regular server reference: a wrong name stops the start, and its code is watched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.services.config.references import servers_of
from rollyard.services.config.run_config import RunConfig
from tests.support.stacks import load_config

APP = """
from rollyard.resources_servers.base import Environment, EnvironmentSettings, serve
from rollyard.resources_servers.judging.settings import JudgeSettings


class Settings(EnvironmentSettings):
    judge: JudgeSettings


class Judged(Environment[Settings]):
    pass


server = serve(Judged)
"""


def judged(tmp_path: Path, judge: Json) -> RunConfig:
    folder = tmp_path / "resources_servers/judged"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(APP)
    tree: dict[str, Any] = {
        "graded": {"resources_servers": {"judged": {"judge": judge}}},
        "grader": {"responses_api_models": {"builtin_model": {}}},
    }
    return load_config(config=tree, roots=[tmp_path], tmp_path=tmp_path)


@pytest.mark.parametrize(
    ("judge", "words"),
    [
        ({"model_server": "grade"}, r"graded.judge.model_server refers to 'grade', .*did you mean 'grader'"),
        (
            {"model_server": "graded"},
            "graded.judge.model_server refers to 'graded', which belongs to resources_servers; expected",
        ),
        ({"model_server": "grader", "vote": 3}, "unknown option 'judge.vote', did you mean 'votes'"),
        ({"model_server": "grader", "prompt": "?"}, r"'judge' .*no \{response\}"),
    ],
)
def test_a_misconfigured_judge_stops_the_start_with_a_message(tmp_path: Path, judge: Json, words: str) -> None:
    with pytest.raises(OperatorError, match=words):
        judged(tmp_path, judge)


@pytest.mark.parametrize("server", ["grader", {"type": "responses_api_models", "name": "grader"}])
def test_the_judge_is_one_of_the_servers_that_the_environment_reaches(tmp_path: Path, server: Any) -> None:
    (spec, _) = judged(tmp_path, {"model_server": server}).servers
    assert servers_of(spec, {"graded", "grader"}) == ["grader"]
