"""ng_lm_eval when a user starts, interrupts, kills or mistypes it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest

from rollyard.cli.lm_eval import run
from rollyard.launchers.evaluation.lm_eval import ResultsStore
from rollyard.records.errors import OperatorError
from tests.support.commands import BIN, Finished, command_environ, in_this_process
from tests.support.waiting import deadline_s, eventually
from tests.unit.launchers.evaluation.checkpoint_files import checkpoint
from tests.unit.services.processes import wait_for_end

FAKE = f"+lm_eval_command=[{sys.executable},-S,{Path(__file__).with_name('fake_lm_eval.py')}]"
LmEval = Callable[..., Finished]
WATCH = ("+watch_path=checkpoints", "+benchmarks=gsm8k:8", "+output_dir=out", FAKE)


@pytest.fixture
def folder(here: Path) -> Iterator[Path]:
    """The working directory; the command's signal handlers are removed at the end."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield here
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def lm_eval(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> LmEval:
    """Runs the command in this process, and gives up its lock on the output folder, as the end of a process does."""
    stores: list[ResultsStore] = []

    class Store(ResultsStore):
        def __init__(self, folder: Path) -> None:
            super().__init__(folder)
            stores.append(self)

    def run(*arguments: str) -> Finished:
        done = in_this_process("ng_lm_eval", *arguments, capsys=capsys)
        while stores:
            stores.pop().close()
        return done

    monkeypatch.setattr("rollyard.cli.lm_eval.ResultsStore", Store)
    return run


def ended(folder: Path, number: signal.Signals) -> int:
    """The status of a watch that got this signal in its first evaluation, once its engine has ended."""
    (checkpoint(folder / "checkpoints/step_9") / "slow").touch()
    checkpoint(folder / "checkpoints/step_10")
    command_line, log = [str(BIN / "ng_lm_eval"), *WATCH], folder / "first.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command_line, cwd=folder, env=command_environ(), stdout=output, stderr=output)
    try:
        eventually("the engine", lambda: b"engine " in log.read_bytes() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        process.send_signal(number)
        status = process.wait(deadline_s())
        wait_for_end(int(log.read_text().partition("engine ")[2].split()[0]))
        return status
    finally:
        process.kill()
        process.wait()


def test_a_killed_watch_leaves_nothing_running_and_resumes_where_it_was(folder: Path, lm_eval: LmEval) -> None:
    assert ended(folder, signal.SIGKILL) == -9
    (folder / "checkpoints/step_9/slow").unlink()
    done, again = (lm_eval(*WATCH, "+once=true") for _ in range(2))
    assert (done.status, again.status) == (0, 0), (done.err, again.err)
    calls = [orjson.loads(line) for line in (folder / "out/calls.jsonl").read_bytes().splitlines()]
    models = [next(word for word in call if "pretrained" in word).split(",")[0] for call in calls]
    assert [path.rpartition("_")[2] for path in models] == ["9", "9", "10"]
    assert "| 9 | step_9 | gsm8k |" in again.out and "| 10 | step_10 | gsm8k |" in again.out


def test_a_second_watch_into_the_same_folder_is_rejected_in_one_line(folder: Path, lm_eval: LmEval) -> None:
    first = ResultsStore(Path("out"))
    (folder / "checkpoints").mkdir()
    second = lm_eval(*WATCH)
    first.close()
    assert (second.status, second.out) == (1, "")
    assert second.err.startswith("ng_lm_eval: ") and "writing to out" in second.err and second.err.count("\n") == 1


def test_ctrl_c_ends_lm_eval_and_its_engine_with_status_130(tmp_path: Path) -> None:
    assert ended(tmp_path, signal.SIGINT) == 130
    assert not (tmp_path / "out/lm_eval.json").exists()


def test_a_mistyped_task_is_rejected_with_the_nearest_name_before_any_task_runs(folder: Path, lm_eval: LmEval) -> None:
    line = (f"+model={checkpoint(folder / 'step_1')}", "+output_dir=out", FAKE)
    done = lm_eval(*line, "+benchmarks=[gsm8k:8,ifevl,gsm8k_cott:4,xyzzy]")
    assert (done.status, done.out) == (2, "")
    assert re.search(r"'ifevl'[^;]*'ifeval'[^;]*; 'gsm8k_cott'[^;]*'gsm8k_cot'[^;]*; 'xyzzy' \(", done.err)
    assert not (folder / "out/calls.jsonl").exists()


def test_an_lm_eval_that_cannot_list_its_tasks_still_runs(folder: Path, lm_eval: LmEval) -> None:
    old = folder / "old_lm_eval.py"
    fake = Path(__file__).with_name("fake_lm_eval.py")
    prefix = "import runpy, sys\nif sys.argv[1] == 'validate': sys.exit('unknown')\n"
    old.write_text(f"{prefix}runpy.run_path({str(fake)!r}, run_name='__main__')")
    line = (f"+model={checkpoint(folder / 'step_1')}", "+output_dir=out", "+benchmarks=gsm8k:8")
    done = lm_eval(*line, f"+lm_eval_command=[{sys.executable},-S,{old}]")
    assert done.status == 0, done.err
    assert "(unknown)" in done.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "'model' is missing"),
        (("+model=x", "+url=localhost:8000"), "expected http://host:port/v1"),
        (("+model=x", "+url=http://h/v1", "+watch_path=y"), "pass only one"),
        (("+model=x", "+watch_path=y"), "watch_path"),
        (("+watch_path=y", "+watch_pattern=*/step_*"), "a name pattern"),
        (("+watch_path=no-such-folder", "+once=true"), "no-such-folder"),
        (("+model=x", "+include_path=no-such-folder"), "no-such-folder"),
        (("+model=x", "+name=a/b"), "folder name"),
        (("+model=x", "+baseline=qwen3-1.7b"), "qwen3-1.7b-base"),
        (("+model=x", "+output_dir=/proc/x"), "output_dir /proc/x"),
        (("+model=x", "+benchmarks=[]"), "benchmarks"),
        (("+model=x", "+benchmarks=[mbpp_plus]"), "without a sandbox"),
        (("+model=x", "+benchmarks=[gsm8k:many]"), "such as gsm8k:8"),
    ],
)
def test_an_invalid_option_is_rejected_before_anything_starts(
    here: Path, options: tuple[str, ...], message: str
) -> None:
    default_benchmarks = () if any("benchmarks" in option for option in options) else ("+benchmarks=ifeval",)
    with pytest.raises(OperatorError, match=message):
        run([*options, *default_benchmarks, FAKE])
    assert list(here.iterdir()) == []
