"""Changes the jobs of a running launch: replaces ended jobs and adjusts how many share a combination's rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rollyard.launchers.slurm.job_types import JobState, SubmittedJob
from rollyard.launchers.slurm.launch.job_planner import shares
from rollyard.launchers.slurm.launch.launch_records import Combination, Launch, PlannedJob

_SHARES = ("shard=", "worker=")
"""Arguments that divide the rows among jobs; the second is that of earlier versions."""


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
    """Give each share of an incomplete combination a job; the default for `jobs` is as many as it was planned with.

    With another number of jobs, the live ones are surplus, because their shares are different. Jobs that were never
    submitted count as live, because they are submitted next. `states` are by job id. `complete` are the names of the
    combinations whose rows are all done.
    """
    jobs = jobs or launch.jobs_per_combination
    wanted = shares(jobs)
    planned: list[PlannedJob] = []
    surplus: list[SubmittedJob] = []

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
        kept = set[tuple[str, ...]]()
        for job in [] if combination.name in complete else list(own):
            share, known = _share(job), submitted.get(job.spec.name)
            is_done = known is not None and states.get(known.job_id) is JobState.COMPLETED
            if share in wanted and share not in kept and (is_done or is_live(job)):
                kept.add(share)
            elif known is None:
                own.remove(job)
            elif is_live(job):
                surplus.append(known)
        own = [job if job.spec.name in submitted else job.model_copy(update={"after": after}) for job in own]
        if combination.name not in complete:
            template, number = launch.jobs_of(combination.name)[0], max(map(_number, launch.jobs_of(combination.name)))
            for extra, share in enumerate((share for share in wanted if share not in kept), number + 1):
                own.append(_replacement(template, combination, launch.launch_id, extra, share, after))
        planned += own
    return Reshaped(launch.model_copy(update={"jobs": tuple(planned), "jobs_per_combination": jobs}), surplus)


def _number(job: PlannedJob) -> int:
    return int(job.spec.folder.name.removeprefix("job-"))


def _share(job: PlannedJob) -> tuple[str, ...]:
    return tuple(word for word in job.spec.command if word.startswith(_SHARES))


def _replacement(
    template: PlannedJob,
    combination: Combination,
    launch_id: str,
    number: int,
    share: tuple[str, ...],
    after: tuple[str, ...],
) -> PlannedJob:
    command = [word for word in template.spec.command if not word.startswith(_SHARES)]
    spec = template.spec.model_copy(
        update={
            "name": f"{combination.name}-{launch_id}-job-{number}",
            "folder": combination.folder / f"job-{number}",
            "command": (*command, *share),
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
