"""Every fault, in the order of the table."""

from __future__ import annotations

from tests.chaos import faults_inputs, faults_model, faults_outputs, faults_processes, faults_rows, faults_servers
from tests.chaos.fault import Fault

FAULTS: list[Fault] = [
    *faults_outputs.FAULTS,
    *faults_inputs.FAULTS,
    *faults_rows.FAULTS,
    *faults_model.FAULTS,
    *faults_processes.FAULTS,
    *faults_servers.FAULTS,
]
