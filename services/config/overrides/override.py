"""Parses arguments with Hydra's parser into keys and values, and applies them to OmegaConf trees."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override as HydraOverride
from hydra.core.override_parser.types import OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from rollyard.records.errors import OperatorError
from rollyard.services.config.overrides.hydra_grammar import join_split_values, normalize
from rollyard.services.config.overrides.syntax_hints import explain
from rollyard.services.server.settings import REDACTED, is_secret, redacted_at, without_credentials

_VALUE_OPERATIONS = {OverrideType.CHANGE, OverrideType.ADD, OverrideType.FORCE_ADD}
_HEADERS = re.compile(r"headers$", re.IGNORECASE)
_SECRET_INSIDE = re.compile(
    r"""((?:^|[\s{,._\-+"'])(?:key|token|secret|password|credentials?)["']?\s*[:=]\s*)(?:"[^"]*"|'[^']*'|[^\s,}\]]+)""",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Override:
    """A command-line argument `key=value`, or `~key`, which deletes a key."""

    text: str
    key: str
    """Dotted path to the key, such as `a.b`."""
    value: Any
    """A plain Python value: str, int, float, bool, None, list or dict."""
    delete: bool = False
    adds: bool = False
    """The argument starts with `+`, so the key need not exist."""
    source: str = ""
    """The argument as typed, if it differs from `text`: `--num-repeats=4`."""

    @property
    def shown(self) -> str:
        """The argument as typed, for messages; a secret's value is omitted."""
        return shown(self.source or self.text)

    @property
    def is_dashed(self) -> bool:
        """Whether it was written as `--key value`."""
        return self.source.startswith("--")

    @property
    def top(self) -> str:
        """First part of the key."""
        return self.key.partition(".")[0]

    @property
    def typed(self) -> str:
        """The value as typed, for example `007`, which Hydra parses as a number."""
        return self.text.partition("=")[2].strip()


def shown(text: str) -> str:
    """Return an argument as it appears in messages, with secrets redacted."""
    key, equals, value = text.partition("=")
    name = key.strip(" +~-\"'").replace("-", "_")
    if equals and (is_secret(name.rpartition(".")[2]) or redacted_at(name, value) == REDACTED or _HEADERS.search(name)):
        return f"{key}={REDACTED}"
    text = without_credentials(text)
    return _SECRET_INSIDE.sub(lambda found: f"{found[1]}{REDACTED}", text)


def parse_overrides(
    arguments: Iterable[str],
    known: Mapping[str, str] | None = None,
    *,
    around: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> list[Override]:
    """Parse command-line arguments.

    Raises OperatorError, which explains the first invalid argument and how to write it.

    `known`: maps the command's options to example values (`true`, `[...]`), which are used in suggestions.
    `around`: the arguments before and after these, of which a mistake may be a part.
    """
    given = join_split_values(arguments)
    parser = OverridesParser.create()
    parsed: list[Override] = []

    def read(text: str) -> HydraOverride | None:
        try:
            override = parser.parse_override(text)
        # A function of Hydra's grammar, such as int(x), raises Python's own errors.
        except (HydraException, ValueError, TypeError, AttributeError, RecursionError):
            return None
        usable = override.key_or_group and override.package is None and not override.is_sweep_override()
        return override if usable else None

    for number, text in enumerate(given):
        override = read(normalize(text))
        if override is None:

            def readable(guess: str) -> bool:
                return read(guess) is not None

            before, after = around
            line = [*before, *given, *after]
            raise OperatorError(explain(line, len(before) + number, known or {}, readable, shown))
        key = override.key_or_group.replace("/", ".")
        if override.type in _VALUE_OPERATIONS:
            parsed.append(Override(text, key, _plain(override.value()), adds=override.type is not OverrideType.CHANGE))
        else:
            parsed.append(Override(text, key, None, delete=True))
    return parsed


def apply(tree: DictConfig, overrides: Iterable[Override]) -> None:
    """Apply overrides to `tree`. Later ones take precedence. Raises OperatorError if one does not fit the configs."""
    for override in overrides:
        try:
            _apply(tree, override)
        except GrammarParseError as error:
            detail = "its ${...} is invalid; expected ${name}, ${a.b} or ${oc.env:NAME}"
            raise OperatorError(f"{override.shown!r}: {detail}") from error
        except (OmegaConfBaseException, ValueError, TypeError) as error:
            detail = f"{override.key!r} or one of its parents has a value of a different type"
            raise OperatorError(f"{override.shown!r} does not fit the configs: {detail}") from error


def _apply(tree: DictConfig, override: Override) -> None:
    if not override.delete:
        OmegaConf.update(tree, override.key, override.value, merge=True, force_add=True)
        return
    parent, _, last = override.key.rpartition(".")
    node = OmegaConf.select(tree, parent) if parent else tree
    if not isinstance(node, DictConfig) or last not in node:
        raise OperatorError(f"{override.text!r} deletes {override.key!r}, which does not exist")
    del node[last]


def _plain(value: Any) -> Any:
    """Convert Hydra's quoted strings in a value to plain strings."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    text = getattr(value, "text", None)
    return text if isinstance(text, str) else str(value)
