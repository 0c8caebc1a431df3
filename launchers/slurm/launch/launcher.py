"""Launcher: plans, shows or submits a launch, or continues an earlier one."""

from __future__ import annotations

import shlex
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import yaml

from rollyard.launchers.slurm.job_types import JobState, SubmittedJob
from rollyard.launchers.slurm.launch.dotted_keys import Setting
from rollyard.launchers.slurm.launch.launch_folder import LaunchFolder, launches
from rollyard.launchers.slurm.launch.launch_options import LaunchOptions
from rollyard.launchers.slurm.launch.launch_planner import LaunchPlanner, Planned
from rollyard.launchers.slurm.launch.launch_records import Launch
from rollyard.launchers.slurm.launch.launch_text import block, header, outcome_line, preview_lines, title
from rollyard.launchers.slurm.launch.reshaping import reshape
from rollyard.launchers.slurm.launch.submissions import Submissions
from rollyard.launchers.slurm.launch.submitter import Outcome, Submitter
from rollyard.launchers.slurm.launch.yaml_values import dump_yaml
from rollyard.launchers.slurm.reports.progress import read_progress
from rollyard.launchers.slurm.scheduler import Scheduler
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.io.exit_status import EXIT_DONE, EXIT_FAILED
from rollyard.services.server.settings import redacted


def new_launch_id(now: float) -> str:
    """Return an id that sorts by time and is unique among all launchers."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{uuid.uuid4().hex[:6]}"


@dataclass(frozen=True)
class Launcher:
    planner: LaunchPlanner
    scheduler: Scheduler
    print_line: Callable[[str], None]
    warn: Callable[[str], None]

    def launch(self, options: LaunchOptions, overrides: Sequence[Setting], command_line: Sequence[str]) -> int:
        """Submit a launch, or only show it. Return the exit status: 1 if not all jobs could be submitted."""
        now = time.time()
        planned = self.planner.plan(options, overrides, command_line, options.launch_id or new_launch_id(now), now)
        earlier = self._earlier(options, planned.launch)
        if earlier is not None:
            planned = replace(planned, launch=earlier, files={})
        for job in planned.launch.jobs:
            self.scheduler.preview(job.spec)  # raises OperatorError for what sbatch or the runner would refuse
        for text in planned.warnings:
            self.warn(text)
        for line in header(planned, options.dry):
            self.print_line(line)
        if options.dry:
            self._show(planned)
            return EXIT_DONE
        if earlier is not None:
            return self.resume(earlier)
        folder = LaunchFolder(planned.launch.folder)
        folder.write(planned.launch, planned.files)
        with folder.locked():
            return self._submit(planned.launch)

    def resume(self, launch: Launch, jobs: int | None = None) -> int:
        """Submit what is missing, and bring each incomplete combination to `jobs` live jobs. Return the exit status."""
        folder = LaunchFolder(launch.folder)
        with folder.locked():
            launch = folder.read()  # another launcher may have changed it before the lock
            submissions = Submissions(folder.submitted)
            known = submissions.jobs
            states = self._states(known)
            completed = _completed(known, states)
            Submitter(self.scheduler, completed=completed).settle(launch, submissions)
            states |= self._states({name: job for name, job in known.items() if job.job_id not in states})
            done = frozenset(
                one.name
                for one in launch.combinations
                if read_progress(one).is_complete or any(job.spec.name in completed for job in launch.jobs_of(one.name))
            )
            reshaped = reshape(launch, known, states, done, jobs)
            if reshaped.launch != launch:
                folder.write_launch(reshaped.launch)
            if reshaped.surplus:
                self.scheduler.cancel(reshaped.surplus)
                self.print_line(f"Cancelled: {', '.join(job.job_id for job in reshaped.surplus)}")
            return self._submit(reshaped.launch, completed)

    def cancel(self, launch: Launch) -> int:
        """Cancel all jobs of the launch with their successors. Return the exit status."""
        folder = LaunchFolder(launch.folder)
        with folder.locked():
            submissions = Submissions(folder.submitted)
            try:
                # A submission that was interrupted may have reached SLURM; submitting again finds its job.
                Submitter(self.scheduler).settle(launch, submissions)
            except (OperatorError, RunError) as error:
                self.warn(f"an interrupted submission may have left a job that is not cancelled: {error}")
            known = submissions.jobs
            states = self._states(known)
            live = [job for job in known.values() if states[job.job_id].alive]
            self.scheduler.cancel([job for job in known.values() if states[job.job_id] is not JobState.COMPLETED])
        ended = f"; {len(known) - len(live)} had ended before" if len(live) < len(known) else ""
        self.print_line(f"Cancelled {len(live)} of {len(known)} jobs of launch {launch.launch_id}{ended}")
        return EXIT_DONE

    def _submit(self, launch: Launch, completed: frozenset[str] = frozenset()) -> int:
        """Submit the jobs that SLURM does not have yet. The caller holds the lock of the launch's folder."""

        def report(outcome: Outcome) -> None:
            if outcome.before:
                self.print_line(f"[{title(launch, outcome.job)}] already submitted as batch job {outcome.job_id}")
                return
            for line in block(launch, outcome.job, [outcome_line(outcome)]):
                self.print_line(line)

        outcomes = Submitter(self.scheduler, report, completed).submit(launch)
        missing = len(launch.jobs) - sum(outcome.job_id is not None for outcome in outcomes)
        self.print_line("")
        if missing:
            first = outcomes[-1]
            names = title(launch, first.job) + (f" and {missing - 1} more" if missing > 1 else "")
            self.print_line(
                f"Submitted {len(launch.jobs) - missing} of {len(launch.jobs)} jobs; missing: {names}. Remove the "
                f"cause, then continue with: ng_eval_launcher resume {shlex.quote(str(launch.folder))}"
            )
            self.warn(f"{title(launch, first.job)} was not submitted: {first.problem}")
            return EXIT_FAILED
        self.print_line(f"Submitted {len(launch.jobs)} of {len(launch.jobs)} jobs. Follow them with:")
        self.print_line(f"  ng_eval_launcher status {shlex.quote(str(launch.folder))}")
        return EXIT_DONE

    def _states(self, jobs: Mapping[str, SubmittedJob]) -> dict[str, JobState]:
        return self.scheduler.states(list(jobs.values())) if jobs else {}

    def _earlier(self, options: LaunchOptions, launch: Launch) -> Launch | None:
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
        if same and options.launch_id is None and not options.dry and (missing := _missing(same[-1])):
            raise OperatorError(
                f"launch {same[-1].launch_id} evaluates the same, and {missing} of its {len(same[-1].jobs)} jobs are "
                "not submitted yet: continue it with --resume, or start another one with --launch-id=NAME"
            )
        return None

    def _show(self, planned: Planned) -> None:
        launch = planned.launch
        known = Submissions(LaunchFolder(launch.folder).submitted).jobs
        for job in launch.jobs:
            combination = launch.combination(job.combination)
            config = None if combination is None else combination.config
            files = {config: _without_secrets(planned.files[config])} if config and config in planned.files else {}
            if job.spec.name in known:
                lines = [f"Already submitted as batch job {known[job.spec.name].job_id}"]
            else:
                spec = job.spec.model_copy(update={"after_ok": tuple(f"<id of {name}>" for name in job.after)})
                lines = list(preview_lines(self.scheduler.preview(spec), files))
            for line in block(launch, job, lines):
                self.print_line(line)
        self.print_line("")
        count = sum(job.spec.name not in known for job in launch.jobs)
        jobs = "1 job" if count == 1 else f"{count} jobs"
        self.print_line(f"Dry run: nothing was written or submitted. {jobs} would be submitted.")


def _completed(jobs: Mapping[str, SubmittedJob], states: Mapping[str, JobState]) -> frozenset[str]:
    return frozenset(name for name, job in jobs.items() if states.get(job.job_id) is JobState.COMPLETED)


def _missing(launch: Launch) -> int:
    known = Submissions(LaunchFolder(launch.folder).submitted).jobs
    return sum(job.spec.name not in known for job in launch.jobs)


def _without_secrets(text: str) -> str:
    """Hide secrets in YAML, for the terminal."""
    comments = [line for line in text.splitlines() if line.startswith("#")]
    shown = redacted(yaml.safe_load(text))
    return "\n".join([*comments, dump_yaml(shown)])
