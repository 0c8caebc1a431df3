from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pydantic import BaseModel, Field, model_validator

from rollyard.services.cli.options import Options, read_options, run_command
from rollyard.services.errors import Failure, FailureKind, OperatorError, RunError
from rollyard.services.server.settings import is_secret, parse_settings


class Small(Options):
    input_path: str
    """Where rows come from."""
    count: int = Field(default=4, ge=1)
    """How many."""
    pause_s: float | None = None
    """How long between two."""
    paths: tuple[str, ...] = ()
    """Further places."""
    params: dict[str, Any] = Field(default_factory=dict)
    """What wins."""
    api_key: str = "sk-default"
    """Opens the door."""
    json_output: bool = Field(default=False, alias="json")
    """For machines."""


def ended(main: Callable[[Sequence[str]], int], *arguments: str) -> int:
    with pytest.raises(SystemExit) as raised:
        run_command("ng_small", Small, "ng_small +input_path=a.jsonl", main, arguments)
    assert isinstance(raised.value.code, int)
    return raised.value.code


def reading(arguments: Sequence[str]) -> int:
    """Read the options, do nothing."""
    read_options(Small, arguments)
    return 0


def raising(error: BaseException) -> Callable[[Sequence[str]], int]:
    def main(arguments: Sequence[str]) -> int:
        raise error

    return main


def refused(*arguments: str) -> str:
    with pytest.raises(OperatorError) as raised:
        read_options(Small, arguments)
    return str(raised.value)


def test_help_lists_every_option_with_type_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(reading, "--help") == 0
    told = " ".join(capsys.readouterr().out.split())
    for line in (
        "+input_path str, required Where rows come from.",
        "+count int, default 4 How many.",
        "+pause_s float or null, default ",
        "+paths [...], default ",
        "+params {key: value}, default ",
        "How long between two.",
        "Further places.",
        "What wins.",
        "+json bool, default false For machines.",
        "+debug bool, default false",
        "Read the options, do nothing.",
        "ng_small +input_path=a.jsonl",
    ):
        assert line in told


def test_help_shows_a_default_as_it_is_typed(capsys: pytest.CaptureFixture[str]) -> None:
    ended(reading, "--help")
    told = " ".join(capsys.readouterr().out.split())
    assert "+pause_s float or null, default null" in told and "+paths [...], default []" in told


def test_help_shows_no_default_of_a_secret(capsys: pytest.CaptureFixture[str]) -> None:
    ended(reading, "--help")
    assert "sk-default" not in capsys.readouterr().out


def test_help_is_answered_even_when_other_arguments_are_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(reading, "+nonsense=(", "-h") == 0
    assert "+count" in capsys.readouterr().out


def test_version_names_the_command_and_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(reading, "--version") == 0
    told = capsys.readouterr().out
    assert "ng_small" in told and any(character.isdigit() for character in told)


def test_an_unknown_option_exits_2_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(reading, "+input_path=a", "+cuont=3") == 2
    told = capsys.readouterr()
    assert "'cuont'" in told.err and "did you mean 'count'?" in told.err and not told.out


def test_the_value_of_an_unknown_option_that_looks_secret_is_not_printed() -> None:
    told = refused("+input_path=a", "+apii_key=sk-1234")
    assert "apii_key" in told and "'api_key'" in told and "sk-1234" not in told


def test_a_mistyped_value_exits_2_with_what_was_found_and_expected(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(reading, "+input_path=a", "+count=many") == 2
    told = capsys.readouterr().err
    assert "'count'" in told and "'many'" in told and "integer" in told


def test_a_value_out_of_range_is_refused() -> None:
    assert "greater than or equal to 1" in refused("+input_path=a", "+count=0")


def test_a_missing_option_is_named() -> None:
    assert "'input_path' is missing" in refused("+count=3")


def test_all_invalid_settings_are_reported_together() -> None:
    told = refused("+count=0", "+pause_s=x")
    assert "input_path" in told and "count" in told and "pause_s" in told


def test_dotted_options_fill_a_mapping_and_later_ones_win() -> None:
    options, _ = read_options(Small, ["+input_path=a", "+params={t: 1, m: 2}", "+params.t=0.8", "+params.x.y=z"])
    assert options.params == {"t": 0.8, "m": 2, "x": {"y": "z"}}


def test_a_deletion_takes_an_option_back() -> None:
    options, _ = read_options(Small, ["+input_path=a", "+count=9", "~count"])
    assert options.count == 4


def test_an_alias_is_what_is_typed() -> None:
    options, _ = read_options(Small, ["+input_path=a", "+json=true"])
    assert options.json_output
    assert "unknown option 'json_output'" in refused("+input_path=a", "+json_output=true")


def test_a_key_below_an_option_that_is_no_mapping_is_refused() -> None:
    assert "count" in refused("+input_path=a", "+count=3", "+count.x=1")


def test_the_rest_is_handed_back_where_a_command_takes_it() -> None:
    _, others = read_options(Small, ["+input_path=a", "policy.x=1"], rest=True)
    assert [(other.key, other.value) for other in others] == [("policy.x", 1)]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OperatorError("wrong"), 2),
        (RunError("stuck"), 1),
        (Failure(FailureKind.TIMEOUT, "late"), 1),
        (OSError(28, "No space left"), 1),
        (RuntimeError("a mistake of ours"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_what_a_command_raises_becomes_its_exit_status(error: BaseException, status: int) -> None:
    assert ended(raising(error)) == status


def test_the_status_a_command_returns_is_its_exit_status() -> None:
    assert ended(lambda arguments: 1) == 1


def test_a_traceback_is_shown_only_with_debug(capsys: pytest.CaptureFixture[str]) -> None:
    ended(raising(RunError("stuck")), "+debug=false")
    assert "Traceback" not in capsys.readouterr().err
    ended(raising(RunError("stuck")), "+debug=true")
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["api_key", "policy_api_key", "OPENAI_API_KEY", "token", "hf_token", "db_password"])
def test_a_name_that_holds_a_secret_is_known(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["max_tokens", "keyboard", "tokenizer", "model", "monkey", "max_output_tokens"])
def test_a_name_that_only_resembles_one_is_shown(name: str) -> None:
    assert not is_secret(name)


class Door(BaseModel, extra="forbid"):
    width: int = 1
    height: int = 1


class House(BaseModel, extra="forbid"):
    door: Door = Door()
    api_key: str | list[str] = ""

    @model_validator(mode="after")
    def check(self) -> House:
        if self.api_key == "sk-bad":
            raise ValueError("this key opens nothing")
        return self


@pytest.mark.parametrize("raw", [{"api_key": 1234}, {"api_key": "sk-bad"}, {"door": [{"api_key": 1234}]}])
def test_a_secret_is_not_printed_when_it_is_wrong(raw: dict[str, Any]) -> None:
    with pytest.raises(OperatorError) as raised:
        parse_settings(House, raw, "house")
    assert "sk-bad" not in str(raised.value) and "1234" not in str(raised.value)


def test_an_unknown_nested_setting_is_refused_with_the_nearest_nested_name() -> None:
    with pytest.raises(OperatorError, match=r"house: unknown option 'door\.widht', did you mean '.*width'\?"):
        parse_settings(House, {"door": {"widht": 2}}, "house")
