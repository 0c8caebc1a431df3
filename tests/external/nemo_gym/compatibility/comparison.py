"""Plays an environment on both sides, and compares."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from rollyard.records.rewards import tidy
from tests.external.nemo_gym.compatibility import ours, reference
from tests.external.nemo_gym.compatibility.catalog import Environment
from tests.external.nemo_gym.compatibility.model_names import model_names
from tests.external.nemo_gym.compatibility.reasons import reason
from tests.external.nemo_gym.compatibility.reference import Played
from tests.external.nemo_gym.compatibility.results import Result
from tests.external.nemo_gym.compatibility.scripted_model import ModelServer, ScriptedModel
from tests.external.nemo_gym.compatibility.scripts import script_of


def compare(environment: Environment, python: Path, folder: Path) -> Result:
    """The rewards of both sides. `python`: the interpreter of NeMo Gym's programs. `folder`: for logs and runs."""
    named = (environment.agent, environment.named_agent)
    made = partial(Result, environment.name, environment.also, kind(environment), *named)
    if not (environment.folder / environment.program).is_file():
        return made(False, (), (), "the wheel does not contain its program")
    if environment.rows_path is None:
        return made(False, (), (), "the wheel contains no rows for it")
    theirs = _played(environment, python, folder, "theirs")
    if not theirs.starts:
        return made(False, (), (), reason(theirs.problem or "", environment.folder))
    if all(reward is None for reward in theirs.rewards):
        why = reason(theirs.problem or "", environment.folder)
        return made(True, tuple(map(tidy, theirs.rewards)), (), f"no row plays: {why}")
    own = _played(environment, python, folder, "ours")
    rewards = tuple(map(tidy, theirs.rewards)), tuple(own.rewards)  # as rows of a collection are written
    if not own.starts:
        return made(False, *rewards, f"does not start from ng_run: {_last_line(own.problem)}")
    if all(here is None or here == there for here, there in zip(*rewards, strict=True)):
        why = f"some rows fail: {reason(theirs.problem or '', environment.folder)}" if None in rewards[0] else ""
        return made(True, *rewards, why)
    again = _played(environment, python, folder, "again")
    if again.rewards != theirs.rewards:
        return made(True, *rewards, "not reproducible: two runs under NeMo Gym's agent differ")
    failed = f": {_last_line(own.problem)}" if None in rewards[1] else ""
    return made(True, *rewards, f"rewards differ{failed}")


def _played(environment: Environment, python: Path, folder: Path, side: str) -> Played:
    """One run, with a model server and a folder of its own."""
    own = folder / side
    own.mkdir()
    server = ModelServer(ScriptedModel(environment.rows(), script_of(environment.name, environment.folder.name)))
    try:
        play = ours.play if side == "ours" else reference.play
        played = play(environment, server.port, python, own)
        (own / "problem.txt").write_text(played.problem or "")
        return played
    finally:
        server.close()


def kind(environment: Environment) -> str:
    rows = environment.rows()
    program = environment.folder / environment.program
    if environment.agent == "gymnasium_agent":
        what = "turn-based"
    elif program.is_file() and "MCPResourcesServer" in program.read_text():
        what = "MCP tools"
    elif environment.agent != "simple_agent":
        what = "one call, not executed"
    else:
        what = "tools" if any((row.get("responses_create_params") or {}).get("tools") for row in rows) else "one answer"
    return f"{what}, judge" if model_names(environment.server_settings) else what


def _last_line(text: str | None) -> str:
    lines = [line.strip() for line in (text or "").splitlines() if line.strip() and "--help" not in line]
    return re.sub(r"http://[\d.]+:\d+", "", lines[-1])[:200] if lines else "no message"
