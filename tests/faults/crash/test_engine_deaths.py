"""An engine started by the run, with a fake vLLM: if any process dies, none is left, and the engine restarts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import RunError
from rollyard.responses_api_models.local_vllm_model import engine_process
from tests.support.local_engines import MARK, engine_harness, marked_processes, wait_until_gone
from tests.support.processes import alive, parent_of
from tests.support.waiting import deadline_s


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def crash(folder: Path, text: str) -> str:
    """A file with the last lines of a vLLM that ends with them."""
    path = folder / "crash.txt"
    path.write_text(text)
    return str(path)


async def test_a_running_engine_answers_every_caller_with_its_key(tmp_path: Path) -> None:
    async with engine_harness(tmp_path) as engine_bench:
        await engine_bench.engine.start()
        (url,) = engine_bench.up
        assert url == f"http://127.0.0.1:{engine_bench.started(1)['port']}/v1"
        transport = engine_bench.plan.transport
        for key, status in (("a key", 200), ("a guess", 401)):
            headers = {"authorization": f"Bearer {key}"}
            answer = await transport.send("POST", f"{url}/chat/completions", b"{}", headers, deadline_s())
            assert answer.status == status


async def test_stopping_ends_processes_that_ignore_sigterm(tmp_path: Path) -> None:
    async with engine_harness(tmp_path) as engine_bench:
        await engine_bench.engine.start()
        # reaper, API server, EngineCore, Worker, resource tracker
        assert len(list(marked_processes(engine_bench.mark))) == 5
        await engine_bench.engine.stop()
        assert list(marked_processes(engine_bench.mark)) == []
        assert engine_bench.down == engine_bench.up


@pytest.mark.parametrize("victim", ["api", "core", "worker", "reaper"])
async def test_kill_9_of_any_process_leaves_nothing_and_the_engine_restarts(victim: str, tmp_path: Path) -> None:
    async with engine_harness(tmp_path) as engine_bench:
        await engine_bench.engine.start()
        first, reaper = engine_bench.started(1), engine_bench.reaper_pid()
        kill(reaper if victim == "reaper" else first[victim])
        await engine_bench.wait_until_up(2)
        assert not any(alive(pid) for pid in (reaper, first["api"], first["core"], first["worker"]))
        assert not (Path("/dev/shm") / first["memory"]).exists()
        assert engine_bench.down == engine_bench.up[:1]
        assert engine_bench.up[0] != engine_bench.up[1]


async def test_an_api_server_that_closes_its_port_before_it_ends_is_dead(tmp_path: Path) -> None:
    async with engine_harness(tmp_path, environment={"FAKE_CLOSES": "1"}) as engine_bench:
        await engine_bench.engine.start()
        kill(engine_bench.started(1)["core"])
        await engine_bench.wait_until_up(2)
        assert not alive(engine_bench.started(1)["api"])


SERVER = """
import asyncio, pathlib, sys
from tests.support.local_engines import EngineHarness
from tests.support.waiting import deadline_s
from rollyard.services.http.transport import HttpTransport

async def main():
    made = EngineHarness(pathlib.Path(sys.argv[1]), HttpTransport(), environment={sys.argv[2]: sys.argv[3]})
    await made.engine.start()
    print("up", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("with_reaper", [False, True], ids=["the server", "the server and the reaper at once"])
async def test_kill_9_of_the_engines_owner_leaves_nothing(with_reaper: bool, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVER, str(tmp_path), MARK, tmp_path.name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=INSTALLED) as server:
        assert server.stdout is not None
        assert await asyncio.to_thread(server.stdout.readline) == b"up\n"
        started = json.loads((tmp_path / "notes/start-1.json").read_text())
        if with_reaper:
            reaper = parent_of(started["api"])
            os.kill(reaper, signal.SIGSTOP)  # it must not notice that the server dies first
            kill(server.pid)
            kill(reaper)
        else:
            kill(server.pid)
    await wait_until_gone(tmp_path.name)
    assert not (Path("/dev/shm") / started["memory"]).exists()


async def test_an_environments_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text(
        "import os, sys; print('my own was run', os.environ['ROLLYARD_ENGINE'], file=sys.stderr)"
    )
    async with engine_harness(tmp_path, environment={"PYTHONPATH": str(own)}) as engine_bench:
        await engine_bench.engine.start()
        assert f"my own was run {engine_bench.folder()}" in engine_bench.plan.log_file.read_text()


def _sleeper(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "3600"], env={**os.environ, engine_process.MARK: str(folder)})


async def test_a_process_whose_reaper_has_exited_is_ended_when_a_server_starts_and_no_other(tmp_path: Path) -> None:
    gone = tmp_path / "rollyard-engine-gone"
    gone.mkdir()
    (gone / "alive").touch()
    async with engine_harness(tmp_path) as engine_bench:
        await engine_bench.engine.start()
        with _sleeper(gone) as orphan, _sleeper(engine_bench.folder()) as running:
            assert orphan.pid in engine_process.end_orphans()
            assert orphan.wait() == -signal.SIGKILL
            assert running.poll() is None
            running.kill()


async def test_only_the_folders_of_dead_engines_are_removed_and_not_of_starting_ones(tmp_path: Path) -> None:
    old, young = tmp_path / "rollyard-engine-old", tmp_path / "rollyard-engine-young"
    async with engine_harness(tmp_path) as engine_bench:
        await engine_bench.engine.start()
        for folder in (old, young):
            folder.mkdir()
            (folder / "alive").touch()
        for folder in (old, engine_bench.folder()):
            os.utime(folder, (0, 0))
        engine_process.remove_folders(tmp_path)
        engine_process.remove_folders(engine_bench.folder().parent)
        assert (old.exists(), young.exists(), engine_bench.folder().exists()) == (False, True, True)


OUT_OF_MEMORY = """\
(EngineCore pid=2) ERROR 11-21 19:26:09 [core.py:1201] EngineCore failed to start.
(EngineCore pid=2) ERROR 11-21 19:26:09 [core.py:1201] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate ...
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.
"""


async def test_a_first_start_that_fails_names_phase_cause_and_log(tmp_path: Path) -> None:
    fails = {"FAKE_FAILS": crash(tmp_path, OUT_OF_MEMORY)}
    async with engine_harness(tmp_path, environment=fails) as engine_bench:
        with pytest.raises(RunError) as raised:
            await engine_bench.engine.start()
        assert list(marked_processes(engine_bench.mark)) == []
        assert engine_bench.up == []
    for named in ("engine 0", "max_model_len", "  | (APIServer pid=1) RuntimeError", str(engine_bench.plan.log_file)):
        assert named in str(raised.value)


async def test_a_failed_restart_is_retried(tmp_path: Path) -> None:
    fails = {"FAKE_FAILS": crash(tmp_path, OUT_OF_MEMORY), "FAKE_FAILS_AT": "2,3"}
    async with engine_harness(tmp_path, environment=fails) as engine_bench:
        await engine_bench.engine.start()
        kill(engine_bench.started(1)["api"])
        await engine_bench.wait_until_up(2)
        assert engine_bench.started(4)["api"]


async def test_an_engine_that_rejects_the_weights_is_ended_and_restarted(tmp_path: Path) -> None:
    async with engine_harness(tmp_path) as engine_bench:
        await engine_bench.engine.start()
        engine_bench.refusals = 1
        kill(engine_bench.started(1)["api"])
        await engine_bench.wait_until_up(2)
        assert not alive(engine_bench.started(2)["api"])
        assert engine_bench.up[1] == f"http://127.0.0.1:{engine_bench.started(3)['port']}/v1"


async def test_a_port_that_was_taken_meanwhile_is_not_a_failure(tmp_path: Path) -> None:
    fails = {"FAKE_FAILS": crash(tmp_path, "OSError: [Errno 98] Address already in use"), "FAKE_FAILS_AT": "1"}
    async with engine_harness(tmp_path, environment=fails) as engine_bench:
        await engine_bench.engine.start()
        assert engine_bench.started(2)["api"]


async def test_an_engine_that_never_becomes_ready_is_abandoned_and_ended(tmp_path: Path) -> None:
    async with engine_harness(tmp_path, environment={"FAKE_HANGS": "1"}, start_timeout_s=3.0) as engine_bench:
        with pytest.raises(RunError, match=r"start_timeout_s=3 .*the API server"):
            await engine_bench.engine.start()
        assert list(marked_processes(engine_bench.mark)) == []


async def test_an_engine_that_hangs_is_restarted_once_it_has_been_silent_for_too_long(tmp_path: Path) -> None:
    async with engine_harness(tmp_path, health_timeout_s=1.0) as engine_bench:
        await engine_bench.engine.start()
        os.kill(engine_bench.started(1)["api"], signal.SIGSTOP)
        await engine_bench.wait_until_up(2)


async def test_an_interrupted_start_leaves_nothing(tmp_path: Path) -> None:
    async with engine_harness(tmp_path, environment={"FAKE_HANGS": "1"}) as engine_bench:
        starting = asyncio.create_task(engine_bench.engine.start())
        while not list(marked_processes(engine_bench.mark)):
            await asyncio.sleep(0.01)
        starting.cancel()
        await engine_bench.engine.stop()
        assert list(marked_processes(engine_bench.mark)) == []
