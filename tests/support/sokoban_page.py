"""The blocks of docs/sokoban-evaluation.md and a shell that runs them in a copy of the clone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from rollyard.records.data_files import INSTALLED
from tests.support.commands import Finished, command_environ
from tests.support.doc_pages import blocks, page
from tests.support.waiting import deadline_s

TEXT = page("sokoban-evaluation.md")
SERVE = """#!/bin/sh
# A `vllm serve` that serves the built-in policy under the name and at the port that it is given.
name=$2
while [ $# -gt 0 ]; do [ "$1" = --port ] && port=$2; shift; done
mkdir -p "$FAKE_VLLM" && cd "$FAKE_VLLM"
exec ng_run "+config_paths=[responses_api_models/builtin_model/configs/builtin_model.yaml]" \\
    +head_port=0 +colocate=true \\
    "policy_model.responses_api_models.builtin_model.port=$port" \\
    "policy_model.responses_api_models.builtin_model.model=$name"
"""
REPEATS = 2
RUN = {
    "count": "wc -l data/qwen3_4b_eval/test_examples_200.jsonl\n",
    "serve": "--tensor-parallel-size 1",
    "models": "curl http",
    "servers": 'configs/grl_sokoban.yaml]"\n',
    "collect": "+output_jsonl_fpath=resources_servers",
    "analyze": "analyze_rewards.py",
    "jq": "jq -s '",
    "resume": "checkpoint_resume_rollouts.py",
    "gpus": "clear_gpu_cache.py",
    "contribute": "unique_by(.reward)",
    "generate": "generate_test_examples.py",
}
"""Blocks that tests/walkthroughs/test_sokoban_evaluation_page.py runs, by a text that only they contain."""
RUN_IN_FAULTS = {"script": "MODEL_NAME=builtin", "status": "ng_eval status"}
"""Blocks that tests/faults/crash/test_evaluation_script.py runs."""
NOT_RUN = {
    "uv pip install": "installs packages",
    "./run_qwen3_4b_eval_loop.sh": "needs a GPU; the scripts are run with the built-in policy",
    "grl_sokoban\n./run_qwen3_4b_eval.sh": "needs a GPU",
    "--tensor-parallel-size 4": "needs four GPUs",
    "ray_head_node_address": "needs the Ray cluster of that block; tests/external/ray starts servers on one",
    "nvidia-smi": "needs a GPU",
    "ng_viewer": "tests/e2e/test_viewer.py runs the viewer",
    "lsof": "is another program",
    "logs/vllm_server.log": "ends only with Ctrl-C",
    "tail -f data/qwen3_4b_eval/logs/nemo_gym_servers.log": "ends only with Ctrl-C",
}
"""Blocks that are not run, by a text that only they contain, and why."""


def block(name: str) -> str:
    (found,) = (text for text in blocks(TEXT) if {**RUN, **RUN_IN_FAULTS}[name] in text)
    return found


def make_clone(tmp_path: Path) -> Path:
    """Copy the files of a clone that the page uses, so that nothing is written into this one."""
    folder = tmp_path / "clone"
    ignored = shutil.ignore_patterns("__pycache__", "rollouts*", "logs", "reward_analysis*", "remaining*", "eval_*")
    environment = "resources_servers/grl_sokoban"
    shutil.copytree(INSTALLED / environment, folder / environment, ignore=ignored)
    shutil.copy(INSTALLED / "clear_gpu_cache.py", folder)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "vllm").write_text(SERVE)
    (tmp_path / "bin" / "vllm").chmod(0o755)
    return folder


class Shell:
    def __init__(self, clone: Path, port: int) -> None:
        self.clone = clone
        self._port = port
        self._environ = command_environ({"FAKE_VLLM": str(clone.parent / "vllm")})
        self._environ["PATH"] = f"{clone.parent / 'bin'}{os.pathsep}{self._environ['PATH']}"
        self.rollouts = clone / "resources_servers/grl_sokoban/data/qwen3_4b_eval/rollouts.jsonl"

    def text(self, block: str) -> str:
        """The block with fewer repeats, servers in one process, and a free port."""
        fewer = re.sub(r"(num_repeats=|--target-repeats )16\b", rf"\g<1>{REPEATS}", block)
        colocated = fewer.replace('grl_sokoban.yaml]"', 'grl_sokoban.yaml]" +colocate=true')
        return colocated.replace("10240", str(self._port))

    async def run(self, block: str) -> Finished:
        async with self.started(block) as process:
            out, err = await asyncio.wait_for(process.communicate(), deadline_s())
        assert process.returncode is not None
        return Finished(process.returncode, out.decode(), err.decode())

    def send(self, process: asyncio.subprocess.Process, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)

    @contextlib.asynccontextmanager
    async def started(self, block: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """A block in the background; its processes get SIGINT, as with Ctrl-C."""
        process = await asyncio.create_subprocess_exec(
            *("bash", "-euo", "pipefail", "-c", self.text(block)),
            cwd=self.clone,
            env=self._environ,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            self.send(process, signal.SIGINT)
            await asyncio.wait_for(process.communicate(), deadline_s())


async def printed(process: asyncio.subprocess.Process, text: str) -> None:
    assert process.stdout is not None
    async with asyncio.timeout(deadline_s()):
        while line := (await process.stdout.readline()).decode():
            if text in line:
                return
    raise AssertionError(f"{text!r} was not printed: {(await process.communicate())[1].decode()}")
