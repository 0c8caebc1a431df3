"""`python -m benchmarks` measures every claim about speed, memory and verdicts on this host.

Each program runs in a process of its own, one after the other. A missed target is printed but is not an error; the exit
status is 1 only if a program crashed. With `--quick`, several run at once with small sizes: it checks that each runs to
its end and prints its tables.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

# With --quick, the longest are started first.
PROGRAMS = (
    "scale",
    "concurrency",
    "turns",
    "layers",
    "startup",
    "viewer",
    "tokens",
    "verdict_rates",
    "verdicts",
    "profile",
    "collector_memory",
    "sandbox",
)
AT_ONCE = 4
"""With --quick: most programs wait for processes to start."""
TABLE = re.compile(r"^-[- ]*\n.*\d", re.MULTILINE)


def main() -> int:
    """Run all benchmarks; return 1 if one crashed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smoke test; the numbers are not representative")
    quick = parser.parse_args().quick
    started = time.monotonic()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{os.cpu_count()} CPUs, Python {platform.python_version()}, load average before: {load}", flush=True)
    with ThreadPoolExecutor(AT_ONCE if quick else 1) as threads:
        succeeded = list(threads.map(smoke_test if quick else measure, PROGRAMS))
    crashed = [name for name, success in zip(PROGRAMS, succeeded, strict=True) if not success]
    print(f"\n{time.monotonic() - started:.0f} s" + (f"; crashed: {', '.join(crashed)}" if crashed else ""))
    return 1 if crashed else 0


def measure(name: str) -> bool:
    print(f"\n== {name}", flush=True)
    return subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode == 0


def smoke_test(name: str) -> bool:
    """Return whether the program ended well and printed a table with a figure."""
    started = time.monotonic()
    command = [sys.executable, "-m", f"benchmarks.{name}", "--quick"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(f"\n== {name}: {time.monotonic() - started:.0f} s\n{done.stdout}", end="", flush=True)
    return done.returncode == 0 and TABLE.search(done.stdout) is not None


if __name__ == "__main__":
    sys.exit(main())
