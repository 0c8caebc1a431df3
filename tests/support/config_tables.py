"""Tables of a config's keys for the documentation, from the fields of its model."""

from __future__ import annotations

import typing
from collections.abc import Iterator

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rollyard.services.server.setting_types import alternatives


def tables(model: type[BaseModel], *, head: str = "key") -> str:
    """A table of the keys of a model, and one for each mapping with keys of its own."""
    parts = [_table(head, model, "")]
    for name, below in _nested(model):
        parts.append(_table(f"below `{name}`", below, ""))
    return "\n\n".join(parts)


def _nested(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in model.model_fields.items():
        for kind in alternatives(field.annotation):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield f"{prefix}{name}", kind
                yield from _nested(kind, f"{prefix}{name}.")


def _table(head: str, model: type[BaseModel], prefix: str) -> str:
    rows = [f"| {head} | default | |", "|---|---|---|"]
    for name, field in model.model_fields.items():
        text = " ".join((field.description or "").split()).replace("|", "\\|")
        rows.append(f"| `{prefix}{name}` | {_default(field)} | {text} |")
    return "\n".join(rows)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: typing.Any = field.get_default(call_default_factory=True) if field.default_factory else field.default
    if value is PydanticUndefined or isinstance(value, BaseModel):
        return "see below" if isinstance(value, BaseModel) else ""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {one}" for key, one in value.items()) + "}"
    return f"{value}"


if __name__ == "__main__":
    from rollyard.services.training.train_config import TrainConfig

    print(tables(TrainConfig))
