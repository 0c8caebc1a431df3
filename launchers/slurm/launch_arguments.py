"""The command line of `ng_eval_launcher`: flags, and `key=value` overrides of the evaluation's config."""

from __future__ import annotations

import argparse
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from rollyard.launchers.slurm.job import JobOptions, seconds_of
from rollyard.launchers.slurm.sweep import Setting, read_overrides
from rollyard.records.errors import OperatorError, did_you_mean
from rollyard.records.script import ScriptParser, not_negative, positive


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
    """Jobs for each combination, which share its rows."""
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
    group.add_argument(
        "--container-runtime",
        choices=("none", "pyxis", "apptainer"),
        help="how the container is started (default: pyxis with --container, else none)",
    )
    group.add_argument("--mounts", default="/lustre:/lustre", help="mounts of the container (default: %(default)s)")
    group.add_argument("--jobname", default="eval", help="base name of the jobs (default: %(default)s)")
    group.add_argument("--jobs", type=positive, default=1, metavar="N", help="jobs that share a combination's rows")
    group.add_argument(
        "--max-retries",
        type=not_negative,
        default=3,
        metavar="N",
        help="failures to retry per job (default: 3)",
    )
    group.add_argument(
        "--max-walltime",
        dest="max_walltime_s",
        type=_time_limit,
        metavar="T",
        help="limit for all attempts of a job together",
    )
    group.add_argument(
        "--drain-before",
        dest="drain_before_s",
        type=not_negative,
        default=120,
        metavar="SECONDS",
        help="stop starting episodes this long before the time limit (default: 120)",
    )
    group.add_argument(
        "--sbatch-arg",
        dest="sbatch_args",
        action="append",
        default=[],
        metavar="ARG",
        help="more options of sbatch: --sbatch-arg=--qos=high",
    )
    group = parser.add_argument_group("launch")
    group.add_argument("--dry", action="store_true", help="show files and commands, and change nothing")
    group.add_argument("--resume", action="store_true", help="continue the newest launch like this one")
    group.add_argument("--launch-id", metavar="ID", help="name of this launch; if it exists, it is resumed")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=argparse.SUPPRESS)
    return parser


def read_arguments(arguments: Sequence[str], environ: Mapping[str, str]) -> tuple[LaunchOptions, list[Setting]]:
    """Parse the command line. Raises OperatorError if it is wrong."""
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
        "max_walltime_s": None if given.max_walltime_s is None else seconds_of(given.max_walltime_s),
        "log_root": launch_root(environ),
    }
    return LaunchOptions(**{name: values[name] for name in LaunchOptions.model_fields}), read_overrides(given.overrides)


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
