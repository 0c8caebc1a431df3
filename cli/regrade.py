"""ng_regrade: asks for another verdict on the stored answers of a rollout file, without the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import uvloop

from rollyard.cli.collect_rollouts import plan_of, run_collection
from rollyard.cli.collection_options import CollectionOptions
from rollyard.cli.options import read_options, rollout_files, run_command
from rollyard.records.rollout_file import named_files, real_file
from rollyard.services.rollouts.stored_rollouts import StoredRollouts

EXAMPLE = "ng_regrade results/rollouts.jsonl --output-jsonl-fpath results/verdicts.jsonl"


class RegradeOptions(CollectionOptions):
    SUBJECT: ClassVar[str] = "jsonl_fpath"

    jsonl_fpath: Path
    """Finished rollouts, or an evaluation's folder."""
    agent_name: str | None = None
    """Agent of the environment that is the verifier; default: the agent that each rollout names."""


def main() -> None:
    run_command("ng_regrade", RegradeOptions, EXAMPLE, run)


def run(arguments: Sequence[str]) -> int:
    """Ask the environments of a running stack for another verdict on every stored rollout, without the model.

    An interrupted command can be resumed. The rows of the output keep the old verdict as _ng_old_verdict.
    """
    options, _ = read_options(RegradeOptions, arguments)
    ((_, file),) = named_files(rollout_files([options.jsonl_fpath]), [])
    tasks = StoredRollouts(real_file(file), agent=options.agent_name)
    plan = plan_of(options, options.agent_name, tasks.repeats)
    status = uvloop.run(run_collection(options, tasks, plan))
    print(f"  compare       ng_compare {file} {plan.output}  (where the verdicts differ)")
    return status
