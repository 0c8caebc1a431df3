"""ng_doctor env as a command: shipped environments, users' folders, and environments that run elsewhere."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from rollyard.services.cli.diagnostics.environment import command as doctor_env
from rollyard.services.errors import OperatorError
from tests.support.commands import command, ng_run

SHORT = ("+episodes=4", "+examples=2")
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


def leaky_folder(root: Path) -> Path:
    folder = root / "resources_servers" / "leaky"
    (folder / "data").mkdir(parents=True)
    (folder / "app.py").write_text(_LEAKY)
    (folder / "data" / "example.jsonl").write_text('{"question": "?"}\n')
    return folder


async def test_a_shipped_environment_passes_and_leaves_nothing(tmp_path: Path) -> None:
    done = await command("ng_doctor", "env", "grl_sokoban", *SHORT, cwd=tmp_path)
    assert done.status == 0, done.out + done.err
    assert "another seed gives another episode" in done.out and "of CPU per verdict" in done.out
    assert done.out.rstrip().endswith("All checks of the environment passed.")
    assert not any(tmp_path.iterdir())


async def test_a_fault_of_a_users_folder_is_named_with_the_servers_own_error(tmp_path: Path) -> None:
    folder = leaky_folder(tmp_path)
    done = await command("ng_doctor", "env", str(folder), *SHORT, "+json=true", cwd=tmp_path / "..")
    report = orjson.loads(done.out)
    (close,) = [finding for finding in report["findings"] if finding["status"] == "failed"]
    assert done.status == 1 and not report["ok"]
    assert close["name"] == "close" and "the door is stuck" in close["mend"]


async def test_a_running_environment_is_checked_at_its_url(tmp_path: Path) -> None:
    leaky_folder(tmp_path)
    (tmp_path / "run.yaml").write_text("leaky: {resources_servers: {leaky: {}}}\n")
    async with ng_run("+config_paths=[run.yaml]", cwd=tmp_path):
        status = await command("ng_status", "+json=true", cwd=tmp_path)
        (url,) = [one["url"] for one in orjson.loads(status.out) if one["server_name"] == "leaky"]
        done = await command("ng_doctor", "env", url, *SHORT, cwd=tmp_path)
    assert done.status == 1 and "failed: close" in done.out, done.out + done.err
    assert "memory" in done.out and "external server" in done.out


async def test_a_url_where_nothing_responds_fails(tmp_path: Path) -> None:
    done = await command("ng_doctor", "env", "http://127.0.0.1:1", cwd=tmp_path)
    assert done.status == 1 and "http://127.0.0.1:1 does not respond" in done.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["grl_sokobam"], "did you mean 'grl_sokoban'"),
        (["./grl_sokoban"], "is not a folder"),
        (["grl_sokoban", "+episods=3"], "did you mean 'episodes'"),
        (["http://127.0.0.1:1", "+a.b=3"], "a running server has its settings"),
        ([], "name"),
    ],
)
def test_wrong_usage_is_refused_before_anything_starts(
    arguments: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OperatorError, match=expected):
        doctor_env.run(arguments)
