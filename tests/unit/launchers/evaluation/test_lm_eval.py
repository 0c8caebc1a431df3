"""Each complete checkpoint is evaluated exactly once despite failures and interruptions."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event

import orjson
import pytest

from rollyard.cli.lm_eval import LmEvalOptions
from rollyard.cli.options import read_options
from rollyard.launchers.evaluation.checkpoints import LocalSource
from rollyard.launchers.evaluation.lm_eval import (
    MAX_ATTEMPTS,
    Benchmark,
    BenchmarkConfig,
    Harness,
    LmEvaluator,
    Model,
    ResultsStore,
)
from rollyard.records import process_group
from rollyard.records.errors import OperatorError, RunError
from tests.support.waiting import deadline_s
from tests.unit.launchers.evaluation.checkpoint_files import checkpoint
from tests.unit.services.processes import wait_for_end

FAKE = (sys.executable, "-S", str(Path(__file__).with_name("fake_lm_eval.py")))
GSM8K, IFEVAL = Benchmark(task="gsm8k", num_fewshot=8), Benchmark(task="ifeval")


def make_evaluator(
    root: Path, *benchmarks: Benchmark, messages: list[str] | None = None, **more: object
) -> LmEvaluator:
    harness = Harness(command=FAKE, **more)  # type: ignore[arg-type]
    return LmEvaluator(
        harness,
        ResultsStore(root / "out"),
        benchmarks or (GSM8K,),
        {},
        print_line=(messages if messages is not None else []).append,
    )


def watch_once(root: Path, *benchmarks: Benchmark, messages: list[str] | None = None) -> LmEvaluator:
    """Evaluate the checkpoints of `root` that are there now."""
    evaluator = make_evaluator(root, *benchmarks, messages=messages)
    evaluator.watch(LocalSource(root / "checkpoints"), Model(""), 0.01, Event(), once=True)
    evaluator.results_store.close()
    return evaluator


def lm_eval_calls(root: Path) -> list[list[str]]:
    path = root / "out/calls.jsonl"
    return [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def test_complete_checkpoints_are_evaluated_once_in_order_of_their_steps(tmp_path: Path) -> None:
    for step in (20, 3):
        checkpoint(tmp_path / f"checkpoints/step_{step}")
    for _ in range(2):
        evaluator = watch_once(tmp_path, GSM8K, IFEVAL)
    assert [(score.step, score.task) for score in evaluator.results_store.scores] == [
        (step, task) for step in (3, 20) for task in ("gsm8k", "ifeval")
    ]
    assert len(lm_eval_calls(tmp_path)) == 4
    assert (tmp_path / "out/results.csv").read_text().count("\n") == 5


def test_an_incomplete_checkpoint_waits_and_its_reason_is_reported_once(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoints/step_1")
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:30])
    messages: list[str] = []
    evaluator, stopped = make_evaluator(tmp_path, messages=messages), Event()
    (tmp_path / "complete").write_bytes(weights)

    class Finishing(LocalSource):
        """The checkpoint is complete at the fourth look."""

        looks = 0

        def names(self) -> list[str]:
            self.looks += 1
            if self.looks == 4:
                (tmp_path / "complete").rename(folder / "model.safetensors")
            return super().names()

    def print_line(text: str) -> None:
        messages.append(text)
        if "exact_match" in text:
            stopped.set()

    watching = LmEvaluator(evaluator.harness, evaluator.results_store, evaluator.benchmarks, {}, print_line=print_line)
    watching.watch(Finishing(tmp_path / "checkpoints"), Model(""), 0.01, stopped, once=False)
    assert len([text for text in messages if "model.safetensors has 30 bytes" in text]) == 1
    assert len(evaluator.results_store.scores) == 1


def test_a_failed_evaluation_is_retried_by_the_next_pass(tmp_path: Path) -> None:
    (checkpoint(tmp_path / "checkpoints/step_1") / "broken").touch()
    messages: list[str] = []
    first = watch_once(tmp_path, messages=messages)
    assert [entry.tries for entry in first.results_store.failed([GSM8K.title])] == [1]
    assert any("CUDA" in text for text in messages)
    second = watch_once(tmp_path)
    assert (second.results_store.failed([GSM8K.title]), len(second.results_store.scores)) == ([], 1)


def test_an_evaluation_that_always_fails_is_abandoned_but_stays_listed(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoints/step_1")
    for _ in range(MAX_ATTEMPTS + 2):
        (folder / "broken").touch()
        evaluator = watch_once(tmp_path)
    assert len(lm_eval_calls(tmp_path)) == MAX_ATTEMPTS
    assert [entry.tries for entry in evaluator.results_store.failed([GSM8K.title])] == [MAX_ATTEMPTS]
    assert not evaluator.results_store.scores
    (folder / "broken").unlink()
    evaluator.results_store.forget_failures()
    evaluator.watch(LocalSource(tmp_path / "checkpoints"), Model(""), 0.01, Event(), once=True)
    assert len(evaluator.results_store.scores) == 1


def test_an_interrupted_evaluation_leaves_no_engine_and_no_record(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoints/step_1")
    (folder / "slow").touch()
    engines: list[int] = []

    def show(text: str) -> None:
        if text.startswith("engine "):
            engines.append(int(text.split()[1]))
            raise KeyboardInterrupt

    evaluator = LmEvaluator(Harness(command=FAKE), ResultsStore(tmp_path / "out"), [GSM8K], {}, show=show)
    with pytest.raises(KeyboardInterrupt):
        evaluator.evaluate("step_1", Model(str(folder)))
    (engine,) = engines
    wait_for_end(engine)
    evaluator.results_store.close()
    assert ResultsStore(tmp_path / "out").is_pending("step_1", GSM8K, {})


def test_the_lm_eval_command_line_has_the_expected_options(tmp_path: Path) -> None:
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
    ("harness", "benchmark", "message"),
    [
        (Harness(gen_kwargs={"max_tokens": 100}), "gsm8k", "max_gen_toks"),
        (Harness(), "humaneval:0", "without a sandbox"),
    ],
)
def test_an_unsupported_setting_is_rejected_before_the_run(harness: Harness, benchmark: str, message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        harness.check([Benchmark.read(benchmark)])


def test_the_error_for_a_missing_lm_eval_has_the_install_command() -> None:
    with pytest.raises(OperatorError, match=r"'rollyard\[lm-eval\]'"):
        Harness(command=("no-such-lm-eval",)).check([GSM8K])


@pytest.mark.parametrize("error", ["ValueError: Tasks not found: gsm9k", "ModuleNotFoundError: No module named 'nltk'"])
def test_a_permanent_failure_ends_the_command_with_lm_evals_message(tmp_path: Path, error: str) -> None:
    (checkpoint(tmp_path / "checkpoints/step_1") / "broken").write_text(error)
    with pytest.raises(OperatorError, match=error):
        watch_once(tmp_path, GSM8K, IFEVAL)
    assert [arguments[arguments.index("--tasks") + 1] for arguments in lm_eval_calls(tmp_path)] == ["gsm8k", "ifeval"]
    assert "ifeval" in (tmp_path / "out/results.csv").read_text(), "the other benchmarks run first"


def test_a_failure_is_reported_with_its_error_not_the_warnings_after_it(tmp_path: Path) -> None:
    error = "RuntimeError: Engine core initialization failed\nresource_tracker.py:254: UserWarning: leaked objects"
    (checkpoint(tmp_path / "checkpoints/step_1") / "broken").write_text(error)
    (failure,) = watch_once(tmp_path).results_store.failed([GSM8K.title])
    assert "status 1 on gsm8k_8shot: RuntimeError: Engine" in failure.error and "leaked" not in failure.error


def test_an_lm_eval_that_writes_no_results_has_failed_despite_older_results(tmp_path: Path) -> None:
    (checkpoint(tmp_path / "checkpoints/step_1") / "silent").touch()
    older = tmp_path / "out/raw/step_1/gsm8k_8shot/results_0000.json"
    older.parent.mkdir(parents=True)
    older.write_text('{"results": {"gsm8k": {"exact_match,none": 1.0}}}')
    evaluator = watch_once(tmp_path)
    [failed] = evaluator.results_store.failed([GSM8K.title])
    assert "status" not in failed.error and not evaluator.results_store.scores


def test_lm_eval_and_its_engine_end_when_the_evaluator_is_killed(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoints/step_1")
    (folder / "slow").touch()
    output = tmp_path / "out/raw/step_1/gsm8k"
    line = [*FAKE, "--model_args", f"pretrained={folder}", "--output_path", str(output), "--tasks", "gsm8k"]
    guard = process_group.start(line, stdout=subprocess.PIPE, env={"PYTHONUNBUFFERED": "1"}, text=True)
    assert guard.stdin is not None and guard.stdout is not None
    engine = next(int(text.split()[1]) for text in guard.stdout if text.startswith("engine"))
    guard.stdin.close()  # as the kernel does when a process is killed
    assert guard.wait(deadline_s()) == -signal.SIGKILL
    wait_for_end(engine)
    guard.stdout.close()


def test_a_checkpoint_that_disappears_does_not_stop_the_watch(tmp_path: Path) -> None:
    for step in (1, 2):
        checkpoint(tmp_path / f"checkpoints/step_{step}")

    class Vanishing(LocalSource):
        def names(self) -> list[str]:
            found = super().names()
            shutil.rmtree(self.root / "step_1")
            return found

    messages: list[str] = []
    evaluator = make_evaluator(tmp_path, messages=messages)
    evaluator.watch(Vanishing(tmp_path / "checkpoints"), Model(""), 0.01, Event(), once=True)
    assert [score.step for score in evaluator.results_store.scores] == [2]
    assert [text for text in messages if text.startswith("step_1 ") and "config.json" in text]


def test_an_unreadable_source_stops_the_watch_at_its_first_pass_but_not_later(tmp_path: Path) -> None:
    checkpoint(tmp_path / "checkpoints/step_1")
    stopped, messages = Event(), list[str]()

    class Breaking(LocalSource):
        def names(self) -> list[str]:
            if len(messages) > 1:
                stopped.set()
                raise RunError("unreachable")
            return super().names()

    evaluator = make_evaluator(tmp_path, messages=messages)
    evaluator.watch(Breaking(tmp_path / "checkpoints"), Model(""), 0.01, stopped, once=False)
    assert messages[-1].startswith("unreachable; ")
    with pytest.raises(OperatorError, match="unreachable"):
        evaluator.watch(Breaking(tmp_path / "checkpoints"), Model(""), 0.01, Event(), once=False)


def test_results_of_different_settings_or_another_run_are_rejected(tmp_path: Path) -> None:
    checkpoint(tmp_path / "checkpoints/step_1")
    watch_once(tmp_path)
    source = LocalSource(tmp_path / "checkpoints")
    other = make_evaluator(tmp_path, limit=4)
    with pytest.raises(OperatorError, match=r"step_1 .*\(limit None, now 4\)"):
        other.watch(source, Model(""), 0.01, Event(), once=True)
    other.results_store.close()
    (tmp_path / "checkpoints").rename(tmp_path / "moved")
    with pytest.raises(OperatorError, match="moved/step_1"):
        make_evaluator(tmp_path).watch(LocalSource(tmp_path / "moved"), Model(""), 0.01, Event(), once=True)


def test_only_one_evaluator_writes_to_a_folder(tmp_path: Path) -> None:
    first = ResultsStore(tmp_path)
    with pytest.raises(RunError, match=re.escape(str(tmp_path))):
        ResultsStore(tmp_path)
    first.close()
    ResultsStore(tmp_path).close()


def test_missing_result_tables_are_rewritten_without_another_evaluation(tmp_path: Path) -> None:
    checkpoint(tmp_path / "checkpoints/step_1")
    watch_once(tmp_path)
    for name in ("results.csv", "results.md", "results.json"):
        (tmp_path / "out" / name).unlink()
    watch_once(tmp_path)
    assert "step_1" in (tmp_path / "out/results.csv").read_text()
    assert len(lm_eval_calls(tmp_path)) == 1


def config(**values: object) -> BenchmarkConfig:
    return BenchmarkConfig.model_validate({"benchmarks": [{"task": "gsm8k", "num_fewshot": 8}], **values})


def options(arguments: list[str]) -> LmEvalOptions:
    return read_options(LmEvalOptions, arguments)[0]


def test_each_checkpoint_is_one_run() -> None:
    checkpoints = [{"name": "base", "path": "Qwen/Qwen3-1.7B-Base"}, {"name": "step_40", "path": "/ckpt/it's 40, new"}]
    first, second = (options(one) for one in config(checkpoints=checkpoints).commands())
    assert (first.model, first.name, first.benchmarks) == ("Qwen/Qwen3-1.7B-Base", "base", ("gsm8k:8",))
    assert (second.model, second.name) == ("/ckpt/it's 40, new", "step_40")


def test_settings_of_vllm_and_token_limits_reach_lm_eval() -> None:
    vllm = {"tensor_parallel_size": 8, "max_model_len": 4096}
    (found,) = config(
        checkpoints=[{"name": "a", "path": "a/b"}], vllm=vllm, max_gen_toks={"default": 1024}, seed=7
    ).commands()
    assert (options(found).model_args, options(found).max_gen_toks, options(found).seed) == (vllm, {"default": 1024}, 7)


def test_a_watched_folder_is_one_run_after_the_checkpoints() -> None:
    found = config(
        checkpoints=[{"name": "a", "path": "a/b"}], watch={"s3_prefix": "s3://bucket/run", "poll_interval_s": 60}
    ).commands()
    assert options(found[-1]).watch_path == "s3://bucket/run"
    assert options(found[-1]).poll_interval_s == 60


def test_a_path_on_the_command_line_replaces_that_of_the_file() -> None:
    (found,) = config(watch={"local_dir": "old"}).commands(watch_path="new")
    assert options(found).watch_path == "new"


def test_a_disabled_watch_without_checkpoints_has_nothing_to_evaluate() -> None:
    with pytest.raises(OperatorError, match="nothing"):
        config(watch={"enable": False, "local_dir": "old"}).commands()
