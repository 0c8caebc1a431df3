"""All faults, in the order of the table."""

from __future__ import annotations

from tests.faults.chaos.fault import Fault
from tests.faults.chaos.faults import engines, inputs, mistakes, outputs, processes, terminal

FAULTS: list[Fault] = [
    *outputs.FAULTS,
    *inputs.FAULTS,
    *engines.FAULTS,
    *mistakes.FAULTS,
    *processes.FAULTS,
    *terminal.FAULTS,
]
