"""Misspelt arguments are explained, with their correct form."""

from __future__ import annotations

import re
import shlex

import pytest

from rollyard.services.cli.collect_rollouts import CollectOptions
from rollyard.services.cli.lm_eval import LmEvalOptions
from rollyard.services.cli.options import Options, read_options
from rollyard.services.cli.run import RunOptions
from rollyard.services.config.overrides import parse_overrides
from rollyard.services.errors import OperatorError

PARSER_WORDS = re.compile(
    r"token recognition|mismatched input|extraneous input|no viable|missing EQUAL|<EOF>|<class|Exception|Error\b|antlr"
)
ODD = [
    *(
        "=#&;<>^`!()~\"'{}[],:$%*?|\\@ \t\n\x00",
        "ü",
        "“o”",
        "'",
        '"',
        "${",
        "${x y}",
        "[",
        "]]",
        "{a",
        "a}",
        "f(",
        "f(x)",
    ),
    *(
        "x y",
        "it's",
        "a=b",
        "a,b",
        "a,",
        ",a",
        "[a,,b]",
        "{a=1}",
        "{'a': 1}",
        '{"a": [1, {"b": null}]}',
        "a'b'c",
        "(a)",
    ),
    *("--x", "-", "C:\\a b\\", "2026-11-22T10:00", "12:30", "tag(x)", "int(x)", "choice()", "[" * 40, "\udcff"),
]


def refusal(model: type[Options], *arguments: str) -> str:
    with pytest.raises(OperatorError) as raised:
        read_options(model, arguments, rest=model is RunOptions)
    return str(raised.value)


def test_no_invalid_argument_shows_the_parsers_own_message() -> None:
    for odd in ODD:
        for text in (
            odd,
            f"+a={odd}",
            f"+a=x{odd}y",
            f"{odd}=1",
            f"+a=[{odd}]",
            f"+a={{k: {odd}}}",
            f"--{odd}",
            f"+{odd}",
        ):
            try:
                parse_overrides([text])
            except OperatorError as error:
                assert not PARSER_WORDS.search(str(error).replace(repr(text), "")), text
                assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("model", "typed", "meant"),
    [
        (RunOptions, "--config_paths a.yaml b.yaml", "'+config_paths=[a.yaml, b.yaml]'"),
        (RunOptions, "--config-paths=a.yaml", "+config_paths=a.yaml"),
        (RunOptions, "a.yaml b.yaml", "'+config_paths=[a.yaml, b.yaml]'"),
        (RunOptions, "+config_paths = a.yaml", "+config_paths=a.yaml"),
        (RunOptions, "+config_paths= a.yaml", "+config_paths=a.yaml"),
        (RunOptions, "+config_paths=a.yaml,b.yaml", "'+config_paths=[a.yaml,b.yaml]'"),
        (RunOptions, "'+config_paths=(a.yaml,b.yaml)'", "'+config_paths=[a.yaml, b.yaml]'"),
        (RunOptions, "+config_paths=[a.yaml", "'+config_paths=[a.yaml]'"),
        (RunOptions, "+config_paths=a.yaml --dry-run", "+dry_run=true"),
        (RunOptions, "+config_paths=a.yaml +dry_run", "+dry_run=true"),
        (RunOptions, "+config_paths:a.yaml", "+config_paths=a.yaml"),
        (RunOptions, "“+config_paths=a.yaml”", "+config_paths=a.yaml"),
        (CollectOptions, "--num-repeats 4", "+num_repeats=4"),
        (CollectOptions, "—limit 4", "+limit=4"),
        (CollectOptions, "--temperature 0.8", "+responses_create_params.temperature=0.8"),
        (CollectOptions, "+output_jsonl_fpath=my file", "'+output_jsonl_fpath=my file'"),
        (CollectOptions, "+agent_name=a=b", "'+agent_name=\"a=b\"'"),
        (CollectOptions, "+agent_name=a#b", "'+agent_name=\"a#b\"'"),
        (CollectOptions, "'+agent_name=f(x)'", "'+agent_name=\"f(x)\"'"),
        (CollectOptions, "'+responses_create_params={\"a\": 0.8}'", "'+responses_create_params={a: 0.8}'"),
        (CollectOptions, "'+responses_create_params={a=0.8}'", "'+responses_create_params={a: 0.8}'"),
    ],
)
def test_a_misspelt_argument_is_answered_with_its_correct_form(model: type[Options], typed: str, meant: str) -> None:
    told = refusal(model, *shlex.split(typed))
    assert f"; write {meant}" in told, told


def test_an_argument_that_is_suggested_can_be_read() -> None:
    for odd in ODD:
        try:
            parse_overrides([f"+a={odd}"])
        except OperatorError as error:
            _, wrote, meant = str(error).rpartition("; write ")
            if wrote:
                parse_overrides(shlex.split(meant))


def test_no_secret_is_in_a_suggestion() -> None:
    for arguments in (
        ["--token", "sk-1234="],
        ["+token=sk-1234,5"],
        ["+token=", "sk-1234"],
        ["+token", "=", "sk-1234"],
        ["+x={api_key: sk-1234"],
        ["+x={policy_api_key: 'sk-1234', b"],
        ["token:sk-1234"],
    ):
        assert "sk-1234" not in refusal(CollectOptions, *arguments), arguments


@pytest.mark.parametrize(
    "arguments",
    [
        ["+config_paths=a.yaml"],
        ["+config_paths=[a.yaml,]"],
        ["config_paths=[", "a.yaml", "]"],
    ],
)
def test_one_value_is_a_list_of_one(arguments: list[str]) -> None:
    assert read_options(RunOptions, arguments)[0].config_paths == ("a.yaml",)


def test_every_option_that_is_a_list_takes_one_value() -> None:
    options, _ = read_options(LmEvalOptions, ["+benchmarks=gsm8k:8", "+lm_eval_command=/opt/lm_eval", "+model=7"])
    assert (options.benchmarks, options.lm_eval_command, options.model) == (("gsm8k:8",), ("/opt/lm_eval",), "7")


def test_a_list_that_the_shell_split_at_its_spaces_is_joined_again() -> None:
    options, _ = read_options(RunOptions, ["+config_paths=[a.yaml,", "b.yaml,", "c", "d.yaml]", "+dry_run=true"])
    assert options.config_paths == ("a.yaml", "b.yaml", "c d.yaml") and options.dry_run


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/jürgen")
    options, _ = read_options(RunOptions, ["+config_paths=[~/a.yaml, '~/b.yaml']"])
    assert options.config_paths == ("/home/jürgen/a.yaml", "~/b.yaml")


def test_letters_of_every_language_need_no_quotes() -> None:
    (override,) = parse_overrides(["+a=größe/数据.jsonl"])
    assert override.value == "größe/数据.jsonl"


@pytest.mark.parametrize("typed", ["007", "1e3", "true", "1_000", "null_"])
def test_a_text_stays_as_it_was_typed(typed: str) -> None:
    options, _ = read_options(CollectOptions, ["+output_jsonl_fpath=o", f"+agent_name={typed}"])
    assert options.agent_name == typed


@pytest.mark.parametrize("value", ["", "${HOME}/x"])
def test_a_path_that_a_shell_should_have_filled_in_is_refused(value: str) -> None:
    assert "shell" in refusal(CollectOptions, f"+output_jsonl_fpath={value}")
