"""Sweep files and `key=value` overrides: dotted keys and their values, read with the types of YAML 1.2.

| text                                | value   |
|-------------------------------------|---------|
| `true`, `False`, `TRUE`             | boolean |
| `null`, `~`, nothing                | null    |
| `8`, `-1`, `+3`                     | integer |
| `0.5`, `.5`, `1e-5`, `1E3`, `-.inf` | number  |
| `007`, `1_000`, `yes`, `2024-01-01`, `1:30` | string, unchanged |

Config files are read by OmegaConf, which follows YAML 1.1: `yes` is a boolean there.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json, json_kind
from rollyard.records.yaml_aliases import check_aliases
from rollyard.services.config.overrides import shown

CONFIG_PATH = "config_path"
MAX_COMBINATIONS = 10_000
"""A larger product is almost certainly a mistake, and SLURM's default limit for jobs is 10,000."""


@dataclass(frozen=True)
class Sweep:
    config_path: str | None
    combinations: tuple[tuple[Setting, ...], ...]
    """The Cartesian product in the order of the file; the last key changes fastest."""


NO_SWEEP = Sweep(None, ((),))


def read_sweep(path: Path) -> Sweep:
    """Read a sweep file: a mapping of keys to lists of values. Any other value counts as a list with one item."""
    origin = f"sweep file {str(path)!r}"
    try:
        tree = load_yaml(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise OperatorError(f"{origin} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise OperatorError(f"{origin} is not YAML: {_explain_yaml_error(error)}") from error
    if not isinstance(tree, dict):
        found = "is empty" if tree is None else f"contains {json_kind(tree)}"
        raise OperatorError(f"{origin} {found}; expected keys with lists of values")
    config_path = tree.pop(CONFIG_PATH, None)
    if config_path is not None and not isinstance(config_path, str):
        raise OperatorError(f"{origin}: config_path is {config_path!r}; expected the path of a config")
    axes = [_axis(key, value, origin) for key, value in tree.items()]
    if not axes and config_path is None:
        raise OperatorError(f"{origin} has no keys; expected keys with lists of values")
    for first, second in itertools.permutations([axis[0].key for axis in axes], 2):
        if second.startswith(f"{first}."):
            raise OperatorError(f"{origin} sets {first} and {second}, a part of it; keep one")
    if (count := math.prod(map(len, axes))) > MAX_COMBINATIONS:
        raise OperatorError(f"{origin} has {count} combinations; expected at most {MAX_COMBINATIONS}")
    return Sweep(config_path, tuple(itertools.product(*axes)))


def _axis(key: Any, value: Any, origin: str) -> list[Setting]:
    if not isinstance(key, str):
        raise OperatorError(f"{origin}: {key!r} is not a key; expected a name such as generation.temperature")
    if value == []:
        raise OperatorError(f"{origin}: {key} has an empty list; expected at least one value, or remove the key")
    return [setting(key, one, origin) for one in (value if isinstance(value, list) else [value])]


_KEY = re.compile(r"[A-Za-z_][\w\-]*(?:\.[\w\-]+)*", re.ASCII)


@dataclass(frozen=True)
class Setting:
    key: str
    value: Any
    adds: bool = False
    """Written as `+key`: the key need not exist."""


def setting(key: str, value: Any, origin: str) -> Setting:
    """Return the setting of `key`, which may start with `+`; OperatorError if it is invalid. Messages name `origin`."""
    name = key.lstrip("+")
    if len(key) - len(name) > 2 or not _KEY.fullmatch(name):
        raise OperatorError(f"{origin}: {key!r} is not a key; expected names and dots, such as generation.temperature")
    return Setting(name, value, adds=key != name)


def read_override(word: str) -> Setting:
    key, equals, text = word.partition("=")
    if not equals:
        raise OperatorError(
            f"{word!r} is neither a flag nor an override; expected key=value, such as generation.temperature=0.6"
        )
    try:
        value = read_value(text)
    except ValueError as error:
        quoted = f"{key}=\"'...'\""
        raise OperatorError(f"{shown(word)!r}: {error}. For a string, add quotes: {quoted}") from error
    return setting(key, value, "command line")


def find_value(tree: Json, key: str) -> Any:
    node: Any = tree
    for part in key.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node


def has_key(tree: Json, key: str) -> bool:
    *path, last = key.split(".")
    node = find_value(tree, ".".join(path)) if path else tree
    return isinstance(node, dict) and last in node


def set_value(tree: Json, key: str, value: Any, origin: str) -> None:
    """Set the value at a dotted key, in place. Missing and null sections become mappings, and mappings are merged."""
    *path, last = key.split(".")
    node = tree
    for number, part in enumerate(path, 1):
        if node.get(part) is None:
            node[part] = {}
        if not isinstance(node[part], dict):
            section = ".".join(path[:number])
            kind = "a list" if isinstance(node[part], list) else f"the value {node[part]!r}"
            raise OperatorError(f"{origin}: {key} cannot be set, because {section} is {kind}; set {section} as a whole")
        node = node[part]
    node[last] = _merged(node.get(last), value)


def _merged(before: Any, value: Any) -> Any:
    """Return a value as it replaces another one: mappings are merged, as in Hydra."""
    if not (isinstance(before, dict) and isinstance(value, dict)):
        return value
    return {**before, **{key: _merged(before.get(key), one) for key, one in value.items()}}


_INTEGER = r"[-+]?(?:0|[1-9][0-9]*)"
_FLOAT = (
    r"[-+]?(?:(?:0|[1-9][0-9]*)?\.[0-9]+(?:[eE][-+]?[0-9]+)?|(?:0|[1-9][0-9]*)\.(?:[eE][-+]?[0-9]+)?"
    r"|(?:0|[1-9][0-9]*)[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)"
)
_PLAIN = re.compile(r"[A-Za-z_/][\w./+\-]*", re.ASCII)
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf"})
_MERGE = "tag:yaml.org,2002:merge"
_BREAKS = {"\n": r"\n", "\r": r"\r", "\x85": r"\N", "\u2028": r"\L", "\u2029": r"\P"}


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalars of YAML 1.2. Refuses duplicate keys, of which YAML keeps the last."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's attribute

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue  # keys of a merged mapping may be overridden
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, list | dict):
                raise yaml.constructor.ConstructorError(None, None, "a key is not a scalar", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key!r}", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    return int(loader.construct_scalar(node))


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("int", _INTEGER, "-+0123456789"),
    ("float", _FLOAT, "-+.0123456789"),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), ["" if char == "\0" else char for char in _first]
    )
_Loader.add_constructor("tag:yaml.org,2002:int", _integer)


def load_yaml(text: str) -> Any:
    """Return the value of a YAML document. Raises yaml.YAMLError, or RecursionError if it is nested too deeply."""
    try:
        check_aliases(text)
    except ValueError as error:
        raise yaml.YAMLError(str(error)) from error
    return yaml.load(text, _Loader)


def read_value(text: str) -> Any:
    """Return the value of `text` in `key=text`, as one YAML scalar or as a list or mapping in brackets or braces.

    Any other text is a string, exactly as given: spaces, quotes inside, newlines and `$(...)` stay.
    Quotes around the whole text make any value a string: `'007'`. Raises ValueError if text in brackets or braces is
    not valid YAML.
    """
    if text == "":
        return ""
    if re.fullmatch(rf"(?:true|false|null|~|{_INTEGER}|{_FLOAT})", text, re.IGNORECASE):
        value = load_yaml(text)
        return text if isinstance(value, list | dict) else value
    if re.fullmatch(r"'(?:[^']|'')*'", text):
        return text[1:-1].replace("''", "'")
    if re.fullmatch(r'"(?:[^"\\]|\\.)*"', text, re.DOTALL):
        try:
            return load_yaml(_escape_line_breaks(text))
        except yaml.YAMLError:
            return text
    if text[0] + text[-1] in ("[]", "{}"):
        try:
            return load_yaml(text)
        except (yaml.YAMLError, RecursionError) as error:
            raise ValueError(f"not valid YAML in {text[0]}{text[-1]}: {_explain_yaml_error(error)}") from error
    return text


def _escape_line_breaks(text: str) -> str:
    """Escape the line breaks in a quoted string, because YAML folds a line break into a space."""
    return re.sub(r"\\.|[\n\r\x85\u2028\u2029]", lambda found: _BREAKS.get(found[0], found[0]), text, flags=re.DOTALL)


class _Dumper(yaml.SafeDumper):
    """PyYAML's dumper with every string quoted that some YAML version could take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS
    # Double quotes, because only they can escape line breaks other than \n.
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _represent_text)


def dump_yaml(tree: Any) -> str:
    """Return YAML from which parsers of YAML 1.1 and 1.2 read exactly the same values, keys in their order."""
    dumped: str = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6)
    return dumped


def _explain_yaml_error(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{error.problem or error.context} in line {mark.line + 1}, column {mark.column + 1}"
    return "it is nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())


def shown_value(value: Any) -> str:
    """Format a value on one line: a string as it is if it would be read as the same string, anything else as JSON."""
    if isinstance(value, str) and value and value.isprintable() and value == value.strip():
        with suppress(ValueError):
            if read_value(value) == value:
                return value
    return json.dumps(value, ensure_ascii=False)
