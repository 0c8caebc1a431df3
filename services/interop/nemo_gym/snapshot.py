"""Shows the servers of a NeMo Gym stack in the format of `ng_status`."""

from __future__ import annotations

import asyncio
import time

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.run_types import HeadFile, ServerInstance
from rollyard.services.config.server_folders import ALIASES
from rollyard.services.head.run_snapshot import RunSnapshot
from rollyard.services.http.transport import Transport
from rollyard.services.interop.nemo_gym.head import NemoGymHead, NemoGymProcess

PROBE_DEADLINE_S = 2.0


async def fetch_nemo_gym_snapshot(transport: Transport, head: HeadFile) -> RunSnapshot:
    """Fetch the list of servers and probe each one. Raises Failure if the head does not respond.

    A server is ready if it responds to `GET /` with any status, because only liveness can be read from it.
    """
    processes = await NemoGymHead(transport, head.url).processes()
    servers = await asyncio.gather(*(_instance(transport, process) for process in processes))
    return RunSnapshot(stack="nemo_gym", head=head.url, time=time.time(), servers=list(servers))


async def _instance(transport: Transport, process: NemoGymProcess) -> ServerInstance:
    ready, timed_out = False, False
    if process.url is not None:
        try:
            await transport.send("GET", f"{process.url}/", b"", {}, PROBE_DEADLINE_S)
            ready = True
        except Failure as failure:
            timed_out = failure.kind is FailureKind.TIMEOUT
    return ServerInstance(
        process_name=process.process_name,
        server_type=ALIASES.get(process.server_type, process.server_type),
        name=process.name,
        server_name=process.process_name,
        dir_path=process.dir_path or "",
        entrypoint=process.entrypoint or "",
        host=process.host,
        port=process.port,
        pid=process.pid,
        config_path=process.process_name,
        url=process.url,
        status="success" if ready else "timeout" if timed_out else "connection_error",
        start_time=process.start_time or 0.0,
        uptime_seconds=time.time() - process.start_time if process.start_time and ready else 0.0,
        ready=ready,
        requests=0,
        in_flight=0,
        sessions=0,
        restarts=0,
    )
