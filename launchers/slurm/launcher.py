"""Launcher: plans, shows or submits a launch, or continues or cancels an earlier one."""

from __future__ import annotations

import shlex
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from rollyard.launchers.slurm.job import JobState, SubmittedJob, read_submission
from rollyard.launchers.slurm.launch import (
    LaunchFolder,
    LaunchOptions,
    PlannedJob,
    SlurmLaunch,
    launches,
    submitted_jobs,
)
from rollyard.launchers.slurm.launch_planner import LaunchPlanner, Planned, shares
from rollyard.launchers.slurm.report import read_progress
from rollyard.launchers.slurm.scheduler import Scheduler, SubmissionPreview
from rollyard.launchers.slurm.sweep import Setting, dump_yaml, shown_value
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.script import EXIT_DONE, EXIT_FAILED
from rollyard.services.server.settings import redacted

_SHARE = "shard="


@dataclass(frozen=True)
class SlurmLauncher:
    planner: LaunchPlanner
    scheduler: Scheduler
    print_line: Callable[[str], None]
    warn: Callable[[str], None]

    def launch(self, options: LaunchOptions, overrides: Sequence[Setting], command_line: Sequence[str]) -> int:
        """Submit a launch, or only show it. Return the exit status: 1 if not all jobs could be submitted."""
        now = time.time()
        # Sorts by time, and is unique among all launchers.
        new_id = f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{uuid.uuid4().hex[:6]}"
        planned = self.planner.plan(options, overrides, command_line, options.launch_id or new_id, now)
        earlier = self._earlier(options, planned.launch)
        if earlier is not None:
            planned = replace(planned, launch=earlier, files={})
        for job in planned.launch.jobs:
            self.scheduler.preview(job.spec)  # raises OperatorError for what sbatch or the runner would refuse
        for text in planned.warnings:
            self.warn(text)
        self._print(_header(planned, options.dry))
        if options.dry:
            self._show(planned)
            return EXIT_DONE
        if earlier is not None:
            return self.resume(earlier)
        folder = LaunchFolder(planned.launch.folder)
        folder.write(planned.launch, planned.files)
        with folder.locked():
            return self._submit_all(planned.launch)

    def _submit_all(self, launch: SlurmLaunch, completed: frozenset[str] = frozenset()) -> int:
        """Submit the jobs that SLURM does not have yet, up to the first that it refuses: the next ones would be
        refused for the same reason, such as a limit or a dead controller. The caller holds the lock of the folder.
        """
        submitted = submitted_jobs(launch)
        for job in launch.jobs:
            if known := submitted.get(job.spec.name):
                self.print_line(f"[{launch.title(job)}] already submitted as batch job {known.job_id}")
                continue
            try:
                job_id = self._submit(job, submitted, completed)
            except (OperatorError, RunError, OSError) as error:
                missing = [one for one in launch.jobs if one.spec.name not in submitted]
                names = launch.title(job) + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
                self._print([*_block(launch, job, [f"Not submitted: {error}"]), ""])
                self.print_line(
                    f"Submitted {len(launch.jobs) - len(missing)} of {len(launch.jobs)} jobs; missing: {names}. Remove "
                    f"the cause, then continue with: ng_eval_launcher resume {shlex.quote(str(launch.folder))}"
                )
                self.warn(f"{launch.title(job)} was not submitted: {error}")
                return EXIT_FAILED
            self._print(_block(launch, job, [f"Submitted batch job {job_id}"]))
        follow = f"  ng_eval_launcher status {shlex.quote(str(launch.folder))}"
        self._print(["", f"Submitted {len(launch.jobs)} of {len(launch.jobs)} jobs. Follow them with:", follow])
        return EXIT_DONE

    def _submit(self, job: PlannedJob, submitted: dict[str, SubmittedJob], completed: frozenset[str]) -> str:
        """Submit a job and return its id. After an interrupted submission, the scheduler finds the job by its folder.

        `completed`: names of jobs that have succeeded: nothing needs to wait for them, and SLURM may no longer know
        them.
        """
        after = tuple(submitted[name].job_id for name in job.after if name not in completed)
        spec = job.spec.model_copy(update={"after_ok": after})
        job_id = self.scheduler.submit(spec)
        submitted[spec.name] = SubmittedJob(name=spec.name, job_id=job_id, folder=spec.folder)
        return job_id

    def resume(self, launch: SlurmLaunch, jobs: int | None = None) -> int:
        """Submit what is missing, and divide each incomplete combination among `jobs` jobs. Return the exit status."""
        folder = LaunchFolder(launch.folder)
        with folder.locked():
            launch = folder.read()  # another launcher may have changed it before the lock
            known = submitted_jobs(launch)
            states = self.scheduler.states(list(known.values()))
            completed = frozenset(name for name, job in known.items() if states[job.job_id] is JobState.COMPLETED)
            self._settle(launch, known, completed)
            states |= self.scheduler.states([job for job in known.values() if job.job_id not in states])
            done = frozenset(one.name for one in launch.combinations if read_progress(one).is_complete)
            reshaped, surplus = _reshape(launch, known, states, done, jobs)
            if reshaped != launch:
                folder.write_launch(reshaped)
            if surplus:
                self.scheduler.cancel(surplus)
                self.print_line(f"Cancelled: {', '.join(job.job_id for job in surplus)}")
            return self._submit_all(reshaped, completed)

    def cancel(self, launch: SlurmLaunch) -> int:
        """Cancel all jobs of the launch with their successors. Return the exit status."""
        folder = LaunchFolder(launch.folder)
        with folder.locked():
            known = submitted_jobs(launch)
            try:
                # A submission that was interrupted may have reached SLURM; submitting again finds its job.
                self._settle(launch, known)
            except (OperatorError, RunError) as error:
                self.warn(f"an interrupted submission may have left a job that is not cancelled: {error}")
            states = self.scheduler.states(list(known.values()))
            live = [job for job in known.values() if states[job.job_id].alive]
            self.scheduler.cancel([job for job in known.values() if states[job.job_id] is not JobState.COMPLETED])
        ended = f"; {len(known) - len(live)} had ended before" if len(live) < len(known) else ""
        self.print_line(f"Cancelled {len(live)} of {len(known)} jobs of launch {launch.launch_id}{ended}")
        return EXIT_DONE

    def _settle(
        self, launch: SlurmLaunch, submitted: dict[str, SubmittedJob], completed: frozenset[str] = frozenset()
    ) -> None:
        """Find out the ids of jobs whose submission was interrupted; submit those that SLURM does not have."""
        for job in launch.jobs:
            if job.spec.name not in submitted and read_submission(job.spec.folder) is not None:
                self._submit(job, submitted, completed)

    def _earlier(self, options: LaunchOptions, launch: SlurmLaunch) -> SlurmLaunch | None:
        """Return the launch to continue; None for a new one. Raises OperatorError if it has different content."""
        folder = LaunchFolder(launch.folder)
        if options.launch_id is not None and folder.launch.exists():
            found = folder.read()
            if found.content != launch.content:
                raise OperatorError(
                    f"launch {options.launch_id} exists and evaluates something else: {folder.launch}; choose another "
                    "--launch-id"
                )
            return found
        same = [one for one in launches(options.log_root, options.jobname) if one.content == launch.content]
        if options.resume:
            if not same:
                raise OperatorError(
                    f"--resume: no launch in {options.log_root / options.jobname} evaluates the same; start without it"
                )
            return same[-1]
        if same and options.launch_id is None and not options.dry:
            known = submitted_jobs(same[-1])
            if missing := sum(job.spec.name not in known for job in same[-1].jobs):
                raise OperatorError(
                    f"launch {same[-1].launch_id} evaluates the same, and {missing} of its {len(same[-1].jobs)} jobs "
                    "are not submitted yet: continue it with --resume, or start another one with --launch-id=NAME"
                )
        return None

    def _show(self, planned: Planned) -> None:
        launch = planned.launch
        known = submitted_jobs(launch)
        for job in launch.jobs:
            combination = launch.combination(job.combination)
            config = None if combination is None else combination.config
            text = None if config is None else planned.files.get(config)
            if job.spec.name in known:
                lines = [f"Already submitted as batch job {known[job.spec.name].job_id}"]
            else:
                spec = job.spec.model_copy(update={"after_ok": tuple(f"<id of {name}>" for name in job.after)})
                lines = list(_preview_lines(self.scheduler.preview(spec), config, text))
            self._print(_block(launch, job, lines))
        count = sum(job.spec.name not in known for job in launch.jobs)
        jobs = "1 job" if count == 1 else f"{count} jobs"
        self._print(["", f"Dry run: nothing was written or submitted. {jobs} would be submitted."])

    def _print(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.print_line(line)


def _reshape(
    launch: SlurmLaunch,
    submitted: Mapping[str, SubmittedJob],
    states: Mapping[str, JobState],
    complete: frozenset[str],
    jobs: int | None = None,
) -> tuple[SlurmLaunch, list[SubmittedJob]]:
    """Give each share of an incomplete combination a job; the default for `jobs` is as many as it was planned with.

    Returns the launch with additional jobs, and the live jobs to cancel. With another number of jobs, all live ones are
    cancelled, because their shares are different. Jobs that were never submitted count as live, because they are
    submitted next. `states` are by job id. `complete` are the names of the combinations whose rows are all done.
    """
    jobs = jobs or launch.jobs_per_combination
    wanted = shares(jobs)
    surplus: list[SubmittedJob] = []

    def state_of(job: PlannedJob) -> JobState | None:
        known = submitted.get(job.spec.name)
        return None if known is None else states.get(known.job_id, JobState.UNKNOWN)

    def is_live(job: PlannedJob) -> bool:
        return (state := state_of(job)) is None or state.alive

    planned = launch.jobs_of(None)
    after: tuple[str, ...] = ()
    if planned and state_of(planned[-1]) is not JobState.COMPLETED:
        if not is_live(planned[-1]):
            first, again = planned[0].spec, len(planned) + 1
            folder = first.folder.with_name(f"{first.folder.name}-{again}")
            spec = first.model_copy(update={"name": f"{first.name}-{again}", "folder": folder})
            planned.append(PlannedJob(spec=spec, combination=None))
        after = (planned[-1].spec.name,)
    for combination in launch.combinations:
        own = launch.jobs_of(combination.name)
        template = own[0]
        number = max(int(job.spec.folder.name.removeprefix("job-")) for job in own)
        kept: set[tuple[str, ...]] = set()
        for job in [] if combination.name in complete else list(own):
            share = tuple(word for word in job.spec.command if word.startswith(_SHARE))
            if share in wanted and share not in kept and (state_of(job) is JobState.COMPLETED or is_live(job)):
                kept.add(share)
            elif job.spec.name not in submitted:
                own.remove(job)
            elif is_live(job):
                surplus.append(submitted[job.spec.name])
        planned += [job if job.spec.name in submitted else job.model_copy(update={"after": after}) for job in own]
        missing = [] if combination.name in complete else [share for share in wanted if share not in kept]
        for extra, share in enumerate(missing, number + 1):
            command = (word for word in template.spec.command if not word.startswith(_SHARE))
            changes = {
                "name": f"{combination.name}-{launch.launch_id}-job-{extra}",
                "folder": combination.folder / f"job-{extra}",
                "command": (*command, *share),
            }
            spec = template.spec.model_copy(update=changes)
            planned.append(PlannedJob(spec=spec, combination=combination.name, after=after))
    return launch.model_copy(update={"jobs": tuple(planned), "jobs_per_combination": jobs}), surplus


def _header(planned: Planned, dry: bool) -> Iterator[str]:
    """Yield the lines before the first job, in the format of the original launcher."""
    launch = planned.launch
    if launch.conversion is not None:
        yield "=== DCP to HF Conversion Setup ==="
        yield f"DCP checkpoint: {launch.conversion.dcp_ckpt_path}"
        yield f"HF checkpoint: {launch.conversion.hf_ckpt_path}"
        yield ""
    yield f"=== {'DRY RUN' if dry else 'SUBMITTING'} - Evaluation Experiments ==="
    yield f"Config: {launch.config}"
    if launch.conversion is None:
        swept = (one.parameters.get(key) for one in launch.combinations for key in ("generation.model_name", "model"))
        yield f"Model: {' '.join(sorted({str(model) for model in swept if model is not None})) or launch.model}"
    else:
        yield f"Model: Will be converted from DCP checkpoint to {launch.conversion.hf_ckpt_path}"
    if planned.cached:
        yield f"Found cached HF checkpoint at: {launch.model}"
        yield "Using cached checkpoint, skipping conversion"
    yield f"Nodes: {launch.nodes}"
    yield f"GPUs per node: {launch.gpus}"
    yield f"Launch: {launch.folder}"


def _block(launch: SlurmLaunch, job: PlannedJob, after: Iterable[str]) -> Iterator[str]:
    """Yield the block of one job, in the format of the original launcher. `after`: the lines below its command."""
    yield ""
    yield f"[{launch.title(job)}]"
    combination = launch.combination(job.combination)
    if combination is not None and combination.parameters:
        yield "Parameters:"
        yield from (f"  {key}: {shown_value(value)}" for key, value in combination.parameters.items())
    yield "Command:"
    yield f"  {shlex.join(job.spec.command)}"
    yield from after
    yield "=" * 80


def _preview_lines(preview: SubmissionPreview, config: Path | None, text: str | None) -> Iterator[str]:
    """Yield the command of the submission and the files that it needs, without secrets."""
    yield from ("--- Command that will be executed ---", shlex.join(preview.argv), "--- End of command ---")
    files = dict(preview.files)
    if config is not None and text is not None:
        comments = [line for line in text.splitlines() if line.startswith("#")]
        files = {config: "\n".join([*comments, dump_yaml(redacted(yaml.safe_load(text)))]), **files}
    for path, shown in files.items():
        yield from (f"--- File {path} ---", shown.rstrip("\n"), "--- End of file ---")
