"""Typed settings and options: parsing, error messages, and redaction of secrets."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveInt,
    SecretStr,
    ValidationError,
)

from rollyard.records.errors import OperatorError, did_you_mean
from rollyard.records.types import Json

M = TypeVar("M", bound=BaseModel)
COMMAND_LINE = "command line"
"""The owner of settings whose names are shown as options: --num-repeats."""
_EXPECTED = {
    "path_type": "expected a path",
    "dict_type": "expected a mapping, {key: value}",
    "model_type": "expected a mapping, {key: value}",
    "model_attributes_type": "expected a mapping, {key: value}",
    "list_type": "expected a list, [a, b]",
    "tuple_type": "expected a list, [a, b]",
    "is_instance_of": "a value of this type is not allowed here",
}
"""Replacements for pydantic's messages that mention Python classes."""


class RayResources(BaseModel):
    """What each replica of a server reserves on its host of a Ray cluster. It has no effect without Ray."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    num_cpus: float = Field(default=0.0, ge=0)
    num_gpus: float | None = Field(default=None, ge=0)
    """Only these GPUs are visible to the replica; null: as many as its engines need."""
    memory: int = Field(default=0, ge=0)
    """Bytes. Ray does not enforce them."""
    custom: dict[str, NonNegativeFloat] = {}
    """Resources that were named when the hosts' Ray nodes were started, such as {sandbox: 1}."""
    strategy: Literal["SPREAD", "PACK", "STRICT_SPREAD", "STRICT_PACK"] = "SPREAD"
    """How Ray places the replicas: on as many or on as few hosts as possible; STRICT: or not at all."""


class ServerSettings(BaseModel):
    """Settings that all servers share. Plug-ins subclass it. The YAML is parsed into it once, at startup."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, coerce_numbers_to_str=True)

    NOT_IDENTITY: ClassVar[frozenset[str]] = frozenset(
        {"host", "port", "base_url", "replicas", "resources", "start_timeout_s"}
        | {"allowed_agents", "datasets", "domain", "description", "license", "value", "verified"}
    )
    """Names of settings that do not affect rollouts; a collection can be resumed with different values for them."""

    entrypoint: str = "app.py"
    """File in the server's folder that defines `server`."""
    host: str = "127.0.0.1"
    """Address to bind. Any address other than loopback requires a run token."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port to listen on. If 0, the process selects a free port and reports it."""
    replicas: Literal["auto"] | PositiveInt = 1
    """Number of processes; auto: chosen from the cores of the host or the Ray cluster. Each episode is assigned to the
    least busy process and stays with it."""
    resources: RayResources = RayResources()
    """What each instance reserves on its host of a Ray cluster."""
    start_timeout_s: float | None = Field(default=None, gt=0)
    """Seconds within which the server must become ready; default: the run's ready_timeout_s."""
    # NeMo Gym's catalogue entry, which is not used for serving.
    domain: str | None = None
    description: str | None = None
    value: str | None = None
    license: str | None = None
    verified: bool | None = None
    datasets: list[Json] = []
    allowed_agents: list[str] = []

    @property
    def token_needed_for(self) -> str:
        """Why these settings require a run token, as a clause; empty if they do not. Subclasses override it."""
        return ""

    @property
    def needed_gpus(self) -> int:
        """The number of GPUs that an instance reserves on a Ray cluster by default. Subclasses override it."""
        return 0


def parse_settings(model: type[M], raw: Mapping[str, Any], owner: str) -> M:
    """Parse `raw` as `model`; one value for a list is a list of it. Raises OperatorError with every invalid setting."""
    lists = {
        name for key, field in model.model_fields.items() if takes_list(field.annotation) for name in (key, field.alias)
    }
    values = {
        key: [value] if key in lists and isinstance(value, str | int | float) else value for key, value in raw.items()
    }
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problems = merged_unions(model, error.errors(include_url=False))
        is_typed = owner == COMMAND_LINE
        messages = dict.fromkeys(_message(problem, model, dashed if is_typed else repr) for problem in problems)
        raise OperatorError("; ".join(messages if is_typed else (f"{owner}: {one}" for one in messages))) from None


def dashed(name: str) -> str:
    """Return an option as it is typed: `--num-repeats`."""
    return f"--{name.replace('_', '-')}"


def settings_argument(owner: type, base: type[M]) -> type[M] | None:
    """Return the settings class that `owner` passes as a type argument: `class Patient(Agent[PatientSettings])`.

    Returns None if there is no such argument, or if it is a type variable. Raises TypeError for an argument that
    should be a settings class but is not, as in `Agent[int]`.
    """
    found = None
    for generic in owner.__dict__.get("__orig_bases__", ()):
        _check_argument(owner, generic)
        for argument in get_args(generic):
            if found is None and isinstance(argument, type) and issubclass(argument, base):
                found = argument
    return found


def _check_argument(owner: type, generic: Any) -> None:
    for parameter, argument in zip(getattr(get_origin(generic), "__parameters__", ()), get_args(generic), strict=False):
        bound = getattr(parameter, "__bound__", None)
        if not (isinstance(bound, type) and issubclass(bound, ServerSettings)):
            continue
        if argument is Any or isinstance(argument, TypeVar):
            continue
        if not (isinstance(argument, type) and issubclass(argument, bound)):
            name = argument.__name__ if isinstance(argument, type) else repr(argument)
            base = f"{get_origin(generic).__name__}[{name}]"
            raise TypeError(f"{owner.__name__} extends {base}; expected a subclass of {bound.__name__} in the brackets")


def _message(problem: Any, model: type[BaseModel], shown: Callable[[str], str]) -> str:
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        fields = _fields_at(model, problem["loc"][:-1])
        known = ", ".join(sorted(fields))
        return f"unknown option {shown(name)}{did_you_mean(str(problem['loc'][-1]), fields)} (known: {known})"
    if problem["type"] == "missing":
        return f"{shown(name)} is missing"
    if not name:
        return str(problem["msg"]).removeprefix("Value error, ")
    if problem.get("input") is not None and any(is_secret(str(part)) for part in problem["loc"]):
        return f"{shown(name)} is {REDACTED}{_expectation(problem['msg'])}"
    found, message = redacted(problem.get("input")), problem["msg"].removeprefix("Value error, ")
    expectation = _expectation(_EXPECTED.get(problem["type"], message))
    return f"{shown(name)} is {'null' if found is None else repr(found)}{expectation}"


def _expectation(message: str) -> str:
    """Rewrite pydantic's message, which usually starts with `Input`, so that it can follow `'port' is 0`."""
    return f", but it {message.removeprefix('Input ')}" if message.startswith("Input ") else f": {message}"


def _fields_at(model: type[BaseModel], path: tuple[Any, ...]) -> Collection[str]:
    """Return the field names of the nested model at `path` in `model`."""
    for part in path:
        if isinstance(part, int):
            continue  # a list index: the list's annotation determines the model
        field = model.model_fields.get(str(part))
        kinds = [field.annotation, *get_args(field.annotation)] if field else []
        nested = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if nested is None:
            return ()
        model = nested
    return model.model_fields


def takes_list(annotation: Any) -> bool:
    """Return True for the type of a setting that accepts a list, but neither a string nor a number."""
    kinds = [get_origin(kind) or kind for kind in alternatives(annotation)]
    return any(kind in (list, tuple) for kind in kinds) and not any(
        isinstance(kind, type) and issubclass(kind, str | int | float | Path) for kind in kinds
    )


def takes_text(annotation: Any) -> bool:
    """Return True for the type of a setting whose value is always a string, even if it looks like a number."""
    kinds = alternatives(annotation)
    return any(kind in (str, Path) for kind in kinds) and not any(kind in (int, float, bool) for kind in kinds)


def alternatives(annotation: Any) -> list[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        return alternatives(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [kind for part in get_args(annotation) for kind in alternatives(part)]
    return [] if annotation is type(None) else [annotation]


def merged_unions(model: type[BaseModel], errors: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield pydantic's errors with those of one union merged: pydantic reports one for each type that it allows.

    If the value has the form of one of the types, only what is wrong inside of it is reported.
    """
    unions: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for error in errors:
        path = error["loc"]
        depth = _union_depth(model, path)
        unions.setdefault((*path[:depth], None) if depth else (*path, error["type"]), []).append(error)
    for (*path, last), found in unions.items():
        if last is not None:
            yield from found
            continue
        depth = len(path)
        inside = [error for error in found if len(error["loc"]) > depth + 1]
        if inside:
            tag = inside[0]["loc"][depth]
            below = [{**e, "loc": e["loc"][depth + 1 :]} for e in inside if e["loc"][depth] == tag]
            kinds = alternatives(_annotation_at(model, path))
            branch = next((kind for kind in kinds if getattr(kind, "__name__", "") == tag and _is_model(kind)), None)
            for error in merged_unions(branch, below) if branch is not None else below:
                yield {**error, "loc": (*path, *error["loc"])}
        elif bounds := [error for error in found if error["type"].startswith(("greater_than", "less_than"))]:
            yield {**bounds[0], "loc": tuple(path)}
        else:
            expected = " or ".join(dict.fromkeys(map(_type_name, alternatives(_annotation_at(model, path)))))
            yield {**found[0], "loc": tuple(path), "type": "one_of", "msg": f"expected {expected}"}


def _union_depth(model: type[BaseModel], path: Sequence[Any]) -> int:
    """Return the length of the shortest part of `path` that leads to a union; 0 if there is none."""
    for depth in range(1, len(path)):
        if len(alternatives(_annotation_at(model, path[:depth]))) > 1:
            return depth
    return 0


def _annotation_at(model: type[BaseModel], path: Sequence[Any]) -> Any:
    annotation: Any = model
    for part in path:
        kinds = alternatives(annotation)
        if len(kinds) != 1:
            return None
        (kind,) = kinds
        if _is_model(kind):
            annotation = _field_annotation(kind, str(part))
        else:
            inner = get_args(kind)
            annotation = inner[-1] if get_origin(kind) is dict and inner else inner[0] if inner else None
    return annotation


def _field_annotation(model: type[BaseModel], name: str) -> Any:
    for key, field in model.model_fields.items():
        choices = field.validation_alias
        aliases = choices.choices if isinstance(choices, AliasChoices) else [choices, field.alias]
        if name == key or name in aliases:
            return field.annotation
    return None


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _type_name(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    kind = get_origin(kind) or kind
    if _is_model(kind):
        return "a mapping"
    names = {str: "a string", dict: "a mapping", list: "a list", bool: "true or false", int: "an integer"}
    return names.get(kind, "a path" if kind is Path else "a number")


REDACTED = "***"
SHORTEST_SECRET = 8
"""Secrets shorter than this are not searched for in texts: `EMPTY` or `x` would mangle unrelated words."""
_SECRET = re.compile(
    r"password$|(^|_)(key|api_?keys?|access_?keys|private_?keys|token|access_?tokens|auth_?tokens|api_?tokens|secrets?"
    r"|access_?key_?ids?|passwords?|passwd|pwd|(db|pg|mysql|redis|smtp|user)_?pass|passphrase|pat|jwt|bearer|webhook|webhook_url|x_amz_signature|credentials?|authorization"
    r"|cookies?|sig|connection_?string)$|^(basic_|http_|proxy_)?auth$",
    re.IGNORECASE,
)
_NO_SECRET = re.compile(
    r"(^|_)((dataset|column|field|row|task|input|output|prompt|question|problem|answer|solution|gold|expected|label"
    r"|target|response|completion|messages?|instruction|context|text|image|audio|video|chosen|rejected|reward|score"
    r"|metric|id|index|json|lookup|sort|group|partition|primary|foreign|cache)_key"
    r"|(eos|bos|pad|unk|sep|cls|mask|stop|start|end|begin|eot|eom|turn|think|thinking|special|image|audio|video|eval"
    r"|first|last|next|per)_token)$",
    re.IGNORECASE,
)
"""Names of columns, and of tokens of a vocabulary."""
_COLUMN = re.compile(r"[a-z]+(_[a-z]+)*")
"""What a setting named just `key` holds if it names a column."""
_SIGNATURE = re.compile(r"(^|[_-])(signature|code)$", re.IGNORECASE)
"""Further names of secrets in the query of a URL."""
_HARMLESS_HEADERS = frozenset(
    {"accept", "accept-encoding", "accept-language", "cache-control", "connection", "content-type", "user-agent"}
    | {"anthropic-beta", "anthropic-version", "openai-beta", "http-referer", "referer", "x-title"}
)
_USER_IN_URL = re.compile(r"(?<![\w+.-])([A-Za-z][\w+.-]*://)[^/?#\s\"']*@")
_QUERY = re.compile(r"([?&;])([\w.-]+)=([^&;#\s\"']+)")
_ASSIGNED = re.compile(
    r"""(?<![\w-])(?>(?:[\w-]*?-)??(?=[A-Za-z]))([A-Za-z][\w-]*+)(=["']?|["']\s*:\s*["'])([^\s"',;&]+)"""
)
"""`NAME=value` as in a list of variables or flags, and `"name": "value"` as in JSON. A name is read once, however many
hyphens it has: the time grows with the length of the text.
"""
_FLAG = re.compile(r"""(?<![\w-])(--?[A-Za-z][\w-]*)([\s,"']+)([^\s,"'\]-][^\s,"'\]]*)""")
_HEADER_LINE = re.compile(
    r"(?<![\w-])((?:proxy-)?authorization|[\w-]*api-key|(?:set-)?cookie)([\"']?\s*:\s*[\"']?)[^\"'\n]+", re.IGNORECASE
)
_USER_FLAG = re.compile(r"(?<![\w-])((?:-u|--user|--proxy-user)[\s=]+[\"']?[^\s:\"']+:)[^\s\"']+")
_KNOWN_KEY = re.compile(
    r"(?<![\w-])(?=[\w-]*\d)(?:(?:sk|xox[abp])-[\w-]{12,}|(?:hf|gh[pousr]|github_pat)_\w{12,}|AKIA[0-9A-Z]{12,})"
)
"""Keys of OpenAI, Slack, Hugging Face, GitHub and AWS, which their first letters tell."""
_KEY_IN_TEXT = re.compile(
    r"(?<!\w)((?:api|secret|access|private)_?key|(?:access|auth|api)_?token)(\s*[:=]\s*[\"']?)(?=[^\s\"']*\d)[^\s\"',;]{8,}",
    re.IGNORECASE,
)
"""A key in a text, such as YAML or TOML."""
_BEARER = re.compile(r"\b(Bearer\s+)(?=\S*\d)[\w.~+/=-]{8,}", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Return True for the name of a setting, variable, flag or header whose value must never be logged or served."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|-", "_", name)
    return bool(_SECRET.search(words)) and not _NO_SECRET.search(words)


def redacted(value: Any, key: str = "") -> Any:
    """Return `value` with `***` for everything that can be a secret: the values of secret keys, of headers that are not
    known to be harmless, of secret flags and variables in lists, and credentials in URLs.
    """
    if isinstance(value, SecretStr) or _is_secret_value(key, value):
        return REDACTED
    headers = key.lower().endswith("headers") or (key.lower().endswith("header") and isinstance(value, dict))
    if isinstance(value, dict):
        named = next((value[name] for name in ("name", "key", "Name", "Key") if name in value), None)
        # {name: HF_TOKEN, value: ...}
        pair = isinstance(named, str) and _hidden(named, headers)
        return {
            name: REDACTED
            if (pair and name in ("value", "Value")) or (headers and not pair and _hidden_header(str(name), item))
            else redacted(item, str(name))
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        if headers and len(value) == 2 and all(isinstance(item, str) and ":" not in item for item in value):
            return [value[0], REDACTED if _hidden(value[0], headers) else value[1]]
        before = ["", *value]
        return [
            REDACTED if _is_secret_flag(flag) and isinstance(item, str) else redacted(item, key if headers else "")
            for flag, item in zip(before, value, strict=False)
        ]
    if not isinstance(value, str):
        return value
    if headers and ":" in value and _hidden(name := value.partition(":")[0].strip(), headers):
        return f"{name}: {REDACTED}"
    return without_credentials(value)


def _is_secret_value(key: str, value: Any) -> bool:
    if not is_secret(key) or value in (None, "") or isinstance(value, bool):
        return False
    return not (key == "key" and isinstance(value, str) and _COLUMN.fullmatch(value))


def redacted_at(path: str, value: Any) -> Any:
    """Return `value` as `redacted` shows it below the dotted `path`, such as `default_headers.Authorization`."""
    *parents, last = path.split(".")
    shown = redacted({last: value}, parents[-1] if parents else "")
    return shown[last] if isinstance(shown, dict) else shown  # all of it if a part above is a secret


def without_credentials(text: str) -> str:
    """Return `text` with `***` for credentials in URLs, headers, flags and variables."""

    def hide(found: re.Match[str]) -> str:
        return found[0][: found.end(2) - found.start()] + REDACTED if is_secret(found[1]) else found[0]

    def hide_query(found: re.Match[str]) -> str:
        hidden = is_secret(found[2]) or _SIGNATURE.search(found[2])
        return f"{found[1]}{found[2]}={REDACTED}" if hidden else found[0]

    if "://" in text:
        text = _QUERY.sub(hide_query, _USER_IN_URL.sub(rf"\g<1>{REDACTED}@", text))
    text = _HEADER_LINE.sub(rf"\g<1>\g<2>{REDACTED}", text)
    text = _USER_FLAG.sub(rf"\g<1>{REDACTED}", _KEY_IN_TEXT.sub(rf"\g<1>\g<2>{REDACTED}", text))
    text = _KNOWN_KEY.sub(REDACTED, text)
    return _BEARER.sub(rf"\g<1>{REDACTED}", _ASSIGNED.sub(hide, _FLAG.sub(hide, text)))


def _hidden(name: str, header: bool) -> bool:
    return is_secret(name) or (header and name.lower() not in _HARMLESS_HEADERS)


def _hidden_header(name: str, value: Any) -> bool:
    return _hidden(name, header=True) and value not in (None, "") and not isinstance(value, bool)


def _is_secret_flag(text: Any) -> bool:
    return isinstance(text, str) and text.startswith("-") and "=" not in text and is_secret(text.lstrip("-"))


def without_secrets(tree: Any, of: Any = None) -> Any:
    """Return `tree` with all secrets replaced by `***`, even where a reference copied them to another setting.

    `of`: the tree with the secrets, if `tree` is made from another one.
    """
    pattern = secrets_pattern(_secret_values(tree if of is None else of))

    def replace_in(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: replace_in(item) for name, item in value.items()}
        if isinstance(value, list):
            return [replace_in(item) for item in value]
        return pattern.sub(REDACTED, value) if isinstance(value, str) and pattern else value

    return replace_in(redacted(tree))


def _secret_values(node: Any, key: str = "") -> Iterator[str]:
    if isinstance(node, dict):
        for name, item in node.items():
            yield from _secret_values(item, key if is_secret(key) else str(name))
    elif isinstance(node, list):
        for item in node:
            yield from _secret_values(item, key)
    elif isinstance(node, str) and _is_secret_value(key, node):
        yield node
        yield node.split()[-1] if node.strip() else node  # the key of `Authorization: Bearer KEY`


def secrets_pattern(secrets: Iterable[str]) -> re.Pattern[str] | None:
    """Return a pattern that finds the secrets in a text; None if there are none of sufficient length."""
    found = sorted({text for text in secrets if len(text) >= SHORTEST_SECRET}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, found))) if found else None


def header_secrets(headers: Mapping[str, str]) -> list[str]:
    """Return the values of headers that are not known to be harmless, and the keys in them."""
    hidden = [value for name, value in headers.items() if _hidden_header(name, value)]
    return hidden + [value.split()[-1] for value in hidden if value.strip()]


def secrets_in_bodies(secrets: Iterable[str]) -> re.Pattern[bytes] | None:
    """Return a pattern that finds the secrets in the body of a response; None if there are none. Group 1 stays.

    A short secret is found only as a whole value of JSON, so that `x` does not mangle other words.
    """
    found = {text for text in secrets if text}
    long = "|".join(re.escape(text) for text in sorted(found, key=len, reverse=True) if len(text) >= SHORTEST_SECRET)
    short = "|".join(re.escape(text) for text in found if len(text) < SHORTEST_SECRET)
    parts = [f"()(?:{long})"] * bool(long) + [rf'(:\s*"(?:Bearer )?)(?:{short})(?=")'] * bool(short)
    return re.compile("|".join(parts).encode("latin-1", "replace")) if parts else None
