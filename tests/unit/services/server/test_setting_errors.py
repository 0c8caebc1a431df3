"""Messages about invalid settings: the value that was found, and one message for each setting."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr

from rollyard.services.errors import OperatorError
from rollyard.services.server.settings import parse_settings


class Judge(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    weight: int | float | None = None


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")

    mode: Literal["fast", "slow"] | int = "fast"
    judge: Judge | str | None = None
    judges: list[Judge | str] = []
    api_key: SecretStr = SecretStr("")
    timeout: float = 1.0
    url: str | list[str] = Field("", validation_alias=AliasChoices("url", "openai_url"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "quick"}, "x: 'mode' is 'quick': expected 'fast' or 'slow' or an integer"),
        ({"judge": 5}, "x: 'judge' is 5: expected a mapping or a string"),
        ({"judge": {"nam": "a", "name": "b"}}, "x: unknown option 'judge.nam', did you mean 'name'?"),
        ({"judge": {}}, "x: 'judge.name' is missing"),
        ({"judge": {"name": "a", "weight": "much"}}, "x: 'judge.weight' is 'much': expected an integer or a number"),
        ({"judges": ["a", 5]}, "x: 'judges.1' is 5: expected a mapping or a string"),
        ({"openai_url": None}, "x: 'openai_url' is null: expected a string or a list"),
        ({"timeout": None}, "x: 'timeout' is null, but it should be a valid number"),
        ({"api_key": None}, "x: 'api_key' is null, but it should be a valid string"),
        ({"api_key": ["sk-1"]}, "x: 'api_key' is ***, but it should be a valid string"),
    ],
)
def test_an_invalid_setting_gets_one_message_with_the_value_found(given: dict[str, object], message: str) -> None:
    with pytest.raises(OperatorError) as raised:
        parse_settings(Settings, given, "x")
    assert str(raised.value).startswith(message) and ";" not in str(raised.value)
