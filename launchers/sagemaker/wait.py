"""Follows a job until it ends."""

from __future__ import annotations

import time
from collections.abc import Callable

from rollyard.launchers.sagemaker.log_stream import JobLogs
from rollyard.launchers.sagemaker.training_job import ENDED, JobDescription, TrainingJobs
from rollyard.records.errors import RunError
from rollyard.records.io.aws import AwsError

POLL_S = 5.0
MAX_POLL_S = 30.0
"""The pause doubles up to this while nothing new arrives."""
MAX_ERRORS = 20
"""Consecutive failed polls after which following ends; the job continues."""
START_MARGIN_S = 4 * 3600.0
"""A job may wait this long for its instances, in addition to its time limit."""


def wait(
    jobs: TrainingJobs, logs: JobLogs, name: str, max_runtime_s: float, print_line: Callable[[str], None], poll_s: float
) -> JobDescription:
    """Print a job's log and its changes of status until it has ended. Raises RunError if AWS no longer answers."""
    deadline = time.monotonic() + max_runtime_s + START_MARGIN_S
    shown, pause, errors = "", poll_s, 0
    while True:
        pause = min(pause * 2, max(MAX_POLL_S, poll_s))
        try:
            # The status first: lines that arrive before a job ends are then printed.
            job = jobs.describe(name)
            for line in logs.new_lines():
                print_line(line.rstrip("\n"))
                pause = poll_s
            errors = 0
        except AwsError as error:
            errors += 1
            if errors >= MAX_ERRORS or (error.status in (400, 403) and "throttled" not in str(error)):
                raise RunError(f"{error}. The job continues; follow it with: ng_submit status {name}") from error
        else:
            status = f"{job.status} {job.secondary_status}".strip()
            if status != shown:
                shown, pause = status, poll_s
                print_line(f"{name}: {status}")
            if job.status in ENDED:
                return job
        if time.monotonic() > deadline:
            raise RunError(f"{name} has not ended within its time limit; follow it with: ng_submit status {name}")
        time.sleep(pause)
