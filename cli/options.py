"""Typed command options, parsed from Hydra overrides and listed by `--help`."""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rollyard.cli.arguments.command_line import (
    ALIASES,
    Options,
    before_end,
    option_name,
    read_command_line,
    unknown_option,
    wants_help,
)
from rollyard.records.errors import OperatorError, did_you_mean
from rollyard.records.io.exit_status import EXIT_DONE, exit_status
from rollyard.services.config.overrides import Override
from rollyard.services.config.overrides.command_line import refuse_secrets
from rollyard.services.server.setting_types import alternatives, takes_list, takes_text
from rollyard.services.server.settings import COMMAND_LINE, dashed, is_secret, parse_settings

__all__ = ["Options", "read_options", "run_command"]


O = TypeVar("O", bound=Options)  # noqa: E741


def read_options(model: type[O], arguments: Sequence[str], *, rest: bool = False) -> tuple[O, list[Override]]:
    """Parse options from overrides. With `rest`, overrides of other keys are returned instead of rejected.

    `--a.b c` sets a key of the mapping `a`; later options take precedence.
    """
    fields = {option_name(name, field): field for name, field in model.model_fields.items()}
    below = {name: f"{top}.{name}" for top, listed in model.NESTED_KEYS.items() for name in listed}
    values: dict[str, Any] = {}
    others: list[Override] = []
    overrides, files = read_command_line(model, arguments, rest=rest)
    for override in overrides:
        if override.top not in fields:
            if not rest:
                is_file = model.SUBJECT and override.source[:1].isalnum() and Path(override.source).suffix
                hint = f"; a file of this name is written ./{override.shown}" if is_file else ""
                raise OperatorError(unknown_option(override, fields, below) + hint)
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
    if files:
        _add_file(model, values, files)
    absent = [name for name, field in model.model_fields.items() if field.is_required() and name not in values]
    for override in others:
        # It may have taken the absent one as its value.
        if absent and did_you_mean(override.top.replace("-", "_"), [*fields, "help"]):
            raise OperatorError(unknown_option(override, fields, below))
    return parse_settings(model, values, COMMAND_LINE), others


def _add_file(model: type[Options], values: dict[str, Any], files: list[str]) -> None:
    """Add the argument without a name to the option that it belongs to."""
    subject = model.SUBJECT
    if len(files) > 1 or subject in values:
        found = [*files, *([values[subject]] if subject in values else [])]
        raise OperatorError(f"expected one {dashed(subject)}, found {' and '.join(repr(str(one)) for one in found)}")
    values[subject] = files[0]


def run_command(
    command: str,
    model: type[O],
    example: str,
    main: Callable[[Sequence[str]], int],
    arguments: Sequence[str] | None = None,
) -> typing.NoReturn:
    """Handle --help and --version, run `main`, and turn its errors into a one-line message and an exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = before_end(given)
    debug = any(text.lstrip("+-").lower() == "debug=true" or text == "--debug" for text in options)

    def work() -> int:
        if wants_help(given):
            print(_help(command, model, example, main.__doc__ or ""))
            return EXIT_DONE
        if "--version" in options:
            print(f"{command} (rollyard {version('rollyard')})")
            return EXIT_DONE
        return main(given)

    sys.exit(exit_status(command, work, debug=debug))


def _help(command: str, model: type[Options], example: str, summary: str) -> str:
    title = "Options (--key value or --key=value; Hydra's +key=value works, too):"
    lines = [f"{command}: {' '.join(summary.split())}", "", title]
    shown = list(_listed(model))
    width = max(len(name) for name, _ in shown) + 2
    for name, field in shown:
        kind, default = _type_name(field.annotation), _default(name, field)
        text = " ".join((field.description or "").split())
        if name == model.SUBJECT:
            text += " Also without a name."
        if short := [dashed(one) for one, ours in ALIASES.items() if name in ours and one not in model.model_fields]:
            text += f" Also {' and '.join(short)}."
        lines.append(f"  {dashed(name):<{width}} {kind}, {default}\n  {'':<{width}} {text}")
    return "\n".join([*lines, "", "Example:", f"  {example}"])


def _listed(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield all options; those of a nested model have dots in their names."""
    for name, field in model.model_fields.items():
        kinds = alternatives(field.annotation)
        nested = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if nested:
            yield from _listed(nested[0], f"{prefix}{option_name(name, field)}.")
        else:
            yield f"{prefix}{option_name(name, field)}", field


def _typed_value(override: Override, field: FieldInfo) -> Any:
    """Return the option's value. A string option keeps it as typed: `007`, `1e3` and `true` are not converted."""
    if override.value == "" and (takes_list(field.annotation) or Path in alternatives(field.annotation)):
        raise OperatorError(f"{override.shown!r} has no value (is a shell variable unset?)")
    if not isinstance(override.value, dict | list) and "${" in str(override.value):
        hint = "is only supported in the configs of ng_run; use the shell's $NAME, in double quotes or unquoted"
        raise OperatorError(f"{override.shown!r}: ${{...}} {hint}")
    scalar = isinstance(override.value, bool | int | float) and override.key == override.top
    return override.typed if scalar and takes_text(field.annotation) else override.value


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
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(str(one.value) for one in annotation)
    if annotation is Path:
        return "path"
    return str(getattr(annotation, "__name__", annotation))
