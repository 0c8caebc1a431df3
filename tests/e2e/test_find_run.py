"""Which run a command uses: the one of this folder, the one that +head= names, or this user's on the default port."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollyard.records.errors import RunError
from rollyard.records.run_types import HeadFile, Keys
from rollyard.services.config.run_config import RunConfig
from rollyard.services.head.registry import ServerRegistry
from rollyard.services.head.server import Head
from rollyard.services.runtime.hosting import HostedServer
from rollyard.services.runtime.run_dir import HOME, RunFolder, find_run, without_repeats
from rollyard.services.server.app import Context
from rollyard.services.server.settings import ServerSettings
from tests.support.fixtures import http_transport, listening, make_client, unused_url

OTHER_USER = os.geteuid() + 4321


@contextlib.asynccontextmanager
async def running_head(
    folder: Path, run_id: str = "r1", token: str | None = None, *, private: bool = False
) -> AsyncIterator[HostedServer]:
    """The head of a run that was started in `folder`, registered there."""
    async with http_transport() as transport:
        keys = Keys(run_id=run_id, secret="s", token=token)
        context = Context("head", keys, make_client({}, transport))
        head = Head(ServerSettings(), context, ServerRegistry(run_id, (), {}), RunConfig((), {}), folder)
        async with listening(head) as hosted:
            head_file = HeadFile(
                run_id=run_id, url=hosted.url, pid=os.getpid(), folder=str(folder), token=token, private=private
            )
            RunFolder.create(folder, run_id).write_head(head_file)
            yield hosted


async def find(
    here: Path,
    head: str | None = None,
    token: str | None = None,
    default: str | None = None,
    owner: int | None = os.geteuid(),
) -> tuple[HeadFile, list[str]]:
    """The run that a command in `here` finds and its notes; every port of this machine is held by the user `owner`."""
    notes: list[str] = []
    async with http_transport() as transport:
        default = default or unused_url()
        return await find_run(
            transport, here, head, token, notes.append, default=default, listener=lambda address, port: owner
        ), notes


async def refusal(here: Path, default: str | None = None, owner: int | None = os.geteuid()) -> str:
    """The error of a command in `here` that finds no run."""
    with pytest.raises(RunError) as raised:
        await find(here, default=default, owner=owner)
    return str(raised.value)


async def finds_nothing(here: Path) -> None:
    assert "no running stack" in await refusal(here)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "elsewhere"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


async def test_this_users_run_on_the_default_port_is_used_and_a_note_names_its_id_and_folder(
    here: Path, elsewhere: Path
) -> None:
    async with running_head(elsewhere) as head:
        run, notes = await find(here, default=head.url)
    assert run.run_id == "r1" and len(notes) == 1 and "run r1" in notes[0] and str(elsewhere) in notes[0]


@pytest.mark.parametrize("below", [".", "results/x", "a/b/c/d"])
async def test_the_run_of_a_folder_is_found_in_it_and_below_it_where_a_note_names_that_folder(
    here: Path, below: str
) -> None:
    (here / below).mkdir(parents=True, exist_ok=True)
    async with running_head(here, token="t0ken") as head:
        run, notes = await find(here / below)
    assert (run.run_id, run.url, run.token) == ("r1", head.url, "t0ken")
    assert ["using run r1" in note and str(here) in note for note in notes] == ([] if below == "." else [True])


async def test_the_nearest_run_is_used_and_a_run_of_a_parent_comes_before_the_default_port(
    here: Path, elsewhere: Path
) -> None:
    (here / "below").mkdir()
    async with running_head(here, "parent"), running_head(here / "below", "own"), running_head(elsewhere, "x") as other:
        assert (await find(here / "below", default=other.url))[0].run_id == "own"
        (here / "below/below").mkdir()
        assert (await find(here / "below/below", default=other.url))[0].run_id == "own"
        (here / "beside").mkdir()
        assert (await find(here / "beside", default=other.url))[0].run_id == "parent"


async def test_the_private_run_of_an_evaluation_is_used_only_if_there_is_no_other_run(here: Path) -> None:
    (here / "below").mkdir()
    async with running_head(here / "below", "z-newest", private=True):
        assert (await find(here / "below"))[0].run_id == "z-newest"
        async with running_head(here / "below", "a-own"):
            assert (await find(here / "below"))[0].run_id == "a-own"
        async with running_head(here, "parent"):
            assert (await find(here / "below"))[0].run_id == "parent"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
async def test_another_users_head_file_is_not_read_in_this_folder_and_above(here: Path) -> None:
    (here / "below").mkdir()
    async with running_head(here):
        (head,) = (here / HOME).glob("*/head.json")
        os.chown(head, OTHER_USER, -1)
        await finds_nothing(here)
        await finds_nothing(here / "below")


async def test_without_a_default_only_runs_of_this_folder_or_above_are_found(here: Path, elsewhere: Path) -> None:
    async with running_head(elsewhere), http_transport() as transport:
        with pytest.raises(RunError, match="this folder"):
            await find_run(transport, here, None, None, default=None)


async def test_a_run_of_another_or_an_unknown_user_on_the_default_port_is_never_used(
    here: Path, elsewhere: Path
) -> None:
    async with running_head(elsewhere) as head:
        error = await refusal(here, head.url, OTHER_USER)
        assert f"belongs to user {OTHER_USER}" in error and "--head" in error
        assert "this user" in await refusal(here, head.url, None)  # its owner is unknown
        assert head.server.requests == 0


async def test_head_selects_any_run(here: Path, elsewhere: Path) -> None:
    async with running_head(elsewhere) as head:
        run, notes = await find(here, head=head.url.removeprefix("http://"), owner=OTHER_USER)
    assert (run.run_id, notes) == ("r1", [])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can open a socket as another user")
async def test_the_owner_of_a_listener_is_read_from_the_kernel_without_a_request(here: Path) -> None:
    os.seteuid(65534)
    try:
        stranger = socket.create_server(("127.0.0.1", 0))
    finally:
        os.seteuid(0)
    with stranger:
        for host in ("127.0.0.1", "localhost"):
            async with http_transport() as transport:
                default = f"http://{host}:{stranger.getsockname()[1]}"
                with pytest.raises(RunError, match="belongs to user"):
                    await find_run(transport, here, None, "t0ken", default=default)
        stranger.setblocking(False)
        with pytest.raises(BlockingIOError):
            stranger.accept()


async def test_a_token_is_not_sent_to_another_users_listener_on_the_port_of_a_stopped_run(here: Path) -> None:
    async with running_head(here, token="t0ken") as head:
        error = await refusal(here, owner=OTHER_USER)
        assert head.server.requests == 0
    assert f"belongs to user {OTHER_USER}" in error


async def test_a_stale_head_file_whose_port_now_belongs_to_another_run_is_skipped(here: Path, elsewhere: Path) -> None:
    async with running_head(elsewhere, "new") as head:
        stale = HeadFile(run_id="old", url=head.url, pid=os.getpid(), folder=str(here))
        RunFolder.create(here, "old").write_head(stale)
        assert "(new)" in await refusal(here)


async def test_a_link_into_the_run_of_another_folder_is_not_followed(here: Path, elsewhere: Path) -> None:
    async with running_head(elsewhere):
        (here / ".rollyard").symlink_to(elsewhere / ".rollyard")
        await finds_nothing(here)


async def test_a_rollyard_folder_that_is_a_link_to_another_place_works(here: Path, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (here / ".rollyard").symlink_to(tmp_path / "scratch")
    async with running_head(here):
        assert (await find(here))[0].run_id == "r1"


async def test_a_folder_renamed_during_its_run_still_finds_it(here: Path, tmp_path: Path) -> None:
    async with running_head(here):
        moved = here.rename(tmp_path / "moved")
        assert (await find(moved))[0].run_id == "r1"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
async def test_a_run_of_this_user_in_a_shared_folder_is_found(here: Path) -> None:
    async with running_head(here):
        for shared in (here, here / ".rollyard", here / HOME):
            os.chown(shared, OTHER_USER, -1)
        assert (await find(here))[0].run_id == "r1"


async def test_a_head_file_that_is_a_link_or_a_pipe_is_not_read(here: Path) -> None:
    async with running_head(here):
        (head,) = (here / HOME).glob("*/head.json")
        copied = head.rename(here / "copy.json")
        head.symlink_to(copied)
        await finds_nothing(here)
        head.unlink()
        os.mkfifo(head)
        await finds_nothing(here)


async def test_a_note_is_printed_once_even_if_the_search_is_repeated() -> None:
    notes: list[str] = []
    note = without_repeats(notes.append)
    for text in ("a", "a", "b", "a"):
        note(text)
    assert notes == ["a", "b"]


def write_killed_run(folder: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    head_file = HeadFile(run_id="r0", url=unused_url(), pid=ended.pid, folder=str(folder))
    RunFolder.create(folder, "r0").write_head(head_file)


async def test_a_killed_run_of_this_folder_is_named_whether_or_not_another_run_is_used(
    here: Path, elsewhere: Path
) -> None:
    write_killed_run(here)
    killed = "run r0, which was started from this folder, was killed"
    assert killed in await refusal(here)
    async with running_head(elsewhere) as head:
        _, notes = await find(here, default=head.url)
    assert len(notes) == 1 and str(elsewhere) in notes[0] and killed in notes[0]
