"""ng_submit: submits training and evaluation jobs to Amazon SageMaker."""

from __future__ import annotations

import json
import os
import re
import sys
from argparse import SUPPRESS, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

from rollyard.launchers.sagemaker.container.inputs import check_config
from rollyard.launchers.sagemaker.image import (
    Docker,
    build_command,
    container_command,
    direct_command,
    local_environment,
    run_in_foreground,
    shown,
)
from rollyard.launchers.sagemaker.job_parameters import JobParameters, command_of, scripts_of
from rollyard.launchers.sagemaker.settings import (
    FEATURE,
    FILE,
    SageMakerSettings,
    SageMakerTarget,
    find_target,
    policy,
    read_settings,
)
from rollyard.launchers.sagemaker.source_bundle import make_bundle
from rollyard.launchers.sagemaker.submission import (
    JobLog,
    SageMakerSubmission,
    SubmissionPlan,
    checked,
    describe,
    evaluation_names,
    training_names,
)
from rollyard.launchers.sagemaker.training_job import ENDED, POLL_S, JobDescription, JobLogs, TrainingJobs, wait
from rollyard.records.errors import OperatorError, RollyardError
from rollyard.records.script import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, ScriptParser, exit_status, positive
from rollyard.records.terminal import duration, plain_line

COMMANDS = ("status", "stop")
TRAINING_INSTANCE, EVALUATION_INSTANCE = "ml.p4de.24xlarge", "ml.g6e.48xlarge"
_DESCRIPTION = """Submit a job to Amazon SageMaker:

  ng_submit CONFIG [options]        training, with evaluation next to it by --eval-config
  ng_submit eval CONFIG [options]   evaluation
  ng_submit status|stop [JOB]       show or stop a job; default: the last one of the job log

Account, bucket, role and image repository are settings in sagemaker.yaml, see docs/sagemaker.md."""


def main(arguments: Sequence[str] | None = None) -> None:
    words = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(exit_status("ng_submit", lambda: run(words), debug="--debug" in words))


def run(arguments: Sequence[str]) -> int:
    options = parse_arguments(arguments)
    if options is None:  # --help or --version
        return EXIT_DONE
    project = (options.project or _project(Path.cwd())).resolve()
    given = {"region": options.region, "endpoint_url": options.endpoint_url, "job_log": options.job_log}
    settings = read_settings(options.settings, project, os.environ, given)
    log = JobLog(project / settings.job_log)
    if options.print_iam:
        print(json.dumps(policy(_iam_target(settings, options.dry_run)), indent=4))
        return EXIT_DONE
    if options.command in COMMANDS:
        return _existing_job(options, settings, log)
    return _new_job(options, settings, project, log)


def _new_job(options: Namespace, settings: SageMakerSettings, project: Path, log: JobLog) -> int:
    config = _inside(project, options.config, "the config")
    only_image = config is None and options.entrypoint is None
    tag = options.image_tag or f"{datetime.now():%Y%m%d}"
    if only_image and not (options.build or options.push):
        raise OperatorError("no config is given: pass the path of a config, or --build and --push to update the image")
    parameters = JobParameters() if only_image else _parameters(options, settings, project, config)
    if options.local:
        return _run_locally(options, settings, project, parameters, tag)
    include = [_inside(project, path, "--include") or "" for path in options.include]
    configs = [name for name in (config, parameters.eval_config) if name]
    for name in configs:
        check_config(project / name, name)
    scripts = scripts_of(parameters.command, parameters.eval_command, parameters.final_eval_command)
    bundle = make_bundle(project, [*configs, *scripts], include, settings.max_source_mb * 1_000_000)
    now = datetime.now()
    plan = SubmissionPlan(
        names=_names(options, config, now),
        parameters=parameters,
        bundle=bundle,
        image_tag=tag,
        instance_type=options.instance_type,
        instance_count=options.instance_count,
        is_evaluation=options.command == "eval",
        description=options.description,
        submitted=now,
    )
    if settings.role is None and not (only_image or options.dry_run):
        raise OperatorError(f"no execution role is set: set `role` in {FILE}, or ROLLYARD_SAGEMAKER_ROLE")
    target = find_target(settings, offline=options.dry_run)
    submission = SageMakerSubmission(settings, target, log, _print)
    if options.dry_run:
        for line in describe(submission, plan, build=options.build, push=options.push):
            print(line)
        return EXIT_DONE
    if options.build:
        submission.build(tag, bundle)
    if options.push:
        submission.push(tag)
    if only_image:
        return EXIT_DONE
    name = submission.submit(plan)
    print(f"submitted {name}, listed in {settings.job_log}\n{target.console_url(name)}", flush=True)
    return _wait(settings, name, options.poll_interval) if options.wait else EXIT_DONE


def _parameters(options: Namespace, settings: SageMakerSettings, project: Path, config: str | None) -> JobParameters:
    evaluation = options.command == "eval"
    default = settings.eval_command if evaluation else settings.train_command
    eval_config = _inside(project, options.eval_config, "--eval-config")
    combined: dict[str, object] = {}
    if eval_config is not None:
        shared = {*options.train_gpus.split(",")} & {*options.eval_gpus.split(",")}
        if shared:
            raise OperatorError(f"GPU {sorted(shared)[0]} is in both --train-gpus and --eval-gpus")
        watch = command_of(options.eval_entrypoint, settings.watch_command, project, eval_config)
        if options.eval_entrypoint is not None:
            watch = (*watch, "{checkpoints}")
        combined = {
            "eval_config": eval_config,
            "train_gpus": options.train_gpus,
            "eval_gpus": options.eval_gpus,
            "eval_command": watch,
            "final_eval_command": () if options.eval_entrypoint else settings.final_eval_command,
        }
    return JobParameters.model_validate(
        {
            "config": config,
            "command": command_of(options.entrypoint, default, project, config),
            "model_source": options.model_source,
            "ray": options.ray,
            "ray_args": tuple(options.ray_arg),
            "upload": "eval_output" if evaluation else "checkpoints",
            **combined,
        }
    )


def _run_locally(
    options: Namespace, settings: SageMakerSettings, project: Path, parameters: JobParameters, tag: str
) -> int:
    environment: dict[str, str] | None = None
    image = f"{settings.repository}:{tag}"
    commands = []
    if options.build:
        commands.append(build_command(project, settings.dockerfile, image, settings.base_image))
    if options.gpus is not None:
        commands.append(container_command(image, project, options.gpus, parameters))
    else:
        commands.append(direct_command(project, parameters))
    if options.dry_run:
        for command in commands:
            print(shown(command))
        return EXIT_DONE
    docker = Docker(_print)
    if options.build or options.gpus is not None:
        docker.require("--build" if options.build else "--local --gpus")
    if options.build:
        docker.run(commands[0])
    if options.gpus is None:
        environment = local_environment(project, os.environ, parameters)
    _print(shown(commands[-1]))
    return run_in_foreground(commands[-1], project, environment)


def _existing_job(options: Namespace, settings: SageMakerSettings, log: JobLog) -> int:
    name = options.job or next(reversed(log.names()), None)
    if name is None:
        raise OperatorError(f"{log.path} lists no jobs; pass the name of one")
    jobs = TrainingJobs(settings.access.client("sagemaker", FEATURE))
    if options.command == "stop":
        status = jobs.stop(checked(name)).status
        ended = f"had already ended ({status})"
        print(f"{name} {ended if status in ENDED else 'is stopping and uploads its remaining files'}")
    else:
        _show(jobs.describe(checked(name)))
    return _wait(settings, name, options.poll_interval) if options.wait else EXIT_DONE


def _show(job: JobDescription) -> None:
    lines = {
        "job": job.name,
        "status": f"{job.status} {job.secondary_status}".strip(),
        "instances": job.instances,
        "config": job.hyperparameters.get("config", ""),
        "failure": job.failure_reason,
    }
    if job.started is not None:
        ended = job.ended or datetime.now(job.started.tzinfo)
        lines["running time"] = duration(max(0.0, (ended - job.started).total_seconds()))
    if address := job.hyperparameters.get("s3"):
        lines["files"] = f"{address}/{job.hyperparameters.get('upload', 'checkpoints')}/{job.name}/"
    for key, value in lines.items():
        if value:
            print(f"{key:<14}{plain_line(value)}")


def _wait(settings: SageMakerSettings, name: str, poll_s: float | None) -> int:
    jobs = TrainingJobs(settings.access.client("sagemaker", FEATURE))
    logs = JobLogs(settings.access.client("logs", FEATURE), name)
    try:
        job = wait(jobs, logs, name, settings.max_runtime_s, _print, poll_s or POLL_S)
    except KeyboardInterrupt:
        then = f"follow it with: ng_submit status {name} --wait, stop it with: ng_submit stop {name}"
        print(f"{name} continues; {then}", file=sys.stderr)
        return EXIT_INTERRUPTED
    _show(job)
    return EXIT_DONE if job.status == "Completed" else EXIT_FAILED


def _iam_target(settings: SageMakerSettings, offline: bool) -> SageMakerTarget:
    """Return the target, with placeholders if there are no credentials yet, because these may require the policy."""
    try:
        return find_target(settings, offline=offline)
    except RollyardError as error:
        print(f"ng_submit: {error}; replace ACCOUNT and REGION in the policy", file=sys.stderr)
        return find_target(settings, offline=True)


def _names(options: Namespace, config: str | None, now: datetime) -> list[str]:
    if options.job_name is not None:
        return [checked(options.job_name)]
    if options.command == "eval":
        return list(evaluation_names(Path(config or "run").stem, now))
    return list(training_names(now))


def _inside(project: Path, path: Path | None, what: str) -> str | None:
    """Return a file's path relative to the project. Raises OperatorError if it does not exist or is elsewhere."""
    if path is None:
        return None
    found = path if path.is_file() or path.is_absolute() else project / path
    if not found.is_file():
        raise OperatorError(f"{what} {path} does not exist")
    try:
        return str(Path(os.path.normpath(Path.cwd() / found)).relative_to(project))
    except ValueError:
        raise OperatorError(f"{what} {path} is not in the project {project}; jobs get only its files") from None


def _project(folder: Path) -> Path:
    markers = (".git", "pyproject.toml", "sagemaker.yaml")
    return next((path for path in (folder, *folder.parents) if any((path / name).exists() for name in markers)), folder)


_print = partial(print, flush=True)


def parse_arguments(words: Sequence[str]) -> Namespace | None:
    """Return the options; None if only the help or the version was asked for. Raises OperatorError for invalid ones."""
    command = words[0] if words and words[0] in ("eval", *COMMANDS) else "train"
    parser = _existing_job_parser(command) if command in COMMANDS else _new_job_parser(command)
    try:
        options = parser.parse_args(words if command == "train" else words[1:])
    except SystemExit:
        return None
    options.command = command
    subject = str((options.job if command in COMMANDS else options.config) or "")
    if subject.startswith("+"):
        parser.error(f"unrecognized arguments: {subject}")
    if command not in COMMANDS:
        _check(options)
    return options


def _check(options: Namespace) -> None:
    if options.gpus is not None and not options.local:
        raise OperatorError("--gpus is for --local; jobs use all GPUs: see --train-gpus and --eval-gpus")
    if options.local and options.push:
        raise OperatorError("--push cannot be combined with --local")
    if options.local and options.wait:
        raise OperatorError("--wait cannot be combined with --local, which runs in the foreground")
    if options.eval_entrypoint and not options.eval_config:
        raise OperatorError("--eval-entrypoint needs --eval-config")


def _new_job_parser(command: str) -> ScriptParser:
    evaluation = command == "eval"
    parser = ScriptParser(
        prog="ng_submit eval" if evaluation else "ng_submit",
        description=_DESCRIPTION,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("config", nargs="?", type=Path, help="config file in the project")
    instance = EVALUATION_INSTANCE if evaluation else TRAINING_INSTANCE
    add("--instance-type", default=instance, help=f"default: {instance}")
    add("--instance-count", type=positive, default=1, metavar="N", help="number of hosts; several are a Ray cluster")
    add("--image-tag", metavar="TAG", help="tag of the image in ECR; default: today, as YYYYMMDD")
    add("--build", action="store_true", help="build the image first")
    add("--push", action="store_true", help="push the image to ECR first")
    named = "eval-CONFIG-TIME" if evaluation else "annotations-adhoc-TIME"
    add("--job-name", metavar="NAME", help=f"default: {named}")
    add("--description", default="", metavar="TEXT", help="description of the job for the job log")
    add("--wait", action="store_true", help="print the job's log until it ends; exit status 1 if it fails")
    add("--local", action="store_true", help="run on this host: with --gpus in the image, otherwise directly")
    add("--gpus", type=_gpus, metavar="0,1", help="GPUs of --local")
    add("--entrypoint", metavar="PROGRAM", help="program of the job: a .py or .sh file of the project, or a command")
    add("--model-source", metavar="SOURCE", choices=("auto", "local", "s3", "hub"), help="overrides model.source")
    add("--ray", choices=("auto", "always", "never"), default="auto", help="start Ray; auto: for several hosts")
    add("--ray-arg", action="append", default=[], metavar="ARG", help="argument of ray start; can be repeated")
    if not evaluation:
        add("--eval-config", type=Path, metavar="CONFIG", help="evaluate checkpoints next to the training with it")
        for name, gpus in (("--train-gpus", "0,1,2,3,4,5"), ("--eval-gpus", "6,7")):
            add(name, type=_gpus, default=gpus, metavar="0,1", help=f"with --eval-config; default: {gpus}")
        add("--eval-entrypoint", metavar="PROGRAM", help="program that watches the checkpoints: PROGRAM CONFIG FOLDER")
    else:
        parser.set_defaults(eval_config=None, eval_entrypoint=None, train_gpus="", eval_gpus="")
    add("--include", action="append", default=[], type=Path, metavar="FILE", help="also upload this ignored file")
    add("--dry-run", action="store_true", help="show every call and file, and change nothing")
    add("--print-iam", action="store_true", help="print the IAM policy that is required for submitting")
    _add_shared(parser)
    return parser


def _existing_job_parser(command: str) -> ScriptParser:
    parser = ScriptParser(prog=f"ng_submit {command}", allow_abbrev=False)
    parser.add_argument("job", nargs="?", help="name of a job; default: the last one of the job log")
    parser.add_argument("--wait", action="store_true", help="print the job's log until it ends")
    parser.set_defaults(print_iam=False, dry_run=False)
    _add_shared(parser)
    return parser


def _add_shared(parser: ScriptParser) -> None:
    add = parser.add_argument
    add("--project", type=Path, metavar="FOLDER", help="default: the closest folder above with .git or pyproject.toml")
    add("--settings", type=Path, metavar="FILE", help="default: sagemaker.yaml in the project, if it exists")
    add("--job-log", metavar="FILE", help="default: docs/job_log.md in the project")
    add("--region", help="AWS region; default: AWS_DEFAULT_REGION")
    add("--endpoint-url", metavar="URL", help="endpoint of all AWS services, such as a local server")
    add("--poll-interval", type=float, help=SUPPRESS)
    add("--debug", action="store_true", help="show a traceback if an error occurs")
    add("--version", action="version", version=f"ng_submit (rollyard {version('rollyard')})", help="print the version")


def _gpus(text: str) -> str:
    if not re.fullmatch(r"\d+(,\d+)*", text) or len(set(text.split(","))) != text.count(",") + 1:
        raise ArgumentTypeError(f"{text!r} is not a list of different GPU numbers, such as 0,1,2,3")
    return text
