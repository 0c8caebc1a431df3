"""ng_submit: submits training and evaluation jobs to Amazon SageMaker."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rollyard.cli.arguments.submit_options import COMMANDS, parse_arguments
from rollyard.launchers.sagemaker import local_run
from rollyard.launchers.sagemaker.container.config_rewrite import check_config
from rollyard.launchers.sagemaker.docker import Docker, shown
from rollyard.launchers.sagemaker.dry_run import describe
from rollyard.launchers.sagemaker.iam_policy import policy
from rollyard.launchers.sagemaker.image import build_command
from rollyard.launchers.sagemaker.job_log import JobLog
from rollyard.launchers.sagemaker.job_name import checked, evaluation_names, training_names
from rollyard.launchers.sagemaker.job_parameters import JobParameters
from rollyard.launchers.sagemaker.log_stream import JobLogs
from rollyard.launchers.sagemaker.program_choice import command_of, scripts_of
from rollyard.launchers.sagemaker.settings import FILE, SageMakerSettings, read_settings
from rollyard.launchers.sagemaker.source_bundle import make_bundle
from rollyard.launchers.sagemaker.submission import Plan, Submission
from rollyard.launchers.sagemaker.target import FEATURE, Target, find_target
from rollyard.launchers.sagemaker.training_job import ENDED, JobDescription, TrainingJobs
from rollyard.launchers.sagemaker.wait import POLL_S, wait
from rollyard.records.errors import OperatorError, RollyardError
from rollyard.records.io.durations import duration
from rollyard.records.io.exit_status import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, exit_status
from rollyard.records.io.terminal import plain_line


def main(arguments: Sequence[str] | None = None) -> None:
    words = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(exit_status("ng_submit", lambda: run(words), debug="--debug" in words))


def run(arguments: Sequence[str]) -> int:
    """Submit a job, or show or stop one."""
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
    plan = Plan(
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
    submission = Submission(settings, target, log, _print)
    if options.dry_run:
        for line in describe(settings, target, plan, submission, log, build=options.build, push=options.push):
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
        commands.append(local_run.container_command(image, project, options.gpus, parameters))
    else:
        commands.append(local_run.direct_command(project, parameters))
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
        environment = local_run.local_environment(project, os.environ, parameters)
    _print(shown(commands[-1]))
    return local_run.run(commands[-1], project, environment)


def _existing_job(options: Namespace, settings: SageMakerSettings, log: JobLog) -> int:
    name = options.job or next(reversed(log.names()), None)
    if name is None:
        raise OperatorError(f"{log.path} lists no jobs; pass the name of one")
    jobs = TrainingJobs(settings.access.client("sagemaker", FEATURE))
    if options.command == "stop":
        before = jobs.stop(checked(name))
        note = (
            f"had already ended ({before.status})"
            if before.status in ENDED
            else "is stopping and uploads its remaining files"
        )
        print(f"{name} {note}")
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
        print(
            f"{name} continues; follow it with: ng_submit status {name} --wait, stop it with: ng_submit stop {name}",
            file=sys.stderr,
        )
        return EXIT_INTERRUPTED
    _show(job)
    return EXIT_DONE if job.status == "Completed" else EXIT_FAILED


def _iam_target(settings: SageMakerSettings, offline: bool) -> Target:
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
    """Return the closest folder above that is a project."""
    markers = (".git", "pyproject.toml", "sagemaker.yaml")
    return next((path for path in (folder, *folder.parents) if any((path / name).exists() for name in markers)), folder)


def _print(line: str) -> None:
    print(line, flush=True)
