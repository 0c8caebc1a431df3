"""ng_doctor: checks this host and runs one rollout through the entire stack with the built-in policy."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar, Literal
from urllib.parse import urlsplit

import orjson
import uvloop
from pydantic import Field

from rollyard.cli.options import Options, names_of, read_options, unknown_option
from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import OperatorError, RollyardError, RunError, did_you_mean
from rollyard.records.jsonl import iter_jsonl, refuse
from rollyard.records.optional import EXTRAS, install_command, missing
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.script import EXIT_DONE, EXIT_FAILED
from rollyard.records.types import Json, Record, ServerRef
from rollyard.services.config.load import load
from rollyard.services.config.plugins import search_roots
from rollyard.services.config.run_config import RunConfig, ServerSpec
from rollyard.services.datasets.mixture import TaskFile
from rollyard.services.http.listener import bind
from rollyard.services.rollouts import collector
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.rollouts.store import RolloutStore
from rollyard.services.runtime.exposure import owner_of_port
from rollyard.services.runtime.launcher import Launcher, LocalLauncher
from rollyard.services.runtime.preflight import Preflight
from rollyard.services.runtime.process_setup import available_memory, raise_file_limit
from rollyard.services.runtime.run_dir import HOME, RunFolder, running_heads
from rollyard.services.runtime.stack import Stack, new_keys
from rollyard.services.sandbox.records import SandboxLimits
from rollyard.services.sandbox.sandbox import Sandbox

Status = Literal["ok", "note", "absent", "failed"]


class MachineFinding(Record):
    name: str
    status: Status
    """`note`: works with limitations. `absent`: an optional extra is not installed. `failed`: a run would fail."""
    found: str
    mend: str = ""


def ok(name: str, found: str) -> MachineFinding:
    return MachineFinding(name=name, status="ok", found=found)


def note(name: str, found: str, mend: str = "") -> MachineFinding:
    return MachineFinding(name=name, status="note", found=found, mend=mend)


def failed(name: str, found: str, mend: str = "") -> MachineFinding:
    return MachineFinding(name=name, status="failed", found=found, mend=mend)


def shown(finding: MachineFinding) -> str:
    """Format a finding as one line, followed by a line with the fix if there is one."""
    mark = {"ok": "ok", "note": "note", "absent": "-", "failed": "FAILED"}[finding.status]
    lines = [f"  {mark:<7} {finding.name:<14} {finding.found}"]
    if finding.mend:
        lines.append(f"  {'':<7} {'':<14} fix: {finding.mend}")
    return "\n".join(lines)


def conclude(findings: Sequence[MachineFinding], *, as_json: bool, failed: str, passed: str) -> int:
    """Print the findings as JSON, or how they ended, and return the exit status."""
    wrong = [finding.name for finding in findings if finding.status == "failed"]
    if as_json:
        listed = [finding.model_dump() for finding in findings]
        print(orjson.dumps({"ok": not wrong, "findings": listed}, option=orjson.OPT_INDENT_2).decode())
    else:
        print(f"{failed}: {', '.join(wrong)}" if wrong else passed)
    return EXIT_FAILED if wrong else EXIT_DONE


GIB = 1 << 30
HEAD_PORT = 11000
_ENGINE_VARIABLE = b"ROLLYARD_ENGINE="
"""Environment variable that local_vllm_model sets for an engine; its value is the engine's folder."""


def machine(folder: Path) -> Iterator[MachineFinding]:
    checks: list[Callable[[], Iterator[MachineFinding]]] = [
        _python,
        _processors,
        _memory,
        _open_files,
        lambda: _folder(folder),
        _temporary,
        lambda: _clock(folder),
        _loopback,
        _ports,
        _proxies,
        _terminal,
        _gpus,
        _extras,
        lambda: _leftovers(folder),
    ]
    for check in checks:
        try:
            yield from check()
        except (OSError, ValueError) as error:
            yield note(getattr(check, "__name__", "check").strip("_<>"), f"could not be checked: {error}")


async def sandbox() -> MachineFinding:
    jail = Sandbox(SandboxLimits())
    try:
        await jail.start()
        return ok("sandbox", f"{jail.layers.mode}; a test run succeeded and was contained (for mbpp and humaneval)")
    except OperatorError as error:
        why, _, fix = str(error).partition(". ")
        return note("sandbox", f"{why}; mbpp and humaneval refuse to start", fix or "ng_doctor sandbox")
    finally:
        await jail.stop()


def _python() -> Iterator[MachineFinding]:
    yield ok("python", f"{platform.python_version()} ({sys.executable})")
    if sys.platform != "linux":
        yield failed("system", platform.system(), "Rollyard runs on Linux; on other systems, use a Linux container")


def _processors() -> Iterator[MachineFinding]:
    count = len(os.sched_getaffinity(0))
    busy = os.getloadavg()[0]
    found = f"{count}, load {busy:.1f}"
    if busy > 2 * count:
        yield note("processors", found, "other processes keep this host busy; expect a slow run")
    else:
        yield ok("processors", found)


def _memory() -> Iterator[MachineFinding]:
    free, total, is_limited = available_memory()
    found = f"{free / GIB:.1f} GiB free of {total / GIB:.1f}{' (the limit of this container)' if is_limited else ''}"
    if free < GIB // 4:
        yield failed("memory", found, "a small stack needs 0.4 GiB; stop other processes")
    elif free < GIB:
        yield note("memory", found, "a small stack needs 0.4 GiB, half of that with --colocate")
    else:
        yield ok("memory", found)


def _open_files() -> Iterator[MachineFinding]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    episodes = hard - 200  # of a model server, the same estimate as in ng_collect_rollouts
    if episodes < 32:
        yield failed("open files", f"{hard}", "32 episodes in flight need 232: raise the limit (ulimit -Hn)")
    elif episodes < 1000:
        yield note(
            "open files", f"{hard}, enough for {episodes} episodes in flight", "raise the limit for more (ulimit -Hn)"
        )
    else:
        yield ok("open files", f"{hard}")


def _folder(folder: Path) -> Iterator[MachineFinding]:
    try:
        RunFolder.check(folder)
    except OperatorError as error:
        yield failed("folder", str(error).partition(". ")[0], "change to a folder that you may write to")
        return
    free = shutil.disk_usage(folder).free
    found = f"{folder}, {free / GIB:.1f} GiB free"
    if free < GIB // 20:
        yield failed("folder", found, "free some space, or use another disk")
    elif free < GIB:
        yield note("folder", found, "3,200 Sokoban rollouts take 60 MB; long conversations far more")
    else:
        yield ok("folder", found)


def _temporary() -> Iterator[MachineFinding]:
    try:
        free = shutil.disk_usage(tempfile.gettempdir()).free
    except OSError as error:
        yield failed("temporary", str(error), "set TMPDIR to a folder that you may write to")
        return
    found = f"{tempfile.gettempdir()}, {free / GIB:.1f} GiB free"
    yield ok("temporary", found) if free > GIB // 20 else failed("temporary", found, "free some space, or set TMPDIR")


def _clock(folder: Path) -> Iterator[MachineFinding]:
    year = time.gmtime().tm_year
    if not 2025 <= year < 2100:
        yield failed(
            "clock",
            time.strftime("%Y-%m-%d %H:%M:%S"),
            "set the clock, because TLS and resumed collections depend on it",
        )
        return
    existing = next(path for path in (folder, *folder.parents) if path.is_dir())
    with tempfile.NamedTemporaryFile(dir=existing) as file:
        difference_s = abs(Path(file.name).stat().st_mtime - time.time())
    found = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    if difference_s > 5:
        problem = f"the clock of the folder's file system differs by {difference_s:.0f} s"
        yield note("clock", f"{found}; {problem}", "synchronize both clocks by NTP")
    else:
        yield ok("clock", found)


def _loopback() -> Iterator[MachineFinding]:
    try:
        with contextlib.closing(bind("127.0.0.1", 0)) as sock:
            socket.create_connection(sock.getsockname(), 2.0).close()
    except OSError as error:
        yield failed("loopback", f"127.0.0.1 does not respond: {error}", "ip link set lo up")
        return
    try:
        bind("::1", 0).close()
        yield ok("loopback", "127.0.0.1 and ::1 respond")
    except OSError:
        yield ok("loopback", "127.0.0.1 responds; IPv6 is neither available nor required")


def _ports() -> Iterator[MachineFinding]:
    try:
        bind("127.0.0.1", HEAD_PORT).close()
        yield ok("ports", f"{HEAD_PORT} is free for the head")
    except OSError:
        taken = f"{HEAD_PORT} is taken{owner_of_port(HEAD_PORT)}"
        yield note("ports", f"{taken}; ng_run uses another port and prints it")


def _proxies() -> Iterator[MachineFinding]:
    names = ("http_proxy", "https_proxy", "all_proxy")
    given = {name: value for name in names if (value := os.environ.get(name) or os.environ.get(name.upper()))}
    if not given:
        yield ok("proxies", "none")
        return
    shown = ", ".join(f"{name} {urlsplit(value).hostname or 'unreadable'}" for name, value in given.items())
    without = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if any(name in without.split(",") for name in ("127.0.0.1", "localhost", "*")):
        yield ok("proxies", f"{shown}; not for {without}")
    else:
        yield note(
            "proxies",
            f"{shown}",
            "make tools like curl bypass the proxy for local servers: export NO_PROXY=127.0.0.1,localhost",
        )


def _terminal() -> Iterator[MachineFinding]:
    encoding = sys.stdout.encoding or "none"
    if encoding.lower().replace("-", "") != "utf8":
        yield note("terminal", f"output is written as {encoding}", "export LANG=C.UTF-8 (boards are drawn with √)")
    else:
        yield ok("terminal", f"{encoding}, {os.environ.get('TERM') or 'no TERM'}")


def _gpus() -> Iterator[MachineFinding]:
    if shutil.which("nvidia-smi") is None:
        yield ok("gpus", "none; only local_vllm_model, which starts its own engines, requires one")
        return
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        why = " ".join(str(getattr(error, "stderr", "") or error).split())
        yield note("gpus", f"nvidia-smi fails: {why[:200]}", "fix the driver before you start local_vllm_model")
        return
    names = [line.partition(" (UUID")[0] for line in listed.splitlines() if line.startswith("GPU ")]
    yield ok("gpus", "; ".join(names) or "none")


def _extras() -> Iterator[MachineFinding]:
    for name, extra in EXTRAS.items():
        if missing(extra):
            found = f"for {extra.purpose}"
            yield MachineFinding(name=f"[{name}]", status="absent", found=found, mend=install_command(name))
        else:
            yield ok(f"[{name}]", f"for {extra.purpose}")


def is_extra(finding: MachineFinding) -> bool:
    return finding.name.startswith("[")


def extras_in_one_line(findings: Sequence[MachineFinding]) -> MachineFinding:
    """Return one finding for all optional extras. --json lists them with what each is for."""
    extras = [finding for finding in findings if is_extra(finding)]
    installed, absent = (
        ", ".join(one.name[1:-1] for one in extras if (one.status == "absent") is is_absent) or "none"
        for is_absent in (False, True)
    )
    return ok("extras", f"optional; installed: {installed}; not installed: {absent} (--json says what each is for)")


def _leftovers(folder: Path) -> Iterator[MachineFinding]:
    running = running_heads(folder)
    for head in running:
        yield note("runs", f"run {head.run_id} of this folder is active at {head.url} (process {head.pid})")
    alive = {head.run_id for head in running}
    dead = [
        path.parent for path in (folder / HOME).glob("*/head.json") if path.parent.name.rpartition("-")[2] not in alive
    ]
    if dead:
        listed = " ".join(str(path.relative_to(folder)) for path in dead[:3])
        more = f" and {len(dead) - 3} more" if len(dead) > 3 else ""
        yield note("runs", f"{len(dead)} runs of this folder were killed; their folders are ignored: {listed}{more}")
    if not running and not dead:
        yield ok("runs", "no run of this folder is active")
    if left := _engine_processes():
        fix = f"kill {' '.join(map(str, left))}; the next start of local_vllm_model also does this"
        yield note("engines", f"{len(left)} processes of engines whose server has exited", fix)


def _engine_processes() -> list[int]:
    """Return the ids of this user's engine processes whose reaper is not running."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid == os.getuid():
                for entry in (process / "environ").read_bytes().split(b"\0"):
                    if entry.startswith(_ENGINE_VARIABLE) and not _has_reaper(
                        Path(os.fsdecode(entry[len(_ENGINE_VARIABLE) :]))
                    ):
                        found.append(int(process.name))
    return found


def _has_reaper(folder: Path) -> bool:
    """Return True if the engine's reaper process is running, which means that it holds its lock."""
    try:
        with (folder / "alive").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


EXAMPLE = "ng_doctor"
CHECKS = ("env", "sandbox", "tokens")
STUB = "configs/sokoban_builtin.yaml"
"""Config of a run that needs neither a GPU nor an API key."""


class DoctorOptions(Options):
    """Options of ng_doctor. Other keys override the configs, as with ng_run."""

    SUBJECT: ClassVar[str] = "config_paths"

    config_paths: tuple[str, ...] = ()
    """Configs of a run that you plan to start; its requirements are checked as well."""
    server_roots: tuple[str, ...] = ()
    """Additional folders to search for server folders and config files, as for ng_run."""
    rollout: bool | None = None
    """By default, run one rollout with the built-in policy; true: with the servers in config_paths; false: none."""
    agent_name: str | None = None
    """Agent that runs the rollout; required if config_paths define several agents."""
    input_jsonl_fpath: Path | None = None
    """File whose first row is used for the rollout; default: the environment's example rows."""
    json_output: bool = Field(default=False, alias="json")
    """Print the findings as JSON."""


def run(arguments: Sequence[str]) -> int:
    """Check this host, run one rollout through the entire stack, and list problems with suggested fixes.

    `ng_doctor sandbox` and `ng_doctor tokens` run more detailed checks. The exit status is 1 if a run would fail.
    """
    if arguments and (word := arguments[0]).isalpha():
        known = ", ".join(f"ng_doctor {check}" for check in CHECKS)
        raise OperatorError(
            f"unknown check {word!r}{did_you_mean(word, CHECKS)} (available: ng_doctor for this host, {known})"
        )
    options, overrides = read_options(DoctorOptions, arguments, rest=True)
    if overrides and not options.config_paths:
        raise OperatorError(
            f"{unknown_option(overrides[0], names_of(DoctorOptions), {})}; for settings, pass --config-paths [...]"
        )
    here = Path.cwd()
    roots = search_roots(here, options.server_roots)
    names = DoctorOptions.model_fields
    config = load(options.config_paths, overrides, roots, os.environ, options=names) if options.config_paths else None
    findings = uvloop.run(_run_checks(options, here, config))
    passed = "Everything that a run requires is available."
    return conclude(findings, as_json=options.json_output, failed="would fail", passed=passed)


async def _run_checks(options: DoctorOptions, here: Path, config: RunConfig | None) -> list[MachineFinding]:
    findings: list[MachineFinding] = []
    async for finding in _findings(options, here, config):
        findings.append(finding)
        if not options.json_output and not is_extra(finding):
            print(shown(finding), flush=True)
    if not options.json_output:
        print(shown(extras_in_one_line(findings)), flush=True)
    return findings


async def _findings(options: DoctorOptions, here: Path, config: RunConfig | None) -> AsyncIterator[MachineFinding]:
    raise_file_limit()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollyard"
    for finding in machine(here):
        yield finding
    yield await sandbox()
    if config is not None:
        async for finding in _config(config, cache):
            yield finding
    if options.rollout is not False:
        chosen = config if config is not None and options.rollout else load([STUB], [], [INSTALLED], {})
        is_own = chosen is config
        rows, agent = (options.input_jsonl_fpath, options.agent_name) if is_own else (None, None)
        policy = "" if is_own else " with the built-in policy"
        try:
            async with asyncio.timeout(ROLLOUT_TIMEOUT_S * 4):
                result = await _run_rollout(chosen, cache, agent, rows)
        except (RollyardError, TimeoutError) as error:
            problem = str(error) or f"did not finish within {ROLLOUT_TIMEOUT_S * 4:g} s"
            yield failed(
                "rollout", f"the rollout{policy} failed: {problem}", "fix the reported problem; --debug shows more"
            )
        else:
            yield ok("rollout", f"{result}{policy}")


async def _config(config: RunConfig, cache: Path) -> AsyncIterator[MachineFinding]:
    preflight = Preflight(config.servers, new_keys(), os.environ)
    try:
        await preflight.check(cache, head=None, colocate=False)
        advice = await preflight.advice()
        for text in advice:
            yield failed("endpoint", text)
        if not advice:
            yield ok("config", f"{len(config.servers)} servers are configured correctly, and their endpoints respond")
    except (OperatorError, RunError) as error:
        yield failed("config", str(error))
    finally:
        await preflight.close()


ROLLOUT_TIMEOUT_S = 120.0
"""Timeout for the rollout itself, not counting the start and stop of the servers."""


@asynccontextmanager
async def temporary_stack(
    config: RunConfig, launcher: Launcher | None, environ: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[Stack, Path]]:
    """Yield the started servers of the config, on free ports, and their temporary folder. They print nothing.

    `launcher`: None runs them in this process. Raises RunError if a server does not start.
    """
    with tempfile.TemporaryDirectory(prefix="rollyard-doctor-", ignore_cleanup_errors=True) as temporary:
        keys, folder = new_keys(), Path(temporary)
        stack = Stack(
            config,
            keys,
            RunFolder.create(folder, keys.run_id),
            print_line=lambda _: None,
            launcher=launcher,
            head_port=0,
            environ=environ,
        )
        try:
            await stack.start()
            yield stack, folder
        finally:
            await stack.stop()


async def _run_rollout(config: RunConfig, cache: Path, agent: str | None, rows: Path | None) -> str:
    """Start the servers, collect one rollout at temperature 0 and return a description of the result.

    It uses the same code as ng_run and ng_collect_rollouts. Raises RollyardError if a step fails.
    """
    agent_spec = _agent(config, agent)
    tasks = TaskFile(rows or _example(config, agent_spec), agent=agent_spec.name, limit=1)
    started = time.monotonic()
    async with temporary_stack(config, LocalLauncher(cache), os.environ) as (stack, folder):
        ready_s = time.monotonic() - started
        row = await _collect(stack, tasks, folder / "rollouts.jsonl")
    success = "" if "success" not in row else ", success" if row["success"] else ", no success"
    times = f"ready in {ready_s:.1f} s, {time.monotonic() - started:.1f} s in total"
    return f"{agent_spec.name}: reward {row['reward']:.4g}{success}; {row.get('finish_reason')} ({times})"


async def _collect(stack: Stack, tasks: TaskFile, output: Path) -> Json:
    store = RolloutStore(RolloutPaths(output), {}, {}, resume=True, overwrite=False)
    progress = CollectionProgress(tasks.count)
    try:
        store.load(progress.count)
        limits = collector.CollectionLimits(parallel=1, max_attempts=2, rollout_timeout_s=ROLLOUT_TIMEOUT_S)
        collecting = collector.Collector(tasks.rollouts(1), {"temperature": 0}, stack.client, store, progress, limits)
        await collecting.run()
    finally:
        store.close()
    rows = await asyncio.to_thread(lambda: list(iter_jsonl(output, refuse(output))))
    if len(rows) != 1:
        why = "; ".join(f"{row.failure_kind} at {row.server}: {row.detail}" for row in collecting.failures)
        raise RunError(why or "no rollout was stored")
    return rows[0].value


def _agent(config: RunConfig, name: str | None) -> ServerSpec:
    agents = {spec.name: spec for spec in config.servers if spec.family == "agents"}
    if name is None and len(agents) == 1:
        return next(iter(agents.values()))
    if name not in agents:
        found = ", ".join(agents) or "none"
        raise OperatorError(f"select an agent with --agent-name ...; available: {found}")
    return agents[name]


def _example(config: RunConfig, agent_spec: ServerSpec) -> Path:
    """Return the file with example rows for the agent's environment. Raises OperatorError if there is none."""
    named = {value.name for _, value in agent_spec.settings if isinstance(value, ServerRef)}
    for spec in config.servers:
        if (
            spec.external_url is None
            and spec.name in named
            and (path := spec.folder / "data" / "example.jsonl").is_file()
        ):
            return path
    raise OperatorError(f"no example rows for {agent_spec.name}; pass some with --input-jsonl-fpath rows.jsonl")
