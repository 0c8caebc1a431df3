"""Explains what is wrong with an argument that Hydra cannot parse, and how to write it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from rollyard.records.errors import did_you_mean
from rollyard.services.config.overrides.hydra_grammar import format_value, open_bracket, pieces, quote
from rollyard.services.server.settings import REDACTED, dashed, is_secret

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
            return format_value(_plain(read))
    return ""


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
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
