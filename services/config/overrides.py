"""Command-line overrides: Hydra's override parser, with readable messages for arguments that it cannot parse.

Hydra is imported where it is used: its import takes a third of the start of a command.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollyard.records.errors import OperatorError, did_you_mean
from rollyard.services.server.settings import REDACTED, is_secret, redacted_at, without_credentials

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override as HydraOverride
    from omegaconf import DictConfig

_HEADERS = re.compile(r"headers$", re.IGNORECASE)
_SECRET_INSIDE = re.compile(
    r"""((?:^|[\s{,._\-+"'])(?:key|token|secret|password|credentials?)["']?\s*[:=]\s*)(?:"[^"]*"|'[^']*'|[^\s,}\]]+)""",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class ConfigOverride:
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
        return self.source.startswith("--")

    @property
    def top(self) -> str:
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
) -> list[ConfigOverride]:
    """Parse command-line arguments.

    Raises OperatorError, which says what is wrong with the first invalid argument.

    `known`: the command's options, of which the nearest is named.
    `around`: the arguments before and after these, of which a mistake may be a part.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import OverrideType
    from hydra.errors import HydraException

    given = join_split_values(arguments)
    parser = OverridesParser.create()
    parsed: list[ConfigOverride] = []

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
            before, after = around
            raise OperatorError(explain([*before, *given, *after], len(before) + number, known or {}))
        key = override.key_or_group.replace("/", ".")
        if override.type in (OverrideType.CHANGE, OverrideType.ADD, OverrideType.FORCE_ADD):
            parsed.append(
                ConfigOverride(text, key, _plain(override.value()), adds=override.type is not OverrideType.CHANGE)
            )
        else:
            parsed.append(ConfigOverride(text, key, None, delete=True))
    return parsed


def apply(tree: DictConfig, overrides: Iterable[ConfigOverride]) -> None:
    """Apply overrides to `tree`. Later ones take precedence. Raises OperatorError if one does not fit the configs."""
    from omegaconf.errors import GrammarParseError, OmegaConfBaseException

    for override in overrides:
        try:
            _apply(tree, override)
        except GrammarParseError as error:
            detail = "its ${...} is invalid; expected ${name}, ${a.b} or ${oc.env:NAME}"
            raise OperatorError(f"{override.shown!r}: {detail}") from error
        except (OmegaConfBaseException, ValueError, TypeError) as error:
            detail = f"{override.key!r} or one of its parents has a value of a different type"
            raise OperatorError(f"{override.shown!r} does not fit the configs: {detail}") from error


def _apply(tree: DictConfig, override: ConfigOverride) -> None:
    from omegaconf import DictConfig, OmegaConf

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


def refuse_secrets(overrides: Iterable[str | ConfigOverride]) -> None:
    """Raise OperatorError for a secret in a command line, where all users of the host can read it."""
    parsed = [one for given in overrides for one in (parse_overrides([given]) if isinstance(given, str) else [given])]
    for override in parsed:
        value = _without_references(override.value)
        if not override.delete and redacted_at(override.key, value) != value:
            name = override.key.rpartition(".")[2]
            variable = name if override.key == name and is_secret(name) else "NAME"
            raise OperatorError(
                f"{override.shown!r} would be visible to all users in the list of processes: put the secret into an "
                f"environment variable, export {variable}=..., and write {override.key}='${{oc.env:{variable}}}'"
            )


def _without_references(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_references(item) for key, item in value.items()}
    if isinstance(value, list | tuple):  # a default is a tuple
        return [_without_references(item) for item in value]
    harmless = isinstance(value, str) and ("${" in value or value.lower() in _PLACEHOLDERS)
    return "" if harmless else value


_CLOSING = {"[": "]", "{": "}"}
_PIECES = re.compile(
    r"""(?P<quoted>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')"""
    r"""|(?P<filled>\$\{[^}]*\})"""  # an interpolation's braces are not a mapping
    r"""|(?P<mark>[\[\]{},])"""
    r"""|(?P<text>(?:\\.|\$(?!\{)|[^\[\]{},"'\\$])+|.)""",
    re.DOTALL,
)
_ASSIGNED = re.compile(r"(?:--|[+~]{0,2})[A-Za-z_$][\w.\-/@$]*=")
_PLAIN = re.compile(r"[A-Za-z_/.][\w/\-.+$%*@?|]*(?: [\w/\-.+$%*@?|]+)*", re.ASCII)


def join_split_values(arguments: Iterable[str]) -> list[str]:
    """Rejoin bracketed values that the shell split at their spaces."""
    joined: list[str] = []
    waiting = list(arguments)
    while waiting:
        text = waiting.pop(0)
        if _ASSIGNED.match(text):
            for number in range(1, len(waiting) + 1):
                if not open_bracket(text) or _ASSIGNED.match(waiting[number - 1]):
                    break
                longer = " ".join([text, *waiting[:number]])
                if not open_bracket(longer):
                    text, waiting = longer, waiting[number:]
                    break
        joined.append(text)
    return joined


def open_bracket(text: str) -> str:
    """Return an unmatched bracket in an argument's value; empty if all brackets match."""
    stack: list[str] = []
    for kind, piece in pieces(text.partition("=")[2]):
        if kind == "mark" and piece in _CLOSING:
            stack.append(piece)
        elif kind == "mark" and piece in _CLOSING.values() and (not stack or _CLOSING[stack.pop()] != piece):
            return piece
    return stack[-1] if stack else ""


def pieces(value: str) -> Iterator[tuple[str, str]]:
    """Split a value into pieces; yield the kind (quoted, filled, mark or text) and the text of each."""
    for found in _PIECES.finditer(value):
        yield str(found.lastgroup), found.group()


def normalize(text: str) -> str:
    """Rewrite common notations that Hydra's grammar does not support: `~/x`, `[a,]`, non-ASCII letters."""
    key, equals, value = text.partition("=")
    if not equals or (value.isascii() and "~" not in value and not re.search(r",\s*[\]}]", value)):
        return text
    found = list(pieces(value))
    done: list[str] = []
    for number, (kind, piece) in enumerate(found):
        following = next((later for _, later in found[number + 1 :] if later.strip()), "")
        if kind == "mark" and piece == "," and following in ("]", "}") and done and done[-1] not in ("[", "{", ","):
            continue
        done.append(_normalize_text(piece) if kind == "text" else piece)
    return f"{key}={''.join(done)}"


def _normalize_text(piece: str) -> str:
    before, rest = re.fullmatch(r"((?:[^:]*:\s+|[A-Za-z_]\w*:(?!/))?\s*)(.*)", piece, re.DOTALL).groups()  # type: ignore[union-attr]
    if re.match(r"~(/|$)", rest):
        rest = str(Path.home()) + rest[1:]
    if not rest.isascii() and rest.isprintable() and not re.search("[\u2018-\u201f\u00a0]", rest):  # typographic quotes
        stripped = rest.rstrip()
        rest = quote(stripped) + rest[len(stripped) :]
    return f"{before}{rest}"


def format_value(value: Any, *, bare: bool = True) -> str:
    """Format `value` in Hydra's grammar. `bare`: strings without special characters are not quoted."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(format_value(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {format_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, int | float):
        return str(value)
    reserved = str(value).lower() in ("null", "true", "false", "nan", "inf")
    return str(value) if bare and _PLAIN.fullmatch(str(value)) and not reserved else quote(str(value))


def quote(text: str) -> str:
    from hydra.core.override_parser.types import Quote, QuotedString

    return QuotedString(text, Quote.double).with_quotes()


_KEY = re.compile(r"[+~]{0,2}[A-Za-z_$][\w\-$]*(?:\.[\w\-$]+)*", re.ASCII)
_DASHED = re.compile(r"[-\u2010-\u2015\u2212]{1,3}([A-Za-z][\w.\-]*)(?:\s*[=:]\s*(.*))?", re.DOTALL)
_TYPOGRAPHIC = re.compile("[\u2018-\u201f\u00a0]")
_EXPECTED = "expected --key value, --key=[a,b], '--key={k: v}' or --key='\"any text\"'"


def explain(arguments: Sequence[str], number: int, known: Mapping[str, str]) -> str:
    """Say in one line what is wrong with `arguments[number]`, without secrets. `known`: the command's options."""
    text = arguments[number]
    before = arguments[number - 1] if number else ""
    after = arguments[number + 1] if number + 1 < len(arguments) else ""
    key, _, value = text.partition("=")
    bracket = open_bracket(text)
    if not text.strip():
        problem = "it is empty (is a shell variable unset?)"
    elif option := _DASHED.fullmatch(text):
        problem = f"an option begins with two plain dashes{did_you_mean(option[1].replace('-', '_'), known)}"
    elif before.endswith("=") or after.startswith("="):
        problem = "there are spaces around its ="
    elif _TYPOGRAPHIC.search(text):
        problem = "it has typographic quotes or spaces"
    elif "=" not in text:
        problem = f"it has no ={did_you_mean(text.lstrip('+~'), known)}; the shell splits a value at its spaces"
    elif not _KEY.fullmatch(key):
        problem = f"the name before the = is {key!r}; a name consists of letters, digits, _ and dots"
    elif not value.isprintable():
        problem = "its value contains a line break or a control character"
    elif bracket:
        problem = f"the {bracket} in its value has no counterpart"
    elif re.match(r"\s*\w+\s*\(", value):
        problem = "its value is parsed as a function; write a list as [a,b], and a string with brackets in quotes"
    elif any(kind == "mark" and piece == "," for kind, piece in pieces(value)) and value.strip()[0] not in "[{":
        problem = "it has several values; write a list as [a,b], and a string with commas in quotes"
    else:
        odd = next((character for character in value if character in "=#&;<>^`!()~\"'{}[]"), "")
        problem = f"its value contains {odd}; put it in quotes to make it a string" if odd else "its value is invalid"
    named = REDACTED if before.endswith("=") and is_secret(before.strip("+~- =").rpartition(".")[2]) else shown(text)
    return f"cannot read the argument {named!r}: {problem}; {_EXPECTED}"
