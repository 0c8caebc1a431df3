"""Stacks whose policy is a real vLLM on the CPU. They run in a thread of their own, so that a trainer may block."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rollyard.records.data_files import INSTALLED
from rollyard.records.run_types import Keys
from rollyard.records.types import Json
from rollyard.services.config.run_config import RunConfig
from rollyard.services.head.registry_client import RegistryClient, StackClients
from rollyard.services.http.client import AddressBook, ServerClient
from rollyard.services.http.transport import HttpTransport
from rollyard.services.runtime.stack import Stack
from rollyard.training.training_stack import TrainingStack
from tests.external.vllm.calls import CALL
from tests.external.vllm.engine import Engine
from tests.support.background_loop import background_loop
from tests.support.stacks import colocated, load_config

POLICY = "policy_model"
SOKOBAN = "resources_servers/grl_sokoban/configs/grl_sokoban.yaml"
TOKEN = "the run's token"
FORCED_CALLS: Json = {"strict_tools": False, "extra_body": {"structured_outputs": {"regex": CALL}}}
"""Settings of the model server with which random weights make valid calls of Sokoban's tool. The turns then record
that a grammar constrained them."""


@dataclass(frozen=True)
class ServedStack:
    """A running stack, for clients on any event loop."""

    stack: Stack

    @property
    def head(self) -> str:
        """HOST:PORT, as `TrainConfig.head` expects it; the run token is TOKEN."""
        return self.stack.head_url.removeprefix("http://")

    @property
    def policy_url(self) -> str:
        (url,) = self.stack.registry.directory().servers[POLICY]
        return url

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[TrainingStack]:
        transport = HttpTransport()
        keys = Keys(run_id=self.stack.keys.run_id, secret="", token=TOKEN)
        registry = RegistryClient(transport, self.stack.head_url, keys)
        client = ServerClient(transport, keys, AddressBook(registry.directory))
        try:
            yield TrainingStack(StackClients(client, registry), self.policy_url, TOKEN, frozenset({POLICY}))
        finally:
            await transport.close()


@contextlib.contextmanager
def served(config: RunConfig, folder: Path) -> Iterator[ServedStack]:
    """Start all servers of a config in one thread of this process."""
    with background_loop() as run:
        started = colocated(config, folder, token=TOKEN)
        stack = run(started.__aenter__())
        try:
            yield ServedStack(stack)
        finally:
            run(started.__aexit__(None, None, None))


def engine_config(
    engine: Engine, folder: Path, *, environments: Sequence[str] = (SOKOBAN,), roots: Sequence[Path] = (), **policy: Any
) -> RunConfig:
    """Return a config of these environments, with the engine as their policy. `policy`: settings of its model server,
    such as those of FORCED_CALLS.
    """
    settings = {
        "entrypoint": "app.py",
        "base_url": f"{engine.url}/v1",
        "model": "tiny",
        "uses_reasoning_parser": False,
        "return_token_id_information": True,
        "trainer_endpoints": True,
        **policy,
    }
    files = [next(path for root in (*roots, INSTALLED) if (path := root / name).is_file()) for name in environments]
    tree = OmegaConf.merge(*map(OmegaConf.load, files), {POLICY: {"responses_api_models": {"vllm_model": settings}}})
    plain: Any = OmegaConf.to_container(tree)
    return load_config(config=plain, tmp_path=folder, roots=roots)
