"""Writes the report of an evaluation with `ng_reward_profile`."""

from __future__ import annotations

from collections.abc import Mapping

from rollyard.launchers.evaluation.pipeline import commands
from rollyard.launchers.evaluation.pipeline.plan import EvalPlan
from rollyard.records.errors import RunError
from rollyard.records.io.exit_status import EXIT_DONE
from rollyard.services.config.overrides.command_line import title
from rollyard.services.runtime.programs.program import Program
from rollyard.services.runtime.programs.program_errors import ended_badly


async def write_report(plan: EvalPlan, environ: Mapping[str, str]) -> str:
    """Write the report and return its summary. Raises RunError if it cannot be written."""
    command = commands.report_command(plan)
    process = await Program.start(
        "ng_reward_profile", command, plan.folder.report_log, environ, plan.here, title(command)
    )
    try:
        if await process.ended != EXIT_DONE:
            raise RunError(ended_badly(process))
    finally:
        if process.running:
            process.kill()
            await process.ended
    return process.printed().rstrip("\n")
