"""Messages about invalid settings: the value that was found, and one message for each setting."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr, model_validator

from rollyard.records.errors import OperatorError
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
    ("given", "words"),
    [
        ({"mode": "quick"}, ["'mode' is 'quick'", "'fast'", "'slow'", "integer"]),
        ({"judge": 5}, ["'judge' is 5", "mapping", "string"]),
        ({"judge": {"nam": "a", "name": "b"}}, ["'judge.nam'", "'name'"]),
        ({"judge": {}}, ["'judge.name' is missing"]),
        ({"judge": {"name": "a", "weight": "much"}}, ["'judge.weight' is 'much'", "integer", "number"]),
        ({"judges": ["a", 5]}, ["'judges.1' is 5", "mapping", "string"]),
        ({"openai_url": None}, ["'openai_url' is null", "string", "list"]),
        ({"timeout": None}, ["'timeout' is null", "number"]),
        ({"api_key": None}, ["'api_key' is null", "string"]),
        ({"api_key": ["sk-1"]}, ["'api_key' is ***", "string"]),
    ],
)
def test_an_invalid_setting_gets_one_message_with_the_value_found(given: dict[str, object], words: list[str]) -> None:
    with pytest.raises(OperatorError) as raised:
        parse_settings(Settings, given, "x")
    message = str(raised.value)
    assert message.startswith("x: ") and ";" not in message
    assert [word for word in words if word not in message] == []


class Door(BaseModel, extra="forbid"):
    width: int = 1
    height: int = 1


class House(BaseModel, extra="forbid"):
    door: Door = Door()
    api_key: str | list[str] = ""

    @model_validator(mode="after")
    def check(self) -> House:
        if self.api_key == "sk-bad":
            raise ValueError("this key is not valid")
        return self


@pytest.mark.parametrize("raw", [{"api_key": 1234}, {"api_key": "sk-bad"}, {"door": [{"api_key": 1234}]}])
def test_an_invalid_secret_is_not_printed(raw: dict[str, Any]) -> None:
    with pytest.raises(OperatorError) as raised:
        parse_settings(House, raw, "house")
    assert "sk-bad" not in str(raised.value) and "1234" not in str(raised.value)
