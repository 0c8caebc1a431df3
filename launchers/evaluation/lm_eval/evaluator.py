"""Evaluates each checkpoint once on each benchmark, and retries failed evaluations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Event

from rollyard.launchers.evaluation.checkpoints.checkpoint_files import step_of
from rollyard.launchers.evaluation.checkpoints.checkpoint_sources import Source
from rollyard.launchers.evaluation.checkpoints.checkpoint_watch import CheckpointWatch
from rollyard.launchers.evaluation.lm_eval.benchmarks import Baseline, Benchmark
from rollyard.launchers.evaluation.lm_eval.lm_eval_process import Harness, Model
from rollyard.launchers.evaluation.lm_eval.lm_eval_results import Score, newest, read_scores
from rollyard.launchers.evaluation.lm_eval.results_store import ResultsStore
from rollyard.records.errors import OperatorError, RunError


@dataclass(frozen=True)
class Evaluator:
    """Runs lm_eval and stores its scores."""

    harness: Harness
    results_store: ResultsStore
    benchmarks: Sequence[Benchmark]
    environment: Mapping[str, str]
    baselines: Sequence[Baseline] = ()
    print_line: Callable[[str], None] = lambda text: None
    """Called with progress messages."""
    show: Callable[[str], None] = lambda text: None
    """Called with each line of lm_eval's output."""

    def evaluate(self, checkpoint: str, model: Model) -> None:
        """Run all pending benchmarks on `checkpoint`. If one fails, the failure is recorded and the others still run.

        Raises OperatorError at the end if a failure is permanent.
        """
        permanent_error: OperatorError | None = None
        for benchmark in self.benchmarks:
            measured = self.harness.measured(benchmark, model)
            if not self.results_store.is_pending(checkpoint, benchmark, measured):
                self.print_line(f"{checkpoint}: {benchmark.title} is already recorded in {self.results_store.folder}")
                continue
            self.print_line(f"{checkpoint}: {benchmark.title} ...")
            try:
                scores = self._scores(checkpoint, model, benchmark)
            except RunError as error:
                self.results_store.fail(checkpoint, benchmark, str(error), measured)
                self.print_line(f"{checkpoint}: {benchmark.title} failed: {error}")
            except OperatorError as error:
                permanent_error = permanent_error or error
            else:
                self.results_store.record(checkpoint, benchmark, scores, measured)
                for score in scores:
                    base = "" if score.baseline is None else f" (baseline {score.baseline:.4f})"
                    self.print_line(f"{checkpoint}: {score.task} {score.metric} {score.value:.4f}{base}")
        if permanent_error is not None:
            raise permanent_error

    def watch(self, source: Source, model: Model, poll_s: float, stopped: Event, *, once: bool) -> None:
        """Evaluate complete checkpoints as they appear, until `stopped` is set.

        With `once`, evaluate the existing ones and return. Raises OperatorError if the checkpoints cannot be listed at
        the first attempt.
        """

        def located(name: str) -> Model:
            return replace(model, origin=source.address(name))

        def is_pending(name: str) -> bool:
            there = located(name)
            return any(
                self.results_store.is_pending(name, one, self.harness.measured(one, there)) for one in self.benchmarks
            )

        CheckpointWatch(
            source,
            self.results_store.folder / "staged",
            is_pending,
            lambda name, folder: self.evaluate(name, replace(located(name), name=str(folder))),
            self.print_line,
        ).run(poll_s, stopped, once=once)

    def _scores(self, checkpoint: str, model: Model, benchmark: Benchmark) -> list[Score]:
        folder = self.results_store.folder
        output = folder / "raw" / checkpoint / benchmark.title
        log = folder / "logs" / f"{checkpoint}_{benchmark.title}.log"
        before = newest(output)
        self.harness.run(benchmark, model, output, log, self.environment, self.show)
        results = newest(output)
        if results is None or results == before:
            raise RunError(f"lm_eval succeeded but wrote no results_*.json under {output} (log: {log})")
        return read_scores(results, benchmark, checkpoint, step_of(checkpoint), self.baselines)
