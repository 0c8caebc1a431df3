"""ng_init: write the folder of a new environment, agent or model server, ready to be run, tested and changed."""

from __future__ import annotations

import keyword
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rollyard.services.cli.options import Options, read_options, run_command
from rollyard.services.config.plugins import FAMILIES
from rollyard.services.errors import OperatorError, RunError
from rollyard.services.io.exit_status import EXIT_DONE
from rollyard.services.io.search_path import INSTALLED

EXAMPLE = "ng_init my_env +kind=tools"
TEMPLATES = Path(__file__).parent / "templates"
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_MODEL = "responses_api_models/builtin_model/configs/builtin_model.yaml"
_SOKOBAN = "resources_servers/grl_sokoban"


@dataclass(frozen=True)
class Kind:
    """What is written for one `+kind`."""

    family: str
    readme: str
    configs: tuple[str, ...]
    """Beside its own."""
    agent: str
    rows: str


_ENVIRONMENT = Kind(
    "resources_servers", "environment", (_MODEL,), "my_name_agent", "resources_servers/my_name/data/example.jsonl"
)
KINDS = {
    "single_turn": _ENVIRONMENT,
    "tools": _ENVIRONMENT,
    "turns": _ENVIRONMENT,
    "agent": Kind(
        "agents",
        "agent",
        (f"{_SOKOBAN}/configs/grl_sokoban.yaml", _MODEL),
        "my_name",
        f"{_SOKOBAN}/data/example.jsonl",
    ),
    "model": Kind(
        "responses_api_models",
        "model",
        (f"{_SOKOBAN}/configs/grl_sokoban.yaml",),
        "grl_sokoban_game_agent",
        f"{_SOKOBAN}/data/example.jsonl",
    ),
}


class InitOptions(Options):
    """Options of ng_init."""

    name: str
    """Name of the new folder, the first word of the command: lower case, digits and underscores."""
    kind: Literal["single_turn", "tools", "turns", "agent", "model"] = "single_turn"
    """An environment that is answered in one message, has tools, or is played message by message; or an agent, or a
    model server."""


def main() -> None:
    """Entry point: the first word names the folder."""
    run_command("ng_init", InitOptions, EXAMPLE, run)


def run(arguments: Sequence[str]) -> int:
    """Write a folder with code, config, rows, a test and a README, and print the commands that run it."""
    named = [f"+name={_quoted(word)}" if _is_word(word) else word for word in arguments]
    if sum(word.startswith("+name=") for word in named) > 1:
        raise OperatorError(f"expected one name, found {' and '.join(map(repr, filter(_is_word, arguments)))}")
    if not any(word.lstrip("+").startswith("name=") for word in named):
        raise OperatorError(f"the new folder has no name: {EXAMPLE}")
    options, _ = read_options(InitOptions, named)
    kind = KINDS[options.kind]
    folder = Path.cwd() / kind.family / options.name
    _check_name(options.name, kind.family, folder)
    _write(options.kind, options.name, folder)
    _print_commands(options.name, kind)
    return EXIT_DONE


def _is_word(argument: str) -> bool:
    return "=" not in argument and not argument.startswith(("+", "-", "~"))


def _quoted(word: str) -> str:
    return "'" + word.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _check_name(name: str, family: str, folder: Path) -> None:
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        proposal = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_0123456789")
        meant = f", such as {proposal}" if _NAME.fullmatch(proposal) and not keyword.iskeyword(proposal) else ""
        what = "a word of Python" if keyword.iskeyword(name) else "not a name for a folder of code"
        raise OperatorError(f"{name!r} is {what}; expected lower-case letters, digits and underscores{meant}")
    for other in FAMILIES:
        if (INSTALLED / other / name).is_dir() and Path.cwd() != INSTALLED:
            raise OperatorError(f"{other}/{name} is part of rollyard: choose another name")
    if os.path.lexists(folder):
        raise OperatorError(f"{family}/{name} exists already: choose another name, or remove that folder")


def _write(kind: str, name: str, folder: Path) -> None:
    """The folder appears whole or not at all."""
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
                (unfinished / path).write_text(_filled(template.read_text("utf-8"), name, KINDS[kind]), "utf-8")
        unfinished.rename(folder)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise RunError(f"cannot write {folder}: {error.strerror}") from error


def _filled(text: str, name: str, kind: Kind) -> str:
    for command, line in _commands(name, kind).items():
        text = text.replace(f"{command}_COMMAND", line)
    return text.replace("my_name", name).replace("MyName", "".join(part.capitalize() for part in name.split("_")))


def _commands(name: str, kind: Kind) -> dict[str, str]:
    paths = [f"{kind.family}/{name}/configs/{name}.yaml", *kind.configs]
    output = f"results/{name}.jsonl"
    collect = [
        "ng_collect_rollouts",
        f"+agent_name={kind.agent}",
        f"+input_jsonl_fpath={kind.rows}",
        f"+output_jsonl_fpath={output}",
        "+num_repeats=4",
    ]
    return {
        "RUN": f'ng_run "+config_paths=[{",".join(paths)}]"',
        "COLLECT": " \\\n    ".join([" ".join(collect[:2]), collect[2], " ".join(collect[3:])]).replace(
            "my_name", name
        ),
        "VIEWER": f"ng_viewer +jsonl_fpath={output}",
        "TEST": f"python -m pytest {kind.family}/{name}",
    }


def _print_commands(name: str, kind: Kind) -> None:
    commands = _commands(name, kind)
    print(f"wrote {kind.family}/{name}. To play it, type\n\n  {commands['RUN']}\n")
    print("and in a second terminal in this folder\n")
    print(f"  {commands['COLLECT']}\n  {commands['VIEWER']}\n")
    print(f"Its test needs no server: {commands['TEST']}")
