"""Reads the names of job states as SLURM's commands print them."""

from __future__ import annotations

from rollyard.launchers.slurm.job_types import JobState

_STATES = {
    **{state.value: state for state in JobState if state not in (JobState.REQUEUED, JobState.DRAINED)},
    **dict.fromkeys(
        ("CONFIGURING", "COMPLETING", "POWER_UP_NODE", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"),
        JobState.RUNNING,
    ),
    **dict.fromkeys(
        ("EXPEDITING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"), JobState.PENDING
    ),
    "LAUNCH_FAILED": JobState.FAILED,
    "RECONFIG_FAIL": JobState.FAILED,
}


def parse_state(text: str) -> JobState:
    """Parse a state as printed by squeue, sacct or scontrol: `RUNNING`, `CANCELLED by 1000`, `OUT_OF_ME+`.

    UNKNOWN for a name that this version does not know.
    """
    name = text.split(maxsplit=1)[0] if text.strip() else ""
    if name in _STATES:
        return _STATES[name]
    if name.endswith("+"):  # sacct shortens names to the width of its column
        matches = {state for full, state in _STATES.items() if full.startswith(name[:-1])}
        if len(matches) == 1:
            return matches.pop()
    return JobState.UNKNOWN
