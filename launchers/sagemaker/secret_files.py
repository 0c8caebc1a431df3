"""Recognises files that probably contain secrets, by their names and their contents."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

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
    (
        re.compile(rb"(?i)wandb_api_key['\"]?\s*[:=]\s*['\"]?(?:wandb_v1_\w{20,}|[0-9a-f]{40}(?![0-9a-f]))"),
        "a W&B key",
    ),
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
