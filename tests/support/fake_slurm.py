"""A SLURM that runs nothing: programs sbatch, squeue, sacct and scancel that keep a list of jobs."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

_PROGRAM = """#!{python} -SE
import json, os, sys
from pathlib import Path
root = Path({root!r})
name, args = os.path.basename(sys.argv[0]), sys.argv[1:]
with (root / "calls.jsonl").open("a") as calls:
    calls.write(json.dumps([name, *args]) + "\\n")
jobs = root / "jobs"
option = lambda key: next((one.partition("=")[2] for one in args if one.startswith("--" + key + "=")), "")
if name == "sbatch":
    if (root / "refusal").exists() and len(list(jobs.iterdir())) >= int((root / "refusal").read_text().split()[0]):
        sys.exit("sbatch: error: " + (root / "refusal").read_text().split(" ", 1)[1])
    number = str(100 + len(list(jobs.iterdir())))
    job = {{"comment": option("comment"), "state": "PENDING", "name": option("job-name")}}
    (jobs / number).write_text(json.dumps(job))
    if (root / "killed").exists():
        os.kill(os.getppid(), 9)
    print(number + ";cluster")
elif name == "squeue":
    wanted = args[args.index("--jobs") + 1].split(",") if "--jobs" in args else None
    for job in sorted(jobs.iterdir()):
        found = json.loads(job.read_text())
        if found["state"] == "PURGED" or (wanted and job.name not in wanted):
            continue
        if option("Format"):
            print(found["state"], 0, "2026-11-23T00:00:00")
        else:
            print(job.name, found["state"], found["comment"], sep="|")
elif name == "scancel":
    for number in args:
        if (jobs / number).exists():
            (jobs / number).write_text(json.dumps({{**json.loads((jobs / number).read_text()), "state": "CANCELLED"}}))
else:
    sys.exit("Slurm accounting storage is disabled")
"""


@dataclass(frozen=True)
class FakeSlurm:
    root: Path

    @classmethod
    def create(cls, root: Path) -> FakeSlurm:
        (root / "jobs").mkdir(parents=True)
        (root / "bin").mkdir()
        for name in ("sbatch", "squeue", "sacct", "scancel"):
            path = root / "bin" / name
            path.write_text(_PROGRAM.format(python=sys.executable, root=str(root)))
            path.chmod(0o755)
        return cls(root)

    def environ(self, log: Path) -> dict[str, str]:
        """Variables of a user whose SLURM this is."""
        kept = {key: value for key, value in os.environ.items() if key not in ("LOG", "ACCOUNT", "CON")}
        return {**kept, "LOG": str(log), "PATH": f"{self.root / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    def calls(self, name: str) -> list[list[str]]:
        path = self.root / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call[1:] for call in map(json.loads, lines) if call[0] == name]

    def names(self) -> list[str]:
        return [json.loads(path.read_text())["name"] for path in sorted((self.root / "jobs").iterdir())]

    def set_state(self, job_id: str, state: str) -> None:
        """`PURGED`: SLURM no longer knows the job."""
        path = self.root / "jobs" / job_id
        path.write_text(json.dumps({**json.loads(path.read_text()), "state": state}))

    def refuse_after(self, jobs: int, message: str = "QOSMaxSubmitJobPerUserLimit") -> None:
        (self.root / "refusal").write_text(f"{jobs} {message}")

    def accept_all(self) -> None:
        (self.root / "refusal").unlink()

    def kill_the_caller_of_sbatch(self, *, on: bool = True) -> None:
        if on:
            (self.root / "killed").touch()
        else:
            (self.root / "killed").unlink()
