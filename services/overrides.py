"""The command line's grammar: Hydra's own override parser, applied to OmegaConf trees and to typed options."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from services.errors import OperatorError
from services.settings import REDACTED, is_secret

_VALUE_OPERATIONS = {OverrideType.CHANGE, OverrideType.ADD, OverrideType.FORCE_ADD}


@dataclass(frozen=True)
class Override:
    """One `key=value` of the command line. `~key` deletes."""

    text: str
    key: str
    """Dotted path."""
    value: Any
    """Plain Python: str, int, float, bool, None, list, dict."""
    delete: bool = False
    adds: bool = False
    """Typed with a +: the key need not be there."""

    @property
    def shown(self) -> str:
        """As typed, for messages: a secret's value is left out."""
        return shown(self.text)

    @property
    def top(self) -> str:
        """First part of the key."""
        return self.key.partition(".")[0]


def shown(text: str) -> str:
    """An argument as messages may print it."""
    key, equals, _ = text.partition("=")
    return f"{key}={REDACTED}" if equals and is_secret(key) else text


def parse_overrides(arguments: Iterable[str]) -> list[Override]:
    """Parse command-line arguments. Raises OperatorError naming the argument that is no override."""
    parser = OverridesParser.create()
    parsed: list[Override] = []
    for text in arguments:
        try:
            override = parser.parse_override(text)
        except HydraException as error:
            reason = "" if shown(text) != text else f" {str(error).splitlines()[0]}."
            example = "+key=value, key=value, ++a.b=c, [a,b], {k: v}"
            quoting = "quote a value with other characters: +key='a=b'"
            told = f"cannot read the argument {shown(text)!r}:{reason} Expected {example}; {quoting}."
            raise OperatorError(told) from None
        if override.is_sweep_override():
            raise OperatorError(f"{shown(text)!r} lists several values; one run takes one. For a list write [a,b].")
        key = override.key_or_group.replace("/", ".")
        if not key:
            raise OperatorError(f"{text!r} has no name before the =; expected +key=value")
        if override.type in _VALUE_OPERATIONS:
            parsed.append(Override(text, key, _plain(override.value()), adds=override.type is not OverrideType.CHANGE))
        else:
            parsed.append(Override(text, key, None, delete=True))
    return parsed


def apply(tree: DictConfig, overrides: Iterable[Override]) -> None:
    """Write overrides into `tree`, later ones winning."""
    for override in overrides:
        if override.delete:
            parent, _, last = override.key.rpartition(".")
            node = OmegaConf.select(tree, parent) if parent else tree
            if not isinstance(node, DictConfig) or last not in node:
                raise OperatorError(f"{override.text!r} deletes {override.key!r}, which is not there")
            del node[last]
        else:
            OmegaConf.update(tree, override.key, override.value, merge=True, force_add=True)


def _plain(value: Any) -> Any:
    """Hydra keeps quotes around quoted strings as a type of its own."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    text = getattr(value, "text", None)
    return text if isinstance(text, str) else str(value)
