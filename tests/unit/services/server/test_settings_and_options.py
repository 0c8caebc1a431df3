from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, Field, model_validator

from rollyard.cli import eval as eval_arguments
from rollyard.cli import train as train_arguments
from rollyard.cli.eval import EvalOptions
from rollyard.cli.options import Options, option_name, read_options, run_command
from rollyard.cli.train import TrainOptions
from rollyard.records.errors import Failure, FailureKind, OperatorError, RunError
from rollyard.records.script import ScriptParser
from rollyard.services.server.settings import is_secret, parse_settings


class ExampleOptions(Options):
    SUBJECT: ClassVar[str] = "paths"
    EXPRESSIONS: ClassVar[tuple[str, ...]] = ("where",)

    input_path: str
    """Source of the rows."""
    count: int = Field(default=4, ge=1)
    """Number of rows."""
    pause_s: float | None = None
    """Time between two requests."""
    paths: tuple[str, ...] = ()
    """Additional folders."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Parameters that take precedence."""
    api_key: str = "sk-default"
    """Key of the API."""
    where: str = ""
    """Expression."""
    agent_name: str | None = None
    """Agent."""
    limit: float | None = 9.0
    """Limit, or null: none."""
    steps: list[int] = Field(default_factory=list)
    """Steps."""
    overwrite: bool = False
    """Start over."""
    json_output: bool = Field(default=False, alias="json")
    """Print JSON."""


def exit_status(main: Callable[[Sequence[str]], int], *arguments: str) -> int:
    with pytest.raises(SystemExit) as raised:
        run_command("ng_example", ExampleOptions, "ng_example +input_path=a.jsonl", main, arguments)
    assert isinstance(raised.value.code, int)
    return raised.value.code


def read_only(arguments: Sequence[str]) -> int:
    """Read the options and do nothing."""
    read_options(ExampleOptions, arguments)
    return 0


def raising(error: BaseException) -> Callable[[Sequence[str]], int]:
    def main(arguments: Sequence[str]) -> int:
        raise error

    return main


def error_message(*arguments: str) -> str:
    with pytest.raises(OperatorError) as raised:
        read_options(ExampleOptions, arguments)
    return str(raised.value)


def test_help_lists_every_option_with_type_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(read_only, "--help") == 0
    output = " ".join(capsys.readouterr().out.split())
    for line in (
        "--input-path str, required Source of the rows.",
        "--count int, default 4 Number of rows.",
        "--pause-s float or null, default ",
        "--paths [...], default ",
        "--params {key: value}, default ",
        "Time between two requests.",
        "Additional folders.",
        "Parameters that take precedence.",
        "--json bool, default false Print JSON.",
        "--debug bool, default false",
        "Read the options and do nothing.",
        "ng_example +input_path=a.jsonl",
    ):
        assert line in output


def test_help_shows_defaults_as_the_user_would_type_them(capsys: pytest.CaptureFixture[str]) -> None:
    exit_status(read_only, "--help")
    output = " ".join(capsys.readouterr().out.split())
    assert "default null" in output and "--paths [...], default []" in output


def test_help_does_not_show_the_default_of_a_secret(capsys: pytest.CaptureFixture[str]) -> None:
    exit_status(read_only, "--help")
    assert "sk-default" not in capsys.readouterr().out


def test_help_is_printed_even_if_other_arguments_are_invalid(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(read_only, "+nonsense=(", "-h") == 0
    assert "--count" in capsys.readouterr().out


def test_version_prints_the_command_and_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(read_only, "--version") == 0
    output = capsys.readouterr().out
    assert "ng_example" in output and any(character.isdigit() for character in output)


def test_an_unknown_option_exits_2_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(read_only, "+input_path=a", "+cuont=3") == 2
    output = capsys.readouterr()
    assert "'cuont'" in output.err and "'count'" in output.err and not output.out


def test_the_value_of_an_unknown_option_that_looks_secret_is_not_printed() -> None:
    message = error_message("+input_path=a", "+apii_key=sk-1234")
    assert "apii_key" in message and "'api_key'" in message and "sk-1234" not in message


def test_a_mistyped_value_exits_2_with_what_was_found_and_expected(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(read_only, "+input_path=a", "+count=many") == 2
    output = capsys.readouterr().err
    assert "--count is 'many'" in output and "integer" in output


def test_a_value_out_of_range_is_rejected() -> None:
    message = error_message("+input_path=a", "+count=0")
    assert "--count is 0" in message and "1" in message


def test_a_missing_option_is_named() -> None:
    assert "--input-path is missing" in error_message("+count=3")


def test_all_invalid_settings_are_reported_together() -> None:
    message = error_message("+count=0", "+pause_s=x")
    assert "--input-path" in message and "--count" in message and "--pause-s" in message


def test_dotted_options_fill_a_mapping_and_later_ones_win() -> None:
    options, _ = read_options(
        ExampleOptions, ["+input_path=a", "+params={t: 1, m: 2}", "+params.t=0.8", "+params.x.y=z"]
    )
    assert options.params == {"t": 0.8, "m": 2, "x": {"y": "z"}}


def test_a_deletion_restores_the_default() -> None:
    options, _ = read_options(ExampleOptions, ["+input_path=a", "+count=9", "~count"])
    assert options.count == 4


def test_an_option_with_an_alias_is_read_only_under_its_alias() -> None:
    options, _ = read_options(ExampleOptions, ["+input_path=a", "+json=true"])
    assert options.json_output
    assert "unknown option 'json_output'" in error_message("+input_path=a", "+json_output=true")


def test_a_key_below_an_option_that_is_not_a_mapping_is_rejected() -> None:
    assert "count" in error_message("+input_path=a", "+count=3", "+count.x=1")


def test_other_overrides_are_returned_if_the_command_accepts_them() -> None:
    _, others = read_options(ExampleOptions, ["+input_path=a", "policy.x=1"], rest=True)
    assert [(other.key, other.value) for other in others] == [("policy.x", 1)]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OperatorError("wrong"), 2),
        (RunError("stuck"), 1),
        (Failure(FailureKind.TIMEOUT, "late"), 1),
        (OSError(28, "No space left"), 1),
        (RuntimeError("an internal error"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_an_exception_of_a_command_decides_its_exit_status(error: BaseException, status: int) -> None:
    assert exit_status(raising(error)) == status


def test_the_return_value_of_a_command_is_its_exit_status() -> None:
    assert exit_status(lambda arguments: 1) == 1


def test_a_traceback_is_shown_only_with_debug(capsys: pytest.CaptureFixture[str]) -> None:
    exit_status(raising(RunError("stuck")), "+debug=false")
    assert "Traceback" not in capsys.readouterr().err
    exit_status(raising(RunError("stuck")), "+debug=true")
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["api_key", "policy_api_key", "OPENAI_API_KEY", "token", "hf_token", "db_password"])
def test_names_of_secrets_are_recognized(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name", ["max_tokens", "keyboard", "tokenizer", "model", "monkey", "max_output_tokens", "dataset_key"]
)
def test_names_that_only_resemble_a_secret_are_not(name: str) -> None:
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
            raise ValueError("this key is not valid")
        return self


@pytest.mark.parametrize("raw", [{"api_key": 1234}, {"api_key": "sk-bad"}, {"door": [{"api_key": 1234}]}])
def test_an_invalid_secret_is_not_printed(raw: dict[str, Any]) -> None:
    with pytest.raises(OperatorError) as raised:
        parse_settings(House, raw, "house")
    assert "sk-bad" not in str(raised.value) and "1234" not in str(raised.value)


def test_an_unknown_nested_setting_is_rejected_with_the_nearest_nested_name() -> None:
    with pytest.raises(OperatorError, match=r"house: .*'door\.widht'.*width'"):
        parse_settings(House, {"door": {"widht": 2}}, "house")


def options(*arguments: str) -> ExampleOptions:
    return read_options(ExampleOptions, ["+input_path=a", *arguments])[0]


@pytest.mark.parametrize(
    "typed",
    [
        "--pause-s 2",
        "--pause_s 2",
        "--pause-s=2",
        "--pause_s=2",
        "+pause_s=2",
        "+pause-s=2",
        "++pause_s=2",
        "pause_s=2",
    ],
)
def test_an_option_is_read_however_it_is_written(typed: str) -> None:
    assert options(*typed.split()).pause_s == 2.0


def test_the_short_names_of_nemo_gym_are_aliases() -> None:
    assert options("--agent", "x").agent_name == options("+agent=x").agent_name == "x"


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("--overwrite", True),
        ("--overwrite true", True),
        ("--overwrite false", False),
        ("--overwrite=false", False),
        ("--overwrite --count 3", True),
        ("--overwrite rows.jsonl", True),
        ("--overwrite null", False),
    ],
)
def test_a_flag_needs_no_value(typed: str, value: bool) -> None:
    assert options(*typed.split()).overwrite is value


@pytest.mark.parametrize("typed", ["--no-overwrite", "--no_overwrite", "--overwrite --no-overwrite"])
def test_a_flag_is_false_after_no(typed: str) -> None:
    assert options(*typed.split()).overwrite is False


@pytest.mark.parametrize("typed", ["--no-overwrite=true", "--no-count", "--no-overwrit"])
def test_only_a_flag_without_a_value_can_begin_with_no(typed: str) -> None:
    assert "unknown option '--no-" in error_message(typed)


@pytest.mark.parametrize("value", ["true", "False"])
def test_true_is_no_number(value: str) -> None:
    assert f"--count is '{value.lower()}'" in error_message("--input-path", "a", "--count", value)


def test_null_is_the_default() -> None:
    assert options("--count", "null").count == options("+count=null").count == 4


def _own_options(command: str) -> type[Options]:
    module = importlib.import_module(f"rollyard.cli.{command}")
    (model,) = (
        one
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, Options) and one.__module__ == module.__name__
    )
    return model


@pytest.mark.parametrize(
    "command",
    [
        *("collect_rollouts", "compare", "gate", "init", "lm_eval", "notes", "prepare_data", "reward_profile", "run"),
        *("serve", "status", "track", "viewer", "doctor_tokens", "doctor_machine", "doctor"),
        "doctor_environment",
    ],
)
def test_null_is_the_default_of_every_option_in_every_form(command: str) -> None:
    model = _own_options(command)
    values = {"to": "wandb", "protocol": "openenv"}
    required = [f"+{name}={values.get(name, 'x')}" for name, field in model.model_fields.items() if field.is_required()]
    expected = read_options(model, required)[0]
    for name, field in model.model_fields.items():
        for typed in (
            [f"--{option_name(name, field).replace('_', '-')}", "null"],
            [f"+{option_name(name, field)}=null"],
        ):
            assert field.is_required() or read_options(model, [*required, *typed])[0] == expected, typed


@pytest.mark.parametrize(
    ("read", "model"), [(eval_arguments.read_arguments, EvalOptions), (train_arguments.read_arguments, TrainOptions)]
)
def test_null_is_the_default_of_every_key_of_a_config(read: Any, model: type[Options], tmp_path: Path) -> None:
    given = {"model": "builtin", "output_dir": "o", "environments": "x"}
    expected = read([f"+{key}={value}" for key, value in given.items()], tmp_path)
    for key in (option_name(name, field) for name, field in model.model_fields.items()):
        if key not in given:
            typed = [f"+{name}={value}" for name, value in given.items()] + [f"--{key.replace('_', '-')}", "null"]
            assert read(typed, tmp_path) == expected, typed


def test_null_is_none_where_none_is_a_value() -> None:
    assert options("--limit", "null").limit is None


def test_a_required_option_cannot_be_null() -> None:
    assert "--input-path is null" in error_message("--input-path", "null")


def test_arguments_without_a_name_belong_to_the_subject() -> None:
    assert options("b.jsonl", "--count", "3", "d/c=1.jsonl", "--paths", "f").paths == ("b.jsonl", "d/c=1.jsonl", "f")


@pytest.mark.parametrize(
    "typed", ["--paths a b c", "a --paths b c", "--paths [a,b] c", "a --paths [b,c]", "--paths a,b -- c"]
)
def test_files_keep_the_order_in_which_they_were_typed(typed: str) -> None:
    assert options(*typed.split()).paths == ("a", "b", "c")


def test_a_file_in_the_home_folder_needs_no_shell() -> None:
    assert options("~/a.jsonl").paths == (str(Path.home() / "a.jsonl"),)


def test_a_file_may_begin_with_a_dash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-x.jsonl").touch()
    assert options("-x.jsonl").paths == ("-x.jsonl",)


def test_two_dashes_end_the_options() -> None:
    assert options("--count", "3", "--", "--b", "+c=1").paths == ("--b", "+c=1")


def test_a_negative_number_is_a_value() -> None:
    assert options("--pause-s", "-1").pause_s == -1.0


def test_a_value_may_begin_with_dashes() -> None:
    assert options("--agent-name", "--x").agent_name == "--x"
    assert options("--agent-name=--count").agent_name == "--count"


@pytest.mark.parametrize("text", ["a=b", "a,b", "it's", "f(x)", "007", "a b", "#1", "[x", "{y}"])
def test_a_text_with_dashes_needs_no_quotes(text: str) -> None:
    assert options("--agent-name", text).agent_name == text
    assert options(f"--agent-name={text}").agent_name == text


def test_lists_and_mappings_are_read_as_in_an_override() -> None:
    found = options("--steps", "[1, 2]", "--params", "{t: 1, m: [a, b]}", "--params.max-x", "3")
    assert found.steps == [1, 2] and found.params == {"t": 1, "m": ["a", "b"], "max_x": 3}


@pytest.mark.parametrize("form", ["--{} {}", "--{}={}", "+{}={}", "++{}={}", "{}={}"])
def test_a_list_of_plain_words_needs_no_brackets(form: str) -> None:
    assert options(*form.format("steps", "0,300").split()).steps == [0, 300]
    assert options(*form.format("paths", "lr=0.1,007,it's,1e3").split()).paths == ("lr=0.1", "007", "it's", "1e3")


def test_commas_in_a_list_of_plain_words_can_be_quoted() -> None:
    assert options("--paths", "'a,b',c").paths == ("a,b", "c") and options("--paths", "'a,b'").paths == ("a,b",)


def test_a_file_with_a_comma_in_its_name_is_one_file(tmp_path: Path) -> None:
    (tmp_path / "a,b").touch()
    assert options("--paths", f"{tmp_path}/a,b").paths == (f"{tmp_path}/a,b",)


@pytest.mark.parametrize("value", ["1,", ",", "1,,2"])
def test_a_list_with_an_empty_place_is_refused(value: str) -> None:
    assert "several values" in error_message("--input-path", "a", "--steps", value)


def test_a_mapping_may_be_json() -> None:
    assert options("--params", '{"t": 1, "m": {"a": null}}').params == {"t": 1, "m": {"a": None}}


def test_a_list_that_the_shell_split_is_rejoined() -> None:
    assert options("--paths", "[b,", "c]", "d").paths == ("b", "c", "d")


def test_the_last_of_a_repeated_option_is_valid() -> None:
    assert options("--count", "2", "+count=3", "--count=5").count == 5


def test_a_repeated_value_of_a_list_is_added() -> None:
    assert options("--steps", "1", "--steps", "2", "+steps=3").steps == [1, 2, 3]


def test_a_complete_list_replaces_an_earlier_one() -> None:
    assert options("+steps=[1,2]", "+steps=[3]").steps == [3]


def test_an_expression_is_taken_as_typed() -> None:
    text = "reward < 0.5 and tag = 'x'"
    assert options("--where", text).where == options(f"--where={text}").where == options(f"+where={text}").where == text


def test_an_unknown_option_is_named_as_it_was_typed_with_the_nearest_name() -> None:
    assert "'--input-pth', did you mean '--input-path'?" in error_message("--input-pth", "a")
    assert "'input_pth' in '+input_pth=a', did you mean 'input_path'?" in error_message("+input_pth=a")


def test_a_file_with_an_equals_sign_that_does_not_exist_is_named() -> None:
    assert "; a file of this name is written ./lr=1.jsonl" in error_message("--input-path", "a", "lr=1.jsonl")


def test_only_an_alias_of_this_command_is_suggested() -> None:
    assert "did you mean" not in error_message("--input-path", "a", "--output", "b")


@pytest.mark.parametrize("arguments", [["--count"], ["--count", "--overwrite"], ["--count", "+overwrite=true"]])
def test_an_option_without_its_value_is_refused(arguments: list[str]) -> None:
    assert "--count needs a value, such as --count 4" in error_message("--input-path", "a", *arguments)


def test_help_is_printed_wherever_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(read_only, "rows.jsonl", "--count", "--help") == 0
    assert "--count" in capsys.readouterr().out


@pytest.mark.parametrize("typed", ["--api-key=sk-1234", "--api-key sk-1234", "+api_key=sk-1234"])
def test_a_secret_is_not_printed(typed: str) -> None:
    assert "sk-1234" not in error_message(*typed.split(), "--api-key.x", "1")


def script_parser() -> ScriptParser:
    parser = ScriptParser(allow_abbrev=False)
    parser.add_argument("--num-repeats", type=int)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("words", nargs="*")
    return parser


def parser_of_options() -> ScriptParser:
    parser = ScriptParser(allow_abbrev=False)
    parser.add_argument("--learning-rate", type=float, default=0.5)
    parser.add_argument("--final-save", action="store_true")
    return parser


@pytest.mark.parametrize("typed", ["--learning-rate -1e-3", "learning_rate=-1e-3", "learning-rate=-1e-3"])
def test_a_script_that_has_only_options_reads_all_forms(typed: str) -> None:
    assert parser_of_options().parse_args(typed.split()).learning_rate == -0.001


@pytest.mark.parametrize(
    ("typed", "value"),
    [("=yes", True), (" on", True), ("=1", True), ("=0", False), (" no", False), ("=OFF", False), ("=null", False)],
)
def test_a_script_reads_the_words_of_a_flag(typed: str, value: bool) -> None:
    assert parser_of_options().parse_args(f"--final-save{typed}".split()).final_save is value


def test_a_flag_of_a_script_is_false_after_no() -> None:
    assert not parser_of_options().parse_args(["--no-final-save"]).final_save


@pytest.mark.parametrize("form", ["--{}", "+{}", "{}"])
def test_a_script_names_the_nearest_option_in_the_form_that_was_typed(form: str) -> None:
    meant = "learning-rate" if form == "--{}" else "learning_rate"
    with pytest.raises(OperatorError, match=re.escape(f"did you mean '{form.format(meant)}'")):
        parser_of_options().parse_args([form.format("learning_rat=1")])


@pytest.mark.parametrize(
    "typed",
    ["--num-repeats 4", "--num_repeats 4", "--num_repeats=4", "--num-repeats=4", "+num_repeats=4", "++num-repeats=4"],
)
def test_a_script_reads_an_option_however_it_is_written(typed: str) -> None:
    assert script_parser().parse_args(typed.split()).num_repeats == 4


def test_a_script_reads_flags_defaults_and_other_overrides() -> None:
    parse = script_parser().parse_args
    assert (
        parse(["--dry_run"]).dry_run and parse(["+dry_run=true"]).dry_run and not parse(["--dry-run", "false"]).dry_run
    )
    assert parse(["--num-repeats", "null"]).num_repeats is None
    assert parse(["a.b=3", "+c=4"]).words == ["a.b=3", "+c=4"]


def test_a_script_names_the_nearest_option() -> None:
    with pytest.raises(OperatorError, match="did you mean '--num-repeats'"):
        script_parser().parse_args(["--num_repeat", "4"])
