"""`python -m tests.external.nemo_gym.compatibility [NAME...]`: plays environments and writes the table."""

from __future__ import annotations

import argparse
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.external.nemo_gym.compatibility import results, table
from tests.external.nemo_gym.compatibility.catalog import PYTHON, Environment, environments
from tests.external.nemo_gym.compatibility.comparison import compare
from tests.external.nemo_gym.compatibility.results import Result
from tests.external.nemo_gym.compatibility.warm_python import WarmPython


def main() -> None:
    parser = argparse.ArgumentParser(prog="compatibility", description=__doc__)
    parser.add_argument("names", nargs="*", help="environments to play; without any, all. The others keep their rows")
    parser.add_argument("--jobs", type=int, default=4, help="environments that are played at the same time")
    parser.add_argument("--cold", action="store_true", help="start each program in an interpreter of its own: slower")
    parser.add_argument("--keep", type=Path, help="folder in which the runs and logs are kept")
    options = parser.parse_args()
    known = environments()
    if unknown := set(options.names) - {environment.name for environment in known}:
        parser.error(f"no environment {', '.join(sorted(unknown))}; docs/evidence/compatibility.md lists them")
    chosen = [environment for environment in known if not options.names or environment.name in options.names]
    with tempfile.TemporaryDirectory(prefix="compatibility-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        played = play(chosen, folder, options.jobs, cold=options.cold)
    earlier = results.read() if options.names else {}
    merged = {**earlier, **{result.name: result for result in played}}
    listed = [merged[environment.name] for environment in known if environment.name in merged]
    results.write(listed)
    table.PAGE.write_text(table.page(listed))
    print(table.summary(listed))


def play(chosen: list[Environment], folder: Path, jobs: int, *, cold: bool = False) -> list[Result]:
    """Play the environments, `jobs` at a time, and print each result."""
    warm = None if cold else WarmPython(folder)
    try:
        with ThreadPoolExecutor(jobs) as threads:
            python = PYTHON if warm is None else warm.python
            played = []
            for result in threads.map(lambda one: compare(one, python, folder), chosen):
                print(
                    f"{result.name:<60} {'equal' if result.equal else result.reason}  {list(result.theirs)}", flush=True
                )
                played.append(result)
            return played
    finally:
        if warm is not None:
            warm.close()


if __name__ == "__main__":
    main()
