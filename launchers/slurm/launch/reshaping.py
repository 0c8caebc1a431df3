"""Changes the jobs of a running launch: replaces ended jobs and adjusts how many share a combination's rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rollyard.launchers.slurm.job_types import JobState, SubmittedJob
from rollyard.launchers.slurm.launch.launch_records import Combination, Launch, PlannedJob


@dataclass(frozen=True)
class Reshaped:
    launch: Launch
    """The launch with additional jobs."""
    surplus: list[SubmittedJob]
    """Live jobs to cancel."""


def reshape(
    launch: Launch,
    submitted: Mapping[str, SubmittedJob],
    states: Mapping[str, JobState],
    complete: frozenset[str],
    jobs: int | None = None,
) -> Reshaped:
    """Bring each incomplete combination to `jobs` live jobs; default: as many as it was planned with.

    Jobs that were never submitted count as live, because they are submitted next. `states` are by job id. `complete`
    are the names of the combinations whose rows are all done.
    """
    jobs = jobs or launch.jobs_per_combination
    planned: list[PlannedJob] = []
    surplus: list[SubmittedJob] = []
    unsubmitted: set[str] = set()

    def is_live(job: PlannedJob) -> bool:
        known = submitted.get(job.spec.name)
        return known is None or states.get(known.job_id, JobState.UNKNOWN).alive

    conversions = launch.jobs_of(None)
    after: tuple[str, ...] = ()
    if conversions:
        known = submitted.get(conversions[-1].spec.name)
        state = None if known is None else states.get(known.job_id)
        if state is not JobState.COMPLETED:
            if known is not None and not (state or JobState.UNKNOWN).alive:
                conversions.append(_again(conversions[0], len(conversions) + 1))
            after = (conversions[-1].spec.name,)
    planned += conversions
    for combination in launch.combinations:
        own = launch.jobs_of(combination.name)
        template, number = own[0], max(map(_number, own))
        live = [job for job in own if is_live(job)]
        wanted = 0 if combination.name in complete else jobs
        if combination.name not in complete:
            # Pending jobs go first: they have no rows in progress.
            live.sort(key=lambda job: _age(job, submitted, states))
            for job in live[wanted:]:
                known = submitted.get(job.spec.name)
                if known is None:
                    unsubmitted.add(job.spec.name)
                else:
                    surplus.append(known)
        own = [
            job if job.spec.name in submitted else job.model_copy(update={"after": after})
            for job in own
            if job.spec.name not in unsubmitted
        ]
        for extra in range(number + 1, number + 1 + max(0, wanted - len(live))):
            own.append(_worker(template, combination, launch.launch_id, extra, after))
        planned += own
    return Reshaped(launch.model_copy(update={"jobs": tuple(planned), "jobs_per_combination": jobs}), surplus)


def _age(job: PlannedJob, submitted: Mapping[str, SubmittedJob], states: Mapping[str, JobState]) -> tuple[int, int]:
    known = submitted.get(job.spec.name)
    state = None if known is None else states.get(known.job_id)
    return (0 if state is JobState.RUNNING else 1 if state is JobState.PENDING else 2, _number(job))


def _number(job: PlannedJob) -> int:
    return int(job.spec.folder.name.removeprefix("job-"))


def _worker(
    template: PlannedJob, combination: Combination, launch_id: str, number: int, after: tuple[str, ...]
) -> PlannedJob:
    worker = f"job-{number}"
    spec = template.spec.model_copy(
        update={
            "name": f"{combination.name}-{launch_id}-{worker}",
            "folder": combination.folder / worker,
            "command": (*template.spec.command[:-1], f"worker={worker}"),
        }
    )
    return PlannedJob(spec=spec, combination=combination.name, after=after)


def _again(first: PlannedJob, number: int) -> PlannedJob:
    spec = first.spec.model_copy(
        update={
            "name": f"{first.spec.name}-{number}",
            "folder": first.spec.folder.with_name(f"{first.spec.folder.name}-{number}"),
        }
    )
    return PlannedJob(spec=spec, combination=None)
