"""What every command uses: typed options (`--key value`, or Hydra's `+key=value`), `--help`, and `run_command`.

`run_command` turns the operator's mistakes into one line and an exit status.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from importlib.metadata import version
from inspect import get_annotations
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rollyard.records.errors import OperatorError, did_you_mean
from rollyard.records.run_types import TlsFiles, check_token
from rollyard.records.script import EXIT_DONE, exit_status
from rollyard.records.variables import variable
from rollyard.services.config.overrides import (
    ConfigOverride,
    as_override,
    join_split_values,
    open_bracket,
    parse_overrides,
    pieces,
    refuse_secrets,
)
from rollyard.services.config.plugins import FAMILIES, FAMILY_ALIASES
from rollyard.services.server.settings import (
    COMMAND_LINE,
    alternatives,
    dashed,
    is_secret,
    parse_settings,
    takes_list,
    takes_text,
)


class Options(BaseModel):
    """Base class of every command's options."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
        coerce_numbers_to_str=True,
    )

    SUBJECT: ClassVar[str] = ""
    """The option that arguments without a name belong to: the files that the command is about."""

    NESTED_KEYS: ClassVar[Mapping[str, Collection[str]]] = {}
    """Option -> well-known keys of its mapping. If a user passes only the key, `option.key` is suggested."""

    EXPRESSIONS: ClassVar[Collection[str]] = ()
    """Options whose value is an expression. It is taken as typed, because `<`, `=` and quotes have meanings there."""

    RETIRED: ClassVar[Mapping[str, str]] = {}
    """Option that no longer exists -> what to do instead."""

    debug: bool = False
    """Show a traceback if an error occurs."""


ALIASES = {
    "agent": ("agent_name",),
    "input": ("input_jsonl_fpath",),
    "output": ("output_jsonl_fpath", "output_dir", "output_json_fpath"),
    "concurrency": ("num_samples_in_parallel",),
    "resume_from_cache": ("resume",),
    "rollouts_jsonl_fpath": ("jsonl_fpath",),
}
"""NeMo Gym's name of an option -> ours, of which a command has the first that it knows."""
SHARDED = dict.fromkeys(("worker", "lease_s"), "use +shard=i/n (--help describes it)")
"""Retired options of commands that have shards."""
_OPTION = re.compile(r"--([A-Za-z_][\w\-]*(?:\.[\w\-]+)*)(?:=(.*))?", re.DOTALL)
_HYDRA_KEY = re.compile(r"([+~]{0,2})([A-Za-z_][\w\-]*)((?:\.[\w\-]+)*)(?==|$)")
_MARKS = frozenset("+~=-\u2010\u2011\u2012\u2013\u2014\u2015\u2212")
"""First characters of arguments that are not files; with the dashes that word processors write."""
_FLAGS = {"true": True, "false": False}
_WHOLE = re.compile(r"-?(0|[1-9]\d{,17})")
_FLAG_VALUES = frozenset({"true", "false", "yes", "no", "on", "off", "1", "0", "null"})


def option_name(name: str, field: FieldInfo) -> str:
    return field.alias or name


def names_of(model: type[BaseModel]) -> list[str]:
    return [option_name(name, field) for name, field in model.model_fields.items()]


def is_path(word: str) -> bool:
    """Return whether an argument is a path and not `key=value`; paths such as `results/lr=0.1` contain = as well."""
    key, equals, _ = word.partition("=")
    return not equals or "/" in key or Path(word).exists()


def wants_help(arguments: Sequence[str]) -> bool:
    words = before_end(arguments)
    return "--help" in words or "-h" in words


def before_end(arguments: Sequence[str]) -> Sequence[str]:
    """Return the arguments before `--`, which ends the options."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def read_command_line(
    model: type[Options], arguments: Sequence[str], *, rest: bool = False
) -> tuple[list[ConfigOverride], list[str]]:
    """Return the options, and the arguments without a name if the command has a subject that is one value.

    Repeated values of a list are one list, and so are the arguments of a subject that is a list: in the order in which
    they stand. `null` is the default of an option that does not accept None. With `rest`, unknown options are returned
    as well. Raises OperatorError.
    """
    for word in before_end(arguments):
        typed = word.partition("=")[0]
        if typed != word.lstrip("+-") and (instead := model.RETIRED.get(typed.lstrip("+-").replace("-", "_"))):
            raise OperatorError(f"{typed} is no longer an option: {instead}")
    reader = _Reader(model, arguments, rest)
    return list(_merged(model, reader.read())), reader.files


def unknown_option(override: ConfigOverride, names: Collection[str], below: Mapping[str, str]) -> str:
    """Return the message for an unknown option, with the nearest name in the form that was typed.

    `below`: key of a mapping -> option.key.
    """
    top, meant = override.top, below.get(override.top)
    if not override.is_dashed:
        hint = f", did you mean +{meant}=...?" if meant else did_you_mean(top, names)
        known = "" if hint else f" (known: {', '.join(sorted(names))})"
        return f"unknown option {top!r} in {override.shown!r}{hint}{known}"
    aliases = (alias for alias, ours in ALIASES.items() if any(one in names for one in ours))
    near = did_you_mean(top.replace("-", "_"), [*names, *aliases, "help", "version"])
    hint = f", did you mean {dashed(meant)}?" if meant else near.replace("_", "-").replace(" '", " '--")
    return f"unknown option {override.source.partition('=')[0]!r}{hint} (--help lists the options)"


def field_of(model: type[BaseModel], key: str) -> FieldInfo | None:
    """Return the field that a dotted key names; None if it is in a mapping without a model, or unknown."""
    top, _, below = key.partition(".")
    for name, field in model.model_fields.items():
        if option_name(name, field) == top:
            if not below:
                return field
            nested = [kind for kind in alternatives(field.annotation) if _is_model(kind)]
            return field_of(nested[0], below) if nested else None
    return None


class _Reader:
    def __init__(self, model: type[Options], arguments: Sequence[str], rest: bool) -> None:
        self._model, self._rest = model, rest
        self._names = {option_name(name, field): field for name, field in model.model_fields.items()}
        self._below = {name: f"{top}.{name}" for top, listed in model.NESTED_KEYS.items() for name in listed}
        samples = {name: _sample(field) for name, field in self._names.items()}
        self._samples = samples | dict.fromkeys(self._below.values(), "...")
        given, ending = before_end(arguments), arguments[len(before_end(arguments)) + 1 :]
        self._words = join_split_values(given)
        self._done: list[str] = []
        self.files: list[str] = []
        self._ending = list(ending)

    def read(self) -> Iterator[ConfigOverride]:
        while self._words:
            word = self._words.pop(0)
            if option := _OPTION.fullmatch(word):
                yield self._dashed(option[1], option[2])
            elif self._is_file(word):
                yield from self._file(_home(word))
            else:
                yield self._hydra(word)
            self._done = [word]
        if self._ending and not self._model.SUBJECT:
            raise OperatorError(f"unexpected argument {self._ending[0]!r} after --; this command takes only options")
        for word in self._ending:
            yield from self._file(word)

    def _file(self, word: str) -> Iterator[ConfigOverride]:
        """Yield a file of a list, which has a place among its option's values; keep one that is no part of a list."""
        subject = self._model.SUBJECT
        if takes_list(self._names[subject].annotation):
            yield ConfigOverride("", subject, [word], source=word)
        else:
            self.files.append(word)

    def _is_file(self, word: str) -> bool:
        if not self._model.SUBJECT or not word.strip() or not is_path(word):
            return False
        if word[:1] in _MARKS:
            return word.startswith("~/") or (word[:1] == "-" and Path(word).is_file())
        # `key = value` and `key: value` are mistakes, not files.
        name = word.strip().rstrip(":").partition(":")[0]
        return not (name in self._names and (word != name or (self._words[:1] and self._words[0].startswith("="))))

    def _hydra(self, word: str) -> ConfigOverride:
        """Read an override of Hydra. Its key may have dashes, or be an alias."""
        key = _HYDRA_KEY.match(word)
        text = word
        if key and (name := self._known(key[2])):
            text = f"{key[1]}{name}{key[3].replace('-', '_')}{word[key.end() :]}"
            if name in self._model.EXPRESSIONS and "=" in word and not key[3]:
                value = _without_quotes(text.partition("=")[2].strip())
                return ConfigOverride(text, name, None if value == "null" else value, source=word)
            if "=" in word and not key[3] and _items(self._names[name], text.partition("=")[2]):
                return self._override(name, text.partition("=")[2], word, self._names[name])
        (override,) = parse_overrides([text], self._samples, around=(self._done, self._words))
        return replace(override, source=word)

    def _dashed(self, typed: str, value: str | None) -> ConfigOverride:
        top, dot, below = typed.partition(".")
        name = self._known(top)
        source = f"--{typed}" if value is None else f"--{typed}={value}"
        if name is None:
            negated = self._known(typed[3:]) if typed[:3] in ("no-", "no_") and value is None else None
            if negated and _is_flag(self._names[negated]):
                return self._override(negated, "false", source, self._names[negated])
            if not self._rest:
                override = ConfigOverride(source, typed, None, source=source)
                below_names = {key.replace("_", "-"): meant for key, meant in self._below.items()} | self._below
                raise OperatorError(unknown_option(override, self._names, below_names))
            key = f"{top}.{below.replace('-', '_')}" if dot else typed.replace("-", "_")
            if value is None:
                is_flag = not self._words or self._words[0].startswith(("--", "+", "~"))
                taken = "true" if is_flag else self._take()
            else:
                taken = value
            return self._override(key, taken, source if value is not None else f"{source}={taken}", None)
        key = f"{name}{dot}{below.replace('-', '_')}"
        field = field_of(self._model, key)
        if value is None:
            value = self._next_value(f"--{typed}", field)
            source = f"--{typed}={value}"
        return self._override(key, value, source, field)

    def _known(self, typed: str) -> str | None:
        """Return the name of the option that is written `typed`; None if there is none."""
        name = typed.replace("-", "_")
        if name in self._names:
            return name
        return next((ours for ours in ALIASES.get(name, ()) if ours in self._names), None)

    def _next_value(self, typed: str, field: FieldInfo | None) -> str:
        following = self._words[0] if self._words else None
        if field is not None and _is_flag(field):
            return self._take() if following is not None and following.lower() in _FLAG_VALUES else "true"
        if following is None or self._is_option(following):
            raise OperatorError(f"{typed} needs a value, such as {typed} {_example(field)}")
        return self._take()

    def _is_option(self, word: str) -> bool:
        """Return whether a word is one of this command's options, and so not the value of the option before it."""
        if option := _OPTION.fullmatch(word):
            top = option[1].partition(".")[0]
            return self._known(top) is not None or top in ("help", "version")
        key = _HYDRA_KEY.match(word)
        return bool(key and key[1] and self._known(key[2]))

    def _take(self) -> str:
        """Take the next word, and those after it if the shell split a list or mapping at its spaces."""
        text = self._words.pop(0)
        if text[:1] in ("[", "{") and open_bracket(f"x={text}"):
            for number in range(1, len(self._words) + 1):
                longer = " ".join([text, *self._words[:number]])
                if not open_bracket(f"x={longer}"):
                    del self._words[:number]
                    return longer
        return text

    def _override(self, key: str, value: str, source: str, field: FieldInfo | None) -> ConfigOverride:
        read = self._value(key, value, source, field)
        text = f"+{key}={value}"
        if field is None:
            with contextlib.suppress(OperatorError):
                text = as_override(key, read)  # for a command that this one starts
        return ConfigOverride(text, key, read, adds=True, source=source)

    def _value(self, key: str, value: str, source: str, field: FieldInfo | None) -> Any:
        if value == "null":
            return None
        kinds = [] if field is None else alternatives(field.annotation)
        holds_text = field is not None and takes_text(field.annotation)
        if key in self._model.EXPRESSIONS or (holds_text and not (value[:1] in ("[", "{") and _has_mapping(kinds))):
            return value if key in self._model.EXPRESSIONS else _text(value)
        if field is not None and (items := _items(field, value)):
            return items
        if value in _FLAGS or _WHOLE.fullmatch(value):
            return _FLAGS[value] if value in _FLAGS else int(value)  # as Hydra's parser, whose import takes 50 ms
        try:
            return parse_overrides([f"{key}={value}"])[0].value
        except OperatorError as error:
            has_commas = field is not None and takes_list(field.annotation) and "," in value
            if value.strip()[:1] not in ("[", "{") and not (has_commas and not Path(value).exists()):
                return value
            import yaml  # like the next import below: takes as long as all else that --help needs of a command

            try:
                found = yaml.safe_load(value)  # JSON
            except (yaml.YAMLError, ValueError, RecursionError):
                found = None
            if isinstance(found, list | dict):
                return found
            option = source.partition("=")[0]
            raise OperatorError(str(error).replace(f"{key}=", f"{option}=")) from None


def _merged(model: type[Options], overrides: Iterator[ConfigOverride]) -> Iterator[ConfigOverride]:
    """Yield each override, with its default in place of null, and values of the same list as one list."""
    last: dict[str, ConfigOverride] = {}
    order: list[ConfigOverride] = []
    for override in overrides:
        field = field_of(model, override.key)
        if field is not None and not override.delete:
            if override.value is None and type(None) not in get_args(field.annotation):
                if field.is_required():
                    raise OperatorError(f"{dashed(override.key)} is null, but it has no default; expected a value")
                override = replace(override, value=field.get_default(call_default_factory=True))
            elif isinstance(override.value, bool) and _is_number(field):
                override = replace(override, value=override.typed)  # an error: true is no number
            before = last.get(override.key)
            is_file = not override.text or (before is not None and not before.text)
            if takes_list(field.annotation) and before and (is_file or not isinstance(override.value, list | tuple)):
                values = [*_as_list(before.value), *_as_list(override.value)]
                override = replace(override, value=values, text="" if is_file else override.text)
                order.remove(before)
            last[override.key] = override
        order.append(override)
    yield from order


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _items(field: FieldInfo, value: str) -> list[str]:
    """Return the items of a list that is written as plain words, `a,b`; empty if the value can mean something else."""
    found = list(pieces(value))
    separators = [number for number, piece in enumerate(found) if piece == ("mark", ",")]
    is_plain = all(kind in ("text", "quoted") or piece == "," for kind, piece in found)
    if not takes_list(field.annotation) or not separators or not is_plain or "(" in value or Path(value).exists():
        return []
    edges = zip([-1, *separators], [*separators, len(found)], strict=True)
    items = [_text("".join(piece for _, piece in found[start + 1 : end]).strip()) for start, end in edges]
    return items if all(items) else []


def _text(value: str) -> str:
    """Return a text as typed; quotes around all of it are removed, and ~/ is the home folder."""
    return _without_quotes(_home(value))


def _home(value: str) -> str:
    return str(Path.home()) + value[1:] if value == "~" or value.startswith("~/") else value


def _without_quotes(text: str) -> str:
    quote = text[:1]
    whole = quote in ('"', "'") and len(text) > 1 and text.endswith(quote) and quote not in text[1:-1]
    return text[1:-1] if whole else text


def _is_flag(field: FieldInfo) -> bool:
    kinds = alternatives(field.annotation)
    return bool(kinds) and all(kind is bool for kind in kinds)


def _is_number(field: FieldInfo) -> bool:
    kinds = alternatives(field.annotation)
    return bool(kinds) and all(kind in (int, float) for kind in kinds)


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _has_mapping(kinds: Collection[Any]) -> bool:
    return any((get_origin(kind) or kind) in (dict, list, tuple) or _is_model(kind) for kind in kinds)


def _example(field: FieldInfo | None) -> str:
    kinds = [] if field is None else alternatives(field.annotation)
    return "4" if int in kinds else "0.5" if float in kinds else "..."


def _sample(field: FieldInfo) -> str:
    """Return an example value of the option's type, for suggestions."""
    if takes_list(field.annotation):
        return "[...]"
    return "true" if _is_flag(field) else "..."


O = TypeVar("O", bound=Options)  # noqa: E741


def read_options(model: type[O], arguments: Sequence[str], *, rest: bool = False) -> tuple[O, list[ConfigOverride]]:
    """Parse options from overrides. With `rest`, overrides of other keys are returned instead of rejected.

    `--a.b c` sets a key of the mapping `a`; later options take precedence.
    """
    fields = {option_name(name, field): field for name, field in model.model_fields.items()}
    below = {name: f"{top}.{name}" for top, listed in model.NESTED_KEYS.items() for name in listed}
    values: dict[str, Any] = {}
    others: list[ConfigOverride] = []
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
        subject = model.SUBJECT
        if len(files) > 1 or subject in values:
            found = " and ".join(repr(str(one)) for one in (*files, *([values[subject]] if subject in values else [])))
            raise OperatorError(f"expected one {dashed(subject)}, found {found}")
        values[subject] = files[0]
    absent = [name for name, field in model.model_fields.items() if field.is_required() and name not in values]
    for override in others:
        # It may have taken the absent one as its value.
        if absent and did_you_mean(override.top.replace("-", "_"), [*fields, "help"]):
            raise OperatorError(unknown_option(override, fields, below))
    return parse_settings(model, values, COMMAND_LINE), others


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
    declared = {name: depth for depth, kind in reversed([*enumerate(model.__mro__)]) for name in get_annotations(kind)}

    def place(shown: tuple[str, FieldInfo]) -> tuple[bool, bool, int]:
        """What has to be given comes first, then what only this command has, then what it shares with others."""
        name, field = shown
        return name != model.SUBJECT, not field.is_required(), declared.get(name.partition(".")[0], 0)

    shown = sorted(_listed(model), key=place)
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
        nested = [kind for kind in alternatives(field.annotation) if _is_model(kind)]
        if nested:
            yield from _listed(nested[0], f"{prefix}{option_name(name, field)}.")
        else:
            yield f"{prefix}{option_name(name, field)}", field


def _typed_value(override: ConfigOverride, field: FieldInfo) -> Any:
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
    if origin is typing.Annotated:
        return _type_name(typing.get_args(annotation)[0])
    if origin is not None:
        return "{key: value}" if origin is dict else "[...]"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(str(one.value) for one in annotation)
    if annotation is Path:
        return "path"
    return str(getattr(annotation, "__name__", annotation))


def rollout_files(arguments: Sequence[str | Path]) -> list[Path]:
    """Return the rollout file of each argument: the file itself, the one in an evaluation's folder, or the one that is
    made of an ATIF trajectory, a folder of them, or a log of inspect_ai.

    Raises OperatorError if a folder contains no rollouts, or if a file of another program is malformed.
    """
    from rollyard.records.foreign_files import rollout_file

    found = []
    for path in map(Path, arguments):
        if path.is_dir():
            from rollyard.launchers.evaluation.eval_state import EvalFolder

            file = EvalFolder(path).rollouts.output
            found.append(file if file.is_file() else rollout_file(path))
            if found[-1] == path:
                raise OperatorError(
                    f"the folder {str(path)!r} has no {file.name} and no trajectory in ATIF; expected an evaluation's "
                    "folder, a rollout file, trajectories, or a log of inspect_ai"
                )
        else:
            found.append(rollout_file(path))
    return found


def folder_names(arguments: Sequence[str | Path]) -> list[str]:
    """Return the names of the folders, if all arguments are folders with different names; otherwise an empty list."""
    names = [Path(argument).resolve().name for argument in arguments if Path(argument).is_dir()]
    return names if len(set(names)) == len(arguments) else []


def config_path(files: Sequence[str], named: str | None) -> str | None:
    """Return the config file among the arguments. Raises OperatorError if there are several, or if it is not YAML."""
    given = [*files, *([named] if named else [])]
    if len(given) > 1:
        raise OperatorError(f"expected one config file, found {' and '.join(map(repr, given))}")
    for file in files:
        if not file.endswith((".yaml", ".yml")):
            raise OperatorError(f"cannot read the argument {file!r}; expected a config file (.yaml) or --key value")
    return given[0] if given else None


def is_server_setting(override: ConfigOverride) -> bool:
    """Return whether the key is one of a server's settings: `agent.responses_api_agents.game_agent.max_steps`."""
    return override.key.count(".") > 1 and override.key.split(".")[1] in (*FAMILIES, *FAMILY_ALIASES)


def check_key(override: ConfigOverride, known: Sequence[str], below: Mapping[str, Collection[str]]) -> None:
    """Raise OperatorError if the key is neither `known` nor a server's setting.

    `below`: key -> keys of its mapping, which are suggested if one is given without the first key.
    """
    if override.top in known or is_server_setting(override):
        return
    nested = {name: f"{parent}.{name}" for parent, names in below.items() for name in names}
    raise OperatorError(unknown_option(override, known, nested))


class TlsOptions(Options):
    """Options of the commands that start servers."""

    tls_certificate_file: Path | None = None
    """Speak HTTPS with this certificate (PEM). A renewed file is used for new connections, without a restart."""
    tls_key_file: Path | None = None
    """The certificate's key (PEM, without a password), which only its owner may read."""

    def tls(self, ca_file: Path | None = None) -> TlsFiles | None:
        """Return the files of these options; None without them. Raises OperatorError unless both are given."""
        certificate, key = self.tls_certificate_file, self.tls_key_file
        if certificate is None and key is None and ca_file is None:
            return None
        if certificate is None or key is None:
            raise OperatorError("TLS needs both --tls-certificate-file FILE and --tls-key-file FILE")
        ca = None if ca_file is None else str(ca_file.absolute())
        return TlsFiles(certificate=str(certificate.absolute()), key=str(key.absolute()), ca=ca)


def listening_token(host: str, token: str | None, exposed: str, otherwise: str) -> str | None:
    """Return the token that callers must send; None if they need none, which is only possible on loopback.

    `exposed`: what other hosts could use, for the error. `otherwise`: what to do instead of setting a token. Raises
    OperatorError if other hosts could use it without a token.
    """
    from rollyard.services.http.access import is_loopback

    found = token
    if found is None and not is_loopback(host):
        found = variable(os.environ, "ROLLYARD_TOKEN")
    if found is not None:
        check_token(found)
    elif not is_loopback(host):
        raise OperatorError(
            f"{exposed} would be open to other hosts on {host} without a token: add --token ... or export "
            f"ROLLYARD_TOKEN=..., or {otherwise}"
        )
    return found
