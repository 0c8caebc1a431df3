"""Evaluator: each checkpoint on each benchmark once, and again only where it failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Event

from services.errors import RunError
from services.evaluation.benchmarks import Baseline, Benchmark
from services.evaluation.checkpoints import stage, step_of
from services.evaluation.harness import Harness, Model
from services.evaluation.ledger import Ledger
from services.evaluation.scores import newest, read_scores
from services.evaluation.sources import Source


@dataclass(frozen=True)
class Evaluator:
    """Runs the harness and keeps its scores."""

    harness: Harness
    ledger: Ledger
    benchmarks: Sequence[Benchmark]
    environment: Mapping[str, str]
    baselines: Sequence[Baseline] = ()
    say: Callable[[str], None] = lambda text: None
    """Told what is going on."""
    show: Callable[[str], None] = lambda text: None
    """Given lm_eval's own lines."""

    def evaluate(self, checkpoint: str, model: Model) -> None:
        """All that is still wanted of `checkpoint`. A benchmark that fails is recorded and the others go on."""
        for benchmark in self.benchmarks:
            if not self.ledger.wants(checkpoint, benchmark):
                continue
            self.say(f"{checkpoint}: {benchmark.title} ...")
            try:
                self._one(checkpoint, model, benchmark)
            except RunError as error:
                self.ledger.fail(checkpoint, benchmark, str(error))
                self.say(f"{checkpoint}: {benchmark.title} failed: {error}")

    def watch(self, source: Source, model: Model, poll_s: float, stopped: Event, *, once: bool) -> None:
        """Evaluate whole checkpoints as they appear, until `stopped`; `once`: those that are there now."""
        told: dict[str, str] = {}
        while not stopped.is_set():
            for name in source.names():
                if stopped.is_set() or not any(self.ledger.wants(name, one) for one in self.benchmarks):
                    continue
                folder, missing = source.fetch(name)
                if folder is None:
                    if told.get(name) != missing:
                        told[name] = missing
                        self.say(f"{name} is not whole yet: {missing}")
                    continue
                staged = stage(folder, self.ledger.folder / "staged" / name)
                self.evaluate(name, replace(model, name=str(staged)))
                source.done(name)
            if once:
                return
            stopped.wait(poll_s)

    def _one(self, checkpoint: str, model: Model, benchmark: Benchmark) -> None:
        folder = self.ledger.folder
        output = folder / "raw" / checkpoint / benchmark.title
        log = folder / "logs" / f"{checkpoint}_{benchmark.title}.log"
        self.harness.run(benchmark, model, output, log, self.environment, self.show)
        scores = read_scores(newest(output), benchmark, checkpoint, step_of(checkpoint), self.baselines)
        self.ledger.record(checkpoint, benchmark, scores)
        for score in scores:
            base = "" if score.difference is None else f"  {100 * score.difference:+.2f} points from the baseline"
            self.say(f"{checkpoint}: {score.task} {score.metric} {100 * score.value:.2f} %{base}")
