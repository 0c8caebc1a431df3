"""ng_doctor: finds problems that would make a run fail, and suggests fixes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import orjson
import uvloop
from pydantic import Field

from rollyard.cli import doctor_environment as environment
from rollyard.cli import doctor_machine as machine
from rollyard.cli import doctor_tokens as tokens
from rollyard.cli.options import Options, read_options, run_command
from rollyard.records.errors import OperatorError
from rollyard.records.script import EXIT_DONE, EXIT_FAILED
from rollyard.services.sandbox.records import Layers, SandboxLimits
from rollyard.services.sandbox.sandbox import Sandbox

EXAMPLE = "ng_doctor sandbox"


class SandboxOptions(Options):
    python: str | None = None
    """Python interpreter for running answers, like an environment's sandbox_python setting; default: this one."""
    json_output: bool = Field(default=False, alias="json")
    """Print the isolation layers as JSON."""


def run(arguments: Sequence[str]) -> int:
    """Start the sandbox that the programming environments use, try to escape from it, and list its isolation layers.

    The exit status is 1 if no isolation works on this host.
    """
    options, _ = read_options(SandboxOptions, arguments)
    try:
        layers = uvloop.run(_start(options.python))
    except OperatorError as error:
        print(f"ng_doctor sandbox: {error}")
        return EXIT_FAILED
    print(
        orjson.dumps(layers.model_dump(), option=orjson.OPT_INDENT_2).decode()
        if options.json_output
        else format_layers(layers)
    )
    return EXIT_DONE


def format_layers(layers: Layers) -> str:
    lines = [f"untrusted code is contained by {layers.mode}; a test run succeeded and was contained", "active:"]
    lines += [f"  {layer}" for layer in layers.in_force]
    if layers.missing:
        lines += ["missing:", *(f"  {layer}" for layer in layers.missing)]
    return "\n".join(lines)


async def _start(python: str | None) -> Layers:
    sandbox = Sandbox(SandboxLimits(), python=python)
    try:
        await sandbox.start()
        return sandbox.layers
    finally:
        await sandbox.stop()


CHECKS: dict[str, tuple[type[Options], str, Callable[[Sequence[str]], int]]] = {
    "env": (environment.EnvironmentOptions, environment.EXAMPLE, environment.run),
    "sandbox": (SandboxOptions, EXAMPLE, run),
    "tokens": (tokens.TokenOptions, tokens.EXAMPLE, tokens.run),
}


def main() -> None:
    """Entry point. The first argument can be the name of a check."""
    word, *arguments = sys.argv[1:] or [""]
    if word in CHECKS:
        run_command(f"ng_doctor {word}", *CHECKS[word], arguments)
    given = ["--help" if argument == "help" else argument for argument in sys.argv[1:]]
    run_command("ng_doctor", machine.DoctorOptions, machine.EXAMPLE, machine.run, given)
