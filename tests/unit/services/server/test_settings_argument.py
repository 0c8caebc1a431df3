"""What stands in the brackets of Agent, Environment and ModelServer is a settings class, or the class is refused."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import pytest

from rollyard import Agent, AgentSettings, Environment, EnvironmentSettings, ModelServer, ServerSettings, serve
from rollyard.errors import OperatorError

T = TypeVar("T")


@pytest.mark.parametrize(
    ("base", "argument", "bound"),
    [
        (Agent, int, "AgentSettings"),
        (Agent, "Mine", "AgentSettings"),
        (Agent, ServerSettings, "AgentSettings"),
        (ModelServer, dict[str, int], "ServerSettings"),
    ],
)
def test_a_type_argument_that_is_no_settings_class_is_refused_at_definition(
    base: Any, argument: Any, bound: str
) -> None:
    with pytest.raises(TypeError, match=rf"Wrong .*\[.*\].* {bound} "):

        class Wrong(base[argument]):  # type: ignore[misc]
            pass


def test_an_environment_with_such_an_argument_is_refused_when_it_is_served() -> None:
    class Wrong(Environment[int]):  # type: ignore[type-var]
        pass

    with pytest.raises(TypeError, match=r"Wrong .*Environment\[int\].* EnvironmentSettings"):
        serve(Wrong)


def test_other_type_arguments_of_an_own_base_class_are_allowed() -> None:
    class Base(Environment[EnvironmentSettings], Generic[T]):
        pass

    class Own(Base[int]):
        pass

    class Untyped(Environment[Any]):
        pass

    class Mixin(Generic[T]):
        pass

    class Mixed(Mixin[int], Agent[AgentSettings]):
        pass

    assert [serve(kind).Settings for kind in (Own, Untyped)] == [EnvironmentSettings] * 2
    assert Mixed.Settings is AgentSettings


@pytest.mark.parametrize(("name", "value"), [("system_prompt", 5), ("user_template", b"{x}"), ("user_template", ["a"])])
def test_a_prompt_that_is_not_a_string_stops_the_start(name: str, value: Any) -> None:
    wrong = type("Wrong", (Environment,), {name: value})
    with pytest.raises(OperatorError, match=rf"Wrong\.{name} .*{type(value).__name__}.*string"):
        serve(wrong)


@pytest.mark.parametrize("given", [5, Agent, Environment[Any]])
def test_only_an_environment_can_be_served(given: Any) -> None:
    with pytest.raises(OperatorError, match="subclass of Environment"):
        serve(given)
