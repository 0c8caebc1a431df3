"""ForeignServers: the servers of a run that are not Rollyard's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rollyard.records.errors import OperatorError
from rollyard.records.run_types import Keys
from rollyard.services.config.references import servers_of
from rollyard.services.config.run_config import RunConfig, ServerSpec
from rollyard.services.config.venv import cache_folder
from rollyard.services.head.registry import ServerRegistry
from rollyard.services.http.transport import Transport
from rollyard.services.runtime.foreign.external_servers import ExternalServers
from rollyard.services.runtime.foreign.foreign_launcher import ForeignLauncher
from rollyard.services.runtime.foreign.launch_config import launch_config
from rollyard.services.runtime.launcher import Launcher


class ForeignServers:
    """Starts what runs here, and watches what runs elsewhere."""

    def __init__(
        self,
        config: RunConfig,
        registry: ServerRegistry,
        transport: Transport,
        *,
        environ: Mapping[str, str],
        folder: Path,
        print_line: Callable[[str], None],
        ready_timeout_s: float,
    ) -> None:
        self._config = config
        self._registry = registry
        self._transport = transport
        self._environ = environ
        self._folder = folder
        self._launcher: ForeignLauncher | None = None
        self.programs = [spec for spec in config.servers if spec.program is not None]
        self.external = ExternalServers(
            config.servers, registry, transport, print_line=print_line, ready_timeout_s=ready_timeout_s
        )

    def launcher(self, own: Launcher | None, head_url: str) -> Launcher | None:
        """Return a launcher for NeMo Gym's programs and, through `own`, for all other servers."""
        if not self.programs:
            return own
        self._launcher = ForeignLauncher(
            {spec.name: spec for spec in self.programs},
            launch_config(self._config, head_url),
            self._registry,
            self._transport,
            own,
            cache=cache_folder(self._environ),
            folder=self._folder,
            environ=self._environ,
        )
        return self._launcher

    async def stop(self) -> None:
        """Stop watching. Programs that run here are stopped by the supervisor."""
        await self.external.stop()
        if self._launcher is not None:
            await self._launcher.close()


def check_access(spec: ServerSpec, servers: Sequence[ServerSpec], keys: Keys) -> None:
    """Raise OperatorError if a program of NeMo Gym calls a server of this run that requires the run's token."""
    own = {other.name for other in servers if not other.is_foreign}
    if spec.program is not None and keys.token and (called := servers_of(spec, own)):
        raise OperatorError(
            f"{spec.name} calls {', '.join(called)}, but NeMo Gym's servers cannot send the run's token: drop the "
            "token (--token, ROLLYARD_TOKEN)"
        )


def refuse_programs(servers: Sequence[ServerSpec], option: str) -> None:
    """Raise OperatorError if NeMo Gym's programs are to run with an option under which they cannot."""
    if programs := [spec.name for spec in servers if spec.program is not None]:
        raise OperatorError(
            f"{', '.join(programs)}: NeMo Gym's servers start only on the host of the head, because they check no "
            f"token and need to know all addresses before the start: drop {option}, or start them yourself and give "
            "their url"
        )
