"""Output: what a simulated collection has written, and what must hold of its files whenever one of them changes."""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import orjson

from rollyard.records.errors import FailureKind
from rollyard.records.rollout_keys import Key, Shard
from rollyard.records.types import Json
from rollyard.services.rollouts.collector import CollectionLimits
from tests.sim.episodes import Broken, Ledger, check_row

_SHARD = re.compile(r"\.shard-(\d+)-of-(\d+)")
ASIDE = re.compile(r"_(torn|recovered)\.|\.stale|\.\d{8}-\d{6}")
"""Files in which the product keeps what others have damaged, or what was there before --overwrite."""
EDIT = b"\x01"
"""What another program puts into a file; valid nowhere in JSON."""


class Row(NamedTuple):
    key: Key
    reward: float
    success: bool


@dataclass
class Command:
    """What one process of a collection has written."""

    rows: int = 0
    attempts: Counter[Key] = field(default_factory=Counter)
    """Failed attempts of each rollout."""
    abandoned: set[Key] = field(default_factory=set)
    counted: dict[str, int] = field(default_factory=dict)
    """File -> its size when the last status was written."""
    sums: bool = False
    """Whether its status is the sum of what the processes say that it has started."""
    most: float = float("inf")
    """Most lines that it may write: after an interrupt, one for each rollout in flight."""

    @property
    def lines(self) -> int:
        return self.rows + self.attempts.total()


class Output:
    def __init__(
        self,
        path: Path,
        tasks: int,
        repeats: int,
        refused: set[int],
        failures: frozenset[str],
        ledger: Ledger,
        limits: CollectionLimits,
        synced: Callable[[Path], int],
        *,
        is_ours: bool,
    ) -> None:
        """`refused`: tasks that their environment rejects. `failures`: kinds of failures that other attempts may have.
        `synced` returns how many bytes of a file a power failure leaves. `is_ours`: no other program changes the files.
        """
        self.path = path
        self.every: set[Key] = {(task, repeat) for task in range(tasks) for repeat in range(repeats)}
        self.refused = {key for key in self.every if key[0] in refused}
        self.commands: defaultdict[str, Command] = defaultdict(Command)
        """Process -> what it has written."""
        self.reported: set[Key] = set()
        """What is in files that nobody but the commands has touched since one ended as complete."""
        self._failures = failures
        self._limits = limits
        self._synced = synced
        self._ledger = ledger
        self._is_ours = is_ours
        self._pieces: set[bytes] = set()
        """Lines that were written, and what killed processes have left of lines. None of them may ever be lost."""

    @property
    def due(self) -> set[Key]:
        """What must be measured in the end."""
        return self.every - self.refused

    @property
    def folder(self) -> Path:
        return self.path.parent

    def start_over(self) -> None:
        self._pieces.clear()
        self.reported.clear()

    def interrupted(self, process: str, in_flight: int) -> None:
        command = self.commands[process]
        command.most = min(command.most, command.lines + in_flight)

    def is_done(self, shard: Shard | None, how: str) -> bool:
        """Whether a command that has ended so has nothing left to do. Raises Broken if it says so, and has."""
        share = {key for key in self.due if shard is None or key in shard}
        missing = share - self.rows().keys()
        if how not in ("complete", "incomplete") or (how == "incomplete" and missing):
            return False
        if self._is_ours:
            if missing:
                raise Broken(f"a command has ended as complete, and {sorted(missing)} are missing")
            self.reported |= share
        return True

    def rows(self) -> dict[Key, Row]:
        """The complete rows in all files."""
        files = (self.path, *sorted(self.folder.glob("rollouts.shard-*-of-?.jsonl")))
        return {row.key: row for path in files for row in rows_in(_read(path))}

    def process_died(self, paths: list[str]) -> None:
        """Remember what a process that had these files open has left in them."""
        for path in paths:
            if self._is_output(Path(path)):
                self._pieces.update(_read(Path(path)).split(b"\n"))

    def check_kept(self) -> None:
        """Raise Broken unless everything that was written is still there, in whatever file."""
        if self._is_ours and (lost := self._pieces - self._present()):
            raise Broken(f"{len(lost)} lines were left out of the files that had been written, as {min(lost)[:300]!r}")

    def check_reported(self) -> None:
        """Raise Broken if a power failure took what a command has reported as complete."""
        if lost := self.reported - self.rows().keys():
            raise Broken(f"commands have ended as complete, and a power failure took {sorted(lost)}")
        self._pieces = self._present()

    def check_change(self, process: str, path: Path) -> None:
        """Raise Broken unless what a process has written to a file is right."""
        if path.name.endswith("_status.json"):
            self._check_status(process, path)
        elif self._is_output(path):
            self._check_last_line(process, path)

    def check_end(self) -> None:
        """Raise Broken unless the output is complete, nothing else is left, and the status says so."""
        self.check_kept()
        if not self.path.exists():
            raise Broken("the output has left out everything")
        keys = Counter(row.key for row in rows_in(self.path.read_bytes()))
        if keys != Counter(self.due):
            raise Broken(f"the output has {sorted(keys.elements())}; expected each of {sorted(self.due)} once")
        rows = [orjson.loads(line) for line in self.path.read_bytes().splitlines()]
        for row in rows:
            check_row(row, self._ledger)
        proofs = Counter(row["proof"] for row in rows)
        if repeated := [one for one, count in proofs.items() if count > 1]:
            raise Broken(f"one episode gave two rows: {repeated}")
        status = orjson.loads(self.path.with_name("rollouts_status.json").read_bytes())
        state = "incomplete" if self.refused else "complete"
        found = status["state"], status["expected"], status["measured"], status["failed"]
        if found != (state, len(self.every), len(self.due), len(self.refused)):
            raise Broken(f"the last status is {status}")
        names = [path.name for path in self.folder.iterdir() if not ASIDE.search(path.name)]
        if left := [name for name in names if name.startswith((".", "rollouts.shard"))]:
            raise Broken(f"temporary files are left: {left}")

    def _is_output(self, path: Path) -> bool:
        return path.suffix == ".jsonl" and path.parent == self.folder and not ASIDE.search(path.name)

    def _present(self) -> set[bytes]:
        files = [path for path in self.folder.iterdir() if ".jsonl" in path.name]
        return {piece for path in files for piece in path.read_bytes().split(b"\n")}

    def _check_last_line(self, process: str, path: Path) -> None:
        content = _read(path)
        line = content[content.rfind(b"\n", 0, -1) + 1 : -1]
        if not content.endswith(b"\n") or EDIT in line:
            return
        is_failure = path.stem.endswith("_failures")
        if not is_failure and len(rows := rows_in(content)) != len({row.key for row in rows}):
            raise Broken(f"{path.name} has a rollout twice: {rows}")
        if line in self._pieces:
            return  # a merge has copied it
        row, failures = orjson.loads(line), path if is_failure else path.with_name(f"{path.stem}_failures.jsonl")
        attempts = [_key_of(one) for one in _lines(_read(failures)) if one != line].count(_key(row))
        if row["_ng_attempt_index"] != attempts and self._is_ours:
            raise Broken(f"{attempts} attempts of this rollout have failed before in {failures.name}: {line[:300]!r}")
        if is_failure:
            self._check_failure(self.commands[process], row)
        else:
            self.commands[process].rows += 1
            check_row(row, self._ledger)
        self._pieces.add(line)
        if (command := self.commands[process]).lines > command.most:
            raise Broken(f"a command was interrupted, and has started a rollout: {line[:300]!r}")

    def _check_failure(self, command: Command, row: Json) -> None:
        key, kind = (row["_ng_task_index"], row["_ng_rollout_index"]), row["failure_kind"]
        if key not in self.every or "reward" in row:
            raise Broken(f"no attempt can have failed so: {row}")
        if kind not in self._failures and not (kind == FailureKind.BAD_TASK and key in self.refused):
            raise Broken(f"an attempt has failed without a cause: {row}")
        command.attempts[key] += 1
        is_last = row["terminal"] or command.attempts[key] == self._limits.max_attempts
        if row["abandoned"] != is_last or key in command.abandoned:
            raise Broken(f"attempt {command.attempts[key]} of {self._limits.max_attempts} says otherwise: {row}")
        if is_last:
            command.abandoned.add(key)
        if row["duration_s"] > 2 * self._limits.rollout_timeout_s:
            raise Broken(f"an attempt has not ended after {2 * self._limits.rollout_timeout_s} s: {row}")

    def _check_status(self, process: str, path: Path) -> None:
        """A status says what is in the files, unless another program changes them, which is found a second later."""
        status = orjson.loads(path.read_bytes())
        if not self._is_ours:
            return
        shard = shard_of(path)
        rows = [row for row in self.rows().values() if shard is None or row.key in shard]
        if status["measured"] > len(rows):
            raise Broken(f"{path.name} counts {status['measured']} rollouts, and {len(rows)} are in the files")
        if status["state"] == "complete" and status["measured"] != status["expected"]:
            raise Broken(f"{path.name} is complete with {status['measured']} of {status['expected']} rollouts")
        if not process.startswith("collector#" if shard is None else f"collector-{shard.number}#"):
            return  # a merge, which does not see what running jobs measure meanwhile
        command = self.commands[process]
        if command.sums and status["state"] == "running":
            return  # a little late
        if status["state"] == "running":
            self._check_synced(command, path)
        seconds = status["updated"] - status["started"]
        mean = sum(row.reward for row in rows) / max(len(rows), 1)
        expected = {
            "measured": len(rows),
            "successes": sum(row.success for row in rows),
            "mean_reward": mean,
            "failed": len(command.abandoned | self._rejected(shard)),
            "failed_attempts": command.attempts.total(),
            "in_flight": min(status["in_flight"], (self._limits.parallel or 0) if status["state"] == "running" else 0),
        }
        if command.sums:
            del expected["failed"], expected["failed_attempts"]
        wrong = {name for name, value in expected.items() if status[name] is not None and status[name] != value}
        if not command.sums and abs(status["rollouts_per_s"] * seconds - command.rows) > 0.001 * seconds + 0.1:
            wrong.add("rollouts_per_s")
        if wrong:
            found = {name: status[name] for name in sorted(wrong)}
            raise Broken(f"{path.name}, a status of {command}, has {found}; expected {expected}")

    def _check_synced(self, command: Command, status: Path) -> None:
        """A power failure leaves what the status before has counted."""
        stem = status.name.removesuffix("_status.json")
        for name in (f"{stem}.jsonl", f"{stem}_failures.jsonl"):
            path, before = status.with_name(name), command.counted.get(name, 0)
            if (found := self._synced(path)) < before:
                raise Broken(f"{name} had {before} bytes at the last status, and {found} are on the disk")
            command.counted[name] = path.stat().st_size

    def _rejected(self, shard: Shard | None) -> set[Key]:
        """The rollouts whose failures files say that their task was rejected."""
        if not self.refused:
            return set()
        files = self.folder.glob("rollouts*_failures.jsonl")
        rows = (orjson.loads(line) for path in files for line in _lines(_read(path)))
        keys = {_key(row) for row in rows if row["failure_kind"] == FailureKind.BAD_TASK}
        return {key for key in keys if shard is None or key in shard}


def shard_of(path: Path) -> Shard | None:
    found = _SHARD.search(path.name)
    return Shard(int(found[1]), int(found[2])) if found else None


def rows_in(content: bytes) -> list[Row]:
    return [_row(line) for line in _lines(content)]


def _lines(content: bytes) -> list[bytes]:
    return [line for line in content.split(b"\n")[:-1] if EDIT not in line]


@functools.lru_cache(maxsize=1000)
def _row(line: bytes) -> Row:
    row = orjson.loads(line)
    return Row(_key(row), row["reward"], row["success"])


def _key_of(line: bytes) -> Key:
    return _key(orjson.loads(line))


def _key(row: Json) -> Key:
    return row["_ng_task_index"], row["_ng_rollout_index"]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
