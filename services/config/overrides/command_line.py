"""Overrides in the command lines of Rollyard's own commands, which other parts of Rollyard start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rollyard.records.errors import OperatorError
from rollyard.services.config.overrides.hydra_grammar import format_value
from rollyard.services.config.overrides.override import Override, parse_overrides, shown
from rollyard.services.server.settings import is_secret, redacted_at

_PLACEHOLDERS = frozenset({"dummy", "dummy_key", "empty", "none", "null", "unused"})
"""Keys for engines that require none."""


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
    words = command[command.index("rollyard.cli.entry") + 1 :] if "-P" in command else command
    return " ".join(shown(word) for word in words)


def refuse_secrets(overrides: Iterable[str | Override]) -> None:
    """Raise OperatorError for a secret in a command line, where all users of the host can read it."""
    parsed = [one for given in overrides for one in (parse_overrides([given]) if isinstance(given, str) else [given])]
    for override in parsed:
        if not override.delete and _is_exposed(override):
            name = override.key.rpartition(".")[2]
            variable = name if override.key == name and is_secret(name) else "NAME"
            raise OperatorError(
                f"{override.shown!r} would be visible to all users in the list of processes: put the secret into an "
                f"environment variable, export {variable}=..., and write {override.key}='${{oc.env:{variable}}}'"
            )


def _is_exposed(override: Override) -> bool:
    value = _without_references(override.value)
    return bool(redacted_at(override.key, value) != value)


def _without_references(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_references(item) for key, item in value.items()}
    if isinstance(value, list | tuple):  # a default is a tuple
        return [_without_references(item) for item in value]
    harmless = isinstance(value, str) and ("${" in value or value.lower() in _PLACEHOLDERS)
    return "" if harmless else value
