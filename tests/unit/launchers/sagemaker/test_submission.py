"""What a submission consists of: names, log, source bundle, policy, settings."""

from __future__ import annotations

import io
import multiprocessing
import os
import re
import subprocess
import tarfile
from datetime import datetime
from pathlib import Path

import pytest

from rollyard.cli.eval import read_arguments
from rollyard.launchers.sagemaker.image import build_command
from rollyard.launchers.sagemaker.job_parameters import JobParameters, command_of
from rollyard.launchers.sagemaker.settings import SageMakerSettings, find_target, policy, read_settings
from rollyard.launchers.sagemaker.source_bundle import make_bundle, secret_in, unpack
from rollyard.launchers.sagemaker.submission import HEADER, JobLog, checked, evaluation_names, training_names
from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import OperatorError
from tests.support.waiting import deadline_s

NOW = datetime(2026, 1, 16, 1, 18, 3)


@pytest.mark.parametrize("name", ["a" * 64, "a_b", "a.b", "-a", "a-", "", "ä", "a b", "a\n"])
def test_a_name_that_sagemaker_would_refuse_is_refused(name: str) -> None:
    with pytest.raises(OperatorError, match="job name"):
        checked(name)


def test_names_follow_the_convention_and_are_valid_for_any_config() -> None:
    names = training_names(NOW)
    assert (next(names), next(names)) == ("annotations-adhoc-20260116-011803", "annotations-adhoc-20260116-011804")
    for stem in ("qwen3_1.7B", "x" * 200, "..", "a" * 40 + "-" * 9):
        assert re.search("-20260116-011803$", checked(next(evaluation_names(stem, NOW))))
    assert next(evaluation_names("my_eval", NOW)) == "eval-my-eval-20260116-011803"


@pytest.mark.parametrize(
    ("entrypoint", "default", "command"),
    [
        (None, ("ng_train", "--config", "{config}"), ("ng_train", "--config", "{config}")),
        (None, ("ng_of_another_version",), "ng_of_another_version"),
        (None, (), "--entrypoint"),
        (None, ("python", "absent.py"), "absent.py"),
        ("train.py", (), ("python", "train.py", "{config}")),
        ("absent.sh", (), "absent.sh"),
        ("torchrun", (), ("torchrun", "{config}")),
    ],
)
def test_the_program_of_a_job_exists_before_it_is_submitted(
    entrypoint: str | None, default: tuple[str, ...], command: tuple[str, ...] | str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").touch()
    if isinstance(command, tuple):
        assert command_of(entrypoint, default, tmp_path, "a.yaml") == command
    else:
        with pytest.raises(OperatorError, match=command):
            command_of(entrypoint, default, tmp_path, "a.yaml")


def test_the_job_log_is_a_table_whatever_a_description_contains(tmp_path: Path) -> None:
    log = JobLog(tmp_path / "docs" / "job_log.md")
    log.add("a-1", "configs/a.yaml", "x | y\n| evil | row |\n\\| $(touch x) \x1b[31m", NOW)
    log.add("a-2", "configs/b.yaml", "", NOW)
    cell = "x \\| y \\| evil \\| row \\| \\\\\\| $(touch x) \\\\u001b[31m"
    lines = (f"| a-1 | configs/a.yaml | {cell} | 2026-01-16 01:18 |", "| a-2 | configs/b.yaml |  | 2026-01-16 01:18 |")
    assert log.path.read_text().endswith(HEADER + "\n".join(lines) + "\n")
    log.remove("a-1")
    assert log.names() == ["a-2"] and HEADER in log.path.read_text()


def test_a_line_after_a_torn_one_is_a_line_of_its_own(tmp_path: Path) -> None:
    log = JobLog(tmp_path / "job_log.md")
    log.path.write_text(f"# Jobs\n\nOurs.\n\n{HEADER}| old | a | b | c |\n| torn | a")
    log.add("new", "c", "d", NOW)
    assert log.path.read_text().splitlines()[-2:] == ["| torn | a", "| new | c | d | 2026-01-16 01:18 |"]


def test_concurrent_writers_lose_no_line_and_write_one_header(tmp_path: Path) -> None:
    path = tmp_path / "job_log.md"

    def add(number: int) -> None:
        for index in range(20):
            JobLog(path).add(f"job-{number}-{index}", "c", "d", NOW)

    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=add, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(deadline_s())
    assert len(set(JobLog(path).names())) == 80
    assert path.read_text().count(HEADER) == 1


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A git repository."""
    files = {"train.py": "", "configs/a b.yaml": "x: 1", ".github/ci.yml": "", ".gitignore": "ignored/\n"}
    write_files(tmp_path / "project", files | {"ignored/big": "data"})
    subprocess.run(["git", "init", "-q", str(tmp_path / "project")], check=True)
    return tmp_path / "project"


def write_files(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def names_in(bundle: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(bundle)) as archive:
        return archive.getnames()


def packed(project: Path, include: tuple[str, ...] = ()) -> bytes:
    target = io.BytesIO()
    make_bundle(project, ["configs/a b.yaml"], include, 10_000_000).write(target)
    return target.getvalue()


def test_a_bundle_has_what_git_does_not_ignore_and_depends_only_on_contents(project: Path, tmp_path: Path) -> None:
    (project / "link.py").symlink_to("train.py")
    first = packed(project)
    os.utime(project / "train.py", (1, 1))
    assert packed(project) == first
    assert names_in(first) == [".github/ci.yml", ".gitignore", "configs/a b.yaml", "link.py", "train.py"]
    unpack(io.BytesIO(first), tmp_path / "code")
    assert (tmp_path / "code/link.py").resolve() == (tmp_path / "code/train.py").resolve()
    assert "ignored/big" in names_in(packed(project, ("ignored/big",)))


def test_a_project_outside_git_is_packed_without_environments_and_results(tmp_path: Path) -> None:
    files = ("train.py", ".venv/bin/python", "results/a.jsonl", "__pycache__/x.pyc", ".github/ci.yml")
    write_files(tmp_path, dict.fromkeys(files, ""))
    assert make_bundle(tmp_path, [], (), 1000).files == (".github/ci.yml", "train.py")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".env", "A=1"),
        ("certs/server.pem", "x"),
        ("id_rsa", "x"),
        (".aws/credentials", "x"),
        ("notes.txt", "-----BEGIN OPENSSH " + "PRIVATE KEY-----\nabc"),
        ("run.sh", "export HF_TOKEN=hf_" + "a" * 34),
        ("a.py", "key = 'AKIA" + "A" * 16 + "'"),
        ("key.json", '{"private_key": "-----BEGIN ' + 'PRIVATE KEY-----\\nMIIE"}'),
        ("a.sh", "export WANDB_API_KEY=" + "0a" * 20),
        ("b.sh", "glpat-" + "a" * 20),
        ("c.sh", "github_pat_" + "a" * 80),
        ("configs/secrets.yaml", "x: y"),
        ("env.yaml", "policy_api_key: real-value-123\n"),
        ("sagemaker.yaml", "environment: {A: b, WANDB_API_KEY: real-value-123}\n"),
    ],
)
def test_a_file_that_looks_like_a_secret_is_refused_unless_it_is_included(project: Path, name: str, text: str) -> None:
    write_files(project, {name: text})
    with pytest.raises(OperatorError, match=rf"look like secrets .*{re.escape(name)} \(.*--include PATH"):
        packed(project)
    packed(project, (name,))


def test_placeholders_and_our_own_files_are_not_secrets(project: Path) -> None:
    write_files(project, {"env.yaml": "policy_api_key: dummy\npolicy_base_url: http://x\n", ".env.example": "KEY="})
    packed(project)
    list_files = ["git", "ls-files", "-z", "launchers", "configs", "docs"]
    listed = subprocess.run(list_files, cwd=INSTALLED, capture_output=True)
    names = [name for name in listed.stdout.decode().split("\0") if name]
    assert [name for name in names if (INSTALLED / name).is_file() and secret_in(INSTALLED, name)] == []


@pytest.mark.parametrize("target", ["../outside", "/etc/hostname", "link"])
def test_a_link_out_of_the_project_is_refused(project: Path, target: str) -> None:
    (project.parent / "outside").touch()
    (project / "link").symlink_to(target)
    with pytest.raises(OperatorError, match=r"links.*link -> "):
        packed(project)


def test_a_tracked_file_below_a_link_that_leads_out_of_the_project_is_refused(project: Path) -> None:
    write_files(project, {"data/a": "inside"})
    subprocess.run(["git", "-C", str(project), "add", "data/a"], check=True)
    (project / "data").rename(project.parent / "elsewhere")
    (project / "data").symlink_to("../elsewhere")
    (project / ".gitignore").write_text("data\n")
    with pytest.raises(OperatorError, match=r"links .*data/a -> .*/elsewhere/a"):
        packed(project)


def test_too_many_bytes_are_refused_with_the_largest_file(project: Path) -> None:
    (project / "weights.bin").write_bytes(bytes(2_000_000))
    with pytest.raises(OperatorError, match=r"\b1 MB.*weights\.bin \(2 MB\)"):
        make_bundle(project, [], (), 1_000_000)


def test_settings_come_from_file_environment_and_options_in_this_order(tmp_path: Path) -> None:
    (tmp_path / "sagemaker.yaml").write_text("account: 503561457547\nrole: A\nregion: us-east-1\nprefix: p\n")
    environ = {"ROLE": "B", "SUBNETS": "s1,s2", "SECURITY_GROUP_IDS": "g"}
    variables = {f"ROLLYARD_SAGEMAKER_{name}": value for name, value in environ.items()}
    settings = read_settings(None, tmp_path, variables, {"region": "us-west-2"})
    assert (settings.account, settings.role, settings.region) == ("503561457547", "B", "us-west-2")
    assert (settings.subnets, settings.security_group_ids) == (("s1", "s2"), ("g",))
    with pytest.raises(OperatorError, match="ROLLYARD_SAGEMAKER_ROEL"):
        read_settings(None, tmp_path, {"ROLLYARD_SAGEMAKER_ROEL": "x"}, {})
    (tmp_path / "sagemaker.yaml").write_text("account: 012345670123\n")
    with pytest.raises(OperatorError, match="12 digits, in quotes"):
        read_settings(None, tmp_path, {}, {})


def test_the_policy_is_that_of_the_account_and_passes_roles_to_sagemaker_only() -> None:
    settings = SageMakerSettings(account="503561457547", region="us-west-2", repository="rlvr-experiments")
    statements = policy(find_target(settings, offline=True))["Statement"]
    found = {action: (one["Resource"], one.get("Condition")) for one in statements for action in one["Action"]}
    only_sagemaker = {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}}
    expected = {
        "ecr:PutImage": ("arn:aws:ecr:us-west-2:503561457547:repository/rlvr-experiments", None),
        "iam:PassRole": ("arn:aws:iam::503561457547:role/*", only_sagemaker),
        "s3:PutObject": ("arn:aws:s3:::sagemaker-us-west-2-503561457547/rollyard/*", None),
        "sagemaker:StopTrainingJob": ("*", None),
    }
    assert {action: found[action] for action in expected} == expected


def test_hyperparameters_arrive_as_given() -> None:
    nasty = "a b'\"$(touch x)\n`id`"
    parameters = JobParameters(config=nasty, command=("python", nasty, "{config}"), train_gpus="0,1", eval_gpus="7")
    assert JobParameters.parse(parameters.hyperparameters()) == parameters
    assert JobParameters.parse({"config": '"configs/a.yaml"', "sagemaker_region": "x"}).config == "configs/a.yaml"
    with pytest.raises(OperatorError, match="at most 2500"):
        JobParameters(config="x" * 3000).hyperparameters()


def test_the_default_evaluation_commands_are_valid_for_ng_eval(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text("output_dir: out\nenvironments: [gsm8k]\n")
    settings = SageMakerSettings()
    for command, once in ((settings.watch_command, False), (settings.final_eval_command, True)):
        words = [word.replace("{config}", "e.yaml").replace("{checkpoints}", "/c") for word in command[1:]]
        options = read_arguments(words, tmp_path).options
        assert (options.watch, options.once) == ("/c", once)


def test_an_image_for_jobs_runs_as_root_who_owns_their_folders(tmp_path: Path) -> None:
    assert "RUN_AS=0:0" in build_command(tmp_path, "Dockerfile", "i:t", None)
    assert "ARG RUN_AS=1000:1000\nUSER ${RUN_AS}\n" in (INSTALLED / "Dockerfile").read_text()


@pytest.fixture(params=["with the filter", "without the filter"])
def python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without the filter":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)


def bundle(*members: tarfile.TarInfo) -> io.BytesIO:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as packed:
        for member in members:
            packed.addfile(member, io.BytesIO(b"text"))
    return io.BytesIO(file.getvalue())


def entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, target, 0o755
    member.size = 4 if kind == tarfile.REGTYPE else 0
    return member


@pytest.mark.usefixtures("python")
@pytest.mark.parametrize(
    "member",
    [
        entry("../outside"),
        entry("a/../../outside"),
        entry("link", tarfile.SYMTYPE, "../outside"),
        entry("link", tarfile.SYMTYPE, "/etc"),
        entry("link", tarfile.LNKTYPE, "../outside"),
        entry("device", tarfile.CHRTYPE),
    ],
    ids=lambda member: f"{member.name} -> {member.linkname}",
)
def test_an_entry_that_leads_out_is_refused_and_those_before_it_are_unpacked(
    member: tarfile.TarInfo, tmp_path: Path
) -> None:
    members = entry("a", tarfile.DIRTYPE), entry("a/train.py"), entry("a/link.py", tarfile.SYMTYPE, "train.py")
    with pytest.raises((tarfile.TarError, OperatorError)):
        unpack(bundle(*members, entry("hard.py", tarfile.LNKTYPE, "a/train.py"), member), tmp_path / "code")
    inside = [(tmp_path / "code" / name).read_text() for name in ("a/train.py", "a/link.py", "hard.py")]
    assert inside == ["text"] * 3 and not (tmp_path / "outside").exists()
