"""ng_doctor: looks for what would fail, and says how to mend it."""

from __future__ import annotations

import sys

from services.cli import doctor_sandbox, doctor_tokens
from services.cli.options import EXIT_DONE, EXIT_USAGE, run_command
from services.terminal import plain_output

CHECKS = {
    "sandbox": "which isolation of untrusted code works on this machine, and what is in force",
    "tokens": "whether multi-turn is contiguous with a model, its template and tool parser, and where it breaks",
}


def main() -> None:
    """Entry point: the first word names the check."""
    with plain_output():
        _main()


def _main() -> None:
    word, *arguments = sys.argv[1:] or ["--help"]
    if word == "tokens":
        run_command("ng_doctor tokens", doctor_tokens.TokenOptions, doctor_tokens.EXAMPLE, doctor_tokens.run, arguments)
    if word == "sandbox":
        command = "ng_doctor sandbox"
        run_command(command, doctor_sandbox.SandboxOptions, doctor_sandbox.EXAMPLE, doctor_sandbox.run, arguments)
    listed = "\n".join(f"  {name:<8} {text}" for name, text in CHECKS.items())
    usage = "ng_doctor CHECK [options]: looks for what would fail."
    told = f"{usage}\n\nChecks:\n{listed}\n\nng_doctor CHECK --help explains."
    if word in ("--help", "-h"):
        print(told)
        sys.exit(EXIT_DONE)
    print(f"ng_doctor: found no check {word!r}.\n{told}", file=sys.stderr)
    sys.exit(EXIT_USAGE)
