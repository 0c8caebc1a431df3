"""What an agent and an environment say about a program that runs in the environment's box."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import Field

from rollyard.records.types import Record
from rollyard.services.sandbox.box import Box, BoxDied, BoxEntry, relayed

PATH = "/run_program"
"""POST a `BoxProgram` to run it, and an empty object to end it."""
FOLDER = "\0folder\0"
"""Stands for the box's working folder, which the agent does not know. No text of a task contains it."""


class BoxProgram(Record):
    program: tuple[str, ...] = Field(min_length=1)
    env: dict[str, str]
    files: dict[str, str]
    """Texts by their paths in the box."""
    endpoint: str
    """URL on this host of the one server that the program may call. In the other fields, it is replaced by its URL in
    the box."""
    time_limit_s: float = Field(gt=0)


class ProgramEnd(Record):
    status: int | None
    """Its exit status; None if it was ended."""
    output: str


async def run_program(box: Box, order: BoxProgram, workdir: str, env: dict[str, str], limit_s: float) -> ProgramEnd:
    """Run the program. Raises BoxRefused if the box cannot be connected with the endpoint."""
    address = urlsplit(order.endpoint)
    async with relayed(box, address.hostname or "", address.port or 80) as url:

        def filled(text: str) -> str:
            return text.replace(order.endpoint, url).replace(FOLDER, workdir)

        await box.put(
            [BoxEntry(path=path, kind="file", data=filled(text).encode()) for path, text in order.files.items()]
        )
        variables = {**env, **{name: filled(value) for name, value in order.env.items()}}
        try:
            result = await box.run(
                [filled(word) for word in order.program], cwd=workdir, env=variables, timeout_s=limit_s
            )
        except BoxDied as error:
            # It ended while it ran what the model wanted, so another attempt would be a second try.
            return ProgramEnd(status=-9, output=f"The box has ended: {error}")
    return ProgramEnd(status=None if result.timed_out else result.exit_code, output=result.output)
