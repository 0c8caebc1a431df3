"""Overrides in the command lines of Rollyard's own commands, which other parts of Rollyard start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rollyard.services.config.overrides.hydra_grammar import format_value
from rollyard.services.config.overrides.override import parse_overrides, shown
from rollyard.services.errors import OperatorError
from rollyard.services.server.settings import is_secret


def as_override(key: str, value: Any) -> str:
    """Return `+key=value`, which `parse_overrides` reads back as given. Raises OperatorError if it cannot."""
    text = f"+{key}={format_value(value, bare=False)}"
    try:
        read = parse_overrides([text])[0].value
    except OperatorError:
        read = None
    if read != value:
        raise OperatorError(f"{key} has a value that cannot be passed on: {value!r:.200}")
    return text


def title(command: Sequence[str]) -> str:
    """Return a command line for a log, without secrets."""
    words = command[command.index("rollyard.services.cli.entry") + 1 :] if "-P" in command else command
    return " ".join(shown(word) for word in words)


def refuse_secrets(overrides: Iterable[str]) -> None:
    """Raise OperatorError for a secret that would be visible in the command line of `ng_run`."""
    for override in parse_overrides(list(overrides)):
        reference = str(override.value).startswith("${oc.env:")
        if is_secret(override.key.rpartition(".")[2]) and override.value not in (None, "") and not reference:
            raise OperatorError(
                f"{override.shown!r} would be visible to all users in the list of processes: put the secret into an "
                f"environment variable and write {override.key}='${{oc.env:NAME}}'"
            )
