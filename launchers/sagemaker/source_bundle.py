"""SourceBundle: the project's files that git does not ignore, as a tar.gz whose bytes depend only on their contents."""

from __future__ import annotations

import gzip
import os
import re
import stat
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from rollyard.records.errors import OperatorError, RunError

_SHOWN = 8


@dataclass(frozen=True)
class SourceBundle:
    project: Path
    files: tuple[str, ...]
    size: int

    def write(self, target: BinaryIO) -> None:
        """Write the archive. Raises OperatorError if a file has disappeared, OSError if it cannot be read."""
        # No file name, user or time: the same files give the same bytes.
        with (
            gzip.GzipFile(filename="", mode="wb", fileobj=target, compresslevel=6, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for name in self.files:
                path = self.project / name
                entry = tarfile.TarInfo(name)
                if path.is_symlink():
                    entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)  # noqa: PTH115 - the text of the link
                    archive.addfile(entry)
                    continue
                try:
                    opened = path.open("rb")
                except FileNotFoundError as error:
                    raise OperatorError(
                        f"{name} was deleted while the source bundle was being written; repeat the command"
                    ) from error
                with opened as file:
                    status = os.fstat(file.fileno())
                    entry.size = status.st_size
                    entry.mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
                    archive.addfile(entry, file)


def make_bundle(project: Path, configs: Sequence[str], include: Sequence[str], max_bytes: int) -> SourceBundle:
    """Select and check the files of a project.

    `configs` (files that the job needs) and the files of `include` are part of it even if git ignores them; `include`
    also allows files that look like secrets. Raises OperatorError if a file looks like a secret, a link leads out of
    the project, or all files together are larger than `max_bytes`.
    """
    for name in include:
        if not (project / name).is_file() or not _is_inside(project, project / name):
            raise OperatorError(f"--include {name}: there is no such file in the project {project}")
    extra = [os.path.normpath(name) for name in (*include, *configs)]
    names = sorted({*_project_files(project), *extra})
    allowed = {os.path.normpath(name) for name in include}
    # Sockets and pipes, which programs create while they run, are left out.
    names = [name for name in names if (project / name).is_symlink() or (project / name).is_file()]
    _check_links(project, names)
    found = [f"{name} ({why})" for name in names if name not in allowed and (why := secret_in(project, name))]
    if found:
        raise OperatorError(
            f"these files look like secrets and would be uploaded: {_listed(found)}. Add them to .gitignore, or pass "
            f"--include PATH for each file that the job needs"
        )
    sizes = {name: (project / name).lstat().st_size for name in names}
    if (size := sum(sizes.values())) > max_bytes:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
        shown = ", ".join(f"{name} ({sizes[name] / 1e6:,.0f} MB)" for name in largest)
        raise OperatorError(
            f"the project's files have {size / 1e6:,.0f} MB, at most {max_bytes / 1e6:,.0f} MB are uploaded. The "
            f"largest are {shown}. Add data to .gitignore and put it into S3, or raise max_source_mb"
        )
    return SourceBundle(project, tuple(names), size)


def _check_links(project: Path, names: Sequence[str]) -> None:
    # A file below a link to a folder, too: git lists tracked files whose folder has been replaced by a link.
    links = {name: os.readlink(project / name) for name in names if (project / name).is_symlink()}  # noqa: PTH115
    leading_out = [name for name in names if not _is_inside(project, project / name)]
    outside = [f"{name} -> {links.get(name) or (project / name).resolve()}" for name in leading_out]
    absolute = [name for name, target in links.items() if os.path.isabs(target)]  # noqa: PTH117
    if outside or absolute:
        raise OperatorError(
            "links that lead out of the project or nowhere would be broken in the job: "
            f"{_listed(outside or absolute)}. Replace them by relative links within the project, or add them to "
            ".gitignore"
        )


def _is_inside(project: Path, path: Path) -> bool:
    try:
        return path.resolve().is_relative_to(project.resolve())
    except (OSError, RuntimeError):  # a loop of links; Python 3.13 raises OSError
        return False


def _listed(items: Sequence[str]) -> str:
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + more


def unpack(archive: BinaryIO, folder: Path) -> None:
    """Unpack a bundle. Raises tarfile.TarError or OperatorError for an entry that leads out of `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=archive, mode="r:gz") as packed:
        if hasattr(tarfile, "data_filter"):
            packed.extractall(folder, filter="data")
        else:
            _extract_inside(packed, folder)


def _extract_inside(packed: tarfile.TarFile, folder: Path) -> None:
    """Do what the filter `data` does, which Python has since 3.11.4. Debian 12 has 3.11.2."""
    for member in packed:
        target = folder / member.name
        if member.issym():
            end = target.parent / member.linkname
        elif member.islnk():
            end = folder / member.linkname
        else:
            end = target
        if not all(path.resolve().is_relative_to(folder.resolve()) for path in (target, end)) or member.isdev():
            raise OperatorError(
                f"the source bundle contains {member.name}, which leads out of its folder; do not use it"
            )
        packed.extract(member, folder)


_GENERATED = (".git", "__pycache__", "node_modules", "build", "dist", "results", "wandb", "site")
_GENERATED_CACHES = (
    ".venv",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".hypothesis",
    ".rollyard",
    ".ipynb_checkpoints",
)
"""Folders that are left out if the project is not in a git repository."""
GIT_TIMEOUT_S = 120


def _project_files(project: Path) -> list[str]:
    """Return the paths of all files and links, relative to the project, sorted.

    In a git repository these are the tracked and the untracked files that are not ignored, otherwise all files except
    environments, caches and results. Raises OperatorError or RunError if they cannot be listed.
    """
    in_git = any((folder / ".git").exists() for folder in (project, *project.parents))
    found = _listed_by_git(project, project) if in_git else _walked(project)
    return sorted(set(found))


def _listed_by_git(project: Path, folder: Path) -> Iterator[str]:
    command = ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=GIT_TIMEOUT_S)
    except FileNotFoundError as error:
        raise OperatorError(
            f"{folder} is in a git repository, but git is not installed; it knows ignored files"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise RunError(f"git did not list the files of {folder} within {GIT_TIMEOUT_S} s") from error
    if done.returncode:
        reason = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        raise RunError(f"git cannot list the files of {folder}: {reason}")
    for name in os.fsdecode(done.stdout).split("\0"):
        path = folder / name
        if not name or not os.path.lexists(path):  # deleted, but still tracked
            continue
        if path.is_dir() and not path.is_symlink():  # a submodule or another repository
            if (path / ".git").exists():
                yield from _listed_by_git(project, path)
        else:
            yield str(path.relative_to(project))


def _walked(project: Path) -> Iterator[str]:
    def unreadable(error: OSError) -> None:
        raise RunError(f"{error.filename} cannot be read: {error.strerror}") from error

    for folder, names, files in os.walk(project, onerror=unreadable):
        at = Path(folder)
        links = [name for name in names if (at / name).is_symlink()]
        names[:] = [name for name in names if name not in links and name not in _GENERATED]
        names[:] = [name for name in names if not name.startswith(_GENERATED_CACHES) and not name.endswith(".egg-info")]
        yield from (str((at / name).relative_to(project)) for name in (*files, *links))


NAMES = (
    *(".env", ".env.*", "*.env", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "*_rsa", "*_ed25519"),
    *("credentials", "credentials.json", "client_secret*.json", "service-account*.json", "service_account*.json"),
    *("secrets.yaml", "secrets.yml", "secrets.json", "secrets.toml"),
    *(".netrc", "_netrc", ".pypirc", ".git-credentials", ".htpasswd", "kubeconfig", ".pgpass"),
)
EXAMPLES = (".example", ".sample", ".template", ".dist", ".pub")
FOLDERS = (".aws", ".ssh", ".gnupg", ".azure", ".kube")
MAX_BYTES = 2_000_000
"""Larger files are data, and only their names are checked."""

_CONTENTS = (
    (
        re.compile(rb"(?:^|['\"])-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----(?:\s|\\n)", re.MULTILINE),
        "a private key",
    ),
    (re.compile(rb"(?<![A-Z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Z0-9])"), "an AWS access key"),
    (
        re.compile(rb"(?i)aws_secret_access_key['\"]?\s*[:=]\s*['\"]?[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+])"),
        "an AWS secret key",
    ),
    (re.compile(rb"(?<![A-Za-z0-9_])hf_[A-Za-z0-9]{34}(?![A-Za-z0-9])"), "a Hugging Face token"),
    (re.compile(rb"(?<![A-Za-z0-9_])gh[pousr]_[A-Za-z0-9]{36}(?![A-Za-z0-9])"), "a GitHub token"),
    (re.compile(rb"(?<![A-Za-z0-9_])github_pat_[A-Za-z0-9_]{60,}"), "a GitHub token"),
    (re.compile(rb"(?<![A-Za-z0-9_-])glpat-[A-Za-z0-9_-]{20,}"), "a GitLab token"),
    (re.compile(rb"(?i)wandb_api_key['\"]?\s*[:=]\s*['\"]?(?:wandb_v1_\w{20,}|[0-9a-f]{40}(?![0-9a-f]))"), "a W&B key"),
    (re.compile(rb"(?<![A-Za-z0-9_-])sk-(?:proj-|ant-[a-z0-9]+-)?[A-Za-z0-9_-]{40,}"), "an API key"),
)
_KEY_SETTING = re.compile(
    rb"(?:^|[{,])\s*[\w.-]*(?:api_key|token|secret|password)\s*[:=]\s*['\"]?([^\s'\"#,}]+)", re.I | re.MULTILINE
)
_NO_KEY = re.compile(rb"(?i)(?:dummy.*|none|null|empty|true|false|~|x+|\$\{.*|<.*|\?+|your.*|0123456789abcdef)$")


def secret_in(project: Path, name: str) -> str:
    """Return what secret the file probably contains; empty if none. Raises OSError if it cannot be read."""
    path = PurePosixPath(name)
    if path.name.endswith(EXAMPLES):
        return ""
    if any(fnmatchcase(path.name, pattern) for pattern in NAMES) or any(part in FOLDERS for part in path.parts[:-1]):
        return "its name is that of a file with secrets"
    file = project / name
    if file.is_symlink() or file.stat().st_size > MAX_BYTES:
        return ""
    data = file.read_bytes()
    if path.name in ("env.yaml", "env.yml", "sagemaker.yaml", ".npmrc"):
        values = [found[1] for found in _KEY_SETTING.finditer(data)]
        if any(not _NO_KEY.match(value) for value in values):
            return "it contains a key"
    return next((f"it contains {kind}" for pattern, kind in _CONTENTS if pattern.search(data)), "")
