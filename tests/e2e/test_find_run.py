"""Which run a command talks to: this folder's, the one that +head= names, or this user's on the default port."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollyard.services.cli.find_run import find_run, once
from rollyard.services.config.load import RunConfig
from rollyard.services.errors import RunError
from rollyard.services.head.registry import ServerRegistry
from rollyard.services.head.server import Head
from rollyard.services.run_types import HeadFile, Keys
from rollyard.services.runtime.hosting import HostedServer
from rollyard.services.runtime.run_dir import HOME, RunFolder
from rollyard.services.server.app import Context
from rollyard.services.server.settings import ServerSettings
from tests.support.fixtures import client_of, closed_port, listening, network

OTHER = os.geteuid() + 4321


@contextlib.asynccontextmanager
async def a_head(folder: Path, run_id: str = "r1", token: str | None = None) -> AsyncIterator[HostedServer]:
    """The head of a run that was started in `folder`, registered there."""
    async with network() as transport:
        keys = Keys(run_id=run_id, secret="s", token=token)
        context = Context("head", keys, client_of({}, transport))
        head = Head(ServerSettings(), context, ServerRegistry(run_id, (), {}), RunConfig((), {}), folder)
        async with listening(head) as hosted:
            told = HeadFile(run_id=run_id, url=hosted.url, pid=os.getpid(), folder=str(folder), token=token)
            RunFolder.create(folder, run_id).write_head(told)
            yield hosted


async def found(
    here: Path,
    head: str | None = None,
    token: str | None = None,
    default: str | None = None,
    owner: int | None = os.geteuid(),
) -> tuple[HeadFile, list[str]]:
    """What a command in `here` finds, and what it says; `owner`: of what listens on any port of this machine."""
    said: list[str] = []
    async with network() as transport:
        default = default or closed_port()
        return await find_run(
            transport, here, head, token, said.append, default=default, listener=lambda address, port: owner
        ), said


async def refusal(here: Path, default: str | None = None, owner: int | None = os.geteuid()) -> str:
    """Why a command in `here` finds no run."""
    with pytest.raises(RunError) as raised:
        await found(here, default=default, owner=owner)
    return str(raised.value)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "elsewhere"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


async def test_the_run_of_this_folder_is_found_without_a_word(here: Path) -> None:
    async with a_head(here, token="t0ken") as head:
        run, said = await found(here)
    assert (run.run_id, run.url, run.token, said) == ("r1", head.url, "t0ken", [])


async def test_this_users_run_on_the_default_port_is_taken_and_its_id_and_folder_are_said(
    here: Path, elsewhere: Path
) -> None:
    async with a_head(elsewhere) as head:
        run, said = await found(here, default=head.url)
    assert run.run_id == "r1" and len(said) == 1 and "run r1" in said[0] and str(elsewhere) in said[0]


async def test_without_a_default_only_runs_of_this_folder_are_found(here: Path, elsewhere: Path) -> None:
    async with a_head(elsewhere), network() as transport:
        with pytest.raises(RunError, match="no run was started from this folder"):
            await find_run(transport, here, None, None, default=None)


async def test_another_users_run_on_the_default_port_is_never_taken(here: Path, elsewhere: Path) -> None:
    async with a_head(elsewhere) as head:
        why = await refusal(here, head.url, OTHER)
        assert head.server.requests == 0
    assert f"belongs to user {OTHER}" in why and "+head=" in why


async def test_a_listener_whose_owner_is_unknown_is_not_taken(here: Path, elsewhere: Path) -> None:
    async with a_head(elsewhere) as head:
        assert "no server of this user listens there" in await refusal(here, head.url, None)
        assert head.server.requests == 0


async def test_head_names_any_run(here: Path, elsewhere: Path) -> None:
    async with a_head(elsewhere) as head:
        run, said = await found(here, head=head.url.removeprefix("http://"), owner=OTHER)
    assert (run.run_id, said) == ("r1", [])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can open a socket as another user")
async def test_the_kernel_says_whose_the_listener_is_and_not_its_answer(here: Path) -> None:
    os.seteuid(65534)
    try:
        stranger = socket.create_server(("127.0.0.1", 0))
    finally:
        os.seteuid(0)
    with stranger:
        for host in ("127.0.0.1", "localhost"):
            async with network() as transport:
                default = f"http://{host}:{stranger.getsockname()[1]}"
                with pytest.raises(RunError, match="belongs to user"):
                    await find_run(transport, here, None, "t0ken", default=default)
        stranger.setblocking(False)
        with pytest.raises(BlockingIOError):
            stranger.accept()


async def test_a_token_is_not_sent_to_what_listens_on_the_port_of_a_run_that_is_over(here: Path) -> None:
    async with a_head(here, token="t0ken") as head:
        why = await refusal(here, owner=OTHER)
        assert head.server.requests == 0
    assert f"belongs to user {OTHER}" in why


async def test_a_stale_head_file_whose_port_another_run_has_now_is_passed_over(here: Path, elsewhere: Path) -> None:
    async with a_head(elsewhere, "new") as head:
        stale = HeadFile(run_id="old", url=head.url, pid=os.getpid(), folder=str(here))
        RunFolder.create(here, "old").write_head(stale)
        assert "another run (new) now" in await refusal(here)


async def test_a_link_into_the_run_of_another_folder_is_not_followed(here: Path, elsewhere: Path) -> None:
    async with a_head(elsewhere):
        (here / ".rollyard").symlink_to(elsewhere / ".rollyard")
        assert "no running stack found" in await refusal(here)


async def test_a_folder_of_ours_that_is_kept_elsewhere_behind_a_link_works(here: Path, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (here / ".rollyard").symlink_to(tmp_path / "scratch")
    async with a_head(here):
        assert (await found(here))[0].run_id == "r1"


async def test_a_folder_that_was_renamed_while_its_run_goes_on_still_finds_it(here: Path, tmp_path: Path) -> None:
    async with a_head(here):
        moved = here.rename(tmp_path / "moved")
        assert (await found(moved))[0].run_id == "r1"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
async def test_another_users_head_file_is_not_read(here: Path) -> None:
    async with a_head(here):
        (head,) = (here / HOME).glob("*/head.json")
        os.chown(head, OTHER, -1)
        assert "no running stack found" in await refusal(here)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
async def test_a_run_of_ours_in_a_folder_that_several_users_share_is_found(here: Path) -> None:
    async with a_head(here):
        for shared in (here, here / ".rollyard", here / HOME):
            os.chown(shared, OTHER, -1)
        assert (await found(here))[0].run_id == "r1"


async def test_a_head_file_that_is_a_link_or_a_pipe_is_not_read(here: Path) -> None:
    async with a_head(here):
        (head,) = (here / HOME).glob("*/head.json")
        copied = head.rename(here / "copy.json")
        head.symlink_to(copied)
        assert "no running stack found" in await refusal(here)
        head.unlink()
        os.mkfifo(head)
        assert "no running stack found" in await refusal(here)


async def test_a_sentence_is_said_once_to_who_looks_again() -> None:
    said: list[str] = []
    tell = once(said.append)
    for text in ("a", "a", "b", "a"):
        tell(text)
    assert said == ["a", "b"]
