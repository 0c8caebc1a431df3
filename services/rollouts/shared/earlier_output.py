"""What a worker does about an existing output before it joins: it finds its input, and adopts it if needed."""

from __future__ import annotations

import time
from collections.abc import Callable

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.io.locked_files import LocksUnsupported
from rollyard.records.io.rollout_paths import RolloutPaths
from rollyard.records.types import Json
from rollyard.services.datasets.tasks import TaskFile, Tasks
from rollyard.services.rollouts.collection import CollectionPlan, Prepared, adopter_of, has_rows
from rollyard.services.rollouts.shared.shared_paths import SharedPaths
from rollyard.services.rollouts.store import RolloutStore
from rollyard.services.rollouts.task_subset import subset_of_original

_POLL_S = 0.2


def whole_input(plan: CollectionPlan, tasks: Tasks) -> tuple[Tasks, str]:
    """Return the input that the output was started with, if `tasks` are all of its tasks, else `tasks`.

    The text tells why it is not known whether `tasks` are a part of that input; it is empty if they are not. Raises
    OperatorError if they are a part: workers go through the whole input together, so that each must know all tasks.
    """
    if not isinstance(tasks, TaskFile) or tasks.limit is not None:
        return tasks, ""
    subset, problem = subset_of_original(tasks, RolloutPaths(plan.output), plan.agent)
    if subset is None:
        return tasks, problem
    if len(subset.selected) == subset.count:
        return subset.original, ""
    raise OperatorError(
        f"{tasks.file} has {len(subset.selected)} of the {subset.count} tasks of {subset.original.file}, with which "
        f"{plan.output} was started. Workers need the original input, of which they collect what is missing: pass "
        f"--input-jsonl-fpath {subset.original.file}"
    )


def adopt_output(
    plan: CollectionPlan, tasks: Tasks, prepared: Prepared, versions: Json, print_line: Callable[[str], None]
) -> list[str]:
    """Adopt the rollouts of an output that has no manifest, under its lock, and return notes for the user.

    If another worker is adopting them, wait for it. Raises OperatorError if they cannot be adopted, RunError if a file
    cannot be used.
    """
    paths, deadline, waited = RolloutPaths(plan.output), time.monotonic() + plan.lease_s, False
    latest = SharedPaths(plan.output).latest_round()
    while has_rows(paths) and not paths.manifest.exists() and (latest is None or latest.merged.exists()):
        try:
            store = RolloutStore(
                paths,
                prepared.identity,
                versions,
                resume=True,
                overwrite=False,
                code=prepared.code,
                input_path=prepared.input_path,
                adopter=adopter_of(plan, tasks),
            )
        except LocksUnsupported:
            raise
        except RunError:
            if time.monotonic() > deadline:
                raise
            if not waited:
                print_line(f"another process is writing to {paths.output}, which has no manifest; waiting for it")
            waited = True
            time.sleep(_POLL_S)
            continue
        store.close()
        return store.notes
    return []
