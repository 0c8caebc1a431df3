"""EvalWatch: evaluates each checkpoint of a training run once, in a separate folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event

from rollyard.launchers.evaluation.checkpoints.checkpoint_sources import LocalSource, S3Source, Source
from rollyard.launchers.evaluation.checkpoints.checkpoint_table import CheckpointTable
from rollyard.launchers.evaluation.checkpoints.checkpoint_watch import CheckpointWatch
from rollyard.launchers.evaluation.eval_config import EvalConfig
from rollyard.launchers.evaluation.eval_folder import EvalFolder
from rollyard.launchers.evaluation.headline import headline
from rollyard.records.errors import OperatorError, RunError

Evaluate = Callable[[EvalConfig], None]
"""Runs an evaluation to its end. Raises OperatorError or RunError if it does not complete, which the table records."""


class EvalWatch:
    """Watches a folder or an S3 prefix for checkpoints."""

    def __init__(
        self,
        config: EvalConfig,
        source: Source,
        evaluate: Evaluate,
        *,
        poll_s: float,
        print_line: Callable[[str], None],
    ) -> None:
        """`config`: the evaluation of each checkpoint. Its `model` must not be set, and `output_dir` holds the table
        and one folder per checkpoint.
        """
        self._config = config
        self._source = source
        self._evaluate = evaluate
        self._poll_s = poll_s
        self._print_line = print_line
        self.table = CheckpointTable(config.output_dir)

    def run(self, stopped: Event, *, once: bool) -> None:
        """Evaluate checkpoints until `stopped` is set; with `once`, the existing ones.

        Raises OperatorError if the checkpoints cannot be listed at the first attempt.
        """
        watch = CheckpointWatch(
            self._source,
            self._config.output_dir / ".staged",
            lambda name: self.table.is_pending(name, self._poll_s),
            self._run_one,
            self._print_line,
        )
        watch.run(self._poll_s, stopped, once=once)

    @property
    def is_complete(self) -> bool:
        """Whether no checkpoint's last evaluation has failed."""
        return all(row.headline is not None for row in self.table.rows)

    def _run_one(self, name: str, folder: Path) -> None:
        output = self._config.output_dir / name
        self._print_line(f"evaluating {name} in {output}")
        config = self._config.model_copy(update={"model": f"vllm/{folder.resolve()}", "output_dir": output})
        try:
            self._evaluate(config)
            found = headline(EvalFolder(output).rollouts.output, pass_threshold=config.pass_threshold)
            if not found.is_complete:
                raise RunError(f"{found.coverage} rollouts are measured")
        except (OperatorError, RunError) as error:  # the config was checked before the watch began
            self.table.fail(name, str(error))
            self._print_line(f"{name} failed and will be tried again: {error}")
            return
        self.table.record(name, found)
        self._print_line(self.table.markdown())


def open_source(address: str, copies: Path, pattern: str, marker: str | None) -> Source:
    """Return the source of checkpoints at a local folder or an S3 URL. `copies` receives those of S3, one at a time.

    Raises OperatorError if the pattern is not a plain name, or boto3 is not installed.
    """
    if "/" in pattern:
        raise OperatorError(f"watch_pattern is {pattern!r}; expected a name pattern without /, such as step_*")
    if address.startswith("s3://"):
        return S3Source(address, copies, pattern, marker)
    return LocalSource(Path(address), pattern, marker)
