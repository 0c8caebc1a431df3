from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import Field

from rollyard.cli import eval as eval_arguments
from rollyard.cli import train as train_arguments
from rollyard.cli.eval import EvalOptions
from rollyard.cli.options import Options, listening_token, option_name, read_options, run_command
from rollyard.cli.train import TrainOptions
from rollyard.records.errors import Failure, FailureKind, OperatorError, RunError
from rollyard.records.script import ScriptParser
from rollyard.services.runtime.stack import new_keys
from tests.support.commands import options_of


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


def test_help_does_not_show_the_default_of_a_secret(capsys: pytest.CaptureFixture[str]) -> None:
    exit_status(read_only, "--help")
    assert "sk-default" not in capsys.readouterr().out


def test_the_value_of_an_unknown_option_that_looks_secret_is_not_printed() -> None:
    message = error_message("+input_path=a", "+apii_key=sk-1234")
    assert "apii_key" in message and "'api_key'" in message and "sk-1234" not in message


def test_all_invalid_settings_are_reported_together() -> None:
    message = error_message("+count=0", "+pause_s=x")
    assert "--input-path" in message and "--count" in message and "--pause-s" in message


def test_dotted_options_fill_a_mapping_and_later_ones_win() -> None:
    options, _ = read_options(
        ExampleOptions, ["+input_path=a", "+params={t: 1, m: 2}", "+params.t=0.8", "+params.x.y=z"]
    )
    assert options.params == {"t": 0.8, "m": 2, "x": {"y": "z"}}


def test_an_option_with_an_alias_is_read_only_under_its_alias() -> None:
    options, _ = read_options(ExampleOptions, ["+input_path=a", "+json=true"])
    assert options.json_output
    assert "unknown option 'json_output'" in error_message("+input_path=a", "+json_output=true")


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


def test_a_traceback_is_shown_only_with_debug(capsys: pytest.CaptureFixture[str]) -> None:
    exit_status(raising(RunError("stuck")), "+debug=false")
    assert "Traceback" not in capsys.readouterr().err
    exit_status(raising(RunError("stuck")), "+debug=true")
    assert "Traceback" in capsys.readouterr().err


def options(*arguments: str) -> ExampleOptions:
    return read_options(ExampleOptions, ["+input_path=a", *arguments])[0]


SPELLINGS = ("--pause-s 2", "--pause_s 2", "--pause-s=2", "--pause_s=2", "+pause_s=2", "+pause-s=2", "++pause_s=2")
FILES = ("--paths a b c", "a --paths b c", "--paths [a,b] c", "a --paths [b,c]", "--paths a,b -- c")
LISTS = ("--{} {}", "--{}={}", "+{}={}", "++{}={}", "{}={}")
TEXTS = ("a=b", "a,b", "it's", "f(x)", "007", "a b", "#1", "[x", "{y}", "--x")
WHERE = "reward < 0.5 and tag = 'x'"


@pytest.mark.parametrize(
    ("typed", "name", "value"),
    [
        *((typed.split(), "pause_s", 2.0) for typed in (*SPELLINGS, "pause_s=2")),
        *((typed.split(), "agent_name", "x") for typed in ("--agent x", "+agent=x")),
        *((f"--overwrite{typed}".split(), "overwrite", True) for typed in ("", " true", " --count 3", " rows.jsonl")),
        *((f"--overwrite{typed}".split(), "overwrite", False) for typed in (" false", "=false", " null")),
        *((typed.split(), "overwrite", False) for typed in ("--no-overwrite", "--overwrite --no_overwrite")),
        *((typed.split(), "count", 4) for typed in ("--count null", "+count=null", "+count=9 ~count")),
        (["--limit", "null"], "limit", None),
        (["b.jsonl", "--count", "3", "d/c=1.jsonl", "--paths", "f"], "paths", ("b.jsonl", "d/c=1.jsonl", "f")),
        *((typed.split(), "paths", ("a", "b", "c")) for typed in FILES),
        (["--count", "3", "--", "--b", "+c=1"], "paths", ("--b", "+c=1")),
        (["--pause-s", "-1"], "pause_s", -1.0),
        (["--agent-name=--count"], "agent_name", "--count"),
        *((["--agent-name", text], "agent_name", text) for text in TEXTS),
        *(([f"--agent-name={text}"], "agent_name", text) for text in TEXTS),
        (["--steps", "[1, 2]"], "steps", [1, 2]),
        (["--params", "{t: 1, m: [a, b]}", "--params.max-x", "3"], "params", {"t": 1, "m": ["a", "b"], "max_x": 3}),
        (["--params", '{"t": 1, "m": {"a": null}}'], "params", {"t": 1, "m": {"a": None}}),
        *((form.format("steps", "0,300").split(), "steps", [0, 300]) for form in LISTS),
        *((form.format("paths", "lr=0.1,007,1e3").split(), "paths", ("lr=0.1", "007", "1e3")) for form in LISTS),
        (["--paths", "'a,b',c"], "paths", ("a,b", "c")),
        (["--paths", "'a,b'"], "paths", ("a,b",)),
        (["--paths", "[b,", "c]", "d"], "paths", ("b", "c", "d")),
        (["--count", "2", "+count=3", "--count=5"], "count", 5),
        (["--steps", "1", "--steps", "2", "+steps=3"], "steps", [1, 2, 3]),
        (["+steps=[1,2]", "+steps=[3]"], "steps", [3]),
        *((typed, "where", WHERE) for typed in (["--where", WHERE], [f"--where={WHERE}"], [f"+where={WHERE}"])),
    ],
)
def test_an_option_is_read_as_it_is_meant(typed: list[str], name: str, value: Any) -> None:
    assert getattr(options(*typed), name) == value


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        *(([typed], "unknown option '--no-") for typed in ("--no-overwrite=true", "--no-count", "--no-overwrit")),
        (["--input-path", "null"], "--input-path is null"),
        *((["--input-path", "a", "--steps", value], "several values") for value in ("1,", ",", "1,,2")),
        (["--input-pth", "a"], "'--input-pth', did you mean '--input-path'?"),
        (["+input_pth=a"], "'input_pth' in '+input_pth=a', did you mean 'input_path'?"),
        (["--input-path", "a", "lr=1.jsonl"], "a file of this name is written ./lr=1.jsonl"),
        *((["--count", *more], "--count needs a value") for more in ([], ["--overwrite"], ["+overwrite=true"])),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_name(typed: list[str], message: str) -> None:
    assert message in error_message(*typed)


@pytest.mark.parametrize("name", ["-x.jsonl", "a,b"])
def test_a_file_may_begin_with_a_dash_and_contain_a_comma(name: str, here: Path) -> None:
    (here / name).touch()
    assert options(name).paths == (name,)


@pytest.mark.parametrize(
    "command",
    [
        *(
            "collect_rollouts",
            "compare",
            "gate",
            "init",
            "lm_eval",
            "notes",
            "prepare_data",
            "regrade",
            "reward_profile",
            "run",
        ),
        *("serve", "status", "track", "viewer", "doctor_tokens", "doctor_machine", "doctor"),
        "doctor_environment",
    ],
)
def test_null_is_the_default_of_every_option_in_every_form(command: str) -> None:
    model = options_of(command)
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


def test_help_is_printed_wherever_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(read_only, "rows.jsonl", "--count", "--help") == 0
    assert "--count" in capsys.readouterr().out


@pytest.mark.parametrize("typed", ["--api-key=sk-1234", "--api-key sk-1234", "+api_key=sk-1234"])
def test_a_secret_is_not_printed(typed: str) -> None:
    assert "sk-1234" not in error_message(*typed.split(), "--api-key.x", "1")


def script_parser(*, words: bool = False) -> ScriptParser:
    parser = ScriptParser(allow_abbrev=False)
    parser.add_argument("--learning-rate", type=float, default=0.5)
    parser.add_argument("--final-save", action="store_true")
    if words:
        parser.add_argument("words", nargs="*")
    return parser


RATES = ("--learning-rate {}", "--learning_rate {}", "--learning_rate={}", "--learning-rate={}", "+learning_rate={}")


@pytest.mark.parametrize("typed", [*RATES, "++learning-rate={}", "learning_rate={}", "learning-rate={}"])
def test_a_script_reads_an_option_however_it_is_written(typed: str) -> None:
    has_words = typed[0] in "-+"  # a script with words takes `key=value` for one of them
    assert script_parser(words=has_words).parse_args(typed.format("-1e-3").split()).learning_rate == -0.001


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        *((f"--final-save{typed}", True) for typed in ("", "=yes", " on", "=1")),
        *((f"--final-save{typed}", False) for typed in ("=0", " no", "=OFF", "=null")),
        *(("--no-final-save", False), ("+final_save=true", True)),
    ],
)
def test_a_script_reads_the_words_of_a_flag(typed: str, value: bool) -> None:
    assert script_parser().parse_args(typed.split()).final_save is value


@pytest.mark.parametrize("form", ["--{}", "+{}", "{}"])
def test_a_script_names_the_nearest_option_in_the_form_that_was_typed(form: str) -> None:
    meant = "learning-rate" if form == "--{}" else "learning_rate"
    with pytest.raises(OperatorError, match=re.escape(f"did you mean '{form.format(meant)}'")):
        script_parser().parse_args([form.format("learning_rat=1")])


def test_a_script_reads_null_and_other_overrides() -> None:
    parse = script_parser(words=True).parse_args
    assert parse(["--learning-rate", "null"]).learning_rate == 0.5
    assert parse(["a.b=3", "+c=4"]).words == ["a.b=3", "+c=4"]


TOKENS = {
    "": "is empty",
    f"play-{'0' * 64}": "is a play token",
    "tök€n-of-a-stack": "cannot send",
    "token-of-a-stack\n": "cannot send",
    "token\x1b[2J-of-a-stack": "cannot send",
    "token\0of-a-stack": "cannot send",
}


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_token_that_would_let_in_everybody_or_nobody_is_refused(token: str, host: str) -> None:
    for make in (lambda: listening_token(host, token, "it", "drop --host"), lambda: new_keys(token)):
        with pytest.raises(OperatorError, match=TOKENS[token]) as raised:
            make()
        assert not token or token not in str(raised.value)
