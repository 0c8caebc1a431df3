"""All faults, in the order of the table."""

from __future__ import annotations

from tests.faults.chaos.fault import Fault
from tests.faults.chaos.faults import (
    callers,
    endpoints,
    engines,
    foreign_callers,
    hostile_responses,
    inputs,
    mistakes,
    outputs,
    processes,
    rows,
    terminal,
)

FAULTS: list[Fault] = [
    *outputs.FAULTS,
    *inputs.FAULTS,
    *rows.FAULTS,
    *engines.FAULTS,
    *endpoints.FAULTS,
    *mistakes.FAULTS,
    *processes.FAULTS,
    *hostile_responses.FAULTS,
    *callers.FAULTS,
    *foreign_callers.FAULTS,
    *terminal.FAULTS,
]
