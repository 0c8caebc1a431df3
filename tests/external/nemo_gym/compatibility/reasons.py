"""Why an environment does not play, from what its program printed."""

from __future__ import annotations

import re
from pathlib import Path

PATTERNS: tuple[tuple[str, str], ...] = (
    (r"No module named \\*'([\w.]+)", "package"),
    (r"'git', 'clone', .*?'(https://[^']+)'", "download: clones {0}"),
    (r"git clone .*?(https://\S+?)['\s\"]", "download: clones {0}"),
    (r"Couldn't reach '([^']+)' on the Hub", "download: dataset {0}"),
    (r"(?:LocalEntryNotFoundError|OfflineModeIsEnabled|offline mode is enabled)", "download from the Hugging Face Hub"),
    (r"host='([\w.-]+)', port=443", "download from {0}"),
    (r"pre-loading metadata \((~\d+ GB)", "download: test data ({0})"),
    (r"uv is required", "download: builds an environment with packages from the index at its start"),
    (r"Failed to load SEC ticker data", "download: company tickers of the SEC"),
    (r"current node timed out during startup|Directory not empty: '_internal'",
     "Ray: its cluster did not start in time on this host, which was busy"),
    (r"URLError", "download: {url}"),
    (r"_ensure_sif|apptainer|singularity", "container: Apptainer, and an image from a registry"),
    (r"No such file or directory: '?docker|docker\.errors|'docker'", "Docker"),
    (r"(\w*api_key)(?:\.[\w\[\]]+)?\n\s+Input should be a valid", "external service: needs {0}"),
    (r"(\w+_TOKEN) must be set", "external service: needs {0}"),
    (r"tasks directory does not exist", "download: its tasks"),
    (r"generate_data\.py", "download: word lists, by its generate_data.py"),
    (r"db\.json", "download: its data base, from the Hugging Face Hub"),
    (r"(?i)libreoffice could not be", "program: LibreOffice"),
    (r"set-VIBENCH_REPO_ROOT", "download: a repository of tasks, for its VIBENCH_REPO_ROOT"),
    (r"\nenvironment\n\s+Field required", "part of a config: that of a benchmark"),
    (r"env_id", "agent: only its own, which returns the id of its episode"),
    (r"Playwright Chromium", "download: the Chromium of Playwright"),
    (r"nltk\.download", "download: data of NLTK"),
    (r"_mirror_python|longmt-python", "package segale: installed from a Git repository"),
    (r"resources_session_id", "episodes: only those of its own environment server, which is from a Git repository"),
    (r"(?i)sandbox.*?(?:connect|refused)|127\.0\.0\.1:600\d", "external service: a code sandbox"),
    (r"TAVILY|tavily", "external service: Tavily"),
    (r"CUDA|nvidia-smi|['\"{]GPU['\"]?:", "GPU"),
    (r"(google_api_key)\n\s+Field required", "external service: needs {0}"),
    (r"entrypoint\n\s+Field required", "part of a config: completes that of another environment"),
    (r"^ended before it listened\s*$", "a base class: its program defines a class and ends"),
    (r"FileNotFoundError: .*?'([^']+)'", "missing file {0}"),
)  # fmt: skip
"""A pattern in the printed text -> the reason. The first that matches applies."""
FROM_GIT = "installed from a Git repository"


def reason(printed: str, folder: Path) -> str:
    """The reason in a few words; starts with `unexplained` if no pattern matches."""
    for pattern, words in PATTERNS:
        if found := list(re.finditer(pattern, printed)):
            last = found[-1]
            return _package(last[1], folder) if words == "package" else words.format(*last.groups(), url=_url(printed))
    line = next((line.strip() for line in reversed(printed.splitlines()) if line.strip()), "nothing printed")
    return f"unexplained: {line[:160]}"


def _url(traceback: str) -> str:
    for name in reversed(re.findall(r'File "([^"]*/resources_servers/[^"]+)"', traceback)):
        if (path := Path(name)).is_file() and (found := re.search(r"https://[^\s\"'`){}]+", path.read_text())):
            return found[0]
    return "data, when it starts"


def _package(module: str, folder: Path) -> str:
    """Why a module is missing, from the requirements of the server's folder."""
    texts = [path.read_text() for name in ("requirements.txt", "pyproject.toml") if (path := folder / name).is_file()]
    stem = module.split(".")[0].lower().replace("_", "").replace("-", "")
    for line in "\n".join(texts).splitlines():
        if stem in line.lower().replace("_", "").replace("-", "") and ("git" in line or "http" in line):
            return f"package {module.split('.')[0]}: {FROM_GIT}"
    if re.search(r"(?m)^\s*\"?torch\b", "\n".join(texts)) or module.split(".")[0] in ("torch", "comet"):
        return f"package {module.split('.')[0]}: needs torch, for a GPU"
    return f"package {module.split('.')[0]}: not on the package index"
