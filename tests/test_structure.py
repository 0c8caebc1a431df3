"""The floors of the house: imports run downwards, `services/` knows no plug-in, nothing heavy at the door."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
PACKAGES = ("services", "resources_servers", "responses_api_models", "agents")
PLUGINS = PACKAGES[1:]


def modules() -> dict[str, Path]:
    files = [path for package in PACKAGES for path in (SOURCE / "rollyard" / package / ".").rglob("*.py")]
    assert len(files) > 300, "the links in src/rollyard lead nowhere"
    return {".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def imports_of(path: Path, known: set[str]) -> set[str]:
    """Modules of ours that `path` imports anywhere but under TYPE_CHECKING."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        found |= {name for name in names if name in known and "." in name}
    return found


def test_no_module_imports_itself_by_a_detour() -> None:
    known = modules()
    graph = {name: imports_of(path, set(known)) - {name} for name, path in known.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"an import circle: {' -> '.join(error.args[1])}")


def test_services_imports_no_plugin_folder_and_plugin_folders_do_not_know_each_other() -> None:
    known = modules()
    for name, path in known.items():
        family = name.split(".")[1]
        forbidden = [other for other in PLUGINS if other != family]
        wrong = {used for used in imports_of(path, set(known)) if used.split(".")[1] in forbidden}
        assert not wrong, f"{name} imports {sorted(wrong)}"


def test_one_server_folder_does_not_import_another() -> None:
    known = modules()
    for name, path in known.items():
        parts = name.split(".")[1:]
        if parts[0] in PLUGINS and len(parts) > 2:
            wrong = {
                used
                for used in imports_of(path, set(known))
                if used.split(".")[1] in PLUGINS
                and used.split(".")[1:3] != parts[:2]
                and f"{'.'.join(used.split('.')[:3])}.app" in known
            }
            assert not wrong, f"{name} imports {sorted(wrong)}"


@pytest.mark.parametrize(
    "module", ["rollyard.services.runtime.serve", "rollyard.services.cli.collect_rollouts", "rollyard.services.cli.run"]
)
def test_the_core_starts_without_what_is_heavy(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('torch', 'ray', 'vllm', 'openai', 'httpx') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_only_the_command_line_reads_the_environment() -> None:
    # Launchers hand the environment on to the processes they start, whose command line is serve.py.
    readers = {
        "services/cli",
        "services/runtime/serve.py",
        "services/runtime/launcher.py",
        "services/runtime/ray_launcher.py",
        "services/runtime/ray_actor.py",
    }
    for path in (ROOT / "services").rglob("*.py"):
        place = str(path.relative_to(ROOT))
        if not any(place.startswith(allowed) for allowed in readers):
            assert not re.search(r"os\.environ|getenv", path.read_text()), place


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        name
        for name, path in modules().items()
        if path.read_text() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_what_tests_need_goes_on_top_of_what_the_demo_runs_on() -> None:
    demo, tests = (
        set(re.findall(r"^\S+==\S+", (ROOT / lock).read_text(), re.MULTILINE))
        for lock in ("requirements.lock", "requirements-dev.lock")
    )
    assert demo < tests


def test_locks_hold_hashes_and_no_address() -> None:
    for lock in ROOT.glob("requirements*.lock"):
        text = lock.read_text()
        assert "--hash=sha256:" in text
        assert "://" not in text
        assert "index" not in text.lower().replace("index==", "")
