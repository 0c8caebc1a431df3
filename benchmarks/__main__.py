"""`python -m benchmarks` measures every claim about speed, memory and verdicts on this host.

A missed target is printed but is not an error; the exit status is 1 only if a benchmark crashed.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable

from benchmarks import (
    collector_memory,
    concurrency,
    findings,
    latency,
    profile,
    sandbox,
    scale,
    sokoban,
    startup,
    tokens,
    turns,
    verdict_rates,
    verdicts,
    viewer,
)


def main() -> int:
    """Run all benchmarks; return 1 if one crashed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smoke test; the numbers are not representative")
    quick = parser.parse_args().quick
    chosen = ["--quick"] if quick else []
    parts: list[tuple[str, Callable[[], None]]] = [
        ("sokoban", sokoban.main),
        ("startup", lambda: startup.main(chosen)),
        ("turns", lambda: turns.main(chosen)),
        ("tokens", lambda: tokens.main(chosen)),
        ("latency", lambda: latency.main(chosen)),
        ("concurrency", lambda: concurrency.main(chosen)),
        ("collector_memory", lambda: collector_memory.main(chosen)),
        ("profile", lambda: profile.main(chosen)),
        ("findings", lambda: findings.main(chosen)),
        ("sandbox", lambda: sandbox.main(chosen)),
        ("verdicts", lambda: verdicts.main(chosen)),
        ("verdict_rates", lambda: verdict_rates.main(chosen)),
        ("viewer", lambda: viewer.main(chosen)),
        ("scale", lambda: scale.main(chosen)),
    ]
    started = time.monotonic()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{os.cpu_count()} CPUs, Python {platform.python_version()}, load average before: {load}")
    # The Sokoban benchmark has no short form.
    crashed = [name for name, part in parts[1 if quick else 0 :] if not _succeeded(name, part)]
    print(f"\n{time.monotonic() - started:.0f} s" + (f"; crashed: {', '.join(crashed)}" if crashed else ""))
    return 1 if crashed else 0


def _succeeded(name: str, part: Callable[[], None]) -> bool:
    print(f"\n== {name}", flush=True)
    try:
        part()
    except Exception:
        traceback.print_exc()
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
