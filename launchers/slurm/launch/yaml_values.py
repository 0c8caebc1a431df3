"""Reads YAML with the types of YAML 1.2, for sweep files and for values on the command line.

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

import re
from typing import Any

import yaml

from rollyard.records.io.yaml_aliases import check_aliases

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
    value = yaml.load(text, _Loader)
    _require_finite(value, {})
    return value


def _require_finite(value: Any, finite: dict[int, bool]) -> None:
    """Raise yaml.YAMLError if an alias refers to a list or mapping that contains it. `finite`: values by their id."""
    if not isinstance(value, list | dict) or finite.get(id(value)):
        return
    if id(value) in finite:
        raise yaml.YAMLError("an alias refers to a value that contains it")
    finite[id(value)] = False
    for item in value.values() if isinstance(value, dict) else value:
        _require_finite(item, finite)
    finite[id(value)] = True


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
            raise ValueError(f"not valid YAML in {text[0]}{text[-1]}: {explain_yaml_error(error)}") from error
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


def explain_yaml_error(error: Exception) -> str:
    """Format a YAML error as one line."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{error.problem or error.context} in line {mark.line + 1}, column {mark.column + 1}"
    return "it is nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
