"""Every fault, in the order of the table."""

from __future__ import annotations

from tests.chaos.fault import Fault
from tests.chaos.faults import (
    callers,
    endpoints,
    engines,
    hostile_answers,
    inputs,
    mistakes,
    outputs,
    processes,
    rows,
    strangers,
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
    *hostile_answers.FAULTS,
    *callers.FAULTS,
    *strangers.FAULTS,
    *terminal.FAULTS,
]
