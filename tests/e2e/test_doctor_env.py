"""ng_doctor env as a command: shipped environments, users' folders, and environments that run elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from tests.support.commands import Command, running_stack


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


_GRADED = """
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Verdict, Verification, serve
from rollyard.records.rewards import VerdictField


class Graded(Environment[EnvironmentSettings]):
    verdict_fields = (VerdictField(path="capital", role="expected"),)

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=float(CONDITION))


server = serve(Graded)
"""


@pytest.fixture
def graded(tmp_path: Path) -> Callable[[str], Path]:
    def make(condition: str) -> Path:
        folder = tmp_path / "resources_servers" / "graded"
        (folder / "data").mkdir(parents=True)
        (folder / "app.py").write_text(_GRADED.replace("CONDITION", condition))
        row = {"capital": "Paris", "responses_create_params": {"input": "?"}}
        (folder / "data" / "example.jsonl").write_bytes(orjson.dumps(row) + b"\n")
        return folder

    return make


def test_a_shipped_environment_passes_and_leaves_nothing(folder: Path, ng: Command) -> None:
    done = ng("ng_doctor", "env", "grl_sokoban")
    assert done.status == 0 and "failed:" not in done.out, done.out + done.err
    assert not any(folder.iterdir())


def test_a_running_environment_is_checked_at_its_url(folder: Path, graded: Callable[[str], Path], ng: Command) -> None:
    root = graded("True").parent.parent
    with running_stack(configs={"graded": {"resources_servers": {"graded": {}}}}, folder=root) as stack:
        rows = str(root / "resources_servers/graded/data/example.jsonl")
        done = ng("ng_doctor", "env", stack.url("graded"), "--input", rows)
    assert done.status == 1 and "failed: wrong answer" in done.out, done.out + done.err


@pytest.mark.parametrize(
    ("condition", "status", "found"),
    [
        ("response.text == 'The answer is Paris.'", "ok", "'The answer is Paris.' gets the reward 1.0"),
        ("False", "note", "not accepted in any usual form"),
    ],
)
def test_the_expected_answer_that_verdict_fields_names_is_tried(
    folder: Path, graded: Callable[[str], Path], ng: Command, condition: str, status: str, found: str
) -> None:
    done = ng("ng_doctor", "env", str(graded(condition)), "--json")
    (finding,) = [one for one in orjson.loads(done.out)["findings"] if one["name"] == "right answer"]
    assert (finding["status"], found in finding["found"]) == (status, True), finding
