"""The command line of ng_submit."""

from __future__ import annotations

import re
from argparse import SUPPRESS, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from rollyard.records.errors import OperatorError
from rollyard.records.io.script import ScriptParser, positive

COMMANDS = ("status", "stop")
TRAINING_INSTANCE, EVALUATION_INSTANCE = "ml.p4de.24xlarge", "ml.g6e.48xlarge"
_DESCRIPTION = """Submit a job to Amazon SageMaker:

  ng_submit CONFIG [options]        training, with evaluation next to it by --eval-config
  ng_submit eval CONFIG [options]   evaluation
  ng_submit status|stop [JOB]       show or stop a job; default: the last one of the job log

Account, bucket, role and image repository are settings in sagemaker.yaml, see docs/sagemaker.md."""


def parse_arguments(words: Sequence[str]) -> Namespace | None:
    """Return the options; None if only the help or the version was asked for. Raises OperatorError for invalid ones."""
    command = words[0] if words and words[0] in ("eval", *COMMANDS) else "train"
    parser = _existing_job(command) if command in COMMANDS else _new_job(command)
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
        raise OperatorError(
            "--gpus is for --local; jobs use all GPUs of their instances, see --train-gpus and --eval-gpus"
        )
    if options.local and options.push:
        raise OperatorError("--push cannot be combined with --local")
    if options.local and options.wait:
        raise OperatorError("--wait cannot be combined with --local, which runs in the foreground")
    if options.eval_entrypoint and not options.eval_config:
        raise OperatorError("--eval-entrypoint needs --eval-config")


def _new_job(command: str) -> ScriptParser:
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
    add(
        "--job-name",
        metavar="NAME",
        help="default: eval-CONFIG-TIME" if evaluation else "default: annotations-adhoc-TIME",
    )
    add("--description", default="", metavar="TEXT", help="description of the job for the job log")
    add("--wait", action="store_true", help="print the job's log until it ends; exit status 1 if it fails")
    add("--local", action="store_true", help="run on this host: with --gpus in the image, otherwise directly")
    add("--gpus", type=_gpus, metavar="0,1", help="GPUs of --local")
    add("--entrypoint", metavar="PROGRAM", help="program of the job: a .py or .sh file of the project, or a command")
    add(
        "--model-source",
        metavar="SOURCE",
        choices=("auto", "local", "s3", "hub"),
        help="overrides the config's model.source",
    )
    add(
        "--ray", choices=("auto", "always", "never"), default="auto", help="start Ray; default: auto, for several hosts"
    )
    add("--ray-arg", action="append", default=[], metavar="ARG", help="argument of ray start; can be repeated")
    if not evaluation:
        add(
            "--eval-config",
            type=Path,
            metavar="CONFIG",
            help="evaluate checkpoints next to the training with this config",
        )
        add(
            "--train-gpus",
            type=_gpus,
            default="0,1,2,3,4,5",
            metavar="0,1",
            help="with --eval-config; default: 0,1,2,3,4,5",
        )
        add("--eval-gpus", type=_gpus, default="6,7", metavar="0,1", help="with --eval-config; default: 6,7")
        add("--eval-entrypoint", metavar="PROGRAM", help="program that watches the checkpoints: PROGRAM CONFIG FOLDER")
    else:
        parser.set_defaults(eval_config=None, eval_entrypoint=None, train_gpus="", eval_gpus="")
    add(
        "--include",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="also upload this file, although git ignores it",
    )
    add("--dry-run", action="store_true", help="show every call and file, and change nothing")
    add("--print-iam", action="store_true", help="print the IAM policy that is required for submitting")
    _shared(parser)
    return parser


def _existing_job(command: str) -> ScriptParser:
    parser = ScriptParser(prog=f"ng_submit {command}", allow_abbrev=False)
    parser.add_argument("job", nargs="?", help="name of a job; default: the last one of the job log")
    parser.add_argument("--wait", action="store_true", help="print the job's log until it ends")
    parser.set_defaults(print_iam=False, dry_run=False)
    _shared(parser)
    return parser


def _shared(parser: ScriptParser) -> None:
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
