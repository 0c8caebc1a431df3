"""Each whole checkpoint is evaluated once, whatever breaks in between."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event, Timer

import orjson
import pytest

from rollyard.services.errors import OperatorError, RunError
from rollyard.services.evaluation.benchmarks import Benchmark
from rollyard.services.evaluation.checkpoint_sources import LocalSource
from rollyard.services.evaluation.evaluator import Evaluator
from rollyard.services.evaluation.lm_eval_process import Harness, Model
from rollyard.services.evaluation.results_store import MAX_ATTEMPTS, ResultsStore
from tests.unit.services.evaluation.checkpoint_files import checkpoint
from tests.unit.services.evaluation.processes import ended

FAKE = (sys.executable, str(Path(__file__).with_name("fake_lm_eval.py")))
GSM8K, IFEVAL = Benchmark(task="gsm8k", num_fewshot=8), Benchmark(task="ifeval")


def evaluator(root: Path, *benchmarks: Benchmark, said: list[str] | None = None, **more: object) -> Evaluator:
    harness = Harness(command=FAKE, **more)  # type: ignore[arg-type]
    return Evaluator(
        harness, ResultsStore(root / "out"), benchmarks or (GSM8K,), {}, say=(said if said is not None else []).append
    )


def looked(root: Path, *benchmarks: Benchmark, said: list[str] | None = None) -> Evaluator:
    """One look at the checkpoints of `root`."""
    made = evaluator(root, *benchmarks, said=said)
    made.watch(LocalSource(root / "checkpoints"), Model(""), 0.01, Event(), once=True)
    made.results_store.close()
    return made


def asked(root: Path) -> list[list[str]]:
    path = root / "out/asked.jsonl"
    return [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def test_whole_checkpoints_are_evaluated_by_step_and_never_again(tmp_path: Path) -> None:
    for step in (100, 20, 3):
        checkpoint(tmp_path / f"checkpoints/step_{step}")
    for _ in range(2):
        made = looked(tmp_path, GSM8K, IFEVAL)
    assert [(score.step, score.task) for score in made.results_store.scores] == [
        (step, task) for step in (3, 20, 100) for task in ("gsm8k", "ifeval")
    ]
    assert len(asked(tmp_path)) == 6
    assert (tmp_path / "out/results.csv").read_text().count("\n") == 7


def test_a_checkpoint_that_is_not_whole_waits_and_its_reason_is_said_once(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoints/step_1")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:30])
    said: list[str] = []
    made, stopped = evaluator(tmp_path, said=said), Event()
    (tmp_path / "whole").write_bytes(whole)
    finished = Timer(0.2, lambda: (tmp_path / "whole").rename(folder / "model.safetensors"))
    finished.start()

    def say(text: str) -> None:
        said.append(text)
        if "exact_match" in text:
            stopped.set()

    watching = Evaluator(made.harness, made.results_store, made.benchmarks, {}, say=say)
    watching.watch(LocalSource(tmp_path / "checkpoints"), Model(""), 0.01, stopped, once=False)
    finished.join()
    assert len([text for text in said if "not complete yet" in text]) == 1
    assert len(made.results_store.scores) == 1


def test_an_evaluation_that_failed_is_tried_again_by_the_next_look(tmp_path: Path) -> None:
    (checkpoint(tmp_path / "checkpoints/step_1") / "broken").touch()
    said: list[str] = []
    first = looked(tmp_path, said=said)
    assert [entry.tries for entry in first.results_store.failed([GSM8K.title])] == [1]
    assert any("CUDA out of memory" in text for text in said)
    second = looked(tmp_path)
    assert (second.results_store.failed([GSM8K.title]), len(second.results_store.scores)) == ([], 1)


def test_one_that_always_fails_is_given_up_and_stays_named(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoints/step_1")
    for _ in range(MAX_ATTEMPTS + 2):
        (folder / "broken").touch()
        made = looked(tmp_path)
    assert len(asked(tmp_path)) == MAX_ATTEMPTS
    assert [entry.tries for entry in made.results_store.failed([GSM8K.title])] == [MAX_ATTEMPTS]
    assert not made.results_store.scores
    (folder / "broken").unlink()
    made.results_store.forget_failures()
    made.watch(LocalSource(tmp_path / "checkpoints"), Model(""), 0.01, Event(), once=True)
    assert len(made.results_store.scores) == 1


def test_an_evaluation_that_was_killed_is_done_again(tmp_path: Path) -> None:
    checkpoint(tmp_path / "checkpoints/step_1")
    partial = tmp_path / "out/raw/step_1/gsm8k_8shot/results_0.json"
    partial.parent.mkdir(parents=True)
    partial.write_text('{"results": {')
    assert len(looked(tmp_path).results_store.scores) == 1


def test_an_interrupted_evaluation_leaves_no_engine_behind_and_is_not_on_record(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoints/step_1")
    (folder / "slow").touch()
    engines: list[int] = []

    def show(text: str) -> None:
        if text.startswith("engine "):
            engines.append(int(text.split()[1]))
            raise KeyboardInterrupt

    made = Evaluator(Harness(command=FAKE), ResultsStore(tmp_path / "out"), [GSM8K], {}, show=show)
    with pytest.raises(KeyboardInterrupt):
        made.evaluate("step_1", Model(str(folder)))
    (engine,) = engines
    ended(engine)
    made.results_store.close()
    assert ResultsStore(tmp_path / "out").is_pending("step_1", GSM8K, {})


def test_the_command_line_is_the_seeds(tmp_path: Path) -> None:
    harness = Harness(max_gen_toks={"default": 1024, "gsm8k": 512})
    words = harness.command_line(GSM8K, Model("org/model", arguments={"tensor_parallel_size": 8}), tmp_path)
    line = " ".join(words)
    assert line.startswith(
        "lm_eval --model vllm --model_args pretrained=org/model,dtype=bfloat16,gpu_memory_utilization=0.8,"
        "max_model_len=4096,tensor_parallel_size=8,seed=42 --batch_size auto --tasks gsm8k --seed 42 "
        "--gen_kwargs temperature=0,max_gen_toks=512 --num_fewshot 8 --output_path"
    )
    assert "max_gen_toks=1024" in " ".join(harness.command_line(IFEVAL, Model("m"), tmp_path))


@pytest.mark.parametrize(
    ("harness", "benchmark", "words"),
    [
        (Harness(gen_kwargs={"max_tokens": 100}), "gsm8k", "max_gen_toks"),
        (Harness(), "humaneval:0", "without a sandbox"),
    ],
)
def test_what_would_go_wrong_later_is_refused_at_once(harness: Harness, benchmark: str, words: str) -> None:
    with pytest.raises(OperatorError, match=words):
        harness.check([Benchmark.read(benchmark)])


def test_a_missing_lm_eval_says_how_to_install_it() -> None:
    with pytest.raises(OperatorError, match=r"pip install 'rollyard\[lm-eval\]'"):
        Harness(command=("no-such-lm-eval",)).check([GSM8K])


@pytest.mark.parametrize("words", ["ValueError: Tasks not found: gsm9k", "ModuleNotFoundError: No module named 'nltk'"])
def test_what_trying_again_cannot_fix_ends_the_command_with_lm_evals_words(tmp_path: Path, words: str) -> None:
    (checkpoint(tmp_path / "checkpoints/step_1") / "broken").write_text(words)
    with pytest.raises(OperatorError, match=words):
        looked(tmp_path, GSM8K, IFEVAL)
    assert [given[given.index("--tasks") + 1] for given in asked(tmp_path)] == ["gsm8k", "ifeval"]
    assert "ifeval" in (tmp_path / "out/results.csv").read_text(), "the others are measured first"


def test_a_failure_is_told_by_its_error_and_not_by_the_warnings_behind_it(tmp_path: Path) -> None:
    words = "RuntimeError: Engine core initialization failed\nresource_tracker.py:254: UserWarning: leaked objects"
    (checkpoint(tmp_path / "checkpoints/step_1") / "broken").write_text(words)
    (failure,) = looked(tmp_path).results_store.failed([GSM8K.title])
    assert failure.error.startswith("lm_eval exited with status 1 on gsm8k_8shot: RuntimeError: Engine core init")


def test_an_lm_eval_that_ends_well_without_results_has_failed_though_older_results_are_there(tmp_path: Path) -> None:
    (checkpoint(tmp_path / "checkpoints/step_1") / "silent").touch()
    older = tmp_path / "out/raw/step_1/gsm8k_8shot/results_0000.json"
    older.parent.mkdir(parents=True)
    older.write_text('{"results": {"gsm8k": {"exact_match,none": 1.0}}}')
    made = looked(tmp_path)
    assert [entry.error[:35] for entry in made.results_store.failed([GSM8K.title])] == [
        "lm_eval succeeded but wrote no resu"
    ]


def test_a_guard_ends_lm_eval_and_its_engine_when_the_evaluator_is_killed(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoints/step_1")
    (folder / "slow").touch()
    output = tmp_path / "out/raw/step_1/gsm8k"
    line = [*FAKE, "--model_args", f"pretrained={folder}", "--output_path", str(output), "--tasks", "gsm8k"]
    guard = subprocess.Popen(
        [sys.executable, "-m", "rollyard.services.evaluation.process_group", *line],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONUNBUFFERED": "1"},
        text=True,
        start_new_session=True,
    )
    assert guard.stdin is not None and guard.stdout is not None
    engine = next(int(text.split()[1]) for text in guard.stdout if text.startswith("engine"))
    guard.stdin.close()  # as the kernel does for a process that was killed
    assert guard.wait(10) == -signal.SIGKILL
    ended(engine)
    guard.stdout.close()


def test_a_checkpoint_that_vanishes_between_two_looks_stops_nothing(tmp_path: Path) -> None:
    for step in (1, 2):
        checkpoint(tmp_path / f"checkpoints/step_{step}")

    class Vanishing(LocalSource):
        def names(self) -> list[str]:
            found = super().names()
            shutil.rmtree(self.root / "step_1")
            return found

    said: list[str] = []
    made = evaluator(tmp_path, said=said)
    made.watch(Vanishing(tmp_path / "checkpoints"), Model(""), 0.01, Event(), once=True)
    assert [score.step for score in made.results_store.scores] == [2]
    assert "step_1 is not complete yet: config.json is missing" in said


def test_a_place_that_cannot_be_looked_at_ends_the_first_look_and_no_later_one(tmp_path: Path) -> None:
    checkpoint(tmp_path / "checkpoints/step_1")
    stopped, said = Event(), list[str]()

    class Breaking(LocalSource):
        def names(self) -> list[str]:
            if len(said) > 1:
                stopped.set()
                raise RunError("no way there")
            return super().names()

    made = evaluator(tmp_path, said=said)
    made.watch(Breaking(tmp_path / "checkpoints"), Model(""), 0.01, stopped, once=False)
    assert said[-1] == "no way there; trying again in 0 s"
    with pytest.raises(OperatorError, match="no way there"):
        made.watch(Breaking(tmp_path / "checkpoints"), Model(""), 0.01, Event(), once=False)


def test_results_of_other_settings_or_another_run_are_never_taken_for_these(tmp_path: Path) -> None:
    checkpoint(tmp_path / "checkpoints/step_1")
    looked(tmp_path)
    source = LocalSource(tmp_path / "checkpoints")
    other = evaluator(tmp_path, limit=4)
    with pytest.raises(OperatorError, match="step_1 with different settings \\(limit None, now 4\\)"):
        other.watch(source, Model(""), 0.01, Event(), once=True)
    other.results_store.close()
    (tmp_path / "checkpoints").rename(tmp_path / "moved")
    with pytest.raises(OperatorError, match="moved/step_1"):
        evaluator(tmp_path).watch(LocalSource(tmp_path / "moved"), Model(""), 0.01, Event(), once=True)


def test_only_one_evaluator_writes_to_a_folder(tmp_path: Path) -> None:
    first = ResultsStore(tmp_path)
    with pytest.raises(RunError, match="another ng_lm_eval is writing to"):
        ResultsStore(tmp_path)
    first.close()
    ResultsStore(tmp_path).close()


def test_tables_that_a_kill_left_behind_the_ledger_are_written_again(tmp_path: Path) -> None:
    checkpoint(tmp_path / "checkpoints/step_1")
    looked(tmp_path)
    for name in ("results.csv", "results.md", "results.json"):
        (tmp_path / "out" / name).unlink()
    looked(tmp_path)
    assert "step_1" in (tmp_path / "out/results.csv").read_text()
    assert len(asked(tmp_path)) == 1
