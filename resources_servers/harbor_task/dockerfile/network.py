"""Finds commands that need a network or a package manager, which a box does not have."""

from __future__ import annotations

import re

_BEGIN = r"(?:^|[;&|(`{]|\$\(|\b(?:sudo|then|do|else|exec|time|env|nohup)\s)\s*(?:\w+=\S*\s+)*"
_WORDS = (
    r"(?:apt-get|apt|aptitude|apk|yum|dnf|pacman|brew|snap|add-apt-repository"
    r"|pip3?(?:\.\d+)?|pipx|uv|uvx|poetry|conda|mamba|npm|npx|yarn|pnpm|bun|gem|bundle|cargo\s+(?:install|add)|rustup"
    r"|go\s+(?:get|install|mod\s+download)|curl|wget|git\s+(?:clone|fetch|pull)|ssh|scp|rsync|docker)"
)
_COMMAND = re.compile(rf"{_BEGIN}({_WORDS}|python3?(?:\.\d+)?\s+-m\s+pip)(?=\s|$)", re.MULTILINE)
_LOCAL = re.compile(r"(?:curl|wget)\b[^;&|\n]*(?:localhost|127\.0\.0\.1|--version|\bfile://)")


def network_command(script: str) -> tuple[int, str] | None:
    """Return the line number and the name of the first command of a shell script that needs a network; None if none.

    Requests to this machine itself are allowed. A command that is hidden from this search fails when it runs.
    """
    for number, line in enumerate(script.splitlines(), start=1):
        if line.lstrip().startswith("#"):
            continue
        found = _COMMAND.search(line)
        if found and not _LOCAL.search(line):
            return number, " ".join(found[1].split())
    return None
