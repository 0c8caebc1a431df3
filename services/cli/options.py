"""Typed command options, parsed from Hydra overrides and listed by `--help`."""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rollyard.services.config.overrides import Override, parse_overrides
from rollyard.services.config.overrides.command_line import refuse_secrets
from rollyard.services.errors import OperatorError, did_you_mean
from rollyard.services.io.exit_status import EXIT_DONE, exit_status
from rollyard.services.server.setting_types import alternatives, takes_list, takes_text
from rollyard.services.server.settings import is_secret, parse_settings


class Options(BaseModel):
    """Base class of every command's options."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
        coerce_numbers_to_str=True,
    )

    NESTED_KEYS: ClassVar[Mapping[str, Collection[str]]] = {}
    """Option -> well-known keys of its mapping. If a user passes only the key, `option.key` is suggested."""

    EXPRESSIONS: ClassVar[Collection[str]] = ()
    """Options whose value is an expression. It is taken as typed, because `<`, `=` and quotes have meanings there."""

    debug: bool = False
    """Show a traceback if an error occurs."""


O = TypeVar("O", bound=Options)  # noqa: E741


def read_options(model: type[O], arguments: Sequence[str], *, rest: bool = False) -> tuple[O, list[Override]]:
    """Parse options from overrides. With `rest`, overrides of other keys are returned instead of rejected.

    `+a.b=c` sets a key of the mapping `a`; later options take precedence.
    """
    fields = {_option_name(name, field): field for name, field in model.model_fields.items()}
    names = list(fields)
    below = {name: f"{top}.{name}" for top, listed in model.NESTED_KEYS.items() for name in listed}
    samples = {name: _sample(field) for name, field in fields.items()} | dict.fromkeys(below.values(), "...")
    values: dict[str, Any] = {}
    others: list[Override] = []
    expressions, overrides = _split_expressions(model, arguments)
    values |= expressions
    for override in parse_overrides(overrides, samples):
        if override.top not in names:
            if not rest:
                meant = below.get(override.top)
                hint = f", did you mean +{meant}=...?" if meant else did_you_mean(override.top, names)
                known = ", ".join(sorted(names))
                raise OperatorError(f"unknown option {override.top!r} in {override.shown!r}{hint} (known: {known})")
            refuse_secrets([override])
            others.append(override)
            continue
        if is_secret(override.top) and override.value:
            hint = "export ROLLYARD_TOKEN=... instead" if override.top == "token" else "export it as a variable instead"
            print(f"note: {override.shown} is visible to all users in the list of processes: {hint}", file=sys.stderr)
        *path, last = override.key.split(".")
        node = values
        for part in path:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise OperatorError(f"{override.shown!r}: {part!r} takes a single value, so it has no nested keys")
        if override.delete:
            node.pop(last, None)
        else:
            node[last] = _typed_value(override, fields[override.top])
    absent = [name for name, field in model.model_fields.items() if field.is_required() and name not in values]
    for override in others:
        if absent and did_you_mean(override.top, absent):
            raise OperatorError(
                f"unknown option {override.top!r} in {override.shown!r}{did_you_mean(override.top, absent)}"
            )
    return parse_settings(model, values, "command line"), others


def _split_expressions(model: type[Options], arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the options that are expressions, and the other arguments. Quotes around a whole expression are removed,
    so that Hydra's way to write a string works, too.
    """
    found: dict[str, str] = {}
    others: list[str] = []
    for argument in arguments:
        name, equals, text = argument.lstrip("+").partition("=")
        if not equals or name not in model.EXPRESSIONS:
            others.append(argument)
            continue
        text = text.strip()
        quote = text[:1]
        whole = quote in ('"', "'") and len(text) > 1 and text.endswith(quote) and quote not in text[1:-1]
        found[name] = text[1:-1] if whole else text
    return found, others


def run_command(
    command: str,
    model: type[O],
    example: str,
    main: Callable[[Sequence[str]], int],
    arguments: Sequence[str] | None = None,
) -> typing.NoReturn:
    """Handle --help and --version, run `main`, and turn its errors into a one-line message and an exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = any(text.lstrip("+") in ("debug=true", "debug=True") for text in given)

    def work() -> int:
        if "--help" in given or "-h" in given:
            print(_help(command, model, example, main.__doc__ or ""))
            return EXIT_DONE
        if "--version" in given:
            print(f"{command} (rollyard {version('rollyard')})")
            return EXIT_DONE
        return main(given)

    sys.exit(exit_status(command, work, debug=debug))


def _help(command: str, model: type[Options], example: str, summary: str) -> str:
    lines = [f"{command}: {' '.join(summary.split())}", "", "Options (Hydra overrides; + is optional):"]
    shown = [(_option_name(name, field), field) for name, field in model.model_fields.items()]
    width = max(len(name) for name, _ in shown) + 2
    for name, field in shown:
        kind, default = _type_name(field.annotation), _default(name, field)
        text = " ".join((field.description or "").split())
        lines.append(f"  +{name:<{width}} {kind}, {default}\n  {'':<{width + 2}}{text}")
    return "\n".join([*lines, "", "Example:", f"  {example}"])


def _typed_value(override: Override, field: FieldInfo) -> Any:
    """Return the option's value. A string option keeps it as typed: `007`, `1e3` and `true` are not converted."""
    if override.value == "" and (takes_list(field.annotation) or Path in alternatives(field.annotation)):
        raise OperatorError(f"{override.shown!r} has no value after the = (is a shell variable unset?)")
    if not isinstance(override.value, dict | list) and "${" in str(override.value):
        hint = "is only supported in the configs of ng_run; use the shell's $NAME, in double quotes or unquoted"
        raise OperatorError(f"{override.shown!r}: ${{...}} {hint}")
    scalar = isinstance(override.value, bool | int | float) and override.key == override.top
    return override.typed if scalar and takes_text(field.annotation) else override.value


def _sample(field: FieldInfo) -> str:
    """Return an example value of the option's type, for suggestions."""
    if takes_list(field.annotation):
        return "[...]"
    return "true" if field.annotation is bool else "..."


def _option_name(name: str, field: FieldInfo) -> str:
    """Return the option's name on the command line. It can be an alias, because pydantic models reserve `json`."""
    return field.alias or name


def _default(name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default is PydanticUndefined or is_secret(name):
        return "default empty"
    if field.default is None or isinstance(field.default, bool):
        return f"default {'null' if field.default is None else str(field.default).lower()}"
    return f"default {list(field.default) if isinstance(field.default, tuple) else field.default}"


def _type_name(annotation: Any) -> str:
    origin = typing.get_origin(annotation)
    if origin in (types.UnionType, typing.Union):
        return " or ".join("null" if item is type(None) else _type_name(item) for item in typing.get_args(annotation))
    if origin is typing.Literal:
        return " or ".join(map(str, typing.get_args(annotation)))
    if origin is not None:
        return "{key: value}" if origin is dict else "[...]"
    return str(getattr(annotation, "__name__", annotation))
