"""ng_doctor: finds problems that would make a run fail, and suggests fixes."""

from __future__ import annotations

import sys
from typing import NoReturn

from rollyard.cli.arguments.command_line import wants_help
from rollyard.cli.diagnostics import machine, sandbox, tokens
from rollyard.cli.diagnostics.environment import command as environment
from rollyard.cli.options import run_command
from rollyard.records.errors import did_you_mean
from rollyard.records.io.exit_status import EXIT_USAGE
from rollyard.records.io.terminal import plain_output

CHECKS = ("env", "sandbox", "tokens")


def main() -> None:
    """Entry point. The first argument can be the name of a check."""
    word, *arguments = sys.argv[1:] or [""]
    if word == "env":
        command, example = "ng_doctor env", environment.EXAMPLE
        run_command(command, environment.EnvironmentOptions, example, environment.run, arguments)
    if word == "tokens":
        run_command("ng_doctor tokens", tokens.TokenOptions, tokens.EXAMPLE, tokens.run, arguments)
    if word == "sandbox":
        command = "ng_doctor sandbox"
        run_command(command, sandbox.SandboxOptions, sandbox.EXAMPLE, sandbox.run, arguments)
    if word.isalpha() and word != "help" and not wants_help(arguments):
        _reject(word)
    given = ["--help" if argument == "help" else argument for argument in sys.argv[1:]]
    run_command("ng_doctor", machine.DoctorOptions, machine.EXAMPLE, machine.run, given)


def _reject(word: str) -> NoReturn:
    known = ", ".join(f"ng_doctor {check}" for check in CHECKS)
    message = f"unknown check {word!r}{did_you_mean(word, CHECKS)} (available: ng_doctor for this host, {known})"
    with plain_output():
        print(f"ng_doctor: {message}\nTry 'ng_doctor --help'.", file=sys.stderr)
    sys.exit(EXIT_USAGE)
