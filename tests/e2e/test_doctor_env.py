"""ng_doctor env as a command: shipped environments, users' folders, and environments that run elsewhere."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from tests.support.commands import in_this_process, running_stack

SHORT = ("+episodes=4", "+examples=1")
_LEAKY = """
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Verdict, Verification, serve


class Leaky(Environment[EnvironmentSettings]):
    user_template = "{question}"

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=1.0)

    async def close(self) -> None:
        raise RuntimeError("the door is stuck")


server = serve(Leaky)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def leaky(tmp_path: Path) -> Path:
    """A user's environment whose episodes cannot be closed."""
    folder = tmp_path / "resources_servers" / "leaky"
    (folder / "data").mkdir(parents=True)
    (folder / "app.py").write_text(_LEAKY)
    (folder / "data" / "example.jsonl").write_text('{"question": "?"}\n')
    return folder


def test_a_shipped_environment_passes_and_leaves_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = in_this_process("ng_doctor", "env", "grl_sokoban", *SHORT, capsys=capsys)
    assert done.status == 0, done.out + done.err
    assert "seed" in done.out and "CPU per verdict" in done.out and "failed:" not in done.out
    assert not any(folder.iterdir())


def test_a_fault_of_a_users_folder_is_named_with_the_servers_own_error(
    folder: Path, leaky: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = in_this_process("ng_doctor", "env", str(leaky), *SHORT, "+json=true", capsys=capsys)
    report = orjson.loads(done.out)
    (close,) = [finding for finding in report["findings"] if finding["status"] == "failed"]
    assert done.status == 1 and not report["ok"]
    assert close["name"] == "close" and "the door is stuck" in close["mend"]


def test_a_running_environment_is_checked_at_its_url(
    folder: Path, leaky: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_stack(configs={"leaky": {"resources_servers": {"leaky": {}}}}, folder=leaky.parent.parent) as stack:
        done = in_this_process("ng_doctor", "env", stack.url("leaky"), *SHORT, capsys=capsys)
    assert done.status == 1 and "failed: close" in done.out, done.out + done.err
    assert "memory" in done.out and "external server" in done.out


_GRADED = """
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Verdict, Verification, serve
from rollyard.records.verdict_fields import VerdictField


class Graded(Environment[EnvironmentSettings]):
    verdict_fields = (VerdictField(path="capital", role="expected"),)

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=float(CONDITION))


server = serve(Graded)
"""


@pytest.mark.parametrize(
    ("condition", "status", "found"),
    [
        ("response.text == 'The answer is Paris.'", "ok", "'The answer is Paris.' gets the reward 1.0"),
        ("False", "note", "not accepted in any usual form"),
    ],
)
def test_the_expected_answer_that_verdict_fields_names_is_tried(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], condition: str, status: str, found: str
) -> None:
    graded = tmp_path / "resources_servers" / "graded"
    (graded / "data").mkdir(parents=True)
    (graded / "app.py").write_text(_GRADED.replace("CONDITION", condition))
    (graded / "data" / "example.jsonl").write_text('{"capital": "Paris", "responses_create_params": {"input": "?"}}\n')
    done = in_this_process("ng_doctor", "env", str(graded), *SHORT, "--json", capsys=capsys)
    (finding,) = [one for one in orjson.loads(done.out)["findings"] if one["name"] == "right answer"]
    assert (finding["status"], found in finding["found"]) == (status, True), finding
