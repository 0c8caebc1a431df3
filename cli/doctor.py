"""ng_doctor: finds problems that would make a run fail, and suggests fixes."""

from __future__ import annotations

import sys
from typing import NoReturn

from rollyard.cli import doctor_environment as environment
from rollyard.cli import doctor_machine as machine
from rollyard.cli import doctor_sandbox as sandbox
from rollyard.cli import doctor_tokens as tokens
from rollyard.cli.options import run_command, wants_help
from rollyard.records.errors import did_you_mean
from rollyard.records.script import EXIT_USAGE
from rollyard.records.terminal import plain_output

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
