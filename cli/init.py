"""ng_init: creates a folder with a new environment, agent or model server that is ready to run, test and modify."""

from __future__ import annotations

import keyword
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from rollyard.cli.options import Options, read_options, run_command
from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.script import EXIT_DONE
from rollyard.services.config.plugins import FAMILIES

EXAMPLE = "ng_init my_env --kind tools"
TEMPLATES = Path(__file__).parent / "templates"
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_YAML_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null"})
_MODEL = "responses_api_models/builtin_model/configs/builtin_model.yaml"
_SOKOBAN = "resources_servers/grl_sokoban"


@dataclass(frozen=True)
class PluginKind:
    """The files to write and the commands to print for one value of `--kind`."""

    family: str
    readme: str
    configs: tuple[str, ...]
    """Configs that `ng_run` needs in addition to the new one."""
    agent: str
    rows: str


_ENVIRONMENT = PluginKind(
    "resources_servers", "environment", (_MODEL,), "my_name_agent", "resources_servers/my_name/data/example.jsonl"
)
KINDS = {
    "single_turn": _ENVIRONMENT,
    "tools": _ENVIRONMENT,
    "turns": _ENVIRONMENT,
    "agent": PluginKind(
        "agents", "agent", (f"{_SOKOBAN}/configs/grl_sokoban.yaml", _MODEL), "my_name", f"{_SOKOBAN}/data/example.jsonl"
    ),
    "model": PluginKind(
        "responses_api_models",
        "model",
        (f"{_SOKOBAN}/configs/grl_sokoban.yaml",),
        "grl_sokoban_game_agent",
        f"{_SOKOBAN}/data/example.jsonl",
    ),
}


class InitOptions(Options):
    SUBJECT: ClassVar[str] = "name"

    name: str = ""
    """Name of the new folder: lower-case letters, digits and underscores."""
    kind: Literal["single_turn", "tools", "turns", "agent", "model"] = "single_turn"
    """What to create: an environment in which the model answers once (single_turn), calls tools (tools) or sends text
    over several turns (turns); an agent; or a model server."""


def main() -> None:
    run_command("ng_init", InitOptions, EXAMPLE, run)


def run(arguments: Sequence[str]) -> int:
    """Create a folder with code, a config, example rows, a test and a README, and print the commands that run it."""
    options, _ = read_options(InitOptions, arguments)
    if not options.name:
        raise OperatorError(f"the name of the new folder is missing; expected, for example, {EXAMPLE}")
    kind = KINDS[options.kind]
    folder = Path.cwd() / kind.family / options.name
    _check_name(options.name, kind.family, folder)
    _write(options.kind, options.name, folder)
    _print_commands(options.name, kind)
    return EXIT_DONE


def _check_name(name: str, family: str, folder: Path) -> None:
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        suggestion = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_0123456789")
        hint = f", such as {suggestion}" if _NAME.fullmatch(suggestion) and not keyword.iskeyword(suggestion) else ""
        problem = "a Python keyword" if keyword.iskeyword(name) else "not a valid folder name"
        raise OperatorError(f"{name!r} is {problem}; expected lower-case letters, digits and underscores{hint}")
    if name in _YAML_WORDS:
        raise OperatorError(f"YAML does not parse {name!r} as a string, so choose a different name")
    for other in FAMILIES:
        if (INSTALLED / other / name).is_dir() and Path.cwd() != INSTALLED:
            raise OperatorError(f"{other}/{name} is part of Rollyard: choose a different name")
    if os.path.lexists(folder):
        raise OperatorError(f"{family}/{name} already exists: choose a different name, or remove that folder")


def _write(kind: str, name: str, folder: Path) -> None:
    """Write the files to a temporary folder and rename it last, so that `folder` is never incomplete."""
    source, unfinished = TEMPLATES / kind, folder.with_name(f".{name}.{os.getpid()}")
    texts = {
        "app.py": source / "app.py.txt",
        f"configs/{name}.yaml": source / "config.yaml",
        "data/example.jsonl": source / "example.jsonl",
        f"tests/test_{name}.py": source / "test.py.txt",
        "README.md": TEMPLATES / f"{KINDS[kind].readme}_readme.md",
    }
    try:
        for path, template in texts.items():
            if template.exists():
                (unfinished / path).parent.mkdir(parents=True, exist_ok=True)
                (unfinished / path).write_text(_fill(template.read_text("utf-8"), name, KINDS[kind]), "utf-8")
        unfinished.rename(folder)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise RunError(f"cannot write {folder}: {error.strerror}") from error


def _fill(text: str, name: str, kind: PluginKind) -> str:
    for command, line in _commands(name, kind).items():
        text = text.replace(f"{command}_COMMAND", line)
    return text.replace("my_name", name).replace("MyName", "".join(part.capitalize() for part in name.split("_")))


def _commands(name: str, kind: PluginKind) -> dict[str, str]:
    paths = [f"{kind.family}/{name}/configs/{name}.yaml", *kind.configs]
    output = f"results/{name}.jsonl"
    collect = [
        "ng_collect_rollouts",
        f"--agent-name {kind.agent}",
        f"--input-jsonl-fpath {kind.rows}",
        f"--output-jsonl-fpath {output}",
        "--num-repeats 4",
    ]
    return {
        "RUN": f"ng_run {' '.join(paths)}",
        "COLLECT": " \\\n    ".join([" ".join(collect[:2]), collect[2], " ".join(collect[3:])]).replace(
            "my_name", name
        ),
        "VIEWER": f"ng_viewer {output}",
        "TEST": f"python -m pytest {kind.family}/{name}",
    }


def _print_commands(name: str, kind: PluginKind) -> None:
    commands = _commands(name, kind)
    print(f"Created {kind.family}/{name}. To run it:\n\n  {commands['RUN']}\n")
    print("Then, in a second terminal in the same folder:\n")
    print(f"  {commands['COLLECT']}\n  {commands['VIEWER']}\n")
    print(f"To run its test, which needs no servers: {commands['TEST']}")
