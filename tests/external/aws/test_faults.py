"""What goes wrong at AWS or on the way to it: one clear line, and nothing left behind."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.external.aws.account import ACCOUNT, BUCKET, TAG, Account
from tests.external.aws.test_jobs import SUBMIT, last_job
from tests.support.waiting import eventually

STS_EXPIRED = "<ErrorResponse><Error><Code>ExpiredToken</Code><Message>expired</Message></Error></ErrorResponse>"
THROTTLED = '{"__type": "ThrottlingException", "message": "Rate exceeded"}'


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1, done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    return line.removeprefix("ng_submit: ")


@pytest.fixture
def unchanged(account: Account, project: Path) -> Iterator[None]:
    """The test leaves no object, no job and no line in the job log."""
    before = account.keys("source/")
    yield
    assert account.keys("source/") == before
    log = project / "docs/job_log.md"
    assert not log.exists() or "annotations-adhoc" not in log.read_text()


EXPIRED_HEAD = ("HEAD /sagemaker-us-west-2", 400, "")
"""HEAD has no body, so that S3's reason is not known. With `account` in the settings, it is the first request."""
NO_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}


@pytest.mark.parametrize(
    ("words", "env", "fault", "named"),
    [
        (SUBMIT[:3], {}, None, ["image", TAG]),
        ((*SUBMIT, "--region", "eu-west-1"), {"BUCKET": BUCKET}, None, [BUCKET, "eu-west-1", "--region us-west-2"]),
        (SUBMIT, {}, ("/sts/aws4_request", 403, STS_EXPIRED), ["ExpiredToken"]),
        (SUBMIT, NO_CREDENTIALS, None, ["AWS credentials"]),
        (SUBMIT, {"ACCOUNT": ACCOUNT}, EXPIRED_HEAD, ["expired"]),
        # It also removes its bundle and its line of the job log again.
        (SUBMIT, {}, ("SageMaker.CreateTrainingJob", 400, THROTTLED), ["throttled"]),
        ((*SUBMIT, "--endpoint-url", "http://127.0.0.1:1"), {"AWS_MAX_ATTEMPTS": "1"}, None, ["reached"]),
        (SUBMIT, {"BUCKET": "no-such-bucket"}, None, ["no-such-bucket", "exist"]),
    ],
    ids=["image", "region", "STS", "no credentials", "expired HEAD", "throttling", "endpoint", "no bucket"],
)
@pytest.mark.usefixtures("unchanged")
def test_what_aws_refuses_is_one_line_and_leaves_nothing(
    account: Account,
    project: Path,
    words: tuple[str, ...],
    env: dict[str, str],
    fault: tuple[str, int, str] | None,
    named: list[str],
) -> None:
    if fault is not None:
        account.fail(*fault, times=3 if fault[2] == THROTTLED else 1)
    settings = {name if name.startswith("AWS_") else f"ROLLYARD_SAGEMAKER_{name}": value for name, value in env.items()}
    line = one_line(account.ng_submit(project, *words, env=settings))
    assert all(text in line for text in named), line


def without_processes(project: Path) -> None:
    """Jobs of this project only exist in the account."""
    with (project / "sagemaker.yaml").open("a") as settings:
        settings.write("container_entrypoint: []\n")


def test_a_lost_response_does_not_create_a_second_job(account: Account, project: Path) -> None:
    without_processes(project)

    def jobs() -> int:
        return len(account.client("sagemaker").list_training_jobs(MaxResults=100)["TrainingJobSummaries"])

    before = jobs()
    account.fail("SageMaker.CreateTrainingJob", 500, '{"__type": "InternalFailure"}', times=1, after=True)
    done = account.ng_submit(project, *SUBMIT)
    assert done.returncode == 0, done.stderr
    assert account.job(last_job(project))["TrainingJobStatus"] == "InProgress"
    assert jobs() == before + 1


def test_a_name_that_is_taken_is_refused_and_concurrent_submissions_get_different_names(
    account: Account, project: Path
) -> None:
    without_processes(project)
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda _: account.ng_submit(project, *SUBMIT), range(3)))
    assert [one.returncode for one in done] == [0, 0, 0], done
    lines = (project / "docs/job_log.md").read_text().splitlines()
    names = [line.split("|")[1].strip() for line in lines if line.startswith("| annotations")]
    assert len(set(names)) == len(names) == 3
    line = one_line(account.ng_submit(project, *SUBMIT, "--job-name", names[0]))
    assert names[0] in line and "--job-name" in line


def test_a_stopped_job_uploads_its_last_checkpoint(account: Account, project: Path) -> None:
    config = "model: {path: Qwen/Qwen3-1.7B}\ntraining: {steps: 500, pause_s: 0.5}\n"
    (project / "configs/small.yaml").write_text(config)
    assert account.ng_submit(project, *SUBMIT).returncode == 0
    job = last_job(project)
    eventually("the second step", lambda: "[program] step 2" in account.output(job))
    done = account.ng_submit(project, "stop", "--wait", "--poll-interval", "0.2")
    assert "Stopped" in done.stdout, done.stdout + done.stderr
    steps = [line.split()[-2] for line in account.output(job).splitlines() if "[program] step" in line]
    markers = [key for key in account.keys(f"checkpoints/{job}/") if key.endswith("COMPLETE.json")]
    # The program may be stopped while it saves the last one.
    assert len(markers) >= len(steps) >= 2
    status = account.ng_submit(project, "status", job)
    assert "Stopped" in status.stdout and f"checkpoints/{job}/" in status.stdout
