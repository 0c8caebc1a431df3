"""`ng_train` as a process, in a folder with a small environment of its own."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from rollyard.records.script import own_command
from rollyard.records.types import Json
from tests.support.commands import command_environ
from tests.support.local_engines import MARK
from tests.support.processes import alive, processes_with
from tests.support.stacks import read_rows
from tests.support.waiting import deadline_s, eventually

HOLD = "hold"
"""While this file exists in the folder, no more answers are verified than the number in it."""
OF_ONE_STEP = 8
"""Number of answers of a step, with KEYS."""
APP = '''
import asyncio
import os
from pathlib import Path

from rollyard import Environment, Verdict, Verification, serve


class Letters(Environment):
    """The reward is the share of vowels among the letters of an answer."""

    user_template = "Write {word}."
    verified = 0

    async def verify(self, response: Verification) -> Verdict:
        while is_held(Letters.verified):
            Path("waiting").write_text(str(os.getpid()))
            await asyncio.sleep(0.02)
        Letters.verified += 1
        letters = [letter for letter in response.text.lower() if letter.isalpha()]
        vowels = sum(letter in "aeiou" for letter in letters)
        return Verdict(reward=vowels / len(letters) if letters else 0.0, success=bool(letters))


def is_held(verified):
    try:
        return verified >= int(Path("hold").read_text())
    except FileNotFoundError:
        return False


server = serve(Letters)
'''
CONFIG = """
letters_resources_server:
  resources_servers:
    letters: {entrypoint: app.py}
letters_agent:
  agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {type: resources_servers, name: letters_resources_server}
      model_server: {type: responses_api_models, name: policy_model}
"""
SMALL_ENGINE = """
policy_model:
  responses_api_models:
    local_vllm_model:
      max_model_len: 4096
      extra_flags: {kv_cache_memory_bytes: 134217728, max_num_seqs: 32}
      environment: {HF_HUB_OFFLINE: "1", OMP_NUM_THREADS: "1"}
"""
"""Settings of the engine that `ng_train` starts."""


def write_folder(folder: Path, model: Path) -> None:
    """Write the environment `letters`, its rows, and settings of a small engine; link the model as `model`."""
    place = folder / "resources_servers" / "letters"
    (place / "configs").mkdir(parents=True)
    (place / "app.py").write_text(APP)
    (place / "configs" / "letters.yaml").write_text(CONFIG)
    (folder / "small_engine.yaml").write_text(SMALL_ENGINE)
    words = ("one", "two", "three", "four", "five", "six")
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps({'word': word})}\n" for word in words))
    (folder / "model").symlink_to(model)


def hold_after(answers: int, folder: Path) -> None:
    """Verify only so many answers. Called before the start, so that it does not depend on how fast the training is."""
    (folder / HOLD).write_text(str(answers))


KEYS = (
    *("model=model", "environments=[letters]", "input_jsonl_fpath=rows.jsonl", "output_dir=out"),
    *("groups_per_step=2", "group_size=4", "num_samples_in_parallel=4", "max_steps=2"),
    *("responses_create_params.max_output_tokens=24", "endings.finish_reasons.length=played"),
    "optimizer.learning_rate=1e-3",
)


def training_s() -> float:
    """The deadline for a training as a process, which may start an engine: minutes where other things take a second."""
    return 5 * deadline_s()


class TrainProcess:
    def __init__(self, process: subprocess.Popen[bytes], folder: Path, log: Path, mark: str) -> None:
        self.process = process
        self.output = folder / "out"
        self._folder = folder
        self._log = log
        self._mark = mark

    @property
    def printed(self) -> str:
        return self._log.read_text()

    def wait(self) -> int:
        return self.process.wait(training_s())

    def until_held(self) -> int:
        """Wait until the environment holds an answer back, and return the environment's process id."""
        waiting = self._folder / "waiting"
        self._eventually("an answer is waiting", waiting.exists)
        return int(eventually("its pid", waiting.read_text))

    def release(self) -> None:
        (self._folder / HOLD).unlink()

    def pids(self, word: str) -> list[int]:
        """Its processes, other than itself, whose name or command line contains `word`."""
        found = [pid for pid in processes_with(MARK, self._mark) if pid != self.process.pid]
        return [pid for pid in found if word in _named(pid)]

    def steps(self) -> dict[int, Json]:
        path = self.output / "metrics.jsonl"
        rows = read_rows(path) if path.exists() else []
        return {row["step"]: row for row in rows if "train/reward" in row}

    def rows(self, step: int) -> list[Json]:
        return read_rows(self.output / "rollouts" / f"step_{step:06d}.jsonl")

    def until_step(self, step: int) -> None:
        self._eventually(f"update {step}", lambda: step in self.steps())

    def left(self) -> list[int]:
        return self.pids("")

    def _eventually(self, description: str, condition: Callable[[], bool]) -> None:
        eventually(description, lambda: condition() or self.process.poll() is not None, training_s())
        assert self.process.poll() is None, self.printed


def _named(pid: int) -> str:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return f"{Path(f'/proc/{pid}/comm').read_text()} {line.decode('utf-8', 'replace')}"
    except OSError:
        return ""


@contextlib.contextmanager
def ng_train(*arguments: str, folder: Path) -> Iterator[TrainProcess]:
    """`ng_train KEYS arguments` in a folder; ended with everything that it has started."""
    mark, log = secrets.token_hex(8), folder / f"ng_train-{secrets.token_hex(4)}.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            own_command("ng_train", *KEYS, *arguments),
            cwd=folder,
            env={**command_environ(), MARK: mark, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    running = TrainProcess(process, folder, log, mark)
    try:
        yield running
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for pid in running.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        eventually("its processes are gone", lambda: not any(alive(pid) for pid in running.left()))


def vowels(row: Json) -> float:
    """The reward that a rollout should have."""
    texts = [part["text"] for item in row["response"]["output"] for part in item.get("content") or () if "text" in part]
    letters = [letter for letter in "".join(texts).lower() if letter.isalpha()]
    return sum(letter in "aeiou" for letter in letters) / len(letters) if letters else 0.0
