"""The types that a setting allows, and errors of a setting that allows several."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AliasChoices, BaseModel


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
    """Return the types that an annotation allows, except None."""
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
    """Return the type of a field by its name or one of its aliases."""
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
