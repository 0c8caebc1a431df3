"""`ng_run` with servers that are not Rollyard's, as processes."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import yaml

from tests.support.commands import Command, ng_run
from tests.support.foreign_folders import entry, make_root, program_entry
from tests.support.processes import processes_with
from tests.support.waiting import until

REFERENCES = {
    "resources_server": {"type": "resources_servers", "name": "counter"},
    "model_server": {"type": "responses_api_models", "name": "policy_model"},
}


def write_config(folder: Path, **entries: object) -> str:
    (folder / "run.yaml").write_text(yaml.safe_dump(entries))
    return "+config_paths=[run.yaml]"


def programs(folder: Path) -> list[int]:
    """Processes that the counter's program in `folder` and its descendants run in."""
    found = []
    for pid in processes_with("NEMO_GYM_CONFIG_PATH", "counter"):
        with contextlib.suppress(OSError):
            if f"PYTHONPATH={folder}".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
    return found


async def test_programs_and_what_they_started_end_when_ng_run_is_killed(tmp_path: Path) -> None:
    folder = make_root(tmp_path)
    child = "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
    (folder / "app.py").write_text(child + (folder / "app.py").read_text())
    async with ng_run(write_config(tmp_path, counter=program_entry()), "+head_port=0", cwd=tmp_path) as running:
        assert len(programs(tmp_path)) >= 2
        running.process.kill()
        await running.process.wait()
        await until(lambda: not programs(tmp_path))


def test_a_dry_run_names_what_runs_where_and_which_agent_plays(here: Path, ng: Command) -> None:
    make_root(here)
    given = write_config(
        here,
        counter=program_entry(),
        elsewhere=entry("resources_servers", "mcqa", host="10.0.0.5", port=8080),
        policy_model=entry("responses_api_models", "builtin_model"),
        agent=entry("responses_api_agents", "tool_simulation_agent", **REFERENCES),
    )
    finished = ng("ng_run", given, "+dry_run=true", "+head_port=0")
    assert finished.status == 0, finished.err
    assert f"resources_servers/counter (NeMo Gym, {sys.executable})" in finished.out
    assert "resources_servers/mcqa (external, http://10.0.0.5:8080)" in finished.out
    assert "agent: simple_agent" in finished.out and "tool_simulation_agent" in finished.out
