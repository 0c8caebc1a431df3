"""A private SLURM of two simulated nodes with eight fake GPUs each, from Debian's packages, in its own folder.

Daemons are started by hand on free ports and ended by their process ids. Nothing of an installed SLURM is touched.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.processes import free_port, processes_with
from tests.support.waiting import deadline_s, eventually

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "srun")
NODES = ("n1", "n2")

CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.socket
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
AccountingStoreFlags=job_comment
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/log/jobcomp.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1,requeue_delay=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PriorityType=priority/basic
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=300
InactiveLimit=0
KillWait=5
MinJobAge=15
Waittime=0
JobRequeue=1
MaxArraySize=1001
GresTypes=gpu
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[0]} CPUs=64 RealMemory=64000 Gres=gpu:8
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=64 RealMemory=64000 Gres=gpu:8
PartitionName=batch Nodes=n1,n2 Default=YES MaxTime=INFINITE DefaultTime=10 DefMemPerCPU=100 State=UP PriorityTier=1
PartitionName=urgent Nodes=n1,n2 MaxTime=INFINITE DefaultTime=10 DefMemPerCPU=100 State=UP PriorityTier=10
"""


@dataclass
class Cluster:
    """The running daemons. Commands find them through the environment variable SLURM_CONF."""

    folder: Path
    ports: list[int] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def start(self) -> None:
        for name in ("run", "log", "state", "dev", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir()
        self._write_files()
        run = self.folder / "run"
        (run / "munge.key").write_bytes(os.urandom(1024))
        (run / "munge.key").chmod(0o400)
        files = (f"--{option}={run}/munge.{end}" for option, end in (("key-file", "key"), ("seed-file", "seed")))
        log = f"--log-file={self.folder}/log/munged.log"
        self.client("munged", "--force", f"--socket={run}/munge.socket", f"--pid-file={run}/munged.pid", log, *files)
        self.client("slurmctld", "-c", "-f", str(self.folder / "slurm.conf"))
        for node in NODES:
            self.start_node(node)
        eventually("two idle nodes", lambda: self.idle_nodes() == set(NODES))

    def start_node(self, node: str) -> None:
        self.client("slurmd", "-N", node, "-f", str(self.folder / "slurm.conf"))

    def idle_nodes(self) -> set[str]:
        return set(self.client("sinfo", "-h", "-N", "-t", "idle", "-p", "batch", "-o", "%N").split())

    def pid(self, daemon: str) -> int:
        """The process id of `slurmctld`, `slurmd-n1`, ..."""
        return int((self.folder / "run" / f"{daemon}.pid").read_text())

    def client(self, *command: str) -> str:
        """Run a command and return its output."""
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        done = subprocess.run(command, env=self.environment, timeout=deadline_s(), check=False, **streams)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return str(done.stdout)

    def stop(self) -> None:
        """End the daemons and every process of their jobs."""
        pids = []
        for path in (self.folder / "run").glob("*.pid"):
            with contextlib.suppress(ValueError, OSError):  # a daemon removes its file when it ends
                pids.append(int(path.read_text()))
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGTERM)
        for pid in [*processes_with("SLURM_CONF", str(self.folder / "slurm.conf")), *pids]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _write_files(self) -> None:
        host = socket.gethostname().partition(".")[0]
        controller, *ports = (free_port() for _ in range(3))
        text = CONF.format(host=host, folder=self.folder, controller_port=controller, ports=ports)
        (self.folder / "slurm.conf").write_text(text)
        devices = f"{self.folder}/dev/fakegpu"
        for number in range(8):
            os.mknod(f"{devices}{number}", 0o666 | 0o020000, os.makedev(1, 3))
        (self.folder / "gres.conf").write_text(f"NodeName=n[1-2] Name=gpu File={devices}[0-7]\n")


@contextlib.contextmanager
def running_cluster() -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # sockets: a path of at most 107 characters
    folder.chmod(0o755)
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
