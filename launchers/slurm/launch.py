"""A launch: everything that one call of `ng_eval_launcher` submits, and its files.

$LOG/nemo-rl/<jobname>/<launch id>/
    launch.json        the plan
    conversion/        job folder of the conversion
    <combination>/
        eval.yaml      config of the evaluation
        run/           its output: rollouts, report, logs
        job-1/         job folder: submission, script and logs of SLURM
"""

from __future__ import annotations

import argparse
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollyard.launchers.slurm.job import JobOptions, JobSpec, SubmittedJob, read_record, read_submission, seconds_of
from rollyard.launchers.slurm.sweep import Setting, read_override
from rollyard.records.errors import OperatorError, RunError, did_you_mean
from rollyard.records.jsonl import replace
from rollyard.records.locked_files import InUse, LocksUnsupported, open_locked
from rollyard.records.script import ScriptParser, not_negative, positive
from rollyard.records.types import Json, Record


class Conversion(Record):
    dcp_ckpt_path: Path
    dcp_config: Path
    hf_ckpt_path: Path
    requested_path: Path | None
    """`--hf-ckpt-path`; None: the cache. Without versions, which `hf_ckpt_path` may have: `step_170_…-2`."""
    force_token: str | None = None
    """With --force-conversion: the same text for all jobs of the launch, so that only the first converts again."""


class Combination(Record):
    name: str
    folder: Path
    parameters: Json
    """The keys that the sweep, the command line and the launcher set, without secrets."""
    swept: tuple[str, ...] = ()

    @property
    def swept_values(self) -> Json:
        return {key: self.parameters[key] for key in self.swept}

    @property
    def config(self) -> Path:
        return self.folder / "eval.yaml"

    @property
    def run(self) -> Path:
        return self.folder / "run"


class PlannedJob(Record):
    spec: JobSpec
    combination: str | None
    """None for the conversion."""
    after: tuple[str, ...] = ()
    """Names of planned jobs that must succeed first. Their ids are known when they have been submitted."""


class SlurmLaunch(Record):
    """A launch. Its id makes the names of its jobs unique."""

    launch_id: str
    jobname: str
    folder: Path
    created: float
    content: str
    """Hash of what is evaluated. Only a launch with the same content can be resumed."""
    command_line: tuple[str, ...]
    """Arguments of `ng_eval_launcher`, without secrets."""
    config: Path
    nodes: int
    gpus: int
    """GPUs per node. If combinations differ, those of the first."""
    model: str
    conversion: Conversion | None
    combinations: tuple[Combination, ...]
    jobs_per_combination: int
    jobs: tuple[PlannedJob, ...]

    def jobs_of(self, combination: str | None) -> list[PlannedJob]:
        return [job for job in self.jobs if job.combination == combination]

    def title(self, job: PlannedJob) -> str:
        """Return the job's name without the launch id: `eval_sweep_3`, or `eval_sweep_3 job-2`."""
        if job.combination is None:
            return f"{self.jobname}_convert"
        several = len(self.jobs_of(job.combination)) > 1
        return f"{job.combination} {job.spec.folder.name}" if several else job.combination

    def combination(self, name: str | None) -> Combination | None:
        return next((one for one in self.combinations if one.name == name), None)


@dataclass(frozen=True)
class LaunchFolder:
    root: Path

    @property
    def launch(self) -> Path:
        return self.root / "launch.json"

    def read(self) -> SlurmLaunch:
        try:
            return read_record(self.launch, SlurmLaunch)
        except FileNotFoundError as error:
            raise OperatorError(
                f"{self.root} is not the folder of a launch: it has no launch.json; expected $LOG/nemo-rl/JOBNAME/ID"
            ) from error

    def write(self, launch: SlurmLaunch, files: Mapping[Path, str]) -> None:
        """Create the folders and files of a launch. launch.json comes last: a folder without it is no launch."""
        try:
            for path in [job.spec.folder for job in launch.jobs] + [path.parent for path in files]:
                path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot create {error.filename}: {error.strerror}") from error
        for path, text in files.items():
            replace(path, text.encode())
            with suppress(OSError):
                path.chmod(0o600)  # the config of an endpoint may contain a key
        self.write_launch(launch)

    def write_launch(self, launch: SlurmLaunch) -> None:
        replace(self.launch, launch.model_dump_json(indent=2).encode() + b"\n")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the launch against other launchers on this host. Raises RunError if one holds the lock.

        On a file system without locks, this does nothing: the names of the jobs still prevent duplicates.
        """
        with ExitStack() as stack:
            try:
                stack.callback(os.close, open_locked(self.root / ".lock"))
            except InUse as error:
                raise RunError(f"another ng_eval_launcher is submitting {self.root}: wait for it") from error
            except LocksUnsupported:
                pass
            yield


def launches(log_root: Path, jobname: str | None = None) -> list[SlurmLaunch]:
    found = []
    for path in log_root.glob(f"{jobname or '*'}/*/launch.json"):
        with suppress(OperatorError, RunError):
            found.append(LaunchFolder(path.parent).read())
    return sorted(found, key=lambda launch: (launch.created, launch.launch_id))


def find_launch(log_root: Path, folder: Path | None, jobname: str | None = None) -> SlurmLaunch:
    """Return the launch in `folder`, else the newest one. Raises OperatorError if there is none."""
    if folder is not None:
        path = folder.expanduser().resolve()
        launch = LaunchFolder(path).read()
        same = False
        with suppress(OSError):
            same = launch.folder.samefile(path)  # several mounts may show one folder
        if not same:
            raise OperatorError(
                f"{path} was moved or copied: its jobs and files belong to {launch.folder}; move it back, or pass that"
            )
        return launch
    found = launches(log_root, jobname)
    if not found:
        place = log_root / jobname if jobname else log_root
        raise OperatorError(f"no launch in {place}; pass the folder of a launch, or set LOG as for the launch")
    return found[-1]


def submitted_jobs(launch: SlurmLaunch) -> dict[str, SubmittedJob]:
    """Return the jobs that SLURM has, by name. A submission that was interrupted has no id in the job's folder."""
    submissions = ((job.spec, read_submission(job.spec.folder)) for job in launch.jobs)
    return {
        spec.name: SubmittedJob(name=spec.name, job_id=found.job_id, folder=spec.folder)
        for spec, found in submissions
        if found is not None and found.job_id is not None
    }


class LaunchOptions(JobOptions):
    """The flags of `ng_eval_launcher`, with the variables of the environment already applied."""

    config: str | None = None
    sweep: str | None = None
    dcp_ckpt_path: str | None = None
    dcp_config: str | None = None
    hf_ckpt_path: str | None = None
    skip_conversion: bool = False
    force_conversion: bool = False
    nodes: int | None = None
    gpus: int | None = None
    jobname: str = "eval"
    jobs: int = 1
    dry: bool = False
    resume: bool = False
    launch_id: str | None = None
    log_root: Path
    """`$LOG/nemo-rl`: the folder of all launches and converted checkpoints."""


DEFAULT_CONFIG = "examples/configs/eval.yaml"
USAGE = """%(prog)s [flags] [key=value ...]
       %(prog)s status|resume|cancel|collect [LAUNCH_FOLDER]"""
EPILOG = """key=value overrides a key of the config: generation.temperature=0.6. true, false, null and numbers (8, -1,
1e-5) are typed, [..] and {..} are YAML, quotes inside the argument make a string ("key='007'"), and everything else is
a string as given; +key=value adds a key that the config does not have. Variables: LOG (folder of launches, default
/tmp), ACCOUNT, CON (folder of containers)."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)


def launch_parser() -> ScriptParser:
    parser = ScriptParser(
        prog="ng_eval_launcher",
        usage=USAGE,
        description="Submit evaluations to SLURM: one job, or one for each combination of a sweep.",
        epilog=EPILOG,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    group = parser.add_argument_group("evaluation")
    group.add_argument("--config", metavar="FILE", help=f"config of the evaluation (default: {DEFAULT_CONFIG})")
    group.add_argument("--sweep", metavar="FILE", help="YAML file with lists of values to combine")
    group = parser.add_argument_group("checkpoint conversion")
    group.add_argument("--dcp-ckpt-path", metavar="DIR", help="DCP checkpoint to convert and evaluate")
    group.add_argument("--dcp-config", metavar="FILE", help="the checkpoint's config.yaml; required for a conversion")
    group.add_argument("--hf-ckpt-path", metavar="DIR", help="folder of the converted checkpoint (default: the cache)")
    group.add_argument("--skip-conversion", action="store_true", help="use a checkpoint that is already converted")
    group.add_argument("--force-conversion", action="store_true", help="convert again, once for this launch")
    group = parser.add_argument_group("SLURM")
    group.add_argument("--nodes", type=positive, metavar="N", help="nodes (default: cluster.num_nodes, else 1)")
    group.add_argument(
        "--gpus", type=not_negative, metavar="N", help="GPUs per node (default: cluster.gpus_per_node, else 8)"
    )
    group.add_argument("--time", type=_time_limit, default="2:0:0", metavar="T", help="time limit (default: 2:0:0)")
    group.add_argument("--account", help="account (default: $ACCOUNT, else default)")
    group.add_argument("--partition", default="batch", help="partition (default: %(default)s)")
    group.add_argument("--container", help="container image (default with a runtime: $CON/nemo_rl_base.sqsh)")
    runtimes = ("none", "pyxis", "apptainer")
    start = "how the container is started (default: pyxis with --container, else none)"
    group.add_argument("--container-runtime", choices=runtimes, help=start)
    group.add_argument("--mounts", default="/lustre:/lustre", help="mounts of the container (default: %(default)s)")
    group.add_argument("--jobname", default="eval", help="base name of the jobs (default: %(default)s)")
    group.add_argument("--jobs", type=positive, default=1, metavar="N", help="jobs that share a combination's rows")
    retries = "failures to retry per job (default: 3)"
    group.add_argument("--max-retries", type=not_negative, default=3, metavar="N", help=retries)
    drain: dict[str, Any] = {"dest": "drain_before_s", "type": not_negative, "default": 120, "metavar": "SECONDS"}
    before = "stop starting episodes this long before the time limit (default: 120)"
    group.add_argument("--drain-before", **drain, help=before)
    more: dict[str, Any] = {"dest": "sbatch_args", "action": "append", "default": [], "metavar": "ARG"}
    group.add_argument("--sbatch-arg", **more, help="more options of sbatch: --sbatch-arg=--qos=high")
    group = parser.add_argument_group("launch")
    group.add_argument("--dry", action="store_true", help="show files and commands, and change nothing")
    group.add_argument("--resume", action="store_true", help="continue the newest launch like this one")
    group.add_argument("--launch-id", metavar="ID", help="name of this launch; if it exists, it is resumed")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=argparse.SUPPRESS)
    return parser


def read_arguments(arguments: Sequence[str], environ: Mapping[str, str]) -> tuple[LaunchOptions, list[Setting]]:
    parser = launch_parser()
    given, unknown = parser.parse_known_intermixed_args(arguments)
    for word in unknown:
        _refuse(word, parser)
    for name, value in (("--jobname", given.jobname), ("--launch-id", given.launch_id)):
        if value is not None and not _NAME.fullmatch(value):
            raise OperatorError(
                f"{name} is {value!r}; expected letters, digits, '.', '_' and '-', because it is the name of a folder"
            )
    runtime = given.container_runtime or ("pyxis" if given.container else "none")
    container = given.container or str(Path(environ.get("CON") or "/containers") / "nemo_rl_base.sqsh")
    values = vars(given) | {
        "account": given.account or environ.get("ACCOUNT") or "default",
        "container": None if runtime == "none" else container,
        "container_runtime": runtime,
        "mounts": tuple(filter(None, given.mounts.split(","))),
        "log_root": launch_root(environ),
    }
    return LaunchOptions(**{name: values[name] for name in LaunchOptions.model_fields}), [
        *map(read_override, given.overrides)
    ]


def launch_root(environ: Mapping[str, str]) -> Path:
    """Return `$LOG/nemo-rl`. Raises OperatorError if it is in a folder like /tmp and another user has made it."""
    root = Path(environ.get("LOG") or "/tmp").expanduser().resolve() / "nemo-rl"
    if _is_shared(root.parent) and os.path.lexists(root):
        found = root.lstat()
        if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode):
            raise OperatorError(
                f"{root} belongs to another user, who could change what is submitted: set LOG to a folder of yours"
            )
    return root


def make_launch_root(root: Path) -> None:
    """Create `$LOG/nemo-rl`; in a folder like /tmp only for this user. Raises OperatorError if it cannot be created."""
    shared = _is_shared(root.parent)
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        root.mkdir(mode=0o700 if shared else 0o777, exist_ok=True)
        if shared:
            launch_root({"LOG": str(root.parent)})  # again, because it may just have been made by another user
            root.chmod(0o700)
    except OSError as error:
        raise OperatorError(f"cannot create {root}: {error.strerror}. Set LOG to a folder of yours") from error


def _is_shared(folder: Path) -> bool:
    """Return whether every user may create files in the folder."""
    return folder.exists() and bool(folder.stat().st_mode & stat.S_IWOTH)


def _time_limit(text: str) -> str:
    try:
        seconds = seconds_of(text)
    except OperatorError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time limit; expected 2:0:0 or 1-12:00:00") from error
    if seconds == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is a time limit of 0")
    return text


def _refuse(word: str, parser: argparse.ArgumentParser) -> None:
    if not word.startswith("-"):
        raise OperatorError(
            f"{word!r} is neither a flag nor an override; expected key=value, such as generation.temperature=0.6"
        )
    name, equals, value = word.partition("=")
    flags = re.findall(r"^  (--[a-z-]+)", parser.format_help(), re.MULTILINE)
    if equals and "." in name:
        raise OperatorError(f"unknown flag {name}; to override the config, write {name.lstrip('-')}={value}")
    hint = did_you_mean(name, flags)
    raise OperatorError(f"unknown flag {name}{hint} (for an option of sbatch: --sbatch-arg=--qos=high)")
