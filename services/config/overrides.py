"""Command-line overrides: Hydra's override parser, with readable messages for arguments that it cannot parse.

override.py       parses arguments and applies them to a config
hydra_grammar.py  finds quotes and brackets, and formats values
syntax_hints.py   explains what is wrong with an argument and how to write it
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override as HydraOverride
from hydra.core.override_parser.types import OverrideType, Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from rollyard.records.errors import OperatorError, did_you_mean
from rollyard.services.server.settings import REDACTED, dashed, is_secret, redacted_at, without_credentials

# Processes the text of Hydra overrides: finds quotes and brackets, and formats values so that Hydra can parse them.

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
    return QuotedString(text, Quote.double).with_quotes()


# Explains what is wrong with an argument that Hydra cannot parse, and how to write it.

_KEY = re.compile(r"(?:[A-Za-z_$][\w\-$]*)(?:\.[\w\-$]+)*", re.ASCII)
_DASHED = re.compile(r"[-\u2010-\u2015\u2212]{1,3}([A-Za-z][\w.\-]*)(?:\s*[=:]\s*(.*))?", re.DOTALL)
_STRAIGHT = str.maketrans({"\u201c": '"', "\u201d": '"', "\u201e": '"', "\u2018": "'", "\u2019": "'", "\u00a0": " "})
EXPECTED = "expected --key value, --key=[a,b] or '--key={k: v}'"


@dataclass(frozen=True)
class _Diagnosis:
    """What is wrong with an argument, and the argument that was probably meant, if any."""

    problem: str
    suggestion: str = ""


def explain(
    arguments: Sequence[str],
    number: int,
    known: Mapping[str, str],
    readable: Callable[[str], bool],
    shown: Callable[[str], str],
) -> str:
    """Explain in one line what is wrong with `arguments[number]`. Suggestions are valid and contain no secrets."""
    text = arguments[number]
    before = arguments[number - 1] if number else ""
    after = arguments[number + 1 :]
    found = _check_form(text, before, after, known) or _check_key(text) or _check_value(text)
    secret = before.endswith("=") and is_secret(_name(before))
    named = REDACTED if secret else shown(text)
    if not (found.suggestion and readable(found.suggestion)):
        return f"cannot read the argument {named!r}: {found.problem}; {EXPECTED}"
    key, _, value = found.suggestion.partition("=")
    hidden = f"{key}={format_value(REDACTED)}" if value and is_secret(_name(key)) else shown(found.suggestion)
    if _DASHED.fullmatch(text):
        key, equals, value = hidden.partition("=")
        hidden = f"{dashed(key.lstrip('+'))}{equals}{value}"
    return f"cannot read the argument {named!r}: {found.problem}; write {shlex.quote(hidden)}"


def _check_form(text: str, before: str, after: Sequence[str], known: Mapping[str, str]) -> _Diagnosis | None:
    """Detect mistakes in the syntax of an argument that do not depend on its value."""
    if not text.strip():
        return _Diagnosis("it is empty (is a shell variable unset?)")
    if option := _DASHED.fullmatch(text):
        return _explain_dashes(option, after, known)
    if text in ("-", "--"):
        return _Diagnosis("there is no name after the dash")
    if "=" not in text:
        return _explain_word(text, before, after, known)
    if text.lstrip("+~ ").startswith("="):
        return _Diagnosis(
            "there is no name before the =", f"{before}{text}" if _KEY.fullmatch(before.lstrip("+")) else ""
        )
    return None


def _explain_dashes(option: re.Match[str], after: Sequence[str], known: Mapping[str, str]) -> _Diagnosis:
    """Explain an argument with one dash or typographic ones: `-k`, `-key value`, `—key=value`."""
    typed, value = option[1].replace("-", "_"), option[2]
    name = typed if typed in known or "." in typed else _nearest(typed, known)
    problem = "an option begins with two plain dashes"
    if not name:
        return _Diagnosis(f"{problem}, and there is no option {dashed(typed)} (--help lists them)")
    if value is None:
        following = _while_bare(after)
        if not following:
            return _Diagnosis(problem, f"+{name}={known.get(name, '...')}")
        listing = known.get(name, "").startswith("[")
        value = format_value(following) if listing and len(following) > 1 else _quote_if_needed(following[0])
    return _Diagnosis(problem, f"+{name}={_quote_if_needed(value)}")


def _explain_word(text: str, before: str, after: Sequence[str], known: Mapping[str, str]) -> _Diagnosis:
    """Explain an argument without `=`."""
    name = text.strip().lstrip("+~")
    if name in ("help", "?", "/?"):
        return _Diagnosis("it has no =; --help lists the options")
    if after and after[0].startswith("="):
        value = after[0][1:] or (after[1] if len(after) > 1 else "")
        return _Diagnosis("there are spaces around its =", f"+{name}={_quote_if_needed(value)}")
    if before.endswith("="):
        return _Diagnosis("there is a space after the = before it", f"{before}{_quote_if_needed(text)}")
    key, colon, value = name.partition(":")
    if colon and _KEY.fullmatch(key) and (key in known or value.startswith(" ")):
        return _Diagnosis("it has a : instead of a =", f"+{key}={_quote_if_needed(value.strip())}")
    problem = "it has no ="
    if name in known or name.partition(".")[0] in known:
        following = _while_bare(after)
        return _Diagnosis(problem, f"+{name}={_quote_if_needed(following[0]) if following else known.get(name, '...')}")
    key, equals, value = before.partition("=")
    split = _Diagnosis(
        "it has no =; the shell splits a value at its spaces",
        f"{key}={_quote_if_needed(' '.join([value, text, *_while_bare(after)]))}",
    )
    if equals and "." not in value and not before.startswith("-"):
        return split
    if name.endswith((".yaml", ".yml")) and "config_paths" in known:
        return _Diagnosis(
            problem, f"+config_paths=[{', '.join(_quote_if_needed(item) for item in (name, *_files(after)))}]"
        )
    if name.endswith(".jsonl") and (options := [one for one in known if one.endswith("jsonl_fpath")]):
        return _Diagnosis(problem, f"+{options[0]}={_quote_if_needed(name)}")
    if near := _nearest(name, known):
        return _Diagnosis(problem, f"+{near}={known[near]}")
    return split if equals and not before.startswith("-") else _Diagnosis(problem)


def _check_key(text: str) -> _Diagnosis | None:
    """Detect mistakes before the `=`."""
    typed, _, value = text.partition("=")
    if _KEY.fullmatch(re.sub(r"^(\+{1,2}|~)", "", typed)):
        return None
    if "@" in typed:
        return _Diagnosis("the name before the = contains an @, which is only valid for config groups")
    straight = typed.translate(_STRAIGHT)
    pluses = "+" * min(2, len(straight) - len(straight.lstrip("+")))
    name = re.sub(r"\[(\w+)\]", r".\1", re.sub(r"^[\s+~'\"]+|[\s+~'\":,]+$", "", straight)).replace(" ", "_")
    name = ".".join(part for part in name.split(".") if part)
    if straight[:1] in ("'", '"'):  # around the entire argument
        value = value.translate(_STRAIGHT).rstrip().removesuffix(straight[0])
    problem = f"the name before the = is {typed!r}; a name consists of letters, digits, _ and dots"
    return _Diagnosis(problem, f"{pluses or '+'}{name}={_quote_if_needed(value.strip())}")


def _check_value(text: str) -> _Diagnosis:
    """Detect mistakes after the `=`."""
    key, _, value = text.partition("=")
    straight = value.translate(_STRAIGHT).strip()
    if straight != value.strip() and _needs_no_quotes(straight):
        return _Diagnosis("it has typographic quotes or spaces", f"{key}={straight}")
    if any(not character.isprintable() for character in value):
        return _Diagnosis("its value contains a line break or a control character")
    if function := re.fullmatch(r"([A-Za-z_]\w*)\s*\(.*\)", straight, re.DOTALL):
        problem = (
            f"{function[1]}(...) is parsed as a function; write a list as [a,b], and a string with brackets in quotes"
        )
        return _Diagnosis(problem, _quote_value(key, value))
    if value.strip()[:1] in ("[", "{"):
        return _explain_brackets(key, straight)
    if re.search(r"\$\{[^}]*$", value):
        return _Diagnosis("a ${ in its value is not closed by }", _quote_value(key, value))
    if bracket := open_bracket(text):
        return _Diagnosis(
            f"its value contains a single {bracket}; put it in quotes to make it a string", _quote_value(key, value)
        )
    if straight.startswith("(") and straight.endswith(")") and "," in straight:
        return _Diagnosis("lists are written as [a, b]", _assignment(key, _as_yaml(f"[{straight[1:-1]}]")))
    marks = [piece for kind, piece in pieces(value) if kind == "mark"]
    if "," in marks and not {"[", "{"} & set(marks):
        items = [item.strip() for item in value.split(",") if item.strip()]
        problem = f"it has several values; write a list as [a,b], and a string with commas as {key}='\"a, b\"'"
        if is_secret(_name(key)):
            return _Diagnosis("it has several values; quote them to pass one string", _quote_value(key, value))
        return _Diagnosis(problem, f"{key}=[{','.join(map(_quote_if_needed, items))}]")
    if straight[:1] in ("'", '"') or straight.count("'") % 2 or straight.count('"') % 2:
        return _Diagnosis(
            "a quote in its value is not closed, or there is text next to a quoted string", _quote_value(key, value)
        )
    odd = next((character for character in value if character in "=#&;<>^`!()~\"'{}[]"), "")
    return _Diagnosis(
        f"its value contains {odd}; put it in quotes to make it a string"
        if odd
        else "its value has unexpected characters",
        _quote_value(key, value),
    )


def _explain_brackets(key: str, value: str) -> _Diagnosis:
    """Explain a list or a mapping that cannot be parsed."""
    if bracket := open_bracket(f"x={value}"):
        closing = {"[": "]", "{": "}"}.get(bracket)
        problem = (
            f"the {bracket} in its value is not closed by {closing}"
            if closing
            else f"a {bracket} has no opening bracket"
        )
        guess = f"{value}{closing}" if closing and value.count(bracket) == value.count(closing) + 1 else value[:-1]
        return _Diagnosis(problem, _assignment(key, guess if _needs_no_quotes(guess) else _as_yaml(guess)))
    problem = "write a mapping as {k: v, l: w}, a list as [a, b], and quote strings with other characters"
    return _Diagnosis(problem, _assignment(key, _as_yaml(value)))


def _assignment(key: str, value: str) -> str:
    """Return the argument to suggest; empty if there is no value to suggest."""
    return f"{key}={value}" if value else ""


def _as_yaml(value: str) -> str:
    """Parse a value as YAML or JSON and format it in Hydra's grammar. Returns an empty string if it is neither."""
    for text in (
        value,
        re.sub(r",(\s*,)+", ",", value).replace("[,", "["),
        re.sub(r"([{,]\s*[\w.\-]+)\s*=", r"\1: ", value),
    ):
        try:
            read: Any = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError):
            continue
        if isinstance(read, list | dict) and not (
            isinstance(read, dict) and None in read.values() and "null" not in text
        ):
            return format_value(_syntax_hints_plain(read))
    return ""


def _syntax_hints_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _syntax_hints_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_syntax_hints_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _quote_value(key: str, value: str) -> str:
    bare = value.strip().translate(_STRAIGHT)
    if bare[:1] in ("'", '"'):
        bare = bare[1:-1] if len(bare) > 1 and bare[0] == bare[-1] else bare[1:]
    return f"{key}={quote(bare)}"


def _quote_if_needed(value: str) -> str:
    """Quote a value if Hydra requires quotes."""
    return value if _needs_no_quotes(value) else quote(value)


def _needs_no_quotes(value: str) -> bool:
    """Return True if the value has no special characters, or is a complete list, mapping or quoted string."""
    if value[:1] in ("[", "{", "'", '"'):
        return not open_bracket(f"x={value}")
    return bool(value) and not re.search(r"[^\w/\-\\.+$%*@?|: \t{}]", value) and not re.search(r"(?<!\$)\{", value)


def _nearest(name: str, known: Mapping[str, str]) -> str:
    if starting := [one for one in known if len(name) > 2 and (one.startswith(name) or name in re.split(r"[_.]", one))]:
        return starting[0]
    near = did_you_mean(name, known)
    return near.split("'")[1] if near else ""


def _name(key: str) -> str:
    """Return the last part of a key, as typed."""
    return key.strip("+~ =").rpartition(".")[2]


def _files(after: Sequence[str]) -> list[str]:
    return [word for word in after if word.endswith((".yaml", ".yml")) and "=" not in word]


def _while_bare(after: Sequence[str]) -> list[str]:
    words: list[str] = []
    for word in after:
        if "=" in word or _DASHED.fullmatch(word):
            break
        words.append(word)
    return words


# Parses arguments with Hydra's parser into keys and values, and applies them to OmegaConf trees.

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


__all__ = ["Override", "apply", "parse_overrides", "shown"]


# Overrides in the command lines of Rollyard's own commands, which other parts of Rollyard start.

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
