"""Each complete checkpoint is evaluated exactly once despite failures and interruptions."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
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
from rollyard.records.errors import OperatorError, RunError
from tests.unit.launchers.evaluation.checkpoint_files import checkpoint

FAKE = (sys.executable, "-S", str(Path(__file__).with_name("fake_lm_eval.py")))
GSM8K, IFEVAL = Benchmark(task="gsm8k", num_fewshot=8), Benchmark(task="ifeval")


class Site:
    """A training run with checkpoints, and what an evaluator of them prints."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.printed: list[str] = []
        self.on_line: Callable[[str], object] = self.printed.append

    def checkpoint(self, step: int = 1) -> Path:
        return checkpoint(self.root / f"checkpoints/step_{step}")

    def evaluator(self, *benchmarks: Benchmark, **settings: object) -> LmEvaluator:
        harness = Harness(command=FAKE, **settings)  # type: ignore[arg-type]
        store = ResultsStore(self.root / "out")
        return LmEvaluator(harness, store, benchmarks or (GSM8K,), {}, print_line=lambda text: void(self.on_line(text)))

    def watch(self, evaluator: LmEvaluator, source: LocalSource | None = None, stopped: Event | None = None) -> None:
        """Evaluate the checkpoints that are there now, or until `stopped` is set."""
        source = source or LocalSource(self.root / "checkpoints")
        evaluator.watch(source, Model(""), 0.01, stopped or Event(), once=stopped is None)
        evaluator.results_store.close()

    def watch_once(self, *benchmarks: Benchmark) -> ResultsStore:
        evaluator = self.evaluator(*benchmarks)
        self.watch(evaluator)
        return evaluator.results_store

    def calls(self) -> list[list[str]]:
        path = self.root / "out/calls.jsonl"
        return [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def void(_: object) -> None: ...


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_complete_checkpoints_are_evaluated_once_in_order_of_their_steps(site: Site) -> None:
    for step in (20, 3):
        site.checkpoint(step)
    for _ in range(2):
        store = site.watch_once(GSM8K, IFEVAL)
    found = [(score.step, score.task) for score in store.scores]
    assert found == [(step, task) for step in (3, 20) for task in ("gsm8k", "ifeval")]
    assert len(site.calls()) == 4
    assert (site.root / "out/results.csv").read_text().count("\n") == 5


def test_an_incomplete_checkpoint_waits_and_its_reason_is_reported_once(site: Site) -> None:
    weights, stopped = site.checkpoint() / "model.safetensors", Event()
    content = weights.read_bytes()
    weights.write_bytes(content[:30])
    looks = iter(range(9))

    class Finishing(LocalSource):
        def names(self) -> list[str]:
            if next(looks) == 3:
                weights.write_bytes(content)
            return super().names()

    def on_line(text: str) -> None:
        site.printed.append(text)
        if "exact_match" in text:
            stopped.set()

    site.on_line = on_line
    evaluator = site.evaluator()
    site.watch(evaluator, Finishing(site.root / "checkpoints"), stopped)
    assert len([text for text in site.printed if "model.safetensors has 30 bytes" in text]) == 1
    assert len(evaluator.results_store.scores) == 1


def test_a_failed_evaluation_is_retried_by_later_passes_then_abandoned_but_stays_listed(site: Site) -> None:
    folder = site.checkpoint()
    for number in range(1, MAX_ATTEMPTS + 2):
        (folder / "broken").touch()
        store = site.watch_once()
        assert [entry.tries for entry in store.failed([GSM8K.title])] == [min(number, MAX_ATTEMPTS)]
    assert len(site.calls()) == MAX_ATTEMPTS and not store.scores
    assert any("CUDA" in text for text in site.printed)
    (folder / "broken").unlink()
    evaluator = site.evaluator()
    evaluator.results_store.forget_failures()
    site.watch(evaluator)
    assert (evaluator.results_store.failed([GSM8K.title]), len(evaluator.results_store.scores)) == ([], 1)


def test_the_lm_eval_command_line_has_the_expected_options(tmp_path: Path) -> None:
    harness = Harness(max_gen_toks={"default": 1024, "gsm8k": 512})
    words = harness.command_line(GSM8K, Model("org/model", arguments={"tensor_parallel_size": 8}), tmp_path)
    assert " ".join(words).startswith(
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
        (Harness(command=("no-such-lm-eval",)), "gsm8k", r"'rollyard\[lm-eval\]'"),
    ],
)
def test_an_unsupported_setting_is_rejected_before_the_run(harness: Harness, benchmark: str, message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        harness.check([Benchmark.read(benchmark)])


@pytest.mark.parametrize("error", ["ValueError: Tasks not found: gsm9k", "ModuleNotFoundError: No module named 'nltk'"])
def test_a_permanent_failure_ends_the_command_with_lm_evals_message(site: Site, error: str) -> None:
    (site.checkpoint() / "broken").write_text(error)
    with pytest.raises(OperatorError, match=error):
        site.watch_once(GSM8K, IFEVAL)
    assert [arguments[arguments.index("--tasks") + 1] for arguments in site.calls()] == ["gsm8k", "ifeval"]
    assert "ifeval" in (site.root / "out/results.csv").read_text(), "the other benchmarks run first"


def test_a_failure_is_reported_with_its_error_not_the_warnings_after_it(site: Site) -> None:
    error = "RuntimeError: Engine core initialization failed\nresource_tracker.py:254: UserWarning: leaked objects"
    (site.checkpoint() / "broken").write_text(error)
    (failure,) = site.watch_once().failed([GSM8K.title])
    assert "status 1 on gsm8k_8shot: RuntimeError: Engine" in failure.error and "leaked" not in failure.error


def test_an_lm_eval_that_writes_no_results_has_failed_despite_older_results(site: Site) -> None:
    (site.checkpoint() / "silent").touch()
    older = site.root / "out/raw/step_1/gsm8k_8shot/results_0000.json"
    older.parent.mkdir(parents=True)
    older.write_text('{"results": {"gsm8k": {"exact_match,none": 1.0}}}')
    store = site.watch_once()
    [failed] = store.failed([GSM8K.title])
    assert "status" not in failed.error and not store.scores


def test_a_checkpoint_that_disappears_does_not_stop_the_watch(site: Site) -> None:
    for step in (1, 2):
        site.checkpoint(step)

    class Vanishing(LocalSource):
        def names(self) -> list[str]:
            found = super().names()
            shutil.rmtree(self.root / "step_1")
            return found

    evaluator = site.evaluator()
    site.watch(evaluator, Vanishing(site.root / "checkpoints"))
    assert [score.step for score in evaluator.results_store.scores] == [2]
    assert [text for text in site.printed if text.startswith("step_1 ") and "config.json" in text]


def test_an_unreadable_source_stops_the_watch_at_its_first_pass_but_not_later(site: Site) -> None:
    site.checkpoint()
    stopped = Event()

    class Breaking(LocalSource):
        def names(self) -> list[str]:
            if len(site.printed) > 1:
                stopped.set()
                raise RunError("unreachable")
            return super().names()

    breaking = Breaking(site.root / "checkpoints")
    site.watch(site.evaluator(), breaking, stopped)
    assert site.printed[-1].startswith("unreachable; ")
    with pytest.raises(OperatorError, match="unreachable"):
        site.watch(site.evaluator(), breaking, Event())


def test_results_of_different_settings_or_another_run_are_rejected(site: Site) -> None:
    site.checkpoint()
    site.watch_once()
    other = site.evaluator(limit=4)
    with pytest.raises(OperatorError, match=r"step_1 .*\(limit None, now 4\)"):
        site.watch(other)
    other.results_store.close()
    (site.root / "checkpoints").rename(site.root / "moved")
    with pytest.raises(OperatorError, match="moved/step_1"):
        site.watch(site.evaluator(), LocalSource(site.root / "moved"))


def test_missing_result_tables_are_rewritten_without_another_evaluation(site: Site) -> None:
    site.checkpoint()
    site.watch_once()
    for name in ("results.csv", "results.md", "results.json"):
        (site.root / "out" / name).unlink()
    site.watch_once()
    assert "step_1" in (site.root / "out/results.csv").read_text() and len(site.calls()) == 1


def runs(watch_path: str | None = None, **values: object) -> list[LmEvalOptions]:
    """The options of each `ng_lm_eval` that a file of benchmarks runs."""
    config = BenchmarkConfig.model_validate({"benchmarks": [{"task": "gsm8k", "num_fewshot": 8}], **values})
    return [read_options(LmEvalOptions, arguments)[0] for arguments in config.commands(watch_path=watch_path)]


def test_each_checkpoint_of_a_file_is_one_run_with_its_settings_and_a_watched_folder_the_last() -> None:
    checkpoints = [{"name": "base", "path": "Qwen/Qwen3-1.7B-Base"}, {"name": "step_40", "path": "/ckpt/it's 40, new"}]
    vllm = {"tensor_parallel_size": 8, "max_model_len": 4096}
    watch = {"s3_prefix": "s3://bucket/run", "poll_interval_s": 60}
    first, second, last = runs(checkpoints=checkpoints, vllm=vllm, max_gen_toks={"default": 1024}, seed=7, watch=watch)
    assert (first.model, first.name, first.benchmarks) == ("Qwen/Qwen3-1.7B-Base", "base", ("gsm8k:8",))
    assert (first.model_args, first.max_gen_toks, first.seed) == (vllm, {"default": 1024}, 7)
    assert (second.model, second.name) == ("/ckpt/it's 40, new", "step_40")
    assert (last.watch_path, last.poll_interval_s) == ("s3://bucket/run", 60)


def test_a_path_on_the_command_line_replaces_that_of_the_file_and_without_any_there_is_nothing_to_evaluate() -> None:
    assert runs("new", watch={"local_dir": "old"})[0].watch_path == "new"
    with pytest.raises(OperatorError, match="nothing"):
        runs(watch={"enable": False, "local_dir": "old"})
