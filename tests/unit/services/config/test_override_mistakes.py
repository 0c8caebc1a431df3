"""Malformed arguments and secrets in arguments."""

from __future__ import annotations

import re

import pytest

from rollyard.cli.collect_rollouts import CollectOptions
from rollyard.cli.options import Options, read_options
from rollyard.cli.run import RunOptions, run
from rollyard.cli.status import StatusOptions
from rollyard.records.errors import OperatorError
from rollyard.services.config.overrides import parse_overrides, refuse_secrets, shown

PARSER_MESSAGE = re.compile(
    r"token recognition|mismatched input|extraneous input|no viable|missing EQUAL|<EOF>|<class|Exception|Error\b|antlr"
)
UNUSUAL_TEXTS = [
    *("=#&;<>^`!()~\"'{}[],:$%*?|\\@ \t\n\x00", "ü", "“o”", "'", '"', "${", "${x y}", "[", "]]", "{a", "a}", "f("),
    *("f(x)", "x y", "it's", "a=b", "a,b", "a,", ",a", "[a,,b]", "{a=1}", "{'a': 1}", '{"a": [1, {"b": null}]}'),
    *("a'b'c", "(a)", "--x", "-", "C:\\a b\\", "2026-11-22T10:00", "12:30", "tag(x)", "int(x)", "choice()"),
    *("[" * 40, "\udcff"),
]
UNUSUAL_ARGUMENTS = ("{}", "+a={}", "+a=x{}y", "{}=1", "+a=[{}]", "+a={{k: {}}}", "--{}", "+{}")


def error_message(model: type[Options], *arguments: str) -> str:
    with pytest.raises(OperatorError) as raised:
        read_options(model, arguments, rest=model is RunOptions)
    return str(raised.value)


def test_errors_never_show_the_parsers_own_message() -> None:
    for unusual in UNUSUAL_TEXTS:
        for text in (argument.format(unusual) for argument in UNUSUAL_ARGUMENTS):
            try:
                parse_overrides([text])
            except OperatorError as error:
                assert not PARSER_MESSAGE.search(str(error).replace(repr(text), "")), text
                assert "\n" not in str(error)


def test_errors_contain_no_secret() -> None:
    for arguments in (
        ["--token", "sk-1234="],
        ["+token=sk-1234,5"],
        ["+token=", "sk-1234"],
        ["+token", "=", "sk-1234"],
        ["+x={api_key: sk-1234"],
        ["+x={policy_api_key: 'sk-1234', b"],
        ["token:sk-1234"],
        ["+policy_api_key=sk-1234("],
        ["+policy_api_key=sk-1234,sk-5"],
    ):
        assert "sk-1234" not in error_message(CollectOptions, *arguments), arguments


@pytest.mark.parametrize(
    ("arguments", "paths"),
    [
        (["+config_paths=a.yaml"], ("a.yaml",)),
        (["+config_paths=[a.yaml,]"], ("a.yaml",)),
        (["config_paths=[", "a.yaml", "]", "+dry_run=false"], ("a.yaml",)),
        (["+config_paths=[a.yaml,", "b.yaml,", "c", "d.yaml]", "+dry_run=true"], ("a.yaml", "b.yaml", "c d.yaml")),
        (["+config_paths=[~/a.yaml, '~/b.yaml']"], ("/home/jürgen/a.yaml", "~/b.yaml")),
    ],
    ids=["single value", "trailing comma", "split at spaces", "split twice", "tilde"],
)
def test_a_list_is_read_as_users_write_it(
    arguments: list[str], paths: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/jürgen")
    assert read_options(RunOptions, arguments)[0].config_paths == paths


@pytest.mark.parametrize("typed", ["007", "1e3", "true", "1_000", "null_"])
def test_a_text_option_keeps_the_text_as_typed(typed: str) -> None:
    options, _ = read_options(CollectOptions, ["+output_jsonl_fpath=o", f"+agent_name={typed}"])
    assert options.agent_name == typed


@pytest.mark.parametrize("value", ["", "${HOME}/x"])
def test_a_path_with_an_unexpanded_shell_variable_is_rejected(value: str) -> None:
    assert "shell" in error_message(CollectOptions, f"+output_jsonl_fpath={value}")


EXPOSED = (
    "+policy_api_key=sk-1234",
    "++policy_model.responses_api_models.openai_model.default_headers.Authorization='Bearer sk-1234'",
    "++policy_model.responses_api_models.openai_model.default_headers={x-tenant: sk-1234}",
    "+env={HF_TOKEN: sk-1234}",
    "+policy_base_url='http://me:sk-1234@host/v1'",
    "+policy_base_url='http://host/v1?api_key=sk-1234'",
    "+extra_flags=[--hf-token,sk-1234]",
)


@pytest.mark.parametrize("text", EXPOSED)
def test_a_key_in_a_command_line_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(OperatorError, match="visible to all users") as raised:
        refuse_secrets([text])
    assert "sk-1234" not in str(raised.value) and "sk-1234" not in shown(text)


def test_a_placeholder_or_reference_in_a_command_line_is_no_key() -> None:
    harmless = ("dummy", "EMPTY", "'${oc.env:KEY}'")
    refuse_secrets([*(f"+policy_api_key={value}" for value in harmless), "+max_tokens=3", "~key"])


def test_a_run_token_in_a_command_line_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    options, _ = read_options(StatusOptions, ["+token=sk-1234-of-the-run"])
    assert options.token == "sk-1234-of-the-run"
    note = capsys.readouterr().err
    assert "ROLLYARD_TOKEN" in note and "sk-1234" not in note


def test_a_mistyped_option_next_to_the_servers_settings_is_named_as_it_was_typed() -> None:
    with pytest.raises(OperatorError, match="unknown option '--dry-rn', did you mean '--dry-run'"):
        run(["configs/sokoban_builtin.yaml", "--dry-rn"])


@pytest.mark.parametrize("arguments", [["+reload=true", "a.yaml"], ["--reload", "a.yaml"], ["a.yaml", "--reload"]])
def test_the_removed_option_reload_names_what_to_do_instead(arguments: list[str]) -> None:
    with pytest.raises(OperatorError, match=r"reload.*Ctrl-C"):
        run(arguments)
