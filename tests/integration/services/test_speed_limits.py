"""What a collection learns from the head about the processes of its servers."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from rollyard.records.activity import Collection
from rollyard.records.errors import OperatorError
from rollyard.records.run_types import Directory, ServerCode
from rollyard.services.datasets.mixture import TaskFile
from rollyard.services.head.registry_client import Registry, StackClients
from rollyard.services.rollouts.collection import CollectionPlan, OpenCollection
from rollyard.services.rollouts.collector import CollectionLimits
from tests.support.stacks import AGENT, EXAMPLES, colocated, load_config

BUSY = "policy_model limits the speed: its process uses 93% of a core; set replicas: 2 (or auto) for it"


class BusyHead:
    """The head of a run, as if one of its servers and one that the rows do not reach were busy."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def directory(self) -> Directory:
        directory = await self._registry.directory()
        return directory.model_copy(update={"bottlenecks": {"policy_model": BUSY, "other": "other limits the speed"}})

    async def code(self) -> dict[str, ServerCode]:
        return await self._registry.code()

    async def report_collection(self, collection: Collection) -> None:
        await self._registry.report_collection(collection)


@pytest.mark.parametrize("is_command", [True, False])
async def test_a_busy_server_that_the_rows_reach_is_reported_once_by_the_command_and_kept_for_the_summary(
    tmp_path: Path, is_command: bool
) -> None:
    lines: list[str] = []
    async with colocated(load_config(), tmp_path) as stack:
        clients = StackClients(stack.client, BusyHead(stack.registry_client()))
        plan = CollectionPlan(tmp_path / "out.jsonl", AGENT, merges=is_command)
        async with OpenCollection.opened(plan, TaskFile(EXAMPLES, agent=AGENT, limit=None), clients) as collection:
            await collection.run(print_line=lines.append)
    assert collection.bottlenecks == {"policy_model": BUSY}
    assert lines.count(f"note: {BUSY}") == is_command and not any("other limits" in line for line in lines)


async def test_every_process_tells_the_head_how_many_files_it_may_open(tmp_path: Path) -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with colocated(load_config(), tmp_path) as stack:
        clients = StackClients(stack.client, stack.registry_client())
        plan = CollectionPlan(tmp_path / "out.jsonl", AGENT, limits=CollectionLimits(parallel=limit))
        directory = await clients.registry.directory()
        assert directory.open_files == dict.fromkeys(directory.servers, limit)
        with pytest.raises(OperatorError, match=rf"may open {limit} files in its process.*set replicas: \d for it"):
            async with OpenCollection.opened(plan, TaskFile(EXAMPLES, agent=AGENT, limit=None), clients):
                pass


async def test_every_server_of_a_run_accepts_channels_according_to_the_directory(tmp_path: Path) -> None:
    async with colocated(load_config(), tmp_path) as stack:
        directory = await stack.registry_client().directory()
    assert directory.channels == {url for urls in directory.servers.values() for url in urls}
