"""Finds out whose head is at a URL."""

from __future__ import annotations

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.run_types import HeadFile
from rollyard.services.head.identity import run_id_of
from rollyard.services.http.transport import HttpTransport
from rollyard.services.interop.nemo_gym.head import is_nemo_gym_head


async def identify_head(transport: HttpTransport, head: HeadFile, *, nemo_gym: bool) -> HeadFile:
    """Return `head` with the id of its run, or as the head of a NeMo Gym stack. Raises Failure if it is neither."""
    try:
        return head.model_copy(update={"run_id": await run_id_of(transport, head)})
    except Failure as failure:
        if nemo_gym and failure.kind is FailureKind.WRONG_RUN and await is_nemo_gym_head(transport, head.url):
            return head.model_copy(update={"stack": "nemo_gym", "token": None})
        raise
