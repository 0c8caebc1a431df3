"""Arguments generated from a tool's schema are valid, and the same for the same random state."""

from __future__ import annotations

from enum import Enum
from random import Random
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter

from rollyard.cli.diagnostics.environment.arguments import ArgumentSampler, is_certain
from rollyard.records.types import Json


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: Annotated[int, Field(ge=3, lt=9)]
    y: Annotated[float, Field(gt=-2, le=-1)]


class Arguments(BaseModel):
    moves: Annotated[list[Literal["Up", "Down"]], Field(min_length=1, max_length=2)]
    colour: Colour
    points: list[Point]
    name: Annotated[str, Field(min_length=4, max_length=4)]
    pair: tuple[int, str]
    flag: bool = False
    note: str | None = None
    extra: dict[str, int] = {}


SCHEMA = Arguments.model_json_schema()


@pytest.mark.parametrize("seed", range(20))
def test_generated_arguments_follow_the_schema(seed: int) -> None:
    sampler = ArgumentSampler(SCHEMA)
    Arguments.model_validate(sampler.smallest())
    Arguments.model_validate(sampler.complete(Random(seed)))


def test_the_smallest_arguments_are_the_required_ones_alone() -> None:
    assert set(ArgumentSampler(SCHEMA).smallest()) == {"moves", "colour", "points", "name", "pair"}


def test_the_same_random_state_gives_the_same_arguments() -> None:
    sampler = ArgumentSampler(SCHEMA)
    assert sampler.complete(Random(3)) == sampler.complete(Random(3))


@pytest.mark.parametrize("low", [-5, 0, 7])
@pytest.mark.parametrize("kind", [int, float])
def test_a_single_bound_is_respected(low: int, kind: Any) -> None:
    for field in (Field(ge=low), Field(gt=low), Field(le=low), Field(lt=low)):
        adapter: TypeAdapter[Any] = TypeAdapter(Annotated[kind, field])
        sampler = ArgumentSampler({"properties": {"n": adapter.json_schema()}, "required": ["n"]})
        adapter.validate_python(sampler.smallest()["n"])
        adapter.validate_python(sampler.complete(Random(low))["n"])


@pytest.mark.parametrize(
    "parameters",
    [{}, {"properties": {"a": True}}, {"properties": {"a": {"$ref": "#/nowhere"}}, "required": ["a", "b"]}],
)
def test_a_malformed_schema_is_no_error(parameters: Json) -> None:
    ArgumentSampler(parameters).complete(Random(0))
    ArgumentSampler(parameters).smallest()


def test_a_recursive_schema_ends() -> None:
    node: Json = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}
    ArgumentSampler({"properties": {"a": node}, "required": ["a"], "$defs": {"node": node}}).complete(Random(0))


def test_values_for_a_pattern_are_not_certain_to_be_valid() -> None:
    assert not is_certain({"properties": {"a": {"type": "string", "pattern": "^x$"}}})
    assert is_certain(SCHEMA)
