"""A tool's arguments are validated against its signature and additional constraints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from typing import Annotated, Any, Literal, Union

import pytest
from annotated_types import Ge, MaxLen
from pydantic import Field

from rollyard.records.types import Json
from rollyard.resources_servers.tools import InvalidToolCall, Tool, tool, tools_of


class Odd:
    """Parameters of every kind."""

    @tool
    async def odd(
        self,
        _x: int = 0,
        schema: float | None = None,
        model_config: Literal[1, "a"] = 1,
        items: list[int | str] = [],  # noqa: B006 - models are copied from it
        table: dict[str, list[float]] | None = None,
        pair: tuple[int, ...] = (),
        either: Union[int, bool, None] = None,  # noqa: UP007
        flag: bool = False,
        anything: Any = None,
    ) -> None:
        """Accept everything."""


ODD: Tool = tools_of(Odd)["odd"]


@pytest.mark.parametrize(
    "body",
    [
        *(f'{{"schema": {value}}}' for value in ("NaN", "Infinity", '"nan"', '"-inf"', "1e999", "false")),
        *(f'{{"_x": {value}}}' for value in ("true", "9" * 20, f'"{"9" * 20}"', "1.5", "null", "9" * 5000)),
        *('{"table": {"a": ["inf"]}}', '{"anything": NaN}', '{"anything": "\\ud800"}', '{"model_config": true}'),
        *('{"items": [true]}', '{"items": "abc"}', '{"pair": [1, true]}', '{"p0": 1}', '{"self": 1}'),
        *("null", "[]", "1", '"{}"', "{", "\ufeff{}", f'{{"anything": {"[" * 100}1{"]" * 100}}}'),
    ],
)
def test_invalid_arguments_return_a_message_with_the_expected_ones(body: str) -> None:
    with pytest.raises(InvalidToolCall, match=r"^Invalid call to odd: .*_x: "):
        ODD.parse(body.encode("utf-8", "surrogatepass"))


def test_the_message_for_an_enormous_invalid_argument_is_short() -> None:
    with pytest.raises(InvalidToolCall) as raised:
        ODD.parse(b'{"' + b"k" * 100_000 + b'": 1}')
    assert len(str(raised.value)) < 2000


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"_x": 2.0, "schema": 3}', {"_x": 2, "schema": 3.0}),
        ('{"_x": "5", "either": true, "flag": true}', {"_x": 5, "either": True, "flag": True}),
        ('{"items": [1, "1"], "model_config": 1}', {"items": [1, "1"], "model_config": 1}),
        ('{"table": {"a": [1, 2.5]}, "pair": [1, 2]}', {"table": {"a": [1.0, 2.5]}, "pair": (1, 2)}),
        ("", {"_x": 0, "items": []}),
    ],
)
def test_valid_arguments_of_any_name_are_accepted_and_defaults_fill_the_rest(body: str, expected: Json) -> None:
    parsed = ODD.parse(body.encode())
    assert {key: parsed[key] for key in expected} == expected
    parsed["items"].append(1)
    assert ODD.parse(b"{}")["items"] == []


async def _args(self: Any, *values: int) -> None: ...
async def _kwargs(self: Any, **values: int) -> None: ...
async def _positional(self: Any, value: int, /) -> None: ...


@pytest.mark.parametrize("method", [_args, _kwargs, _positional])
def test_a_parameter_that_json_cannot_name_is_rejected_at_load(method: Any) -> None:
    with pytest.raises(TypeError, match="value"):
        tools_of(type("Environment", (), {"taker": tool(method)}))


def test_names_and_bounds_are_in_the_schema_that_the_model_reads() -> None:
    class Dice:
        @tool
        async def roll(
            self, sides: Annotated[int, Field(ge=2, le=20)], weight: Annotated[float, Field(gt=0, lt=1)] = 0.5
        ) -> int:
            return sides

    properties = tools_of(Dice)["roll"].schema()["parameters"]["properties"]
    assert properties["sides"] == {"type": "integer", "minimum": 2, "maximum": 20}
    assert properties["weight"] == {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1, "default": 0.5}
    assert {"_x", "schema", "model_config", "items"} < set(ODD.schema()["parameters"]["properties"])


MEMBERS = ["seed", "turn", "offers", "lifespan", "shared", "models", "task", "settings"]


@pytest.mark.parametrize("name", [*MEMBERS, "close", "verify", "reset", "seed_session", "Close"])
def test_a_tool_cannot_have_the_name_of_a_member_of_its_environment_or_a_path_of_the_wire(name: str) -> None:
    async def replacement(self: object) -> None: ...

    replacement.__name__ = name
    with pytest.raises(TypeError, match=f"{name} .*name"):
        tools_of(type("Replacing", (), {name: tool(replacement)}))


def test_a_tool_that_is_not_a_plain_method_with_self_is_refused_when_the_class_is_loaded() -> None:
    async def selfless() -> str:
        return "here"

    async def look(self: object) -> str:
        return "here"

    with pytest.raises(TypeError, match=r"look .*`self`"):
        tools_of(type("Selfless", (), {"look": tool(selfless)}))
    for kind in (staticmethod, classmethod):
        with pytest.raises(TypeError, match=f"look .*{kind.__name__}"):
            tool(kind(look))  # type: ignore[type-var]


class Bounded:
    """Constraints of unions."""

    @tool
    async def take(
        self,
        count: Annotated[int | None, Field(ge=1, le=9, description="How many.")] = None,
        step: Annotated[int | float, Field(gt=0, multiple_of=2)] = 2,
        name: Annotated[str | None, Field(min_length=2, pattern="^a")] = None,
        either: Annotated[int | str, Ge(1), MaxLen(3)] = 1,
        nested: list[Annotated[Annotated[int, Field(ge=1)] | None, Field(le=9)]] = [],  # noqa: B006
    ) -> None:
        """Takes all."""


def test_the_bounds_of_a_union_are_standard_keys_of_the_members_that_they_apply_to() -> None:
    properties = tools_of(Bounded)["take"].schema()["parameters"]["properties"]
    null, bounded = {"type": "null"}, {"type": "integer", "minimum": 1, "maximum": 9}
    assert properties["count"] == {"anyOf": [bounded, null], "default": None, "description": "How many."}
    positive = {"exclusiveMinimum": 0, "multipleOf": 2}
    assert properties["step"]["anyOf"] == [{"type": "integer", **positive}, {"type": "number", **positive}]
    assert properties["name"]["anyOf"] == [{"type": "string", "minLength": 2, "pattern": "^a"}, null]
    assert properties["either"]["anyOf"] == [{"type": "integer", "minimum": 1}, {"type": "string", "maxLength": 3}]
    assert properties["nested"]["items"]["anyOf"] == [bounded, null]


def test_the_bounds_of_a_union_hold() -> None:
    take = tools_of(Bounded)["take"]
    for wrong in ('"count": 0', '"step": 3', '"name": "b"', '"either": 0', '"either": "four"', '"nested": [10]'):
        with pytest.raises(InvalidToolCall):
            take.parse(f"{{{wrong}}}".encode())
    arguments = b'{"count": null, "step": 4, "name": "ab", "either": "abc", "nested": [null, 9]}'
    assert take.parse(arguments)["either"] == "abc"


class Defaults:
    """A default that is a `Field`, as pydantic's users write it."""

    @tool
    async def take(
        self,
        count: int = Field(3, ge=1, description="How many."),
        names: list[str] = Field(default_factory=list),  # noqa: B008
    ) -> None:
        """Takes."""


def test_a_field_as_default_sets_the_default_and_the_bounds() -> None:
    take = tools_of(Defaults)["take"]
    found = take.schema()["parameters"]["properties"]["count"]
    assert found == {"type": "integer", "minimum": 1, "default": 3, "description": "How many."}
    assert take.parse(b"{}") == {"count": 3, "names": []}
    with pytest.raises(InvalidToolCall):
        take.parse(b'{"count": 0}')


@pytest.mark.parametrize("annotation", ["Undefined", Callable[[], int], Odd])
def test_a_parameter_without_a_json_schema_is_refused_with_the_tools_name(annotation: Any) -> None:
    async def take(self: Any, value: Any) -> None:
        """Takes."""

    take.__annotations__["value"] = annotation
    with pytest.raises(TypeError, match=r"Taking\.take: .*JSON schema"):
        tools_of(type("Taking", (), {"take": tool(take)}))


def test_an_override_that_would_silently_remove_a_tool_is_refused() -> None:
    class Own(Defaults):
        async def take(self) -> None:  # type: ignore[override]
            """Takes nothing."""

    with pytest.raises(TypeError, match=r"Own\.take .*@tool"):
        tools_of(Own)
    assert tools_of(type("Without", (Defaults,), {"take": None})) == {}


def test_a_bound_that_fits_no_member_of_a_union_is_not_lost() -> None:
    class Day:
        @tool
        async def on(self, day: Annotated[date | None, Field(ge=date(2020, 1, 1))] = None) -> None:
            """Takes a day."""

    with pytest.raises(InvalidToolCall, match="2020"):
        tools_of(Day)["on"].parse(b'{"day": "2019-12-31"}')
    assert tools_of(Day)["on"].parse(b'{"day": null}') == {"day": None}


EXACT: list[Any] = [str, int, float, bool, None, int | float, bool | int | str, list[str | int], list[list[float]]]
CONVERTED: list[Any] = [Literal["a", 1], dict[str, int], list[Any], str | Annotated[int, Ge(1)], Any]
SIMPLE = ["1", "1.0", "-0.0", "true", "null", '"1"', "1e999", "1e-400", str(2**63), str(2**64), "{}", '"\\ud800"']
VALUES = [*SIMPLE, "[]", *(f"[{value}]" for value in SIMPLE), '["a", 1]', "[[1.5]]", "[[1]]"]


@pytest.mark.parametrize("annotation", [*EXACT, *CONVERTED])
@pytest.mark.parametrize("default", [..., None, 1, [1]])
def test_arguments_that_are_not_converted_are_those_that_pydantic_leaves_unchanged(
    annotation: Any, default: Any
) -> None:
    async def take(self: object, value: Any) -> None: ...

    take.__annotations__ = {"value": annotation}
    take.__defaults__ = None if default is ... else (default,)
    found = tools_of(type("Taking", (), {"take": tool(take)}))["take"]
    asked = replace(found, is_exact=lambda _: False)

    def read(reader: Tool, body: str) -> str:
        try:
            return repr(reader.parse(body.encode()))
        except InvalidToolCall as error:
            return str(error)

    twice = f'{{"value": {VALUES[0]}, "value": {VALUES[5]}}}'
    for body in ("{}", '{"other": 1}', "[]", twice, *(f'{{"value": {value}}}' for value in VALUES)):
        assert read(found, body) == read(asked, body), body
