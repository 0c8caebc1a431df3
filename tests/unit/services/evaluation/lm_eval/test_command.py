"""ng_lm_eval when a user starts, interrupts, kills or mistypes it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from rollyard.services.cli.lm_eval import run
from rollyard.services.errors import OperatorError
from tests.support.commands import BIN, DEADLINE_S, command, command_environ
from tests.unit.services.evaluation.checkpoints.checkpoint_files import checkpoint
from tests.unit.services.processes import wait_for_end

FAKE = f"+lm_eval_command=[{sys.executable},{Path(__file__).with_name('fake_lm_eval.py')}]"
WATCH = ("ng_lm_eval", "+watch_path=checkpoints", "+benchmarks=gsm8k:8", "+output_dir=out", FAKE)


@contextlib.contextmanager
def watching(folder: Path, log: str) -> Iterator[subprocess.Popen[bytes]]:
    """A watch in the background, blocked in its first evaluation; its output goes to `log`."""
    (checkpoint(folder / "checkpoints/step_9") / "slow").touch()
    checkpoint(folder / "checkpoints/step_10")
    with (folder / log).open("wb") as output:
        command_line = [str(BIN / WATCH[0]), *WATCH[1:]]
        process = subprocess.Popen(command_line, cwd=folder, env=command_environ(), stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + DEADLINE_S
        while b"engine " not in (folder / log).read_bytes():
            assert process.poll() is None and time.monotonic() < deadline, (folder / log).read_text()
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait()


def engine_pid(log: Path) -> int:
    return int(log.read_text().partition("engine ")[2].split()[0])


def evaluated_models(folder: Path) -> list[str]:
    lines = (folder / "out/calls.jsonl").read_bytes().splitlines()
    return [next(word for word in orjson.loads(line) if "pretrained" in word).split(",")[0] for line in lines]


async def test_a_killed_watch_leaves_nothing_running_and_resumes_where_it_was(tmp_path: Path) -> None:
    with watching(tmp_path, "first.log") as process:
        process.kill()
        process.wait()
        wait_for_end(engine_pid(tmp_path / "first.log"))
    (tmp_path / "checkpoints/step_9/slow").unlink()
    done = await command(*WATCH, "+once=true", cwd=tmp_path)
    again = await command(*WATCH, "+once=true", cwd=tmp_path)
    assert (done.status, again.status) == (0, 0), done.err
    assert [path.rpartition("_")[2] for path in evaluated_models(tmp_path)] == ["9", "9", "10"]
    assert "| 9 | step_9 | gsm8k |" in again.out and "| 10 | step_10 | gsm8k |" in again.out


async def test_a_second_watch_into_the_same_folder_is_rejected_in_one_line(tmp_path: Path) -> None:
    with watching(tmp_path, "first.log"):
        second = await command(*WATCH, cwd=tmp_path)
    assert (second.status, second.out) == (1, "")
    assert second.err.startswith("ng_lm_eval: another ng_lm_eval is writing to out") and second.err.count("\n") == 1


async def test_ctrl_c_ends_lm_eval_and_its_engine_with_status_130(tmp_path: Path) -> None:
    with watching(tmp_path, "first.log") as process:
        process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(process.wait, DEADLINE_S) == 130
        wait_for_end(engine_pid(tmp_path / "first.log"))
    assert not (tmp_path / "out/lm_eval.json").exists()


async def test_a_failed_benchmark_does_not_affect_another_one(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "step_1")
    (folder / "broken").touch()
    line = ("ng_lm_eval", f"+model={folder}", "+output_dir=out", FAKE)
    first = await command(*line, "+benchmarks=ifeval", cwd=tmp_path)
    other = await command(*line, "+benchmarks=gsm8k:8", cwd=tmp_path)
    assert (first.status, other.status) == (1, 0)
    assert "failed  step_1 on ifeval: lm_eval exited with status 1 on ifeval: CUDA out of memory" in first.out
    assert "failed" not in other.out


async def test_a_mistyped_task_is_rejected_with_the_nearest_name_before_any_task_runs(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "step_1")
    line = ("ng_lm_eval", f"+model={folder}", "+output_dir=out", FAKE)
    done = await command(*line, "+benchmarks=[gsm8k:8,ifevl,gsm8k_cott:4,xyzzy]", cwd=tmp_path)
    assert (done.status, done.out) == (2, "")
    assert "lm_eval has no task 'ifevl', did you mean 'ifeval'?; 'gsm8k_cott', did you mean" in done.err
    assert "'xyzzy' (to list all tasks: " in done.err
    assert not (tmp_path / "out/calls.jsonl").exists()


async def test_an_lm_eval_that_cannot_list_its_tasks_still_runs(tmp_path: Path) -> None:
    old = tmp_path / "old_lm_eval.py"
    fake = Path(__file__).with_name("fake_lm_eval.py")
    prefix = "import runpy, sys\nif sys.argv[1] == 'validate': sys.exit('unknown')\n"
    old.write_text(f"{prefix}runpy.run_path({str(fake)!r}, run_name='__main__')")
    line = ("ng_lm_eval", f"+model={checkpoint(tmp_path / 'step_1')}", "+output_dir=out", "+benchmarks=gsm8k:8")
    done = await command(*line, f"+lm_eval_command=[{sys.executable},{old}]", cwd=tmp_path)
    assert done.status == 0, done.err
    assert "lm_eval could not check the task names in advance (unknown)" in done.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "'model' is missing"),
        (("+model=x", "+url=localhost:8000"), "expected http://host:port/v1"),
        (("+model=x", "+url=http://h/v1", "+watch_path=y"), "pass only one"),
        (("+model=x", "+watch_path=y"), "cannot be combined with watch_path"),
        (("+watch_path=y", "+watch_pattern=*/step_*"), "a name pattern"),
        (("+watch_path=no-such-folder", "+once=true"), "no-such-folder is not a folder"),
        (("+model=x", "+include_path=no-such-folder"), "no-such-folder is not a folder"),
        (("+model=x", "+name=a/b"), "expected a valid folder name"),
        (("+model=x", "+baseline=qwen3-1.7b"), "qwen3-1.7b-base"),
        (("+model=x", "+output_dir=/proc/x"), "cannot write to output_dir /proc/x"),
        (("+model=x", "+benchmarks=[]"), "benchmarks"),
        (("+model=x", "+benchmarks=[mbpp_plus]"), "without a sandbox"),
        (("+model=x", "+benchmarks=[gsm8k:many]"), "such as gsm8k:8"),
    ],
)
def test_an_invalid_option_is_rejected_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    default_benchmarks = () if any("benchmarks" in option for option in options) else ("+benchmarks=ifeval",)
    with pytest.raises(OperatorError, match=message):
        run([*options, *default_benchmarks, FAKE])
    assert list(tmp_path.iterdir()) == []
